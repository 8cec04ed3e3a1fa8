#include <core.p4>
#include <v1model.p4>
#define WIDTH(N) bit<(8 * N)>
typedef WIDTH(6) MacAddress;
type bit<9> Port;
header ethernet_t { MacAddress destination; MacAddress source; bit<16> kind; }
header ipv4_t { bit<4> version; bit<4> length; bit<8> tos; bit<16> total; bit<8> ttl; bit<32> source; bit<32> destination; }
header options_t { varbit<320> data; }
header_union address_t { ethernet_t ethernet; ipv4_t ipv4; }
enum bit<16> EtherKind { IPv4 = 0x800, Arp = 0x806 }
struct headers_t { ethernet_t ethernet; ipv4_t[2] ipv4; options_t options; address_t either; }
struct metadata_t { bit<32> next_hop; tuple<bit<8>, bool> pair; }
const bit<8> LIMIT = 8w3 |+| 8w254;
bit<8> least<T>(in bit<8> a, in bit<8> b, in T unused) { if (a < b) { return a; } else { return b; } }
parser ReadPacket(packet_in packet, out headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    value_set<bit<16>>(4) kinds;
    state start {
        packet.extract(headers.ethernet);
        transition select(headers.ethernet.kind, packet.lookahead<bit<4>>()) {
            (EtherKind.IPv4, 4 .. 6): read_ipv4;
            (0x8000 &&& 0xFF00, _): accept;
            (kinds, default): reject;
            default: accept;
        }
    }
    state read_ipv4 {
        packet.extract(headers.ipv4.next);
        packet.extract(headers.options, (bit<32>) headers.ipv4.last.length * 32 - 160);
        verify(headers.ipv4[0].version == 4w4, error.NoMatch);
        transition accept;
    }
}
control Route(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard)(bit<8> start) {
    counter(16, CounterType.packets) routed;
    action drop() { mark_to_drop(standard); }
    action forward(in bit<32> hop, MacAddress mac, bit<9> port) {
        metadata.next_hop = hop; headers.ethernet.destination = mac; standard.egress_spec = port;
        headers.ipv4[0].ttl -= 1;
    }
    table routes {
        key = { headers.ipv4[0].destination: lpm; headers.ethernet.isValid(): exact; headers.ipv4[0].ttl & 7: ternary @name("ttl"); }
        actions = { forward(headers.ipv4[0].destination); drop; NoAction; }
        const default_action = drop();
        const entries = {
            (0x0a000000 &&& 0xff000000, true, _): forward(headers.ipv4[0].destination, 1, 2);
            (_, false, 3 &&& 3): drop();
        }
        size = 1024;
    }
    apply {
        metadata.pair = { 5, headers.ipv4[1].isValid() };
        if (!routes.apply().hit) { return; }
        switch (routes.apply().action_run) { forward: { routed.count(3); } drop: default: { exit; } }
        switch (headers.ipv4[0].ttl) { 1: 2: { headers.ipv4.push_front(1); } default: {} }
        for (bit<8> i = 0; i < LIMIT; i += 1) { if (i == start) break; headers.ipv4[0].tos = least(i, start, true); }
        for (bit<16> j in 16w1 .. 16w5) { headers.ethernet.kind[7:0] = j[15:8]; continue; }
        hash(metadata.next_hop, HashAlgorithm.crc32, 32w0, { headers.ethernet.kind, 8w1 ++ 8w2 }, 32w10);
        log_msg("next hop {}", { metadata.next_hop });
        headers.either.ipv4 = { version = 4, length = 5, ... };
        headers.options = {#};
    }
}
control Check(inout headers_t headers, inout metadata_t metadata) { apply {} }
control Out(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    Route(8w1) route;
    apply { route.apply(headers, metadata, standard); }
}
control Write(packet_out packet, in headers_t headers) { apply { packet.emit(headers.ethernet); packet.emit(headers.ipv4); } }
V1Switch(ReadPacket(), Check(), Route(2), Out(), Check(), Write()) main;
