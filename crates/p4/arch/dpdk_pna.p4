// The Portable NIC Architecture for DPDK: more hashes, lengths of packets, and IPsec.
#define HASH_ALGORITHMS \
    IDENTITY, CRC32, CRC32_CUSTOM, CRC16, CRC16_CUSTOM, ONES_COMPLEMENT16, TOEPLITZ, TARGET_DEFAULT
#define COUNTER_METHODS \
    void count(in S index); \
    void count(in S index, in bit<32> pkt_len);
#define DIRECT_COUNTER_METHODS \
    void count(); \
    void count(in bit<32> pkt_len);
#define METER_METHODS \
    PNA_MeterColor_t dpdk_execute(in S index, in PNA_MeterColor_t color, in bit<32> pkt_len); \
    PNA_MeterColor_t dpdk_execute(in S index, in bit<32> pkt_len);
#define DIRECT_METER_METHODS \
    PNA_MeterColor_t execute(in PNA_MeterColor_t color); \
    PNA_MeterColor_t execute(); \
    PNA_MeterColor_t dpdk_execute(in PNA_MeterColor_t color, in bit<32> pkt_len); \
    PNA_MeterColor_t dpdk_execute(in bit<32> pkt_len);
#include <pna_blocks.p4>

#ifndef MILLSTREAM_DPDK_PNA_P4
#define MILLSTREAM_DPDK_PNA_P4

enum ipsec_status { IPSEC_SUCCESS, IPSEC_ERROR }

extern ipsec_accelerator {
    ipsec_accelerator();
    void set_sa_index<T>(in T sa_index);
    void set_ip_header_offset<T>(in T offset);
    void enable();
    void disable();
    bool from_ipsec(out ipsec_status status);
}

#endif
