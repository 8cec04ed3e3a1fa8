// A learning switch: two look-ups for each packet, of its source and of its destination. Addresses that are not known
// are told to the control plane.
#include <core.p4>
#include <v1model.p4>

#ifndef ENTRIES
#define ENTRIES 16777216
#endif

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {
    bit<9> learnt_port;
}

struct unknown_t {
    bit<48> address;
    bit<9> port;
}

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action at_port(bit<9> port) {
        meta.learnt_port = port;
    }

    table source {
        key = { hdr.ethernet.src: exact; }
        actions = { at_port; NoAction; }
        default_action = NoAction();
        size = ENTRIES;
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard);
    }

    table destination {
        key = { hdr.ethernet.dst: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = ENTRIES;
    }

    apply {
        bool known = source.apply().hit;
        destination.apply();
        if (!known) {
            digest<unknown_t>(1, { hdr.ethernet.src, standard.ingress_port });
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

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(SwitchParser(), NoVerification(), SwitchIngress(), NoEgress(), NoChecksum(), SwitchDeparser()) main;
