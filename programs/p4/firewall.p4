// A stateless firewall: ternary rules over addresses, ports and flags decide by priority; what is allowed is routed.
// Rules may be several thousand.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

struct headers {
    ethernet_t ethernet;
    ipv4_t ipv4;
    tcp_t tcp;
    udp_t udp;
}
struct metadata {
    bit<16> source_port;
    bit<16> destination_port;
    bit<8> flags;
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.header_words, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_TCP): tcp;
            (5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    state tcp {
        packet.extract(hdr.tcp);
        meta.source_port = hdr.tcp.source;
        meta.destination_port = hdr.tcp.destination;
        meta.flags = hdr.tcp.flags;
        transition accept;
    }
    state udp {
        packet.extract(hdr.udp);
        meta.source_port = hdr.udp.source;
        meta.destination_port = hdr.udp.destination;
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply { }
}

control Filtering(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) matched;
    counter(2, CounterType.packets) unmatched;

    action allow() { }
    action deny() {
        mark_to_drop(std);
    }
    table rules {
        key = {
            std.ingress_port: ternary @name("port");
            hdr.ipv4.source: ternary @name("source");
            hdr.ipv4.destination: ternary @name("destination");
            hdr.ipv4.protocol: ternary @name("protocol");
            meta.source_port: ternary @name("source_port");
            meta.destination_port: ternary @name("destination_port");
            meta.flags: ternary @name("flags");
        }
        actions = { allow; deny; }
        default_action = deny();
        counters = matched;
        size = 8192;
    }

    action forward(port_t port) {
        std.egress_spec = port;
    }
    table bridge {
        key = { hdr.ethernet.destination: exact @name("destination"); }
        actions = { forward; deny; }
        default_action = deny();
        size = 1024;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            bool is_matched = rules.apply().hit;
            if (!is_matched) {
                unmatched.count(0);
            }
        } else {
            unmatched.count(1);
        }
        if (std.egress_spec != 511) {
            bridge.apply();
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply { }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
    }
}

V1Switch(Parse(), Verify(), Filtering(), Sending(), Compute(), Deparse()) main;
