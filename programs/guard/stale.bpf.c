// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * What the laboratory puts at the far end of a router to count stale packets: frames that were made after a route's
 * update had returned to its caller, and do not carry the next hop that it gave.
 *
 * Frames carry the time at which they were made in their metadata. The route is that of one destination address.
 * Offsets are repeated in `millstream_lab::far_end`.
 */
#include "packet.h"

struct stale_state {
	/* The destination under watch, and the next hop's link-layer address in the low 48 bits. */
	__u64 destination;
	__u64 hop;
	/* When the update returned; all ones while what is above changes. */
	__u64 returned;
	/* Frames made after that with another next hop, and with this one. */
	__u64 stale;
	__u64 fresh;
	/* Frames that came while the expectation changed: not judged. */
	__u64 between;
	/* All frames. */
	__u64 all;
	/* Frames to that destination without a time. */
	__u64 unstamped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stale_state);
} stale SEC(".maps");

SEC("xdp")
int count_stale(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 *made = (void *)(long)ctx->data_meta;
	struct eth *eth = data;
	struct ipv4 *ip = data + sizeof(*eth);
	__u64 returned, wanted, hop = 0;
	__u32 zero = 0;

	volatile struct stale_state *s = bpf_map_lookup_elem(&stale, &zero);
	if (!s)
		return XDP_DROP;
	/* One receive queue, hence one writer. */
	s->all++;
	returned = s->returned;
	if ((void *)(ip + 1) > end || ip->dst != (__u32)s->destination)
		return XDP_DROP;
	if ((void *)(made + 1) > data) {
		s->unstamped++;
		return XDP_DROP;
	}
	if (*made <= returned)
		return XDP_DROP;
	wanted = s->hop;
	if (s->returned != returned) {
		s->between++;
		return XDP_DROP;
	}
	__builtin_memcpy(&hop, eth->dst, sizeof(eth->dst));
	if (hop == wanted)
		s->fresh++;
	else
		s->stale++;
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
