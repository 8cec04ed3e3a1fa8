// Value sets, generic types, constants, newtypes, structs in headers, shadowed names, list comparison.
#include <v1model.p4>

type bit<16> Tag;
typedef bit<4> Nibble;
const bit<8> OFFSET = 3;
const tuple<bit<8>, bit<8>> LIMITS = { OFFSET * 2, 0x40 };
struct nibbles { Nibble high; Nibble low; }
header in_t { bit<8> kind; nibbles n; Tag tag; int<8> small; }
header box<T> { T value; }
struct headers { in_t i; box<bit<24>> b; }
struct both<A, B> { A first; B second; }
struct meta { both<bit<8>, Tag> x; }

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    value_set<bit<8>>(4) kinds;
    state start {
        p.extract(h.i);
        transition select(h.i.kind, h.i.n.high) {
            (kinds, _): accept;
            (OFFSET, 1 .. 3): boxed;
            (_, 0xf): boxed;
            default: accept;
        }
    }
    state boxed { p.extract(h.b); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    const bit<8> local = OFFSET + 1;
    apply {
        s.egress_spec = 1;
        m.x = { first = local, second = (Tag)16w0xabcd };
        bit<8> kind = h.i.kind;
        {
            bit<8> kind = 0xee;
            h.i.n.low = kind[3:0];
        }
        if (h.b.isValid()) {
            h.i.tag = m.x.second;
            h.b.value = h.b.value + (bit<24>)LIMITS[1];
        }
        if (h.i.small < 0) { h.i.small = h.i.small >> 1; }
        if ({ h.i.n.high, h.i.n.low } == { 4w2, 4w0xe }) { h.i.kind = kind + LIMITS[0]; }
    }
}
#include "frame.inc"
