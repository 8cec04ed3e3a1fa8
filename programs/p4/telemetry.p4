// In-band telemetry: each switch on the way of a packet puts its number and port in front of those of the others.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<16> TYPE_TRAIL = 0x1245;

header trail_t {
    bit<8> count;
    bit<8> limit;
    bit<16> type;
}
header mark_t {
    bit<32> number;
    bit<16> ingress_port;
    bit<16> egress_port;
}
struct headers {
    ethernet_t ethernet;
    trail_t trail;
    mark_t[8] marks;
    ipv4_t ipv4;
}
struct metadata {
    bit<8> left;
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_TRAIL: trail;
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state trail {
        packet.extract(hdr.trail);
        meta.left = hdr.trail.count;
        transition more;
    }
    state more {
        transition select(meta.left) {
            0: behind;
            default: mark;
        }
    }
    state mark {
        packet.extract(hdr.marks.next);
        meta.left = meta.left - 1;
        transition more;
    }
    state behind {
        transition select(hdr.trail.type) {
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

control Routing(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
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
        size = 4096;
    }

    apply {
        if (hdr.ipv4.isValid() && std.parser_error == error.NoError) {
            routes.apply();
        } else {
            drop();
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action add_mark(bit<32> number) {
        hdr.marks.push_front(1);
        hdr.marks[0].setValid();
        hdr.marks[0] = { number, (bit<16>) std.ingress_port, (bit<16>) std.egress_port };
        hdr.trail.count = hdr.trail.count + 1;
    }
    table own_number {
        actions = { add_mark; NoAction; }
        default_action = NoAction();
    }
    apply {
        if (hdr.trail.isValid() && hdr.trail.count < hdr.trail.limit && hdr.trail.count < 8) {
            own_number.apply();
        }
    }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_SUM(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.trail);
        packet.emit(hdr.marks);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), Routing(), Sending(), Compute(), Deparse()) main;
