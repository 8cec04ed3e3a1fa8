// A user plane function: GTP-U tunnels to base stations, sessions, applications by packet filters, meters and counters.
//
// Uplink: a packet to the tunnel endpoint of a session loses its tunnel and goes on to the data network.
// Downlink: a packet to a user's address gets the tunnel of its session. In between, the application that its filter
// finds decides on forwarding and on the meter; packets that a meter colors red are dropped.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<16> GTPU_PORT = 2152;
const bit<8> GTPU_PACKET = 255;
const bit<2> RED = 2;

header gtpu_t {
    bit<3> version;
    bit<1> protocol_type;
    bit<1> reserved;
    bit<1> has_extension;
    bit<1> has_sequence;
    bit<1> has_number;
    bit<8> type;
    bit<16> length;
    bit<32> tunnel;
}

struct headers {
    ethernet_t ethernet;
    ipv4_t outer_ipv4;
    udp_t outer_udp;
    gtpu_t gtpu;
    ipv4_t ipv4;
    tcp_t tcp;
    udp_t udp;
}
struct metadata {
    bool is_uplink;
    bit<32> session;
    bit<32> tunnel;
    ipv4_address_t base_station;
    bit<8> application;
    ipv4_address_t remote;
    bit<16> remote_port;
    bit<16> source_port;
    bit<16> destination_port;
    bit<2> color;
    bit<16> length;
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
        packet.extract(hdr.outer_ipv4);
        transition select(hdr.outer_ipv4.header_words, hdr.outer_ipv4.protocol) {
            (5, PROTOCOL_UDP): outer_udp;
            (5, PROTOCOL_TCP): plain_tcp;
            default: plain;
        }
    }
    state outer_udp {
        packet.extract(hdr.outer_udp);
        transition select(hdr.outer_udp.destination) {
            GTPU_PORT: gtpu;
            default: plain_udp;
        }
    }
    state gtpu {
        packet.extract(hdr.gtpu);
        packet.extract(hdr.ipv4);
        meta.is_uplink = true;
        transition select(hdr.ipv4.header_words, hdr.ipv4.protocol) {
            (5, PROTOCOL_TCP): tcp;
            (5, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    // Without a tunnel, the first IPv4 header is the inner one.
    state plain_udp {
        hdr.udp = hdr.outer_udp;
        hdr.outer_udp.setInvalid();
        meta.source_port = hdr.udp.source;
        meta.destination_port = hdr.udp.destination;
        transition plain;
    }
    state plain_tcp {
        packet.extract(hdr.tcp);
        meta.source_port = hdr.tcp.source;
        meta.destination_port = hdr.tcp.destination;
        transition plain;
    }
    state plain {
        hdr.ipv4 = hdr.outer_ipv4;
        hdr.outer_ipv4.setInvalid();
        transition accept;
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

control Sessions(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    counter(1024, CounterType.packets_and_bytes) received;
    counter(1024, CounterType.packets_and_bytes) sent;
    meter(1024, MeterType.bytes) rates;
    bit<1> is_dropped = 0;

    action drop() {
        mark_to_drop(std);
        is_dropped = 1;
    }
    action uplink(bit<32> session) {
        meta.session = session;
    }
    table tunnels {
        key = {
            hdr.outer_ipv4.destination: exact @name("endpoint");
            hdr.gtpu.tunnel: exact @name("tunnel");
        }
        actions = { uplink; drop; }
        default_action = drop();
        size = 16384;
    }
    action downlink(bit<32> session, bit<32> tunnel, ipv4_address_t base_station) {
        meta.session = session;
        meta.tunnel = tunnel;
        meta.base_station = base_station;
    }
    table users {
        key = { hdr.ipv4.destination: exact @name("user"); }
        actions = { downlink; drop; }
        default_action = drop();
        size = 16384;
    }
    action application(bit<8> number) {
        meta.application = number;
    }
    table applications {
        key = {
            meta.remote: ternary @name("remote");
            meta.remote_port: range @name("remote_port");
            hdr.ipv4.protocol: ternary @name("protocol");
        }
        actions = { application; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    action permit() { }
    action permit_metered(bit<32> rate) {
        rates.execute_meter(rate, meta.color);
    }
    table terminations {
        key = {
            meta.session: exact @name("session");
            meta.application: exact @name("application");
        }
        actions = { permit; permit_metered; drop; }
        default_action = drop();
        size = 32768;
    }
    action forward(mac_t next_hop, port_t port) {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = next_hop;
        std.egress_spec = port;
    }
    table routes {
        key = { meta.remote: lpm @name("destination"); }
        actions = { forward; drop; }
        default_action = drop();
        size = 1024;
    }

    action remove_tunnel() {
        hdr.outer_ipv4.setInvalid();
        hdr.outer_udp.setInvalid();
        hdr.gtpu.setInvalid();
    }
    action add_tunnel(ipv4_address_t own) {
        meta.length = hdr.ipv4.length;
        hdr.gtpu.setValid();
        hdr.gtpu = { 1, 1, 0, 0, 0, 0, GTPU_PACKET, meta.length, meta.tunnel };
        hdr.outer_udp.setValid();
        hdr.outer_udp = { GTPU_PORT, GTPU_PORT, meta.length + 16, 0 };
        hdr.outer_ipv4.setValid();
        hdr.outer_ipv4 = { 4, 5, hdr.ipv4.dscp, 0, meta.length + 36, 0, 2, 0, 64, PROTOCOL_UDP, 0, own,
            meta.base_station };
    }
    table own_address {
        actions = { add_tunnel; drop; }
        default_action = add_tunnel(0x0a000001);
    }

    apply {
        if (!hdr.ipv4.isValid()) {
            drop();
        } else if (meta.is_uplink) {
            if (hdr.gtpu.type != GTPU_PACKET) {
                drop();
            } else {
                tunnels.apply();
            }
            meta.remote = hdr.ipv4.destination;
            meta.remote_port = meta.destination_port;
        } else {
            users.apply();
            meta.remote = hdr.ipv4.source;
            meta.remote_port = meta.source_port;
        }
        if (is_dropped == 0) {
            received.count(meta.session);
            applications.apply();
            terminations.apply();
            if (is_dropped == 0 && meta.color != RED) {
                if (meta.is_uplink) {
                    remove_tunnel();
                } else {
                    own_address.apply();
                    meta.remote = meta.base_station;
                }
                routes.apply();
            } else {
                drop();
            }
        }
        if (is_dropped == 0) {
            sent.count(meta.session);
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.outer_ipv4.isValid(), IPV4_SUM(hdr.outer_ipv4), hdr.outer_ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.outer_ipv4);
        packet.emit(hdr.outer_udp);
        packet.emit(hdr.gtpu);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
    }
}

V1Switch(Parse(), Verify(), Sessions(), Sending(), Compute(), Deparse()) main;
