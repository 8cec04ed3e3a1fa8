// Tunnels by number between edge routers: an entry adds a tunnel, transit looks at its number alone, and the last
// router takes it away.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<16> TYPE_TUNNEL = 0x1212;

header tunnel_t {
    bit<16> type;
    bit<16> number;
}
struct headers {
    ethernet_t ethernet;
    tunnel_t tunnel;
    ipv4_t ipv4;
}
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_TUNNEL: tunnel;
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state tunnel {
        packet.extract(hdr.tunnel);
        transition select(hdr.tunnel.type) {
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply { }
}

control Tunneling(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action drop() {
        mark_to_drop(std);
    }
    action forward(mac_t next_hop, port_t port) {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        std.egress_spec = port;
    }
    action enter(bit<16> number) {
        hdr.tunnel.setValid();
        hdr.tunnel = { hdr.ethernet.type, number };
        hdr.ethernet.type = TYPE_TUNNEL;
    }
    table routes {
        key = { hdr.ipv4.destination: lpm; }
        actions = { forward; enter; drop; }
        default_action = drop();
        size = 4096;
    }
    action transit(port_t port) {
        std.egress_spec = port;
    }
    action leave(mac_t next_hop, port_t port) {
        hdr.ethernet.destination = next_hop;
        hdr.ethernet.type = hdr.tunnel.type;
        hdr.tunnel.setInvalid();
        std.egress_spec = port;
    }
    table tunnels {
        key = { hdr.tunnel.number: exact; }
        actions = { transit; leave; drop; }
        default_action = drop();
        size = 4096;
    }

    apply {
        if (!hdr.tunnel.isValid() && hdr.ipv4.isValid()) {
            routes.apply();
        }
        if (hdr.tunnel.isValid()) {
            tunnels.apply();
        } else if (!hdr.ipv4.isValid()) {
            drop();
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_SUM(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tunnel);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), Tunneling(), Sending(), Compute(), Deparse()) main;
