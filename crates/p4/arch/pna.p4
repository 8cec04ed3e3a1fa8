// The Portable NIC Architecture as its specification has it.
#define HASH_ALGORITHMS TARGET_DEFAULT
#define COUNTER_METHODS void count(in S index, @optional in bit<32> increment);
#define DIRECT_COUNTER_METHODS void count(@optional in bit<32> increment);
#define METER_METHODS
#define DIRECT_METER_METHODS \
    PNA_MeterColor_t execute(in PNA_MeterColor_t color, @optional in bit<32> pkt_len); \
    PNA_MeterColor_t execute(@optional in bit<32> pkt_len);
#include <pna_blocks.p4>
