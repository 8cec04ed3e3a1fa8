// Maps, global data and functions whose bodies the generator replaces. What stays are the declarations: types, arguments, linkage.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct value {
	__u64 words[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct value);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u64);
	__type(value, struct value);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct value);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} xdp_chain SEC(".maps"), tc_chain SEC(".maps");

__u64 totals[8];
const volatile __u64 settings[4] = { 3, 0x1234, 1ull << 40, 0 };

#define SUB(name)                                                                          \
	static __attribute__((noinline)) __u64 name(void *a, void *b, __u64 c, __u64 d, __u64 e) \
	{                                                                                  \
		totals[c & 7] += d ^ e ^ (__u64)a ^ (__u64)b ^ settings[1];                \
		return totals[d & 7];                                                      \
	}

SUB(sub0)
SUB(sub1)
SUB(sub2)
SUB(sub3)

__attribute__((noinline)) __u64 shared(__u64 a, __u64 b)
{
	totals[a & 7] += b;
	return totals[b & 7];
}

static int each(__u32 index, void *data)
{
	totals[index & 7] += 1;
	return 0;
}

// Keeps what nobody else refers to.
SEC("xdp")
int keeper(struct xdp_md *ctx)
{
	__u64 sum = 0;
	__u32 key = 0;
	void *at = &sum;

	bpf_map_lookup_elem(&slots, &key);
	bpf_map_lookup_elem(&flows, &sum);
	bpf_map_lookup_elem(&counts, &key);
	bpf_tail_call(ctx, &xdp_chain, 0);
	bpf_tail_call(ctx, &tc_chain, 0);
	bpf_loop(3, each, &sum, 0);
	sum += sub0(at, at, 1, 2, 3) + sub1(at, at, 1, 2, 3) + sub2(at, at, 1, 2, 3) + sub3(at, at, 1, 2, 3);
	return sum + shared(sum, 2);
}

#define PROGRAM(section, name, type)      \
	SEC(section) int name(type *ctx)  \
	{                                 \
		return 1;                 \
	}

PROGRAM("xdp", xdp_entry, struct xdp_md)
PROGRAM("xdp", xdp_link0, struct xdp_md)
PROGRAM("xdp", xdp_link1, struct xdp_md)
PROGRAM("tc", tc_entry, struct __sk_buff)
PROGRAM("tc", tc_link0, struct __sk_buff)
PROGRAM("tc", tc_link1, struct __sk_buff)

char _license[] SEC("license") = "GPL";
