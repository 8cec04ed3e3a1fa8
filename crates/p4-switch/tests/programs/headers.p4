// Stacks, unions, varbit, validity, lookahead, advance, sub-parsers, errors.
#include <v1model.p4>

header label { bit<7> value; bit<1> last; }
header word { bit<16> value; }
header byte { bit<8> value; }
header options { bit<8> length; varbit<64> data; }
header_union either { word w; byte b; }
header report { bit<8> fault; bit<8> count; bit<8> last; bit<8> flags; }
struct headers { report r; byte kind; label[3] labels; either u; options o; }
struct meta { bit<8> peeked; }

parser Tail(packet_in p, inout options o) {
    state start {
        p.extract(o, (bit<32>)(p.lookahead<bit<8>>() & 0xf) * 8);
        transition accept;
    }
}

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    Tail() tail;
    state start {
        p.extract(h.kind);
        transition select(h.kind.value) {
            1: labels;
            2: wide;
            3: narrow;
            4: variable;
            5: skip;
            6 .. 8: refuse;
            0x10 &&& 0xf0: peek;
        }
    }
    state labels {
        p.extract(h.labels.next);
        transition select(h.labels.last.last) {
            0: labels;
            1: accept;
        }
    }
    state wide { p.extract(h.u.w); transition accept; }
    state narrow { p.extract(h.u.b); transition accept; }
    state variable { tail.apply(p, h.o); transition accept; }
    state skip { p.advance(16); p.extract(h.u.b); transition accept; }
    state refuse { verify(h.kind.value == 7, error.ParserInvalidArgument); transition accept; }
    state peek { m.peeked = p.lookahead<byte>().value; transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    apply {
        h.r.setValid();
        h.r.fault = (s.parser_error == error.NoError) ? 8w0 : 1;
        if (s.parser_error == error.StackOutOfBounds) { h.r.fault = 2; }
        if (s.parser_error == error.PacketTooShort) { h.r.fault = 3; }
        if (s.parser_error == error.NoMatch) { h.r.fault = 4; }
        if (s.parser_error == error.ParserInvalidArgument) { h.r.fault = 5; }
        bit<8> count = 0;
        for (label l in h.labels) { if (l.isValid()) { count = count + 1; } }
        h.r.count = count;
        h.r.last = m.peeked;
        h.r.flags = (bit<8>)(bit<1>)h.u.w.isValid() ++ 7w0 == 0 ? 8w0 : 8w0x80;
        if (h.u.isValid()) { h.r.flags = h.r.flags | 1; }
        if (h.u.b.isValid()) { h.r.flags = h.r.flags | 2; }
        if (h.kind.value == 1) {
            h.labels.push_front(1);
            h.labels[0] = { 0x55, 0 };
            bit<2> index = 1;
            h.r.last = 1w0 ++ h.labels[index].value;
        }
        if (h.kind.value == 3) { h.u.w.setValid(); h.u.w.value = 0xbeef; }
        s.egress_spec = 1;
    }
}
#include "frame.inc"
