// The Portable Switch Architecture as its specification has it.
#define COUNTER_METHODS void count(in S index);
#define DIRECT_COUNTER_METHODS void count();
#define METER_METHODS
#define DIRECT_METER_METHODS \
    PSA_MeterColor_t execute(in PSA_MeterColor_t color); \
    PSA_MeterColor_t execute();
#include <psa_blocks.p4>
