// Named data networking: forwarding by an exact match on the first 32 bytes of a name.
#include <core.p4>
#include <v1model.p4>

#ifndef ENTRIES
#define ENTRIES 10000000
#endif

const bit<16> NDN = 0x8624;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header interest_t {
    bit<256> name;
}

struct headers_t {
    ethernet_t ethernet;
    interest_t interest;
}

struct metadata_t {}

parser ForwarderParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            NDN: interest;
            default: accept;
        }
    }

    state interest {
        packet.extract(hdr.interest);
        transition accept;
    }
}

control ForwarderIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    table names {
        key = { hdr.interest.name: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = ENTRIES;
    }

    apply {
        if (hdr.interest.isValid()) {
            names.apply();
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

control ForwarderDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.interest);
    }
}

V1Switch(ForwarderParser(), NoVerification(), ForwarderIngress(), NoEgress(), NoChecksum(), ForwarderDeparser()) main;
