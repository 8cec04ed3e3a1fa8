// Counters, meters, registers, action profiles, digests and value sets of v1model.
#include <v1model.p4>

header ethernet_t { bit<48> destination; bit<48> source; bit<16> kind; }
header option_t { bit<8> code; varbit<32> data; }
header_union option_union_t { option_t option; ethernet_t link; }
struct headers_t { ethernet_t ethernet; }
struct metadata_t { bit<16> hash; }
enum color_t { RED, GREEN }
struct inner_t { bit<8> a; int<7> b; }
struct learn_t {
    bit<48> address; @name("ingress") bit<9> port; inner_t inner; color_t color; bool known; error code;
}
struct pair_t<T> { T first; tuple<bit<1>, bool> second; }
struct set_t { @match(ternary) @brief("Kind") bit<16> kind; @id(1) bit<8> code; }

parser Read(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    @id(3) value_set<bit<16>>(4) kinds;
    value_set<set_t>(8) pairs;
    value_set<bit<8>>(1) unused;
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.kind) { kinds: second; default: accept; }
    }
    state second { transition select(h.ethernet.kind, 8w1) { pairs: accept; default: accept; } }
    state unreached { transition select(8w1) { unused: accept; default: accept; } }
}

counter(64, CounterType.packets_and_bytes) global_counter;

control MainIn(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    @name("ports") counter(1 << 4, CounterType.bytes) port_counter;
    direct_counter(CounterType.packets) entry_counter;
    direct_counter(CounterType.packets) alone;
    meter(8, MeterType.bytes) rate;
    direct_meter<bit<2>>(MeterType.packets) entry_rate;
    register<bit<32>>(128) last;
    register<pair_t<bit<8>>>(2) both;
    @max_group_size(4) @selector_size_semantics("sum_of_members") @max_member_weight(9)
    action_selector(HashAlgorithm.crc16, 32w16, 32w8) members;
    bit<2> color;
    action learn() {
        digest<learn_t>(
            1, { h.ethernet.source, s.ingress_port, { 1, 2 }, color_t.RED, true, error.NoError });
    }
    action pass() { entry_rate.read(color); }
    table hosts {
        key = { h.ethernet.source : exact; m.hash : selector; }
        actions = { learn; pass; }
        counters = entry_counter;
        meters = entry_rate;
        implementation = members;
    }
    table made {
        key = { h.ethernet.kind : exact; }
        actions = { pass; }
        @name("profile") implementation = action_profile(32);
    }
    table also { key = { h.ethernet.kind : exact; } actions = { pass; } implementation = members; }
    apply {
        hosts.apply();
        made.apply();
        also.apply();
        port_counter.count(1);
        rate.execute_meter(2, color);
        last.write(0, 1);
    }
}

control MainOut(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply {} }
control Verify(inout headers_t h, inout metadata_t m) { apply {} }
control Compute(inout headers_t h, inout metadata_t m) { apply {} }
control Write(packet_out packet, in headers_t h) { apply { packet.emit(h); } }
V1Switch(Read(), Verify(), MainIn(), MainOut(), Compute(), Write()) main;
