// Headers of Ethernet, IPv4, UDP and TCP that the programs of this folder share.
#ifndef HEADERS_P4
#define HEADERS_P4

typedef bit<9> port_t;
typedef bit<48> mac_t;
typedef bit<32> ipv4_address_t;

const bit<16> TYPE_VLAN = 0x8100;
const bit<16> TYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_TCP = 6;
const bit<8> PROTOCOL_UDP = 17;

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> type;
}

header vlan_t {
    bit<3> priority;
    bit<1> drop_eligible;
    bit<12> id;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> header_words;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_address_t source;
    ipv4_address_t destination;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header tcp_t {
    bit<16> source;
    bit<16> destination;
    bit<32> sequence;
    bit<32> acknowledgment;
    bit<4> header_words;
    bit<4> reserved;
    bit<8> flags;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

#define IPV4_SUM(h) { h.version, h.header_words, h.dscp, h.ecn, h.length, h.identification, h.flags, \
    h.fragment_offset, h.ttl, h.protocol, h.source, h.destination }

#endif
