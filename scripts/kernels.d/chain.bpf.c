// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * Two programs that run before `answer_xdp` in a chain of libxdp: one counts the questions of `stale`, one drops those whose key is blocked.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define QUESTION 0x88b5

/* libxdp reads priority and verdicts from the types. */
struct {
	__uint(priority, 10);
	__uint(XDP_PASS, 1);
} _count SEC(".xdp_run_config");

struct {
	__uint(priority, 20);
	__uint(XDP_PASS, 1);
} _block SEC(".xdp_run_config");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps");

/* The key of a question, which follows the Ethernet header and a padding. */
static __always_inline __u32 *key_of(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 20 > end || *(__be16 *)(data + 12) != bpf_htons(QUESTION))
		return 0;
	return data + 16;
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *number = bpf_map_lookup_elem(&counts, &zero);

	if (number && key_of(ctx))
		__sync_fetch_and_add(number, 1);
	return XDP_PASS;
}

SEC("xdp")
int block(struct xdp_md *ctx)
{
	__u32 *at = key_of(ctx), key;

	if (!at)
		return XDP_PASS;
	key = *at;
	return bpf_map_lookup_elem(&blocked, &key) ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
