// The XDP model.
#include <xdp_model.p4>

header in_t { bit<8> choice; bit<8> port; }
struct headers { in_t i; }

parser P(packet_in p, out headers h) { state start { p.extract(h.i); transition accept; } }
control S(inout headers h, in xdp_input i, out xdp_output o) {
    apply {
        o.output_port = (bit<32>)h.i.port;
        o.output_action = xdp_action.XDP_DROP;
        if (h.i.choice == 2) { o.output_action = xdp_action.XDP_PASS; }
        if (h.i.choice == 4) { o.output_action = xdp_action.XDP_REDIRECT; }
        h.i.port = (bit<8>)i.input_port;
    }
}
control D(in headers h, packet_out p) { apply { p.emit(h.i); } }
xdp(P(), S(), D()) main;
