// Tables, actions, keys of all kinds, inner controls, and annotations.
#include <v1model.p4>

@p4runtime_translation("example.org/port", string)
type bit<9> port_name_t;
@p4runtime_translation("example.org/vrf", 32)
type bit<10> vrf_t;
type bit<12> vlan_t;
enum bit<8> protocol_t { TCP = 6, UDP = 17 }

header ethernet_t { bit<48> destination; bit<48> source; bit<16> kind; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> dscp; bit<16> length; bit<16> identification;
    @name("fragment") bit<16> flags; bit<8> ttl; protocol_t protocol; bit<16> checksum;
    bit<32> source; bit<32> destination;
}
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; ethernet_t[2] inner; }
struct metadata_t { vrf_t vrf; vlan_t vlan; port_name_t port; bool routed; }

@controller_header("packet_in")
header packet_in_t { port_name_t port; @id(7) bit<7> padding; @hidden bit<8> internal; }

@controller_header("packet_out")
header packet_out_t { @name("egress") bit<9> port; bit<7> padding; }

parser Read(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.kind) { 0x800: ipv4; default: accept; }
    }
    state ipv4 { packet.extract(h.ipv4); transition accept; }
}

action shared(inout metadata_t m, vrf_t vrf) { m.vrf = vrf; }

// Sees a table whose size is an argument.
control Classify(inout headers_t h, inout metadata_t m)(bit<32> size, bool with_vlan) {
    action set_vlan(vlan_t vlan) { m.vlan = vlan; }
    table ports {
        key = { m.port : exact; h.ethernet.source & 0xff00 : ternary; h.ethernet.kind[11:0x4] : optional; }
        actions = { set_vlan; shared(m); }
        size = size;
    }
    table vlans {
        key = { m.vlan : range; }
        actions = { set_vlan; NoAction; } const default_action = set_vlan(5);
    }
    apply {
        ports.apply();
        if (with_vlan) { vlans.apply(); }
    }
}

control MainIn(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    Classify(100, true) first;
    @name("other") Classify(0, false) second;
    @brief("Drops the packet") action drop() { mark_to_drop(s); }
    @id(0x1234) action forward(
        @id(9) bit<9> port, @description("Address of the next hop") bit<48> next, bool flag) {
        s.egress_spec = port;
        h.ethernet.destination = next;
        m.routed = flag;
    }
    action called(bit<8> ttl) { h.ipv4.ttl = ttl; }
    @name(".absolute") @my_note(1 "two" three) @list[1, "two", true] @pairs[size = 3]
    table routes {
        key = {
            m.vrf : exact @name("vrf");
            h.ipv4.destination : lpm @id(5) @brief("Longest prefix");
            h.ipv4.isValid() : exact;
            h.inner[1].kind : exact;
            h.ipv4.flags : ternary;
            s.parser_error : exact;
        }
        actions = { @tableonly forward; @defaultonly drop; NoAction; }
        default_action = drop;
        support_timeout = true;
        size = 1 << 12;
    }
    table fixed {
        key = { h.ipv4.protocol : exact; }
        actions = { drop; called; }
        const entries = { protocol_t.TCP : called(3); }
        default_action = called(0x20);
    }
    table seeded { key = { h.ipv4.ttl : ternary; } actions = { drop; } entries = { 1 : drop(); } }
    table unreached { key = { h.ipv4.ttl : exact; } actions = { drop; } }
    @hidden table secret { key = { h.ipv4.ttl : exact; } actions = { drop; } }
    apply {
        first.apply(h, m);
        second.apply(h, m);
        routes.apply();
        if (false) { unreached.apply(); }
        called(64);
        fixed.apply();
        seeded.apply();
        secret.apply();
        return;
        unreached.apply();
    }
}

control MainOut(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply {} }
control Verify(inout headers_t h, inout metadata_t m) { apply {} }
control Compute(inout headers_t h, inout metadata_t m) { apply {} }
control Write(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

@pkginfo(name = "router", version = "1.2")
@brief("A router")
@platform_property(multicast_group_table_size = 16)
@note("of the package")
V1Switch(Read(), Verify(), MainIn(), MainOut(), Compute(), Write()) main;
