// Encryption in ingress, and a clone of the encrypted packet in egress.
#include <v1model.p4>
#include <crypto.p4>
#define OWN_EGRESS

header in_t { bit<8> kind; bit<8> trace; }
struct headers { in_t i; }
struct meta {}

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 1;
        if (h.i.kind < 0x80) {
            aes_128_ctr(0x2b7e151628aed2a6abf7158809cf4f3c, 0xf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff);
        }
    }
}

control Out(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        if (s.instance_type == 0 && h.i.kind < 0xc0) {
            h.i.trace = 0x55;
            clone(CloneType.E2E, 7);
        }
    }
}
#include "frame.inc"
