// A balancer: connections to a virtual address go to one of several servers, chosen by a hash of their flow.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

struct headers {
    ethernet_t ethernet;
    ipv4_t ipv4;
    tcp_t tcp;
}
struct metadata {
    bit<16> server;
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
        transition select(hdr.ipv4.header_words, hdr.ipv4.protocol) {
            (5, PROTOCOL_TCP): tcp;
            default: accept;
        }
    }
    state tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply { }
}

control Balancing(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action drop() {
        mark_to_drop(std);
    }
    action spread(bit<16> first, bit<32> count) {
        hash(meta.server, HashAlgorithm.crc16, first, { hdr.ipv4.source, hdr.ipv4.destination,
            hdr.ipv4.protocol, hdr.tcp.source, hdr.tcp.destination }, count);
    }
    table services {
        key = { hdr.ipv4.destination: lpm; }
        actions = { spread; drop; }
        default_action = drop();
        size = 1024;
    }
    action send_to(mac_t next_hop, ipv4_address_t address, port_t port) {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = next_hop;
        // The checksum of TCP covers the address (RFC 1624, equation 3).
        bit<32> sum = (bit<32>) ~hdr.tcp.checksum + (bit<32>) ~hdr.ipv4.destination[31:16]
            + (bit<32>) ~hdr.ipv4.destination[15:0] + (bit<32>) address[31:16] + (bit<32>) address[15:0];
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        hdr.tcp.checksum = ~sum[15:0];
        hdr.ipv4.destination = address;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        std.egress_spec = port;
    }
    table servers {
        key = { meta.server: exact; }
        actions = { send_to; drop; }
        default_action = drop();
        size = 1024;
    }

    apply {
        if (hdr.tcp.isValid() && hdr.ipv4.ttl > 1) {
            if (services.apply().hit) {
                servers.apply();
            }
        } else {
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
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
    }
}

V1Switch(Parse(), Verify(), Balancing(), Sending(), Compute(), Deparse()) main;
