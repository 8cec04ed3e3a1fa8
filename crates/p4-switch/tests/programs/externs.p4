// Registers, counters, hashes, checksums, random numbers, truncation, meters, digests, messages.
#include <v1model.p4>
#define OWN_COMPUTE

header in_t { bit<8> kind; bit<8> index; bit<16> sum; bit<32> data; }
struct headers { in_t i; }
struct record { bit<8> index; bit<32> data; }
struct meta { record r; }

parser Parse(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}

control In(inout headers h, inout meta m, inout standard_metadata_t s) {
    register<bit<32>>(4) words;
    register<record>(2) records;
    counter(4, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.packets) rate;
    apply {
        s.egress_spec = 3;
        bit<32> index = (bit<32>)h.i.index;
        seen.count(index);
        if (h.i.kind == 1) {
            bit<32> old;
            words.read(old, index);
            words.write(index, h.i.data);
            h.i.data = old;
        } else if (h.i.kind == 2) {
            hash(h.i.data, HashAlgorithm.crc32, 32w0, { h.i.data }, 64w0x100000000);
            hash(h.i.sum, HashAlgorithm.crc16, 16w0, { h.i.index }, 32w0x10000);
        } else if (h.i.kind == 3) {
            hash(h.i.data, HashAlgorithm.identity, 32w1000, { h.i.data }, 32w16);
            hash(h.i.sum, HashAlgorithm.xor16, 16w0, { 16w0x1234, 8w0x0f }, 32w0x10000);
        } else if (h.i.kind == 10) {
            hash(h.i.sum, HashAlgorithm.crc16, 16w0, { h.i.index, 4w0xa }, 32w0x10000);
        } else if (h.i.kind == 4) {
            random(h.i.data, 32w10, 32w13);
            h.i.data = (h.i.data >= 10 && h.i.data <= 13) ? 32w1 : 0;
        } else if (h.i.kind == 5) {
            truncate(6);
        } else if (h.i.kind == 6) {
            records.write(1, { h.i.index, h.i.data });
            records.read(m.r, 1);
            h.i.sum = (bit<16>)m.r.index;
            records.read(m.r, 7);
            h.i.data = m.r.data;
        } else if (h.i.kind == 7) {
            rate.execute_meter(index, h.i.data);
        } else if (h.i.kind == 8) {
            digest<record>(1, { h.i.index, h.i.data });
            log_msg("data {} and {}", { h.i.data, h.i.index });
        } else {
            mark_to_drop(s);
        }
    }
}

control Compute(inout headers h, inout meta m) {
    apply {
        update_checksum(h.i.kind == 5, { h.i.kind, h.i.index, h.i.data }, h.i.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(
            h.i.kind == 4, { h.i.kind, h.i.index, 16w0 }, h.i.sum, HashAlgorithm.csum16);
    }
}
#include "frame.inc"
