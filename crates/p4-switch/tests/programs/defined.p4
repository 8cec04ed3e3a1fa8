// Extern functions that the program declares, uses and then defines.
#include <v1model.p4>

header in_t { bit<8> kind; bit<16> sum; bit<32> old; bit<32> new; }
struct headers { in_t i; }
struct meta { }

extern bit<16> incremental_checksum(in bit<16> sum, in bit<32> old, in bit<32> new);
extern void swap(inout bit<32> left, inout bit<32> right);

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 1;
        if (h.i.kind == 1) { h.i.sum = incremental_checksum(h.i.sum, h.i.old, h.i.new); }
        else { swap(h.i.old, h.i.new); }
    }
}

bit<32> folded(in bit<32> sum) { return (sum & 0xffff) + (sum >> 16); }

// RFC 1624, equation 3.
bit<16> incremental_checksum(in bit<16> sum, in bit<32> old, in bit<32> new) {
    bit<32> total = (bit<32>)(~sum) + folded(~old) + folded(new);
    return ~folded(folded(total))[15:0];
}

void swap(inout bit<32> left, inout bit<32> right) {
    bit<32> kept = left;
    left = right;
    right = kept;
}
#include "frame.inc"
