// A filter of connections: hosts inside may open TCP connections, and packets from outside pass if they belong to one.
// Two registers of bits remember the connections, by two hashes of their flow.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

struct headers {
    ethernet_t ethernet;
    ipv4_t ipv4;
    tcp_t tcp;
}
struct metadata {
    bit<1> is_outside;
    bit<1> first;
    bit<1> second;
    bit<32> place;
    bit<32> other_place;
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

control Filtering(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    register<bit<1>>(4096) seen;
    register<bit<1>>(4096) also_seen;

    action drop() {
        mark_to_drop(std);
    }
    action forward(port_t port) {
        std.egress_spec = port;
    }
    table bridge {
        key = { hdr.ethernet.destination: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 1024;
    }
    action inside() { }
    action outside() {
        meta.is_outside = 1;
    }
    table sides {
        key = { std.ingress_port: exact @name("port"); }
        actions = { inside; outside; }
        default_action = outside();
        size = 512;
    }
    action find_places(bit<32> from, bit<32> to, bit<16> from_port, bit<16> to_port) {
        hash(meta.place, HashAlgorithm.crc16, 32w0, { from, to, from_port, to_port }, 32w4096);
        hash(meta.other_place, HashAlgorithm.crc32, 32w0, { from, to, from_port, to_port }, 32w4096);
    }

    apply {
        bridge.apply();
        if (hdr.tcp.isValid()) {
            sides.apply();
            if (meta.is_outside == 0) {
                find_places(hdr.ipv4.source, hdr.ipv4.destination, hdr.tcp.source, hdr.tcp.destination);
                if (hdr.tcp.flags & 2 == 2) {
                    seen.write(meta.place, 1);
                    also_seen.write(meta.other_place, 1);
                }
            } else {
                find_places(hdr.ipv4.destination, hdr.ipv4.source, hdr.tcp.destination, hdr.tcp.source);
                seen.read(meta.first, meta.place);
                also_seen.read(meta.second, meta.other_place);
                if (meta.first == 0 || meta.second == 0) {
                    drop();
                }
            }
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
    }
}

V1Switch(Parse(), Verify(), Filtering(), Sending(), Compute(), Deparse()) main;
