// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * A load balancer of the transport layer: direct server return, consistent hashing, connection table.
 *
 * A packet to a VIP goes, unchanged, inside an outer header to a real server, which answers the client itself. All
 * packets of a connection reach the same real, by the table; without it (another balancer took over, an entry was
 * evicted) they most probably do, by the ring. What is for no VIP goes to the kernel's stack.
 */
#include "maps.h"
#include "parse.h"
#include "icmp.h"
#include "quic.h"
#include "select.h"
#include "encap.h"
#include "too_big.h"

static __always_inline void count(struct traffic *traffic, __u32 bytes)
{
	if (traffic) {
		traffic->packets++;
		traffic->bytes += bytes;
	}
}

/* Balances a packet whose addresses, protocol and transport offset are known. */
static __always_inline int balance(struct xdp_md *ctx, struct packet *p, const void *data, const void *end,
				   const struct settings *set)
{
	const struct eth *eth = data;
	__u8 own[6];
	__u32 index = 0;

	int verdict = unlikely(p->protocol == (p->ipv6 ? PROTO_ICMPV6 : PROTO_ICMP)) ?
			      handle_icmp(ctx, p, data, end) :
			      parse_transport(p, data, end);
	if (verdict != UNDECIDED)
		return verdict;
	const struct vip *vip = find_vip(p);
	if (!vip)
		return because(REASON_NO_VIP, XDP_PASS);

	__u32 hash = hash_client(p, p->client_port);
	const struct real *real = select_real(p, vip, hash, data, end, set, &index);
	if (unlikely(!real))
		return because(REASON_NO_REAL, XDP_DROP);
	if (unlikely(p->length + overhead(real) > set->max_length)) {
		if (p->icmp_error)
			return because(REASON_TOO_BIG, XDP_DROP);
		return p->ipv6 ? too_big6(ctx, set, set->max_length - overhead(real)) :
				 too_big4(ctx, set, set->max_length - overhead(real));
	}
	__u32 id = vip->id;
	count(bpf_map_lookup_elem(&vip_counters, &id), p->length);
	count(bpf_map_lookup_elem(&real_counters, &index), p->length);
	__builtin_memcpy(own, eth->dst, 6);
	return encapsulate(ctx, p, real, set, hash, own);
}

SEC("xdp")
int balancer(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct eth *eth = data;
	struct packet p = {};
	__u32 zero = 0;
	int verdict;

	const struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return XDP_ABORTED;
	if ((const void *)(eth + 1) > end)
		return because(REASON_MALFORMED, XDP_DROP);
	if (eth->type == bpf_htons(ETHERTYPE_IPV4)) {
		verdict = parse_ipv4(&p, data, end, set);
		return verdict == UNDECIDED ? balance(ctx, &p, data, end, set) : verdict;
	}
	if (eth->type == bpf_htons(ETHERTYPE_IPV6)) {
		verdict = parse_ipv6(ctx, &p, data, end, set);
		return verdict == UNDECIDED ? balance(ctx, &p, data, end, set) : verdict;
	}
	return because(REASON_NOT_IP, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
