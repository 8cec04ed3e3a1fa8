/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* From a frame to the connection that it belongs to, as the client sees it. */
#ifndef MILLSTREAM_BALANCER_PARSE_H
#define MILLSTREAM_BALANCER_PARSE_H

#include "maps.h"
#include "transport.h"

#define ETHERTYPE_IPV6 0x86dd
#define PROTO_IPIP 4
#define PROTO_IPV6 41
#define PROTO_ICMPV6 58

#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_DESTINATION_OPTIONS 60
/* Extension headers that are skipped; a packet with more goes to the stack. */
#define IPV6_EXTENSIONS 4
/* Extensions have at most 2,048 octets each, so that the transport header starts below this. */
#define TRANSPORT_MASK 0x3fff

/* ICMPv6 errors are the types below 128; these four are defined. */
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_PARAMETER 4
#define ICMPV6_ECHO 128

/* What is not a verdict: go on. */
#define UNDECIDED -1

struct ipv6 {
	/* Version, traffic class, flow label. */
	__be32 first;
	__be16 length;
	__u8 next;
	__u8 hops;
	__be32 src[4];
	__be32 dst[4];
};

struct ipv6_extension {
	__u8 next;
	/* In units of eight octets, the first not counted. */
	__u8 length;
};

/* A packet of a connection between a client and a VIP. An ICMP error belongs to the connection that it quotes. */
struct packet {
	struct address client;
	struct address vip;
	__be16 client_port;
	__be16 vip_port;
	/* Of the IP packet, with its header. */
	__u16 length;
	__u8 protocol;
	__u8 ipv6;
	/* Traffic class; the outer header has the same. */
	__u8 tos;
	__u8 tcp_flags;
	__u8 icmp_error;
	/* Where the transport header starts in the frame; see TRANSPORT_MASK. */
	__u16 transport;
};

static __always_inline void copy_address(struct address *to, const __be32 *from)
{
	for (int i = 0; i < 4; i++)
		to->word[i] = from[i];
}

static __always_inline int same_address(const struct address *a, const __be32 *b)
{
	return !((a->word[0] ^ b[0]) | (a->word[1] ^ b[1]) | (a->word[2] ^ b[2]) | (a->word[3] ^ b[3]));
}

static __always_inline int fragment(const struct settings *set)
{
	return because(REASON_FRAGMENT, set->fragments == FRAGMENTS_TO_STACK ? XDP_PASS : XDP_DROP);
}

/* Addresses, lengths and protocol of an IPv4 packet. */
static __always_inline int parse_ipv4(struct packet *p, const void *data, const void *end,
				      const struct settings *set)
{
	const struct ipv4 *ip = data + sizeof(struct eth);
	__u32 header = ipv4_header(ip, end);

	if (!header)
		return because(REASON_MALFORMED, XDP_DROP);
	if (ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK))
		return fragment(set);
	p->client.word[0] = ip->src;
	p->vip.word[0] = ip->dst;
	p->length = bpf_ntohs(ip->length);
	p->protocol = ip->protocol;
	p->tos = ip->tos;
	p->transport = sizeof(struct eth) + header;
	return UNDECIDED;
}

static __always_inline int is_extension(__u8 next)
{
	return next == IPV6_HOP_BY_HOP || next == IPV6_ROUTING || next == IPV6_DESTINATION_OPTIONS;
}

/*
 * Skips extension headers. Gives the transport header's offset, shifted left by eight, and its protocol; or, below
 * 256, the verdict. By value, so that the packet's description may live in registers.
 */
static __noinline __u32 skip_extensions(struct xdp_md *ctx, __u32 offset, __u32 protocol, const struct settings *set)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;

	for (int i = 0; i < IPV6_EXTENSIONS && is_extension(protocol); i++) {
		const struct ipv6_extension *extension = data + (offset & TRANSPORT_MASK);

		if ((const void *)(extension + 1) > end)
			return because(REASON_MALFORMED, XDP_DROP);
		protocol = extension->next;
		offset += (extension->length + 1) * 8;
	}
	if (protocol == IPV6_FRAGMENT)
		return fragment(set);
	return offset << 8 | protocol;
}

/* Addresses, lengths and protocol of an IPv6 packet. */
static __always_inline int parse_ipv6(struct xdp_md *ctx, struct packet *p, const void *data, const void *end,
				      const struct settings *set)
{
	const struct ipv6 *ip = data + sizeof(struct eth);

	if ((const void *)(ip + 1) > end || (ip->first & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return because(REASON_MALFORMED, XDP_DROP);
	__u32 length = bpf_ntohs(ip->length) + sizeof(*ip);
	if (!holds(ip, length, end))
		return because(REASON_MALFORMED, XDP_DROP);
	copy_address(&p->client, ip->src);
	copy_address(&p->vip, ip->dst);
	p->length = length;
	p->protocol = ip->next;
	p->tos = bpf_ntohl(ip->first) >> 20;
	p->ipv6 = 1;
	p->transport = sizeof(struct eth) + sizeof(*ip);
	if (unlikely(is_extension(ip->next))) {
		__u32 found = skip_extensions(ctx, p->transport, ip->next, set);

		if (found < 256)
			return found;
		p->protocol = found;
		p->transport = found >> 8;
	} else if (unlikely(ip->next == IPV6_FRAGMENT)) {
		return fragment(set);
	}
	return UNDECIDED;
}

/*
 * Octets of the IP packet (not of the frame, which may be padded) from the transport header on. Negative if extension
 * headers promise too much.
 */
static __always_inline __s32 room(const struct packet *p)
{
	return (__s32)(p->length + sizeof(struct eth)) - p->transport;
}

/* Ports and flags, if the protocol is TCP or UDP. */
static __always_inline int parse_transport(struct packet *p, const void *data, const void *end)
{
	const struct tcp *tcp = data + (p->transport & TRANSPORT_MASK);
	const struct udp *udp = (const void *)tcp;

	if (p->protocol == PROTO_TCP) {
		if ((const void *)(tcp + 1) > end || room(p) < (__s32)sizeof(*tcp))
			return because(REASON_MALFORMED, XDP_DROP);
		p->tcp_flags = tcp->flags;
	} else if (p->protocol == PROTO_UDP) {
		if ((const void *)(udp + 1) > end || room(p) < (__s32)sizeof(*udp))
			return because(REASON_MALFORMED, XDP_DROP);
	} else {
		return because(REASON_OTHER_PROTOCOL, XDP_PASS);
	}
	p->client_port = udp->ports.src;
	p->vip_port = udp->ports.dst;
	return UNDECIDED;
}

#endif
