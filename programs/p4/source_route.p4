// Source routing: the sender puts the ports of all hops in front of the packet, and each hop takes one.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<16> TYPE_HOPS = 0x1234;

header hop_t {
    bit<1> is_last;
    bit<15> port;
}
struct headers {
    ethernet_t ethernet;
    hop_t[9] hops;
    ipv4_t ipv4;
}
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_HOPS: hop;
            default: accept;
        }
    }
    state hop {
        packet.extract(hdr.hops.next);
        transition select(hdr.hops.last.is_last) {
            1: ipv4;
            default: hop;
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
    counter(512, CounterType.packets) taken;

    apply {
        if (hdr.hops[0].isValid() && std.parser_error == error.NoError) {
            std.egress_spec = (port_t) hdr.hops[0].port;
            if (hdr.hops[0].is_last == 1) {
                hdr.ethernet.type = TYPE_IPV4;
            }
            hdr.hops.pop_front(1);
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
            taken.count((bit<32>) std.egress_spec);
        } else {
            mark_to_drop(std);
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
        packet.emit(hdr.hops);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), Routing(), Sending(), Compute(), Deparse()) main;
