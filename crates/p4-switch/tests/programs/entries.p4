// Selectors, action profiles, direct meters and counters, for tests that set entries by number.
#include <v1model.p4>

header in_t { bit<8> a; bit<8> flow; bit<8> result; }
struct headers { in_t i; }
struct meta { bit<2> color; }

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    action_selector(HashAlgorithm.crc16, 16, 16) paths;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) rate;
    action give(bit<8> value) { h.i.result = value; rate.read(m.color); }
    action none() { h.i.result = 0xee; }
    table chosen {
        key = { h.i.a: exact; h.i.flow: selector; }
        actions = { give; none; }
        default_action = none();
        implementation = paths;
    }
    table spread {
        key = { h.i.a: exact; h.i.flow: selector; }
        actions = { give; none; }
        default_action = none();
        @name("spread_paths") implementation = action_selector(HashAlgorithm.crc16, 16, 16);
    }
    table metered {
        key = { h.i.a: exact; }
        actions = { give; NoAction; }
        counters = hits;
        meters = rate;
    }
    apply {
        s.egress_spec = 1;
        metered.apply();
        if (h.i.result == 0xff) { spread.apply(); } else { chosen.apply(); }
        h.i.flow = (bit<8>)m.color;
    }
}
#include "frame.inc"
