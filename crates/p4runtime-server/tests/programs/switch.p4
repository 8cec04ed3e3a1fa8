// A switch with an object of each kind that controllers reach.
#include <core.p4>
#include <v1model.p4>

#ifndef ACTION
#define ACTION forward
#endif

@controller_header("packet_in")
header packet_in_t { bit<9> ingress_port; bit<7> padding; }
@controller_header("packet_out")
header packet_out_t { bit<9> egress_port; bit<7> padding; }
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
struct headers { packet_out_t packet_out; packet_in_t packet_in; ethernet_t ethernet; }
struct station_t { bit<48> address; bit<9> port; }
struct metadata { bit<1> unused; }

parser P(packet_in p, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        transition select(s.ingress_port) { 255: from_controller; default: ethernet; }
    }
    state from_controller { p.extract(h.packet_out); transition ethernet; }
    state ethernet { p.extract(h.ethernet); transition accept; }
}
control V(inout headers h, inout metadata m) { apply { } }

control I(inout headers h, inout metadata m, inout standard_metadata_t s) {
    counter(4, CounterType.packets_and_bytes) by_port;
    register<bit<32>>(4) seen;
    direct_counter(CounterType.packets_and_bytes) hits;
    action_selector(HashAlgorithm.crc16, 32, 16) choices;

    action drop() { mark_to_drop(s); }
    action ACTION(bit<9> port) { s.egress_spec = port; }
    action flood(bit<16> group) { s.mcast_grp = group; }
    action to_controller() { s.egress_spec = 255; }

    table stations {
        key = { h.ethernet.dst: exact; }
        actions = { ACTION; flood; to_controller; drop; }
        default_action = drop();
        counters = hits;
        size = 65536;
        support_timeout = true;
    }
    table small {
        key = { h.ethernet.type: exact; }
        actions = { ACTION; NoAction; }
        default_action = NoAction();
        size = 2;
    }
    table spread {
        key = { h.ethernet.src: ternary; h.ethernet.dst: selector; }
        actions = { ACTION; NoAction; }
        implementation = choices;
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
            digest<station_t>(1, { h.ethernet.src, s.ingress_port });
            stations.apply();
            small.apply();
            spread.apply();
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
    apply { p.emit(h.packet_in); p.emit(h.ethernet); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
