// Forwarding between pairs of ports with encryption: the payload of each frame, by AES in counter mode. The control plane
// sets port, key and counter as the default action of the table. The key here is that of SP 800-38A, F.5.
#include <core.p4>
#include <v1model.p4>
#include <crypto.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {}

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action encrypt(bit<9> port, bit<128> key_value, bit<128> counter_value) {
        standard.egress_spec = port;
        aes_128_ctr(key_value, counter_value);
    }

    table keys {
        actions = { encrypt; }
        default_action =
            encrypt(1, 0x2b7e151628aed2a6abf7158809cf4f3c, 0xf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff);
    }

    apply {
        keys.apply();
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
