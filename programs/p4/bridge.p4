// A bridge that learns: unknown addresses are flooded, and the address and port of each station go to the control
// plane.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

struct headers {
    ethernet_t ethernet;
}
struct metadata { }
struct station_t {
    mac_t address;
    port_t port;
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply { }
}

control Bridging(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action learn() {
        digest<station_t>(1, { hdr.ethernet.source, std.ingress_port });
    }
    action is_known() { }
    table sources {
        key = {
            hdr.ethernet.source: exact @name("source");
            std.ingress_port: exact @name("port");
        }
        actions = { is_known; learn; }
        default_action = learn();
        size = 4096;
        support_timeout = true;
    }
    action forward(port_t port) {
        std.egress_spec = port;
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action drop() {
        mark_to_drop(std);
    }
    table destinations {
        key = { hdr.ethernet.destination: exact @name("destination"); }
        actions = { forward; flood; drop; }
        default_action = drop();
        size = 4096;
    }

    apply {
        sources.apply();
        destinations.apply();
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply {
        // A frame does not go back to where it came from.
        if (std.egress_port == std.ingress_port) {
            mark_to_drop(std);
        }
    }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply { }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(Parse(), Verify(), Bridging(), Sending(), Compute(), Deparse()) main;
