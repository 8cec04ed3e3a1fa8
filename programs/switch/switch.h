/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What the switch's maps hold: the contract between the data plane and its control tool
 * (`millstream_programs::switch`). A port is named by its interface index everywhere.
 */
#ifndef MILLSTREAM_SWITCH_H
#define MILLSTREAM_SWITCH_H

#include <linux/types.h>
#include "counters.h"

#define SWITCH_PORTS 4096
#define SWITCH_STATIONS 4096
#define VLANS 4096

/* Spanning-tree states, as the control plane sets them. */
enum port_state {
	/* The zero of a fresh entry: not a port of the switch, all frames are the stack's. */
	PORT_DISABLED = 0,
	PORT_BLOCKING = 1,
	PORT_LEARNING = 2,
	PORT_FORWARDING = 3,
};

enum port_mode {
	/* Untagged frames only, all of them of VLAN `pvid`. */
	PORT_ACCESS = 0,
	/* Tagged frames of the member VLANs; untagged ones are of the native VLAN `pvid`, or refused if that is 0. */
	PORT_TRUNK = 1,
};

/* `ports`. */
struct switch_port {
	__u16 state;
	__u16 mode;
	__u16 pvid;
	__u16 pad;
	/* VLANs of which frames may come and go here, a bit each, lowest first. */
	__u64 members[VLANS / 64];
};

/* `stations`: who is where. */
struct station_key {
	__u8 mac[6];
	__u16 vlan;
};

enum station_flags {
	/* Set by the operator: neither moved by learning nor aged. */
	STATION_STATIC = 1,
};

struct station {
	/* Where frames for it go; 0: to the stack of this machine. */
	__u32 port;
	__u32 flags;
	/* When a frame of it was last seen, CLOCK_MONOTONIC in ns, true to SEEN_GRANULARITY. */
	__u64 seen;
};

/* A frame of a known station refreshes `seen` no more often than this, to spare the cache line. */
#define SEEN_GRANULARITY 1000000000ULL

/* `counters`: struct port_counters, one per port and CPU. */

/* `vlan_counters`: one per VLAN and CPU; what was admitted. */
struct vlan_counters {
	__u64 packets;
	__u64 bytes;
};

/* `events`: one count each per CPU. */
enum event {
	/* Dropped. */
	EVENT_RUNT,
	EVENT_BLOCKED,
	EVENT_NOT_ADMITTED,
	EVENT_BAD_SOURCE,
	EVENT_STATIC_MOVED,
	EVENT_SAME_PORT,
	EVENT_EGRESS_FILTERED,
	/* To the stack. */
	EVENT_NO_PORT,
	EVENT_LINK_LOCAL,
	EVENT_FLOOD_GROUP,
	EVENT_FLOOD_UNKNOWN,
	EVENT_LOCAL,
	/* Learning. */
	EVENT_LEARNED,
	EVENT_MOVED,
	EVENTS,
};

#endif
