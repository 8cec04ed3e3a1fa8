/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * QUIC: the server that a connection id names, in the unencrypted form of draft-ietf-quic-load-balancers.
 *
 * The first octet of such an id has the configuration in its top three bits; the server's id follows, then a nonce
 * of at least four octets. Ids that a client chose for its first packets name nobody, and are balanced like any
 * other flow until the server has chosen one.
 */
#ifndef MILLSTREAM_BALANCER_QUIC_H
#define MILLSTREAM_BALANCER_QUIC_H

#include "parse.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_FIXED_BIT 0x40
#define QUIC_VERSION_2 0x6b3343cf

/* First octet and as much of a server's id as there may be. */
struct connection_id {
	__u8 first;
	__u8 server[4];
};

struct quic_short {
	__u8 flags;
	struct connection_id id;
};

/* RFC 8999, 5.1. */
struct quic_long {
	__u8 flags;
	__u8 version[4];
	__u8 id_length;
	struct connection_id id;
};

/* True for packets whose destination id the client may have made up: Initial and 0-RTT (RFC 9000 and RFC 9369). */
static __always_inline int is_first_flight(const struct quic_long *header)
{
	__u32 version = (__u32)header->version[0] << 24 | header->version[1] << 16 | header->version[2] << 8 |
			header->version[3];
	__u32 type = header->flags >> 4 & 3;

	return version == QUIC_VERSION_2 ? type == 1 || type == 2 : type < 2;
}

/* Index of the real that the packet's connection id names, or 0. */
static __always_inline __u32 quic_real(const struct packet *p, const void *data, const void *end,
				       const struct settings *set)
{
	const struct quic_short *header = data + (p->transport & TRANSPORT_MASK) + sizeof(struct udp);
	const struct connection_id *id = &header->id;
	__s32 payload = room(p) - (__s32)sizeof(struct udp);

	if ((const void *)(header + 1) > end || payload < (__s32)sizeof(*header))
		return 0;
	if (header->flags & QUIC_LONG_HEADER) {
		const struct quic_long *header_long = (const void *)header;

		if ((const void *)(header_long + 1) > end || payload < (__s32)sizeof(*header_long) ||
		    is_first_flight(header_long) || header_long->id_length < sizeof(*id))
			return 0;
		id = &header_long->id;
	} else if (!(header->flags & QUIC_FIXED_BIT)) {
		return 0;
	}

	struct quic_server key = { .config = id->first >> 5 };
	__u32 octets = set->quic_id_length[key.config & 7];
	if (octets < 1 || octets > 4)
		return 0;
	key.id = ((__u32)id->server[0] << 24 | id->server[1] << 16 | id->server[2] << 8 | id->server[3]) >>
		 (32 - 8 * octets);
	const __u32 *real = bpf_map_lookup_elem(&quic_servers, &key);
	if (!real)
		return because(REASON_QUIC_UNKNOWN_SERVER, 0);
	return *real;
}

#endif
