// PSA: unicast, multicast, clones, resubmission, recirculation, registers, checksums, hashes.
#include <psa.p4>

header in_t { bit<8> kind; bit<8> trace; bit<16> sum; }
struct headers { in_t i; }
struct meta { }
struct nothing { }
struct mark { bit<8> value; }

parser IP(packet_in p, out headers h, inout meta m, in psa_ingress_parser_input_metadata_t s,
          in mark resubmitted, in mark recirculated) {
    state start {
        p.extract(h.i);
        transition select(s.packet_path) {
            PSA_PacketPath_t.RESUBMIT: again;
            PSA_PacketPath_t.RECIRCULATE: around;
            default: accept;
        }
    }
    state again { h.i.trace = resubmitted.value; transition accept; }
    state around { h.i.trace = h.i.trace + recirculated.value; transition accept; }
}

control IC(inout headers h, inout meta m, in psa_ingress_input_metadata_t s,
           inout psa_ingress_output_metadata_t o) {
    Register<bit<8>, bit<8>>(4, 7) counts;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16) hash;
    apply {
        send_to_port(o, (PortId_t)2);
        if (h.i.kind == 1) {
            multicast(o, (MulticastGroup_t)5);
        } else if (h.i.kind == 2) {
            o.clone = true;
            o.clone_session_id = (CloneSessionId_t)16w8;
            h.i.trace = 0x22;
        } else if (h.i.kind == 3 && s.packet_path == PSA_PacketPath_t.NORMAL) {
            o.resubmit = true;
        } else if (h.i.kind == 4 && s.packet_path == PSA_PacketPath_t.NORMAL) {
            send_to_port(o, PSA_PORT_RECIRCULATE);
        } else if (h.i.kind == 5) {
            ingress_drop(o);
        } else if (h.i.kind == 6) {
            bit<8> old = counts.read(h.i.trace);
            counts.write(h.i.trace, old + 1);
            h.i.trace = old;
        } else if (h.i.kind == 7) {
            h.i.sum = hash.get_hash(h.i.trace);
        }
    }
}

control ID(packet_out p, out mark cloned, out mark resubmitted, out mark normal, inout headers h, in meta m,
           in psa_ingress_output_metadata_t o) {
    apply {
        if (psa_clone_i2e(o)) { cloned.value = 0x44; }
        if (psa_resubmit(o)) { resubmitted.value = 0x55; }
        if (psa_normal(o)) { normal.value = 0x01; }
        p.emit(h);
    }
}

parser EP(packet_in p, out headers h, inout meta m, in psa_egress_parser_input_metadata_t s,
          in mark normal, in mark cloned, in mark again) {
    state start {
        p.extract(h.i);
        transition select(s.packet_path) {
            PSA_PacketPath_t.CLONE_I2E: clone;
            default: accept;
        }
    }
    state clone { h.i.trace = cloned.value; transition accept; }
}

control EC(inout headers h, inout meta m, in psa_egress_input_metadata_t s,
           inout psa_egress_output_metadata_t o) {
    apply {
        if (s.packet_path == PSA_PacketPath_t.NORMAL_MULTICAST) {
            h.i.trace = (bit<8>)(bit<16>)s.instance;
        }
    }
}

control ED(packet_out p, out mark again, out mark around, inout headers h, in meta m,
           in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    InternetChecksum() sum;
    apply {
        if (psa_recirculate(o, d)) { around.value = 0x10; }
        if (h.i.kind == 8) {
            sum.clear();
            sum.add({ h.i.kind, h.i.trace });
            sum.add(16w0xfff0);
            sum.subtract(16w0x0001);
            h.i.sum = sum.get();
        }
        p.emit(h);
    }
}

IngressPipeline(IP(), IC(), ID()) ingress;
EgressPipeline(EP(), EC(), ED()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
