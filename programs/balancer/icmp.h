/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* ICMP: pings of a VIP are answered; errors follow the connection that they quote. */
#ifndef MILLSTREAM_BALANCER_ICMP_H
#define MILLSTREAM_BALANCER_ICMP_H

#include "parse.h"

#define INITIAL_TTL 64

static __always_inline void swap_macs(struct eth *eth)
{
	__u8 old[6];

	__builtin_memcpy(old, eth->dst, 6);
	__builtin_memcpy(eth->dst, eth->src, 6);
	__builtin_memcpy(eth->src, old, 6);
}

static __always_inline void swap_words(__be32 *a, __be32 *b)
{
	__be32 old = *a;

	*a = *b;
	*b = old;
}

/* The checksum after the 16-bit word `from` became `to`: RFC 1624, equation 3. */
static __always_inline __sum16 csum_replace(__sum16 checksum, __be16 from, __be16 to)
{
	__u32 sum = (__u16)~checksum + (__u32)(__u16)~from + to;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Turns an echo request into its reply, in place. */
static __noinline int echo_reply4(struct xdp_md *ctx, __u32 transport)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	struct ipv4 *ip = data + sizeof(*eth);
	struct icmp *icmp = data + (transport & TRANSPORT_MASK);

	if ((void *)(ip + 1) > end || (void *)(icmp + 1) > end)
		return because(REASON_MALFORMED, XDP_DROP);
	swap_macs(eth);
	swap_words(&ip->src, &ip->dst);
	ip->checksum = csum_replace(ip->checksum, bpf_htons(ip->ttl << 8 | ip->protocol),
				    bpf_htons(INITIAL_TTL << 8 | ip->protocol));
	ip->ttl = INITIAL_TTL;
	icmp->checksum = csum_replace(icmp->checksum, bpf_htons(ICMP_ECHO << 8), 0);
	icmp->type = 0;
	return because(REASON_ECHO, XDP_TX);
}

/* The same for ICMPv6, whose checksum covers the addresses, but not their order. */
static __noinline int echo_reply6(struct xdp_md *ctx, __u32 transport)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	struct ipv6 *ip = data + sizeof(*eth);
	struct icmp *icmp = data + (transport & TRANSPORT_MASK);

	if ((void *)(ip + 1) > end || (void *)(icmp + 1) > end)
		return because(REASON_MALFORMED, XDP_DROP);
	swap_macs(eth);
	for (int i = 0; i < 4; i++)
		swap_words(&ip->src[i], &ip->dst[i]);
	ip->hops = INITIAL_TTL;
	icmp->checksum = csum_replace(icmp->checksum, bpf_htons(ICMPV6_ECHO << 8), bpf_htons((ICMPV6_ECHO + 1) << 8));
	icmp->type = ICMPV6_ECHO + 1;
	return because(REASON_ECHO, XDP_TX);
}

/* The packet that an ICMP error quotes: one from a VIP to a client. */
struct quoted {
	struct address from;
	struct address to;
	struct ports ports;
	__u32 protocol;
};

static __always_inline int has_quotable_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP;
}

/* The packet quoted after the ICMP header at `transport`, which has `room` octets with what follows. */
static __noinline int quoted4(struct xdp_md *ctx, __u32 transport, __s32 room, struct quoted *q)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct ipv4 *ip = data + (transport & TRANSPORT_MASK) + sizeof(struct icmp);

	if ((const void *)(ip + 1) > end || ip->ihl >> 4 != 4 || (ip->ihl & 15) < 5)
		return because(REASON_MALFORMED, XDP_DROP);
	__s32 header = (ip->ihl & 15) * 4;
	const struct ports *ports = (const void *)ip + header;
	if ((const void *)(ports + 1) > end || room < (__s32)(sizeof(struct icmp) + sizeof(*ports)) + header)
		return because(REASON_MALFORMED, XDP_DROP);
	if (!has_quotable_ports(ip->protocol) || ip->fragment & bpf_htons(IPV4_OFFSET_MASK))
		return because(REASON_OTHER_PROTOCOL, XDP_PASS);
	q->from.word[0] = ip->src;
	q->to.word[0] = ip->dst;
	q->ports = *ports;
	q->protocol = ip->protocol;
	return UNDECIDED;
}

static __noinline int quoted6(struct xdp_md *ctx, __u32 transport, __s32 room, struct quoted *q)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct ipv6 *ip = data + (transport & TRANSPORT_MASK) + sizeof(struct icmp);
	const struct ports *ports = (const void *)(ip + 1);

	if ((const void *)(ports + 1) > end || room < (__s32)(sizeof(struct icmp) + sizeof(*ip) + sizeof(*ports)))
		return because(REASON_MALFORMED, XDP_DROP);
	if (!has_quotable_ports(ip->next))
		return because(REASON_OTHER_PROTOCOL, XDP_PASS);
	copy_address(&q->from, ip->src);
	copy_address(&q->to, ip->dst);
	q->ports = *ports;
	q->protocol = ip->next;
	return UNDECIDED;
}

static __always_inline int is_error(const struct packet *p, __u8 type)
{
	if (p->ipv6)
		return type >= ICMPV6_UNREACHABLE && type <= ICMPV6_PARAMETER;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER;
}

/*
 * Answers a ping of a VIP. Makes `p` the connection that an error quotes, seen from the client; an error about
 * packets of another address than the one that it is sent to is not ours, or forged. All else is the stack's.
 */
static __always_inline int handle_icmp(struct xdp_md *ctx, struct packet *p, const void *data, const void *end)
{
	const struct icmp *icmp = data + (p->transport & TRANSPORT_MASK);
	struct quoted q = {};

	if ((const void *)(icmp + 1) > end || room(p) < (__s32)sizeof(*icmp))
		return because(REASON_MALFORMED, XDP_DROP);
	if (icmp->type == (p->ipv6 ? ICMPV6_ECHO : ICMP_ECHO) && icmp->code == 0 &&
	    bpf_map_lookup_elem(&vip_addresses, &p->vip))
		return p->ipv6 ? echo_reply6(ctx, p->transport) : echo_reply4(ctx, p->transport);
	if (!is_error(p, icmp->type))
		return because(REASON_OTHER_PROTOCOL, XDP_PASS);

	int verdict = p->ipv6 ? quoted6(ctx, p->transport, room(p), &q) :
				  quoted4(ctx, p->transport, room(p), &q);
	if (verdict != UNDECIDED)
		return verdict;
	if (!same_address(&p->vip, q.from.word))
		return because(REASON_NO_VIP, XDP_PASS);
	copy_address(&p->client, q.to.word);
	p->client_port = q.ports.dst;
	p->vip_port = q.ports.src;
	p->protocol = q.protocol;
	p->icmp_error = 1;
	return because(REASON_ICMP_ERROR, UNDECIDED);
}

#endif
