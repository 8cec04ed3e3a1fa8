// IPv6 forwarding by the longest prefix of the destination.
#include <core.p4>
#include <v1model.p4>

#ifndef ENTRIES
#define ENTRIES 262144
#endif

const bit<16> IPV6 = 0x86dd;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv6_t {
    bit<4> version;
    bit<8> class;
    bit<20> flow;
    bit<16> length;
    bit<8> next;
    bit<8> hops;
    bit<128> src;
    bit<128> dst;
}

struct headers_t {
    ethernet_t ethernet;
    ipv6_t ipv6;
}

struct metadata_t {}

parser RouterParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            IPV6: ipv6;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition accept;
    }
}

control RouterIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
        hdr.ipv6.hops = hdr.ipv6.hops - 1;
    }

    table routes {
        key = { hdr.ipv6.dst: lpm; }
        actions = { forward; drop; }
        default_action = drop();
        size = ENTRIES;
    }

    apply {
        if (hdr.ipv6.isValid() && hdr.ipv6.hops > 1) {
            routes.apply();
        } else {
            drop();
        }
    }
}

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control NoEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control RouterDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv6);
    }
}

V1Switch(RouterParser(), NoVerification(), RouterIngress(), NoEgress(), NoChecksum(), RouterDeparser()) main;
