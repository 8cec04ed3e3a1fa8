// Objects of the Portable Switch Architecture, in pipelines that are instances of their own.
#include <psa.p4>

header ethernet_t { bit<48> destination; bit<48> source; bit<16> kind; }
struct headers_t { ethernet_t ethernet; }
struct empty_t {}
struct seen_t { ethernet_t link; PortId_t port; ethernet_t[2] stack; }
type bit<8> slot_t;

parser InRead(
    packet_in packet, out headers_t h, inout empty_t m, in psa_ingress_parser_input_metadata_t i, in empty_t r,
    in empty_t c) {
    state start { packet.extract(h.ethernet); transition accept; }
}
control In(
    inout headers_t h, inout empty_t m, in psa_ingress_input_metadata_t i, inout psa_ingress_output_metadata_t o) {
    Counter<bit<64>, PortId_t>(512, PSA_CounterType_t.PACKETS) ports;
    DirectCounter<bit<64>>(PSA_CounterType_t.PACKETS_AND_BYTES) entries;
    Meter<slot_t>(16, PSA_MeterType_t.BYTES) rates;
    DirectMeter(PSA_MeterType_t.PACKETS) entry_rates;
    Register<bit<32>, slot_t>(16, 0) state;
    ActionProfile(1024) profile;
    action out_of(PortId_t port) { send_to_port(o, port); entries.count(); entry_rates.execute(); }
    action none() {}
    table links {
        key = { h.ethernet.destination : exact; i.ingress_port : ternary; }
        actions = { out_of; none; }
        psa_direct_counter = entries;
        psa_direct_meter = entry_rates;
        psa_implementation = profile;
        psa_idle_timeout = PSA_IdleTimeout_t.NOTIFY_CONTROL;
    }
    apply {
        links.apply();
        ports.count(i.ingress_port);
        state.write((slot_t) 1, 5);
        rates.execute((slot_t) 2);
    }
}
control InWrite(
    packet_out packet, out empty_t c, out empty_t r, out empty_t n, inout headers_t h, in empty_t m,
    in psa_ingress_output_metadata_t o) {
    Digest<seen_t>() seen;
    ethernet_t[2] stack;
    apply {
        seen.pack({ h.ethernet, o.egress_port, stack });
        packet.emit(h.ethernet);
    }
}
parser OutRead(
    packet_in packet, out headers_t h, inout empty_t m, in psa_egress_parser_input_metadata_t i, in empty_t n,
    in empty_t c, in empty_t d) {
    state start { transition accept; }
}
control Out(
    inout headers_t h, inout empty_t m, in psa_egress_input_metadata_t i, inout psa_egress_output_metadata_t o) {
    apply {}
}
control OutWrite(
    packet_out packet, out empty_t c, out empty_t r, inout headers_t h, in empty_t m,
    in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply { packet.emit(h.ethernet); }
}
IngressPipeline(InRead(), In(), InWrite()) ingress;
EgressPipeline(OutRead(), Out(), OutWrite()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
