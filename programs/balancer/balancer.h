/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What the balancer's maps hold: the contract between the data plane and its control tool
 * (`millstream_programs::balancer`).
 *
 * A packet to a virtual service (VIP: address, port, protocol) is sent, encapsulated, to one of the service's real
 * servers. The real is named by its index in `reals`; index 0 means none.
 */
#ifndef MILLSTREAM_BALANCER_H
#define MILLSTREAM_BALANCER_H

#include <linux/types.h>

#define BALANCER_VIPS 64
/* Entries of one VIP's ring; a prime, as consistent hashing by permutations needs. */
#define BALANCER_RING 65537
#define BALANCER_REALS 4096
#define BALANCER_FLOWS (1 << 18)
#define BALANCER_QUIC_SERVERS 4096
/* Codepoints of the three configuration bits of a connection id; the last says that it cannot be routed. */
#define BALANCER_QUIC_CONFIGS 7

enum vip_flags {
	/* All of a client's connections go to one real: its port takes no part. */
	VIP_CLIENT_AFFINITY = 1,
	/* Stateless: the ring alone decides. */
	VIP_NO_TABLE = 2,
	/* UDP payload is QUIC, whose connection ids name servers. */
	VIP_QUIC = 4,
};

enum real_flags {
	/* Takes packets. A real that is going away loses its flag last, after the rings have lost its index. */
	REAL_UP = 1,
	/* Its address, and so the outer header, is IPv6. */
	REAL_IPV6 = 2,
	/* Encapsulated in UDP (GUE variant 1: the inner IP header follows at once), else in IP. */
	REAL_GUE = 4,
};

/* `vips4` and `vips6`. Port 0 stands for every port that has no entry of its own. */
struct vip4 {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct vip6 {
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct vip {
	/* Row of `rings` and `vip_counters`; below BALANCER_VIPS. */
	__u32 id;
	__u32 flags;
};

/* `vip_addresses`: which addresses answer pings. IPv4 addresses stand in the first word, the rest is zero. */
struct address {
	__be32 word[4];
};

/* `reals`. */
struct real {
	struct address address;
	__u32 flags;
};

/* `flows4` and `flows6`: least recently used tables of connections. */
struct flow4 {
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
	__u8 protocol;
	__u8 pad[3];
};

struct flow6 {
	__be32 client[4];
	__be32 vip[4];
	__be16 client_port;
	__be16 vip_port;
	__u8 protocol;
	__u8 pad[3];
};

struct connection {
	/* Nanoseconds of the coarse monotonic clock; kept for UDP only, where nothing else tells the end. */
	__u64 last_seen;
	__u32 real;
	__u32 pad;
};

/* `quic_servers`: servers by what their connection ids say. */
struct quic_server {
	__u32 config;
	__u32 id;
};

/* What happens to fragments, which cannot be told to belong to a connection. */
enum fragment_policy {
	FRAGMENTS_DROP = 0,
	FRAGMENTS_TO_STACK = 1,
};

/* The one entry of `settings`. */
struct settings {
	/* Where encapsulated frames go next. */
	__u8 gateway[6];
	/* UDP port of GUE. */
	__be16 gue_port;
	/* Outer source addresses. The bits of the mask, and the last word of IPv6, take the flow's hash, so that
	 * routers and network cards behind spread flows although there are few outer destinations. */
	__be32 source4;
	__be32 source4_hash_mask;
	__be32 source6[4];
	/* A UDP connection that was silent for longer is forgotten. */
	__u64 udp_idle_ns;
	/* The longest packet, with its outer header, that the way to the reals takes. */
	__u32 max_length;
	__u32 fragments; /* enum fragment_policy */
	/* Per second and CPU; 0: no limit. Beyond it new flows are balanced, but not remembered. */
	__u32 new_flow_limit;
	/* Per second and CPU; 0: none. */
	__u32 icmp_limit;
	/* Octets (1 to 4) of the server's id after the first octet of a connection id; 0: configuration not in use. */
	__u8 quic_id_length[8];
};

/* `vip_counters` and `real_counters`: per CPU. Bytes are those of the client's IP packets. */
struct traffic {
	__u64 packets;
	__u64 bytes;
};

/* `limits`: what is left of a limit in this second, per CPU. */
struct budget {
	__u64 second;
	__u64 used;
};

enum limit {
	LIMIT_NEW_FLOWS,
	LIMIT_ICMP,
	LIMITS,
};

/* `reasons`: why a packet took another way than the shortest, one count per CPU. */
enum reason {
	/* Dropped. */
	REASON_MALFORMED,
	REASON_FRAGMENT,
	REASON_NO_REAL,
	REASON_NO_ROOM,
	REASON_TOO_BIG,
	/* To the stack. */
	REASON_NOT_IP,
	REASON_OTHER_PROTOCOL,
	REASON_NO_VIP,
	/* Answered. */
	REASON_ECHO,
	REASON_TOO_BIG_ANSWERED,
	/* Balanced, by another way than the connection table. */
	REASON_SYN,
	REASON_TABLE_MISS,
	REASON_NOT_REMEMBERED,
	REASON_QUIC_ROUTED,
	REASON_QUIC_UNKNOWN_SERVER,
	REASON_ICMP_ERROR,
	REASONS,
};

#endif
