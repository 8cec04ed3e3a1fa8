// The uBPF model: actions, registers, truncation, incremental checksums.
#include <ubpf_model.p4>

header in_t { bit<8> kind; bit<8> a; bit<16> sum; }
header tail_t { bit<32> text; }
header words_t { bit<240> text; bit<32> hash; }
struct headers { in_t i; words_t w; tail_t t; }
struct meta { }

parser P(packet_in p, out headers h, inout meta m, inout standard_metadata s) {
    state start {
        p.extract(h.i);
        transition select(h.i.kind) { 0xff: reject; 6: words; 7: tail; default: accept; }
    }
    state words { p.extract(h.w); transition accept; }
    state tail { p.extract(h.t); transition accept; }
}

control C(inout headers h, inout meta m, inout standard_metadata s) {
    Register<bit<8>, bit<8>>(4) last;
    apply {
        if (h.i.kind == 1) { mark_to_drop(); }
        else if (h.i.kind == 2) { s.output_action = ubpf_action.REDIRECT; s.output_port = 6; }
        else if (h.i.kind == 3) { bit<8> old = last.read(1); last.write(1, h.i.a); h.i.a = old; }
        else if (h.i.kind == 4) { truncate(3); }
        else if (h.i.kind == 6) { hash(h.w.hash, HashAlgorithm.lookup3, { h.w.text }); }
        else if (h.i.kind == 7) { h.i.setInvalid(); h.t.text = 0; truncate(2); }
        else if (h.i.kind == 5) { h.i.sum = csum_replace2(h.i.sum, 16w0x0500, 16w0x0600); }
    }
}

control D(packet_out p, in headers h) { apply { p.emit(h.i); p.emit(h.w); p.emit(h.t); } }
ubpf(P(), C(), D()) main;
