// The Portable Switch Architecture for DPDK: counters and meters take the packet's length, too.
#define COUNTER_METHODS \
    void count(in S index); \
    void count(in S index, in bit<32> pkt_len);
#define DIRECT_COUNTER_METHODS \
    void count(); \
    void count(in bit<32> pkt_len);
#define METER_METHODS \
    PSA_MeterColor_t dpdk_execute(in S index, in PSA_MeterColor_t color, in bit<32> pkt_len); \
    PSA_MeterColor_t dpdk_execute(in S index, in bit<32> pkt_len);
#define DIRECT_METER_METHODS \
    PSA_MeterColor_t execute(in PSA_MeterColor_t color); \
    PSA_MeterColor_t execute(); \
    PSA_MeterColor_t dpdk_execute(in PSA_MeterColor_t color, in bit<32> pkt_len); \
    PSA_MeterColor_t dpdk_execute(in bit<32> pkt_len);
#include <psa_blocks.p4>
