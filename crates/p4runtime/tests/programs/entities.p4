// A table for each match kind, and an object of each kind, with ids of their own.
#include <v1model.p4>

@p4runtime_translation("example.org/port", string)
type bit<9> port_name_t;
header h_t { bit<8> a; bit<12> b; bit<32> c; bit<4> d; }
struct pair_t { bit<8> first; int<8> second; bool flag; }
struct H { h_t h; }
struct M { port_name_t port; bit<8> hash; }

parser P(packet_in b, out H h, inout M m, inout standard_metadata_t s) {
    @id(1) value_set<bit<8>>(2) kinds;
    state start { transition select(h.h.a) { kinds: accept; default: accept; } }
}
control I(inout H h, inout M m, inout standard_metadata_t s) {
    @id(1) counter(4, CounterType.packets) cells;
    @id(1) direct_counter(CounterType.packets) entries;
    @id(1) meter(4, MeterType.bytes) rates;
    @id(1) direct_meter<bit<8>>(MeterType.packets) entry_rates;
    @id(1) register<bit<12>>(4) numbers;
    @id(2) register<pair_t>(2) pairs;
    @id(1) @max_group_size(8) action_selector(HashAlgorithm.crc16, 4, 8) selector;
    @id(2) action_profile(1) profile;
    @id(1) action none() { entry_rates.read(m.hash); }
    @id(2) action set(@id(1) bit<12> b, @id(2) port_name_t port) { h.h.b = b; m.port = port; }
    @id(3) action only_default() {}
    @id(4) action never_default() {}
    @id(1) table exact_table {
        key = { h.h.a : exact @id(1); m.port : exact @id(2); }
        actions = { none; set; @defaultonly only_default; @tableonly never_default; }
        default_action = only_default();
        counters = entries;
        meters = entry_rates;
        size = 3;
        support_timeout = true;
    }
    @id(2) table mixed {
        key = { h.h.c : lpm @id(1); h.h.b : ternary @id(2); h.h.a : range @id(3); h.h.d : optional @id(4); }
        actions = { set; NoAction; }
    }
    @id(3) table prefix {
        key = { h.h.c : lpm @id(1); }
        actions = { set; NoAction; }
        const default_action = NoAction();
    }
    @id(4) table fixed {
        key = { h.h.a : exact @id(1); }
        actions = { set; NoAction; }
        const entries = { 1 : NoAction(); }
    }
    @id(5) table grouped {
        key = { h.h.a : exact @id(1); h.h.c : selector; }
        actions = { set; NoAction; }
        implementation = selector;
    }
    @id(6) table members { key = { h.h.a : exact @id(1); } actions = { set; } implementation = profile; }
    @id(7) table keyless { actions = { set; NoAction; } }
    @id(8) table seeded {
        key = { h.h.a : ternary @id(1); }
        actions = { NoAction; }
        entries = { const priority = 9: 1 &&& 7 : NoAction(); 2 &&& 7 : NoAction(); }
    }
    apply {
        seeded.apply();
        exact_table.apply();
        mixed.apply();
        prefix.apply();
        fixed.apply();
        grouped.apply();
        members.apply();
        keyless.apply();
        digest<pair_t>(1, { 1, 2, true });
    }
}
control E(inout H h, inout M m, inout standard_metadata_t s) { apply {} }
control V(inout H h, inout M m) { apply {} }
control D(packet_out b, in H h) { apply {} }
V1Switch(P(), V(), I(), E(), V(), D()) main;
