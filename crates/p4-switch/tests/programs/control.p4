// Copies of arguments, exit, return, switch, functions, nested controls, loops, enumerations, slices.
#include <v1model.p4>

enum bit<8> Kind { alias = 1, leave = 2, choose = 3, loop = 4, nested = 5, tuples = 6 }
enum Color { red, green, blue }
header in_t { Kind kind; bit<8> a; bit<8> b; bit<8> c; }
struct headers { in_t i; }
struct pair { bit<8> x; bit<8> y; }
struct meta { pair p; Color color; }

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

bit<8> double_of(in bit<8> value) { return value << 1; }
T chosen<T>(in bool first, in T a, in T b) { if (first) { return a; } return b; }
void exchange(inout bit<8> a, inout bit<8> b) { bit<8> old = a; a = b; b = old; }

control Inner(inout bit<8> value, in bit<8> limit)(bit<8> step) {
    bit<8> local = 0;
    apply {
        if (value > limit) { local = 1; return; }
        value = value + step + local;
    }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    Inner(3) by_three;
    Inner(step = 5) by_five;

    // The parameter is a copy: the write to `h.i.a` is lost when `x` is copied out.
    action twice(inout bit<8> x) { h.i.a = 0x77; x = x + 1; }
    action leave_early(inout bit<8> x) { x = 0xee; exit; }
    action set_b(bit<8> v) { h.i.b = v; }
    action clear_c() { h.i.c = 0; }

    table chooser {
        key = { h.i.a: exact; }
        actions = { set_b; clear_c; NoAction; }
        const default_action = NoAction();
        const entries = { 1: set_b(0x42); 2: clear_c(); }
    }

    apply {
        s.egress_spec = 2;
        switch (h.i.kind) {
            Kind.alias: {
                twice(h.i.a);
                exchange(h.i.b, h.i.c);
                h.i.c[7:4] = h.i.c[3:0];
            }
            Kind.leave: {
                leave_early(h.i.b);
                h.i.c = 0xff;
            }
            Kind.choose: {
                switch (chooser.apply().action_run) {
                    set_b: { h.i.c = 1; }
                    clear_c:
                    NoAction: { h.i.c = h.i.c + 2; }
                }
                if (chooser.apply().hit) { h.i.a = 0xaa; } else { h.i.a = 0xbb; }
            }
            Kind.loop: {
                bit<8> sum = 0;
                for (bit<8> n in 1 .. h.i.a) {
                    if (n == 4) { continue; }
                    if (n == 7) { break; }
                    sum = sum + n;
                }
                h.i.b = sum;
                for (bit<8> n = 0; n < 3; n = n + 1) { h.i.c += n; }
            }
            Kind.nested: {
                by_three.apply(h.i.a, 10);
                by_five.apply(h.i.b, h.i.a);
                h.i.c = chosen(double_of(h.i.a) > h.i.b, double_of(h.i.a), h.i.b);
            }
            default: {
                tuple<bit<8>, bit<8>> t = { h.i.b, h.i.a };
                m.p = { y = t[0], x = t[1] };
                pair q = m.p;
                m.color = (q == m.p) ? Color.blue : Color.red;
                h.i = { h.i.kind, q.y, q.x, m.color == Color.blue ? 8w9 : 8w8 };
            }
        }
    }
}
#include "frame.inc"
