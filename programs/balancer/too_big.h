/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Packets that are too long once they have an outer header: the client is told the length that is not, by ICMP
 * (RFC 1191, RFC 4443), in the VIP's name.
 */
#ifndef MILLSTREAM_BALANCER_TOO_BIG_H
#define MILLSTREAM_BALANCER_TOO_BIG_H

#include "encap.h"

#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMPV6_TOO_BIG 2
/* What is quoted: for IPv4, the longest header and eight octets; for IPv6, well below the minimum MTU. */
#define QUOTED4 68
#define QUOTED6 232

/* Cuts the packet behind its first `quoted` octets, and makes room for `header` in front. */
static __always_inline int reframe(struct xdp_md *ctx, __u32 quoted, __u32 header)
{
	int length = ctx->data_end - ctx->data;

	return bpf_xdp_adjust_tail(ctx, (int)(sizeof(struct eth) + quoted) - length) ||
	       bpf_xdp_adjust_head(ctx, -(int)header);
}

static __always_inline int may_answer(const struct settings *set)
{
	return set->icmp_limit && !over_limit(LIMIT_ICMP, set->icmp_limit);
}

static __noinline int too_big4(struct xdp_md *ctx, const struct settings *set, __u32 mtu)
{
	const __u32 header = sizeof(struct ipv4) + sizeof(struct icmp);
	const void *old_data = (const void *)(long)ctx->data;
	const void *old_end = (const void *)(long)ctx->data_end;
	const struct eth *old_eth = old_data;
	const struct ipv4 *old = old_data + sizeof(*old_eth);
	__u8 macs[12];

	/* Without "don't fragment" it should have been fragmented on its way; there is no one to tell. */
	if ((const void *)old + QUOTED4 > old_end || !(old->fragment & bpf_htons(IPV4_DONT_FRAGMENT)) ||
	    !may_answer(set))
		return because(REASON_TOO_BIG, XDP_DROP);
	__be32 client = old->src, vip = old->dst;
	copy_macs(macs, old_eth);
	if (reframe(ctx, QUOTED4, header))
		return because(REASON_NO_ROOM, XDP_DROP);

	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + sizeof(struct eth);
	struct icmp *icmp = (void *)(ip + 1);
	if ((void *)ip + header + QUOTED4 > end)
		return because(REASON_NO_ROOM, XDP_DROP);
	write_eth(data, macs + 6, macs, bpf_htons(ETHERTYPE_IPV4));
	write_ipv4(ip, 0, vip, client, header + QUOTED4, PROTO_ICMP);
	icmp->type = ICMP_UNREACHABLE;
	icmp->code = ICMP_FRAGMENTATION_NEEDED;
	icmp->checksum = 0;
	icmp->rest = bpf_htonl(mtu & 0xffff);
	icmp->checksum = ~csum_fold((__u32)bpf_csum_diff(0, 0, (void *)icmp, sizeof(*icmp) + QUOTED4, 0));
	return because(REASON_TOO_BIG_ANSWERED, XDP_TX);
}

static __noinline int too_big6(struct xdp_md *ctx, const struct settings *set, __u32 mtu)
{
	const __u32 header = sizeof(struct ipv6) + sizeof(struct icmp);
	const __u32 length = sizeof(struct icmp) + QUOTED6;
	const void *old_data = (const void *)(long)ctx->data;
	const void *old_end = (const void *)(long)ctx->data_end;
	const struct eth *old_eth = old_data;
	const struct ipv6 *old = old_data + sizeof(*old_eth);
	struct address client, vip;
	__u8 macs[12];

	if ((const void *)old + QUOTED6 > old_end || !may_answer(set))
		return because(REASON_TOO_BIG, XDP_DROP);
	copy_address(&client, old->src);
	copy_address(&vip, old->dst);
	copy_macs(macs, old_eth);
	if (reframe(ctx, QUOTED6, header))
		return because(REASON_NO_ROOM, XDP_DROP);

	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6 *ip = data + sizeof(struct eth);
	struct icmp *icmp = (void *)(ip + 1);
	if ((void *)ip + header + QUOTED6 > end)
		return because(REASON_NO_ROOM, XDP_DROP);
	write_eth(data, macs + 6, macs, bpf_htons(ETHERTYPE_IPV6));
	write_ipv6(ip, 0, length, PROTO_ICMPV6);
	copy_address((struct address *)ip->src, vip.word);
	copy_address((struct address *)ip->dst, client.word);
	icmp->type = ICMPV6_TOO_BIG;
	icmp->code = 0;
	icmp->checksum = 0;
	icmp->rest = bpf_htonl(mtu);
	/* The pseudo-header: addresses, length, protocol. The sums of header and message are taken together. */
	__u32 sum = bpf_htonl(length + PROTO_ICMPV6);
	sum = bpf_csum_diff(0, 0, ip->src, 2 * sizeof(struct address), sum);
	sum = bpf_csum_diff(0, 0, (void *)icmp, length, sum);
	icmp->checksum = ~csum_fold(sum);
	return because(REASON_TOO_BIG_ANSWERED, XDP_TX);
}

#endif
