// A switch with an object of every kind that P4Runtime names.
#include <core.p4>
#include <v1model.p4>

@controller_header("packet_in")
header packet_in_t { bit<9> ingress_port; bit<7> padding; }
@controller_header("packet_out")
header packet_out_t { bit<9> egress_port; bit<7> padding; }
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> length; bit<32> fragment; bit<8> ttl; bit<8> protocol;
    bit<16> checksum; bit<32> src; bit<32> dst;
}
struct headers { packet_out_t packet_out; packet_in_t packet_in; ethernet_t ethernet; ipv4_t ipv4; }
struct station_t { bit<48> address; bit<9> port; }
struct metadata { bit<2> color; bit<2> own_color; }

parser P(packet_in p, out headers h, inout metadata m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) ip_types;
    state start {
        transition select(s.ingress_port) { 255: from_controller; default: ethernet; }
    }
    state from_controller { p.extract(h.packet_out); transition ethernet; }
    state ethernet {
        p.extract(h.ethernet);
        transition select(h.ethernet.type) { ip_types: ipv4; default: accept; }
    }
    state ipv4 { p.extract(h.ipv4); transition accept; }
}
control V(inout headers h, inout metadata m) { apply { } }

control I(inout headers h, inout metadata m, inout standard_metadata_t s) {
    counter(8, CounterType.packets_and_bytes) by_port;
    meter(8, MeterType.bytes) rates;
    register<bit<32>>(4) seen;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) limits;
    action_profile(16) hops;
    action_selector(HashAlgorithm.crc16, 32, 16) choices;
    action_selector(HashAlgorithm.crc16, 32, 16) shots;

    action drop() { mark_to_drop(s); }
    action forward(bit<9> port) { s.egress_spec = port; }
    action flood(bit<16> group) { s.mcast_grp = group; }
    action to_controller() { s.egress_spec = 255; }
    action count_only() { }
    action limit() { limits.read(m.own_color); }
    action mirror() { clone(CloneType.I2E, 3); }

    table stations {
        key = { h.ethernet.dst: exact; }
        actions = { forward; flood; to_controller; mirror; drop; }
        default_action = drop();
        counters = hits;
        size = 65536;
        support_timeout = true;
    }
    table limited {
        key = { h.ethernet.src: exact; }
        actions = { limit; NoAction; }
        default_action = NoAction();
        meters = limits;
        size = 64;
    }
    table routes {
        key = { h.ipv4.dst: lpm; }
        actions = { forward; drop; NoAction; }
        default_action = NoAction();
        size = 1048576;
    }
    table filter {
        key = { h.ipv4.src: ternary; h.ipv4.protocol: range; h.ipv4.ttl: optional; }
        actions = { drop; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    table next_hops {
        key = { h.ipv4.tos: exact; }
        actions = { forward; NoAction; }
        implementation = hops;
        size = 64;
    }
    table spread {
        key = { h.ethernet.src: ternary; h.ethernet.dst: selector; }
        actions = { forward; NoAction; }
        implementation = choices;
        size = 64;
    }
    table sprayed {
        key = { h.ethernet.src: exact; h.ethernet.dst: selector; }
        actions = { forward; NoAction; }
        implementation = shots;
        size = 64;
    }
    apply {
        if (h.packet_out.isValid()) {
            s.egress_spec = h.packet_out.egress_port;
            h.packet_out.setInvalid();
        } else {
            bit<32> count;
            seen.read(count, 0);
            seen.write(0, count + 1);
            by_port.count((bit<32>) s.ingress_port);
            rates.execute_meter((bit<32>) s.ingress_port, m.color);
            digest<station_t>(1, { h.ethernet.src, s.ingress_port });
            limited.apply();
            stations.apply();
            spread.apply();
            sprayed.apply();
            if (h.ipv4.isValid()) {
                routes.apply();
                next_hops.apply();
                filter.apply();
            }
        }
    }
}
control E(inout headers h, inout metadata m, inout standard_metadata_t s) {
    apply {
        if (s.egress_port == 255) {
            h.packet_in.setValid();
            h.packet_in.ingress_port = s.ingress_port;
            h.packet_in.padding = 0;
        }
    }
}
control C(inout headers h, inout metadata m) { apply { } }
control D(packet_out p, in headers h) {
    apply { p.emit(h.packet_in); p.emit(h.ethernet); p.emit(h.ipv4); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
