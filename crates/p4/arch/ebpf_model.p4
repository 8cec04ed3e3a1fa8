// The model of packet filters in the kernel: packets pass or are dropped.
#ifndef MILLSTREAM_EBPF_MODEL_P4
#define MILLSTREAM_EBPF_MODEL_P4
#include <core.p4>

extern array_table { array_table(bit<32> size); }
extern hash_table { hash_table(bit<32> size); }

// Counters of 32 bits in a map; a sparse one is a hash table.
extern CounterArray {
    CounterArray(bit<32> max_index, bool sparse);
    void increment(in bit<32> index);
    void add(in bit<32> index, in bit<32> value);
}

parser parse<H>(packet_in packet, out H headers);
control filter<H>(inout H headers, out bool accept);
package ebpfFilter<H>(parse<H> prs, filter<H> filt);

#endif
