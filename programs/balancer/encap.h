/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* The outer header, towards the real: IPv4 or IPv6, and UDP for GUE. */
#ifndef MILLSTREAM_BALANCER_ENCAP_H
#define MILLSTREAM_BALANCER_ENCAP_H

#include "icmp.h"

#define IPV4_DONT_FRAGMENT 0x4000
/* GUE's source ports are of the range for private use. */
#define GUE_PORTS 0xc000

static __always_inline __u32 overhead(const struct real *real)
{
	return (real->flags & REAL_IPV6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) +
	       (real->flags & REAL_GUE ? sizeof(struct udp) : 0);
}

static __always_inline void write_eth(struct eth *eth, const __u8 *to, const __u8 *from, __be16 type)
{
	__builtin_memcpy(eth->dst, to, 6);
	__builtin_memcpy(eth->src, from, 6);
	eth->type = type;
}

static __always_inline void write_ipv4(struct ipv4 *ip, __u8 tos, __be32 src, __be32 dst, __u32 length,
				       __u8 protocol)
{
	/* The header's words as they stand in memory, so that it is summed without being read back. */
	__u32 word0 = IPV4_NO_OPTIONS | (__u32)tos << 8 | (__u32)bpf_htons(length) << 16;
	__u32 word1 = (__u32)bpf_htons(IPV4_DONT_FRAGMENT) << 16;
	__u32 word2 = INITIAL_TTL | (__u32)protocol << 8;
	__u16 checksum = ~csum_fold((__u64)word0 + word1 + word2 + src + dst);
	__u32 *word = (__u32 *)ip;

	word[0] = word0;
	word[1] = word1;
	word[2] = word2 | (__u32)checksum << 16;
	word[3] = src;
	word[4] = dst;
}

/* All but the addresses. */
static __always_inline void write_ipv6(struct ipv6 *ip, __u8 tos, __u32 length, __u8 protocol)
{
	ip->first = bpf_htonl(0x60000000 | (__u32)tos << 20);
	ip->length = bpf_htons(length);
	ip->next = protocol;
	ip->hops = INITIAL_TTL;
}

/* No checksum: allowed for IPv4 by RFC 768, and for tunnels in IPv6 by RFC 6935. */
static __always_inline void write_udp(struct udp *udp, const struct settings *set, __u32 hash, __u32 length)
{
	udp->ports.src = bpf_htons(GUE_PORTS | (hash & 0x3fff));
	udp->ports.dst = set->gue_port;
	udp->length = bpf_htons(length);
	udp->checksum = 0;
}

/* Puts the outer header in front of the packet, `gue` and `ipv6` being constants at each use. */
static __always_inline int push(struct xdp_md *ctx, const struct packet *p, const struct real *real,
				const struct settings *set, __u32 hash, const __u8 *own, int ipv6, int gue)
{
	__u32 header = ipv6 ? sizeof(struct ipv6) : sizeof(struct ipv4);
	__u32 outer = header + (gue ? sizeof(struct udp) : 0);

	if (bpf_xdp_adjust_head(ctx, -(int)outer))
		return because(REASON_NO_ROOM, XDP_DROP);
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	void *ip = data + sizeof(struct eth);
	if (ip + outer > end)
		return because(REASON_NO_ROOM, XDP_DROP);

	__u8 inner = p->ipv6 ? PROTO_IPV6 : PROTO_IPIP;
	if (ipv6) {
		struct ipv6 *ip6 = ip;

		write_eth(data, set->gateway, own, bpf_htons(ETHERTYPE_IPV6));
		write_ipv6(ip6, p->tos, p->length + outer - header, gue ? PROTO_UDP : inner);
		for (int i = 0; i < 3; i++)
			ip6->src[i] = set->source6[i];
		ip6->src[3] = set->source6[3] ^ hash;
		for (int i = 0; i < 4; i++)
			ip6->dst[i] = real->address.word[i];
	} else {
		write_eth(data, set->gateway, own, bpf_htons(ETHERTYPE_IPV4));
		write_ipv4(ip, p->tos, set->source4 | (hash & set->source4_hash_mask), real->address.word[0],
			   p->length + outer, gue ? PROTO_UDP : inner);
	}
	if (gue)
		write_udp(ip + header, set, hash, p->length + sizeof(struct udp));
	return XDP_TX;
}

static __always_inline int encapsulate(struct xdp_md *ctx, const struct packet *p, const struct real *real,
				       const struct settings *set, __u32 hash, const __u8 *own)
{
	if (real->flags & REAL_IPV6) {
		if (real->flags & REAL_GUE)
			return push(ctx, p, real, set, hash, own, 1, 1);
		return push(ctx, p, real, set, hash, own, 1, 0);
	}
	if (real->flags & REAL_GUE)
		return push(ctx, p, real, set, hash, own, 0, 1);
	return push(ctx, p, real, set, hash, own, 0, 0);
}

#endif
