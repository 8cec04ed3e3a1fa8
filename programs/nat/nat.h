/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What the NAT's maps hold: the contract between the data plane and its control tool (`millstream_programs::nat`).
 * A port (of the machine) is named by its interface index everywhere; addresses and transport ports are in network
 * byte order, the bounds of a port range in the machine's.
 */
#ifndef MILLSTREAM_NAT_H
#define MILLSTREAM_NAT_H

#include <linux/types.h>
#include "counters.h"

#define NAT_PORTS 4096
#define NAT_RULES 4096
#define NAT_EXTERNALS 256
#define NAT_CONNECTIONS (1 << 17)
#define NAT_FRAGMENTS 8192

/* `ports`: which side an interface is on. */
enum nat_role {
	NAT_NONE = 0,
	NAT_INSIDE = 1,
	NAT_OUTSIDE = 2,
};

/* `rules` and `exempt`: longest prefix match, on the source and on the destination of a new connection. */
struct prefix_key {
	__u32 prefix_len;
	__be32 prefix;
};

/* `rules`: the external addresses that a source may have, a run of `externals`. */
struct nat_rule {
	__u32 first;
	__u32 count;
};

/* `externals`: an address of ours outside, its transport ports, and the way from it to the next router. */
struct external {
	__be32 address;
	__u16 port_min;
	__u16 port_max;
	__u32 out;
	/* Destination, then source: as they stand in the frame. */
	__u8 macs[12];
};

/* What NAT does with a packet is said once per connection and direction. */
enum nat_direction {
	NAT_OUTBOUND = 0,
	NAT_INBOUND = 1,
};

/* `connections`: a packet as it arrives. ICMP queries have their identifier as our side's port, and 0 as the other's. */
struct flow {
	__be32 src;
	__be32 dst;
	__be16 src_port;
	__be16 dst_port;
	__u8 protocol;
	__u8 direction;
	__u16 pad;
};

struct connection {
	/* Outbound: the new source. Inbound: the new destination. */
	__be32 address;
	__be16 port;
	/* TCP flags that were seen in this direction. */
	__u16 tcp;
	/* What the translation adds to the sums of the IP header (one hop less included) and of the transport. */
	__u16 ip_delta;
	__u16 transport_delta;
	/* Outbound: index of the external address, which knows the way. */
	__u32 external;
	/* Inbound: the way to the host inside, as its first packet came. */
	__u32 out;
	__u8 macs[12];
	/* When a packet was last seen in this direction, CLOCK_MONOTONIC in ns, true to SEEN_GRANULARITY. */
	__u64 seen;
};

#define SEEN_GRANULARITY 1000000000ULL

/* `fragments`: which flow the later fragments of a packet belong to. */
struct fragment {
	__be32 src;
	__be32 dst;
	__be16 id;
	__u8 protocol;
	__u8 direction;
};

/* `settings`, one entry. Times in ns without a packet in either direction, after which a connection is no more. */
struct nat_settings {
	__u64 tcp_established;
	__u64 tcp_transitory;
	__u64 udp;
	__u64 icmp;
	/* Makes the choice of ports unpredictable (RFC 6056); drawn anew at each start. */
	__u64 secret;
};

/* `counters`: struct port_counters, one per port and CPU. */

/* `events`: one count each per CPU. */
enum event {
	/* Dropped. */
	EVENT_BAD_HEADER,
	EVENT_BAD_LENGTH,
	EVENT_BAD_CHECKSUM,
	EVENT_MARTIAN,
	EVENT_ORPHAN_FRAGMENT,
	EVENT_NO_FREE_PORT,
	EVENT_TABLE_FULL,
	/* To the stack. */
	EVENT_NO_PORT,
	EVENT_NOT_IPV4,
	EVENT_NOT_UNICAST,
	EVENT_OPTIONS,
	EVENT_TTL,
	EVENT_PROTOCOL,
	EVENT_NO_RULE,
	EVENT_NO_CONNECTION,
	/* Bookkeeping. */
	EVENT_CREATED,
	EVENT_RECLAIMED,
	EVENT_ICMP_ERROR,
	EVENTS,
};

#endif
