// Clones, resubmission, recirculation and multicast, with fields that survive.
#include <v1model.p4>
#define OWN_EGRESS

header in_t { bit<8> kind; bit<8> trace; }
struct headers { in_t i; }
struct meta {
    @field_list(1) bit<8> kept;
    bit<8> lost;
}

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 1;
        if (h.i.kind == 1) {
            m.kept = 0x11;
            m.lost = 0x22;
            h.i.trace = 0x99;
            clone_preserving_field_list(CloneType.I2E, 7, 1);
        } else if (h.i.kind == 2 && s.instance_type == 0) {
            m.kept = 0x33;
            h.i.trace = 0x99;
            resubmit_preserving_field_list(1);
        } else if (h.i.kind == 2) {
            h.i.trace = m.kept + (bit<8>)s.instance_type;
        } else if (h.i.kind == 3) {
            h.i.trace = h.i.trace + m.kept;
        } else if (h.i.kind == 4) {
            s.mcast_grp = 5;
        } else if (h.i.kind == 6) {
            s.mcast_grp = 6;
        }
    }
}

control Out(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        if (s.instance_type == 1) {
            h.i.trace = h.i.trace + m.kept + m.lost;
        } else if (h.i.kind == 3 && h.i.trace < 0x40) {
            m.kept = 0x10;
            recirculate_preserving_field_list(1);
        } else if (h.i.kind == 4) {
            h.i.trace = (bit<8>)s.egress_rid + (bit<8>)s.egress_port;
        } else if (h.i.kind == 5 && s.instance_type == 0) {
            h.i.trace = 0x55;
            m.kept = 1;
            m.lost = 1;
            clone_preserving_field_list(CloneType.E2E, 7, 1);
        } else if (h.i.kind == 5) {
            h.i.trace = h.i.trace + m.kept + m.lost;
        } else if (h.i.kind == 6) {
            h.i.trace = (bit<8>)s.enq_qdepth << 4 | (bit<8>)s.deq_qdepth;
        }
    }
}
#include "frame.inc"
