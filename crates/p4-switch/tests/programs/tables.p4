// Match kinds, priorities, defaults, wide keys, parameters of many widths, direct counters.
#include <v1model.p4>

header in_t { bit<8> kind; bit<8> a; bit<16> b; bit<32> c; bit<128> wide; }
struct headers { in_t i; }
struct meta { bit<8> result; }

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action give(bit<8> value) { m.result = value; }
    action give_wide(bit<128> value, bit<9> port) { h.i.wide = value; s.egress_spec = port; m.result = 1; }
    action from(in bit<8> first, bit<8> second) { m.result = first + second; }

    table by_value {
        key = { h.i.a: exact; h.i.wide: exact; }
        actions = { give; give_wide; }
        default_action = give(0xfe);
        counters = hits;
    }
    table by_prefix {
        key = { h.i.c: lpm; h.i.a: exact; }
        actions = { give; }
        const default_action = give(0xfd);
        size = 4;
    }
    table by_mask {
        key = { h.i.c: ternary; h.i.b: range; h.i.a: optional; h.i.isValid(): exact; }
        actions = { give; }
        default_action = give(0xfc);
    }
    table two_prefixes {
        key = { h.i.c: lpm; h.i.wide: lpm; }
        actions = { give; NoAction; }
    }
    table constant_ranges {
        key = { h.i.b: range; }
        actions = { give; from(h.i.a); }
        const entries = {
            5 .. 9: give(1);
            7: give(2);
            0x100 .. 0x1ff: from(3);
            _: give(4);
        }
    }
    apply {
        s.egress_spec = 1;
        if (h.i.kind == 1) { by_value.apply(); }
        else if (h.i.kind == 2) { by_prefix.apply(); }
        else if (h.i.kind == 3) { by_mask.apply(); }
        else if (h.i.kind == 4) { if (two_prefixes.apply().miss) { m.result = 0xcc; } }
        else { constant_ranges.apply(); }
        h.i.kind = m.result;
    }
}
#include "frame.inc"
