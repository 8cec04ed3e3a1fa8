//// accepted selections by masks, ranges, sets and structs
#include <core.p4>
enum bit<16> Kind { A = 1 }
header H { Kind k; bit<8> n; }
struct Pair { bit<8> a; bit<8> b; }
parser p(packet_in packet, out H h) {
    value_set<Pair>(4) pairs;
    state start {
        packet.extract(h);
        transition select(h.k, h.n) {
            (Kind.A, 1 .. 4): accept;
            (Kind.A &&& 0xff, _): next;
            default: reject;
        }
    }
    state next {
        transition select(h.n, h.n) { pairs: accept; (1, default): start; _: accept; }
    }
}
//// rejected parsers without a start
parser p() { state begin { transition accept; } }
//// rejected states twice, unknown, and reserved
parser p() {
    state start { transition nxt; }
    state next { transition accept; }
    state next { transition accept; }
    state accept { transition reject; }
}
//// rejected parsers that never end
parser p() { state start { transition next; } state next { transition start; } }
//// rejected sets that do not fit
parser p(in bit<8> a, in bit<8> b) {
    state start {
        transition select(a, b) { (1, 2, 3): accept; (true, 1): accept; 1: accept; (9w1, 1): accept; (1 .. true, 2): accept; }
    }
}
//// rejected selections on what has no equality
struct S { varbit<8> a; }
parser p(in S s) { state start { transition select(s.a) { default: accept; } } }
//// rejected extraction of what is no header, and of wrong sizes
#include <core.p4>
header Fixed { bit<8> a; }
header Varies { varbit<8> a; }
struct S { bit<8> a; }
parser p(packet_in packet, out Fixed f, out Varies v, out S s) {
    state start {
        packet.extract(s); packet.extract(f, 8); packet.extract(v); v = packet.lookahead<Varies>();
        transition accept;
    }
}
//// rejected statements of controls
parser p() { state start { return; exit; transition accept; } }
//// rejected controls in parsers
control c() { apply {} }
parser p() { c() inner; state start { inner.apply(); transition accept; } }
//// rejected `verify` in controls, `next` in controls
#include <core.p4>
header H { bit<8> a; }
control c(inout H[2] hs) { apply { verify(true, error.NoError); hs.next.a = 1; } }
//// rejected sets of numbers without a width
parser p(in bit<8> a) { value_set<int>(4) s; state start { transition select(a) { s: accept; _: accept; } } }
//// accepted sets of a select expression that are not known
#include <core.p4>
header h_t { bit<8> a; bit<8> b; }
parser p(packet_in k, out h_t h, in bit<8> low) {
    state start { k.extract(h); transition select(h.a) { h.b: accept; low..h.b: accept; h.b &&& low: accept; } }
}
//// rejected a struct in `select`
struct S { bit<8> a; }
parser p(in S s) { state start { transition select(s, 8w1) { default: accept; } } }
