// A leaf switch of a fabric: VLANs at ports, bridging and routing to groups of next hops, and access control lists.
//
// A packet gets its VLAN from its tag or its port. Frames to the switch's own address are routed, others are bridged.
// The access list comes last, so that it sees where a packet would leave; it drops, or sends to the control plane.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const port_t CONTROL_PORT = 255;

@controller_header("packet_in")
header packet_in_t {
    port_t ingress_port;
    bit<7> padding;
}

@controller_header("packet_out")
header packet_out_t {
    port_t egress_port;
    bit<7> padding;
}

struct headers {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    vlan_t vlan;
    ipv4_t ipv4;
    tcp_t tcp;
    udp_t udp;
}
struct metadata {
    bit<12> vlan;
    bool is_routed;
    bit<16> source_port;
    bit<16> destination_port;
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CONTROL_PORT: packet_out;
            default: ethernet;
        }
    }
    state packet_out {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_VLAN: vlan;
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.type) {
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

control Forwarding(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action_selector(HashAlgorithm.crc16, 1024, 16) next_hops;
    direct_counter(CounterType.packets_and_bytes) listed;
    bit<1> is_dropped = 0;

    action drop() {
        mark_to_drop(std);
        is_dropped = 1;
    }
    action untagged(bit<12> vlan) {
        meta.vlan = vlan;
    }
    action tagged() {
        meta.vlan = hdr.vlan.id;
    }
    // Port and tag to VLAN: what is not listed is dropped.
    table vlans {
        key = {
            std.ingress_port: exact @name("port");
            hdr.vlan.isValid(): exact @name("is_tagged");
            hdr.vlan.id: ternary @name("vlan");
        }
        actions = { untagged; tagged; drop; }
        default_action = drop();
        size = 1024;
    }

    action route() {
        meta.is_routed = true;
    }
    table own_addresses {
        key = {
            meta.vlan: exact @name("vlan");
            hdr.ethernet.destination: exact @name("destination");
        }
        actions = { route; NoAction; }
        default_action = NoAction();
        size = 1024;
    }

    action bridge(port_t port) {
        std.egress_spec = port;
    }
    table stations {
        key = {
            meta.vlan: exact @name("vlan");
            hdr.ethernet.destination: exact @name("destination");
        }
        actions = { bridge; drop; }
        default_action = drop();
        size = 4096;
    }

    action send_to(mac_t source, mac_t next_hop, bit<12> vlan, port_t port) {
        hdr.ethernet.source = source;
        hdr.ethernet.destination = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.vlan = vlan;
        std.egress_spec = port;
    }
    table routes {
        key = {
            hdr.ipv4.destination: lpm @name("destination");
            hdr.ipv4.source: selector;
            hdr.ipv4.protocol: selector;
            meta.source_port: selector;
            meta.destination_port: selector;
        }
        actions = { send_to; drop; NoAction; }
        implementation = next_hops;
        size = 16384;
    }

    action to_control() {
        std.egress_spec = CONTROL_PORT;
    }
    table access_list {
        key = {
            std.ingress_port: ternary @name("port");
            hdr.ethernet.type: ternary @name("type");
            meta.vlan: ternary @name("vlan");
            hdr.ipv4.source: ternary @name("source");
            hdr.ipv4.destination: ternary @name("destination");
            hdr.ipv4.protocol: ternary @name("protocol");
            meta.destination_port: ternary @name("destination_port");
        }
        actions = { drop; to_control; NoAction; }
        default_action = NoAction();
        counters = listed;
        size = 1024;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            vlans.apply();
            if (is_dropped == 0) {
                own_addresses.apply();
                if (!meta.is_routed) {
                    stations.apply();
                } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                    if (!routes.apply().hit) {
                        drop();
                    }
                } else {
                    drop();
                }
                access_list.apply();
            }
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action tag() {
        hdr.vlan.setValid();
        hdr.vlan.id = meta.vlan;
        hdr.vlan.type = hdr.ethernet.type;
        hdr.ethernet.type = TYPE_VLAN;
    }
    // Ports and VLANs that leave with a tag.
    table tags {
        key = {
            std.egress_port: exact @name("port");
            meta.vlan: exact @name("vlan");
        }
        actions = { tag; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    apply {
        if (std.egress_port == CONTROL_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.padding = 0;
        } else if (std.ingress_port != CONTROL_PORT) {
            if (hdr.vlan.isValid()) {
                hdr.ethernet.type = hdr.vlan.type;
                hdr.vlan.setInvalid();
            }
            tags.apply();
        }
    }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.header_words == 5, IPV4_SUM(hdr.ipv4),
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
    }
}

V1Switch(Parse(), Verify(), Forwarding(), Sending(), Compute(), Deparse()) main;
