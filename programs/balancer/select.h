/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* From a connection to the real server that has it, or shall have it. */
#ifndef MILLSTREAM_BALANCER_SELECT_H
#define MILLSTREAM_BALANCER_SELECT_H

#include "quic.h"

/* Odd constants with about as many ones as zeros, for mixing by multiplication. */
#define MIX_1 0xd6e8feb86659fd93ULL
#define MIX_2 0xa0761d6478bd642fULL

/* Spreads a difference in any bit over the upper half of the result. */
static __always_inline __u64 mix(__u64 word)
{
	word ^= word >> 32;
	word *= MIX_1;
	word ^= word >> 29;
	return word * MIX_2;
}

/* Hash of the client's end of the connection. */
static __always_inline __u32 hash_client(const struct packet *p, __be16 port)
{
	const __be32 *word = p->client.word;
	__u64 hash = mix((__u64)port << 32 | word[0]);

	if (p->ipv6) {
		hash = mix(hash ^ ((__u64)word[1] << 32 | word[2]));
		hash = mix(hash ^ word[3]);
	}
	return hash >> 32;
}

/* The VIP that the packet is for. If it is one for all ports, the packet's port is set to 0 as in the VIP's key. */
static __always_inline const struct vip *find_vip(struct packet *p)
{
	const struct vip *vip;

	if (p->ipv6) {
		struct vip6 key = { .port = p->vip_port, .protocol = p->protocol };

		copy_address((struct address *)key.address, p->vip.word);
		vip = bpf_map_lookup_elem(&vips6, &key);
		if (vip)
			return vip;
		key.port = 0;
		vip = bpf_map_lookup_elem(&vips6, &key);
	} else {
		struct vip4 key = { .address = p->vip.word[0], .port = p->vip_port, .protocol = p->protocol };

		vip = bpf_map_lookup_elem(&vips4, &key);
		if (vip)
			return vip;
		key.port = 0;
		vip = bpf_map_lookup_elem(&vips4, &key);
	}
	p->vip_port = 0;
	return vip;
}

/* A real that takes packets, or null. */
static __always_inline const struct real *usable(__u32 index)
{
	const struct real *real = bpf_map_lookup_elem(&reals, &index);

	return real && real->flags & REAL_UP ? real : 0;
}

static __always_inline struct flow4 flow4_of(const struct packet *p, __be16 client_port)
{
	return (struct flow4){
		.client = p->client.word[0],
		.vip = p->vip.word[0],
		.client_port = client_port,
		.vip_port = p->vip_port,
		.protocol = p->protocol,
	};
}

static __always_inline void fill_flow6(struct flow6 *flow, const struct packet *p, __be16 client_port)
{
	copy_address((struct address *)flow->client, p->client.word);
	copy_address((struct address *)flow->vip, p->vip.word);
	flow->client_port = client_port;
	flow->vip_port = p->vip_port;
	flow->protocol = p->protocol;
}

/* Index of the real that the connection table has for the packet, or 0. */
static __always_inline __u32 table_find(const struct packet *p, __be16 client_port, const struct settings *set)
{
	struct connection *connection;

	if (p->ipv6) {
		struct flow6 flow = {};

		fill_flow6(&flow, p, client_port);
		connection = bpf_map_lookup_elem(&flows6, &flow);
	} else {
		struct flow4 flow = flow4_of(p, client_port);

		connection = bpf_map_lookup_elem(&flows4, &flow);
	}
	if (!connection)
		return 0;
	if (p->protocol == PROTO_UDP && !p->icmp_error) {
		__u64 now = bpf_ktime_get_coarse_ns();

		if (now - connection->last_seen > set->udp_idle_ns)
			return 0;
		connection->last_seen = now;
	}
	return connection->real;
}

/* Remembers a new connection, unless there are too many of them, as in a flood. */
static __always_inline void table_insert(const struct packet *p, __be16 client_port, __u32 real,
					 const struct settings *set)
{
	struct connection connection = { .real = real };

	if (set->new_flow_limit && over_limit(LIMIT_NEW_FLOWS, set->new_flow_limit)) {
		because(REASON_NOT_REMEMBERED, 0);
		return;
	}
	if (p->protocol == PROTO_UDP)
		connection.last_seen = bpf_ktime_get_coarse_ns();
	if (p->ipv6) {
		struct flow6 flow = {};

		fill_flow6(&flow, p, client_port);
		bpf_map_update_elem(&flows6, &flow, &connection, BPF_ANY);
	} else {
		struct flow4 flow = flow4_of(p, client_port);

		bpf_map_update_elem(&flows4, &flow, &connection, BPF_ANY);
	}
}

/*
 * The packet's real, and its index; null if none can take it. In this order: the server that a QUIC connection id
 * names; the connection table, which keeps connections where they are while rings change; the ring. A SYN starts a
 * connection, so that what the table has is an older one with the same ports.
 */
static __always_inline const struct real *select_real(const struct packet *p, const struct vip *vip, __u32 hash,
						      const void *data, const void *end,
						      const struct settings *set, __u32 *index)
{
	__be16 client_port = vip->flags & VIP_CLIENT_AFFINITY ? 0 : p->client_port;
	int remember = !(vip->flags & VIP_NO_TABLE);
	const struct real *real;

	if (vip->flags & VIP_QUIC && p->protocol == PROTO_UDP && !p->icmp_error) {
		*index = quic_real(p, data, end, set);
		if (*index) {
			real = usable(*index);
			if (real) {
				because(REASON_QUIC_ROUTED, 0);
				return real;
			}
		}
	}
	if (p->tcp_flags & TCP_SYN) {
		because(REASON_SYN, 0);
	} else if (remember) {
		*index = table_find(p, client_port, set);
		if (likely(*index)) {
			real = usable(*index);
			if (likely(real))
				return real;
		}
		because(REASON_TABLE_MISS, 0);
	}

	if (vip->flags & VIP_CLIENT_AFFINITY)
		hash = hash_client(p, 0);
	/* The hash as a fraction of 2^32, of the ring. */
	__u32 slot = vip->id * BALANCER_RING + (__u32)((__u64)hash * BALANCER_RING >> 32);
	const __u32 *entry = bpf_map_lookup_elem(&rings, &slot);
	if (!entry)
		return 0;
	*index = *entry;
	real = *index ? usable(*index) : 0;
	if (real && remember && !p->icmp_error && !(p->tcp_flags & TCP_RST))
		table_insert(p, client_port, *index, set);
	return real;
}

#endif
