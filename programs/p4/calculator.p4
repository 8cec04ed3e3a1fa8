// A calculator: a frame with two numbers and an operator comes back with the result.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"

const bit<16> TYPE_CALCULATION = 0x1260;
const bit<24> TITLE_AND_VERSION = 0x503401;

header calculation_t {
    bit<16> title;
    bit<8> version;
    bit<8> operator;
    bit<32> left;
    bit<32> right;
    bit<32> result;
}
struct headers {
    ethernet_t ethernet;
    calculation_t calculation;
}
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_CALCULATION: look;
            default: accept;
        }
    }
    state look {
        transition select(packet.lookahead<bit<24>>()) {
            TITLE_AND_VERSION: calculation;
            default: accept;
        }
    }
    state calculation {
        packet.extract(hdr.calculation);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply { }
}

control Calculation(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    action answer(bit<32> result) {
        hdr.calculation.result = result;
        bit<48> asking = hdr.ethernet.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = asking;
        std.egress_spec = std.ingress_port;
    }
    action add() {
        answer(hdr.calculation.left + hdr.calculation.right);
    }
    action subtract() {
        answer(hdr.calculation.left - hdr.calculation.right);
    }
    action and() {
        answer(hdr.calculation.left & hdr.calculation.right);
    }
    action or() {
        answer(hdr.calculation.left | hdr.calculation.right);
    }
    action xor() {
        answer(hdr.calculation.left ^ hdr.calculation.right);
    }
    action drop() {
        mark_to_drop(std);
    }
    table operators {
        key = { hdr.calculation.operator: exact; }
        actions = { add; subtract; and; or; xor; drop; }
        const default_action = drop();
        const entries = {
            0x2b: add();
            0x2d: subtract();
            0x26: and();
            0x7c: or();
            0x5e: xor();
        }
    }

    apply {
        if (hdr.calculation.isValid()) {
            operators.apply();
        } else {
            drop();
        }
    }
}

control Sending(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers hdr, inout metadata meta) {
    apply { }
}

control Deparse(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.calculation);
    }
}

V1Switch(Parse(), Verify(), Calculation(), Sending(), Compute(), Deparse()) main;
