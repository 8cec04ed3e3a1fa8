// An IPv4 router: next hops by longest prefix, addresses rewritten, the time to live counted down.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

struct headers {
    ethernet_t ethernet;
    ipv4_t ipv4;
}
struct metadata { }

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
        verify(hdr.ipv4.version == 4, error.NoMatch);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.header_words == 5, IPV4_SUM(hdr.ipv4),
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Routing(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    counter(512, CounterType.packets_and_bytes) received;
    direct_counter(CounterType.packets_and_bytes) routed;

    action drop() {
        mark_to_drop(std);
    }
    action forward(mac_t next_hop, port_t port) {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        std.egress_spec = port;
    }
    table routes {
        key = { hdr.ipv4.destination: lpm; }
        actions = { forward; drop; }
        default_action = drop();
        counters = routed;
        size = 1048576;
    }

    apply {
        received.count((bit<32>) std.ingress_port);
        if (!hdr.ipv4.isValid() || std.checksum_error == 1 || std.parser_error != error.NoError ||
            hdr.ipv4.ttl <= 1) {
            drop();
        } else {
            routes.apply();
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.header_words == 5, IPV4_SUM(hdr.ipv4),
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), Routing(), Sending(), Compute(), Deparse()) main;
