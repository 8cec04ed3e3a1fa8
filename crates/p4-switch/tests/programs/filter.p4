// The eBPF model: a filter with a table and a counter.
#include <ebpf_model.p4>

header in_t { bit<8> kind; bit<16> port; }
struct headers { in_t i; }

parser P(packet_in p, out headers h) {
    state start {
        p.extract(h.i);
        transition select(h.i.kind) { 0xff: reject; default: accept; }
    }
}

control F(inout headers h, out bool pass) {
    CounterArray(8, true) seen;
    action refuse() { pass = false; }
    table ports {
        key = { h.i.port: exact; }
        actions = { refuse; NoAction; }
        default_action = NoAction;
        implementation = hash_table(8);
    }
    apply {
        pass = h.i.kind != 0;
        seen.increment((bit<32>)h.i.kind);
        seen.add(7, (bit<32>)h.i.port);
        ports.apply();
    }
}
ebpfFilter(P(), F()) main;
