// The v1model architecture of BMv2's simple_switch. Versions from 20200408 have types of ports and indexes.
#ifndef _V1_MODEL_P4_
#define _V1_MODEL_P4_
#include <core.p4>

#ifndef V1MODEL_VERSION
#define V1MODEL_VERSION 20180101
#endif

#if V1MODEL_VERSION < 20180101
#error "V1MODEL_VERSION has to be 20180101 or later"
#endif

const bit<32> __v1model_version = V1MODEL_VERSION;

#if V1MODEL_VERSION >= 20200408
typedef bit<9> PortId_t;
#define V1MODEL_PORT PortId_t
#define V1MODEL_INDEX I
#define V1MODEL_INDEX_ONLY <I>
#define V1MODEL_VALUE_AND_INDEX <T, I>
#else
#define V1MODEL_PORT bit<9>
#define V1MODEL_INDEX bit<32>
#define V1MODEL_INDEX_ONLY
#define V1MODEL_VALUE_AND_INDEX <T>
#endif

match_kind { range, optional, selector }

@metadata @name("standard_metadata")
struct standard_metadata_t {
    V1MODEL_PORT ingress_port;
    V1MODEL_PORT egress_spec;
    V1MODEL_PORT egress_port;
    bit<32> instance_type;
    bit<32> packet_length;
    // Of the queue: microseconds, and packets.
    @alias("queueing_metadata.enq_timestamp") bit<32> enq_timestamp;
    @alias("queueing_metadata.enq_qdepth") bit<19> enq_qdepth;
    @alias("queueing_metadata.deq_timedelta") bit<32> deq_timedelta;
    @alias("queueing_metadata.deq_qdepth") bit<19> deq_qdepth;
    // Microseconds since the switch started.
    @alias("intrinsic_metadata.ingress_global_timestamp") bit<48> ingress_global_timestamp;
    @alias("intrinsic_metadata.egress_global_timestamp") bit<48> egress_global_timestamp;
    @alias("intrinsic_metadata.mcast_grp") bit<16> mcast_grp;
    @alias("intrinsic_metadata.egress_rid") bit<16> egress_rid;
    bit<1> checksum_error;
    error parser_error;
    @alias("intrinsic_metadata.priority") bit<3> priority;
}

enum CounterType { packets, bytes, packets_and_bytes }
enum MeterType { packets, bytes }
enum CloneType { I2E, E2E }
enum HashAlgorithm { crc32, crc32_custom, crc16, crc16_custom, random, identity, csum16, xor16 }

#define V1MODEL_METER_COLOR_GREEN 0
#define V1MODEL_METER_COLOR_YELLOW 1
#define V1MODEL_METER_COLOR_RED 2

// Counters.
extern counter V1MODEL_INDEX_ONLY {
    counter(bit<32> size, CounterType type);
    void count(in V1MODEL_INDEX index);
}
extern direct_counter {
    direct_counter(CounterType type);
    void count();
}

// Meters of two rates (RFC 2698).
extern meter V1MODEL_INDEX_ONLY {
    meter(bit<32> size, MeterType type);
    void execute_meter<T>(in V1MODEL_INDEX index, out T result);
}
extern direct_meter<T> {
    direct_meter(MeterType type);
    void read(out T result);
}

// State.
extern register V1MODEL_VALUE_AND_INDEX {
    register(bit<32> size);
    @noSideEffects void read(out T result, in V1MODEL_INDEX index);
    void write(in V1MODEL_INDEX index, in T value);
}

// Shared actions of tables.
extern action_profile { action_profile(bit<32> size); }
extern action_selector { action_selector(HashAlgorithm algorithm, bit<32> size, bit<32> outputWidth); }

// Numbers and messages.
extern void random<T>(out T result, in T lo, in T hi);
extern void digest<T>(in bit<32> receiver, in T data);
@pure extern void hash<O, T, D, M>(out O result, in HashAlgorithm algo, in T base, in D data, in M max);

// Checksums.
@deprecated("verify_checksum and update_checksum take its place")
extern Checksum16 {
    Checksum16();
    bit<16> get<D>(in D data);
}
extern void verify_checksum<T, O>(in bool condition, in T data, in O checksum, HashAlgorithm algo);
@pure extern void update_checksum<T, O>(in bool condition, in T data, inout O checksum, HashAlgorithm algo);
extern void verify_checksum_with_payload<T, O>(in bool condition, in T data, in O checksum, HashAlgorithm algo);
@noSideEffects
extern void update_checksum_with_payload<T, O>(
    in bool condition, in T data, inout O checksum, HashAlgorithm algo);

// Ways of a packet.
@deprecated("mark_to_drop with the standard metadata takes its place")
extern void mark_to_drop();
@pure extern void mark_to_drop(inout standard_metadata_t standard_metadata);
extern void truncate(in bit<32> length);
extern void clone(in CloneType type, in bit<32> session);
extern void clone_preserving_field_list(in CloneType type, in bit<32> session, bit<8> index);
@deprecated("clone_preserving_field_list takes its place")
extern void clone3<T>(in CloneType type, in bit<32> session, in T data);
extern void resubmit_preserving_field_list(bit<8> index);
@deprecated("resubmit_preserving_field_list takes its place")
extern void resubmit<T>(in T data);
extern void recirculate_preserving_field_list(bit<8> index);
@deprecated("recirculate_preserving_field_list takes its place")
extern void recirculate<T>(in T data);

// Help for the programmer.
extern void assert(in bool check);
extern void assume(in bool check);
extern void log_msg(string msg);
extern void log_msg<T>(string msg, in T data);

parser Parser<H, M>(
    packet_in b, out H parsedHdr, inout M meta, inout standard_metadata_t standard_metadata);
control VerifyChecksum<H, M>(inout H hdr, inout M meta);
@pipeline
control Ingress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);
@pipeline
control Egress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);
control ComputeChecksum<H, M>(inout H hdr, inout M meta);
@deparser
control Deparser<H>(packet_out b, in H hdr);

package V1Switch<H, M>(
    Parser<H, M> p, VerifyChecksum<H, M> vr, Ingress<H, M> ig, Egress<H, M> eg, ComputeChecksum<H, M> ck,
    Deparser<H> dep);

#endif
