/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What the router's maps hold: the contract between the data plane and its control tool
 * (`millstream_programs::router`, whose tests hold sizes and offsets against the object's BTF).
 * A port is named by its interface index everywhere.
 */
#ifndef MILLSTREAM_ROUTER_H
#define MILLSTREAM_ROUTER_H

#include <linux/types.h>
#include "counters.h"

#define ROUTER_PORTS 4096
#define ROUTER_ROUTES (1 << 20)
#define ROUTER_NEXT_HOPS 4096

/* `routes`: longest prefix match on the destination gives the index of a next hop. */
struct route_key {
	__u32 prefix_len;
	__be32 prefix;
};

enum next_hop_action {
	/* The zero of a fresh entry: nobody has said what to do, so the stack decides. */
	NEXT_HOP_STACK = 0,
	/* Rewrite and send out of `port`. */
	NEXT_HOP_FORWARD = 1,
	/* A blackhole route. */
	NEXT_HOP_DROP = 2,
};

/* `next_hops`: where a packet goes. */
struct next_hop {
	/* Destination, then source: as they stand in the frame. */
	__u8 macs[12];
	__u16 action;
	/* Longest IP packet that the link takes; a longer one needs the stack to fragment or to refuse it. */
	__u16 mtu;
	__u32 port;
	__u32 pad;
};

/* `counters`: struct port_counters, one per port and CPU. */

/* `reasons`: why a packet was not forwarded, one count per CPU. The first few say "dropped", the rest "to the stack". */
enum reason {
	REASON_BAD_HEADER,
	REASON_BAD_LENGTH,
	REASON_BAD_CHECKSUM,
	REASON_MARTIAN,
	REASON_BLACKHOLE,
	REASON_NO_PORT,
	REASON_NOT_IPV4,
	REASON_NOT_UNICAST,
	REASON_OPTIONS,
	REASON_TTL,
	REASON_NO_ROUTE,
	REASON_LOCAL,
	REASON_TOO_BIG,
	REASONS,
};

#endif
