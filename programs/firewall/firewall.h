/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Layout of the firewall's maps, shared by the data plane and its control tools.
 *
 * Classification is by aggregated bit vectors. For every field of the 5-tuple a table maps the packet's value to
 * a class, and a class to the set of rules whose field covers it. A packet matches the rules in the intersection of
 * its five sets, and the lowest bit of the intersection is the first match. A set carries a summary (one bit for each
 * of its words) so that only words that may be non-zero in all five sets are read.
 *
 * Invariant: bit s of `summary` is set exactly if `words[s]` is not zero.
 */
#ifndef MILLSTREAM_FIREWALL_H
#define MILLSTREAM_FIREWALL_H

#include <linux/types.h>

#define FW_MAX_RULES 8192
#define FW_SET_WORDS (FW_MAX_RULES / 64)
#define FW_SUMMARY_WORDS (FW_SET_WORDS / 64)
/* Classes of one address field: the zero class, and one for each distinct prefix. */
#define FW_MAX_ADDRESS_CLASSES (FW_MAX_RULES + 1)
/* Classes of one port field. */
#define FW_MAX_PORT_CLASSES 4096
/* The class of packets that have no ports; its set holds the rules that admit every port. */
#define FW_CLASS_NO_PORTS 0
/* The entry of `rules` and `counters` for packets that no rule matches. */
#define FW_DEFAULT_RULE FW_MAX_RULES

/* Rules by index, as bits; see above. */
struct fw_rule_set {
	__u64 summary[FW_SUMMARY_WORDS];
	__u64 words[FW_SET_WORDS];
};

/* Key of `src_prefixes` and `dst_prefixes`; the value is a class. */
struct fw_prefix {
	__u32 length;
	__be32 address;
};

enum fw_action {
	FW_DROP = 0,
	FW_ACCEPT = 1,
	/* To the stack, whose own rules answer with an ICMP error or a reset. */
	FW_REJECT = 2,
};

/* What happens to accepted packets. */
enum fw_forward {
	/* A host's firewall: up the stack. */
	FW_FORWARD_STACK = 0,
	/* On a stick: out of the port it came in by. */
	FW_FORWARD_HAIRPIN = 1,
	/* Between two ports: out of the one that `egress` gives for the port it came in by. */
	FW_FORWARD_PORT = 2,
};

/* What happens to IPv4 fragments. */
enum fw_fragments {
	FW_FRAGMENTS_DROP = 0,
	/* Fragments that carry no ports are accepted; the first one is classified. */
	FW_FRAGMENTS_ACCEPT = 1,
	/* Fragments that carry no ports match the rules that admit every port. */
	FW_FRAGMENTS_CLASSIFY = 2,
};

/* The one entry of `settings`. */
struct fw_settings {
	__u32 forward;   /* enum fw_forward */
	__u32 fragments; /* enum fw_fragments */
	__u32 non_ipv4;  /* enum fw_action for frames that are neither IPv4 nor ARP; ARP goes to the stack */
	__u32 reserved;
};

struct fw_rule {
	__u32 action; /* enum fw_action */
};

/* Per-CPU counter of one rule. */
struct fw_counter {
	__u64 packets;
	__u64 bytes;
};

/* The one, per-CPU, entry of `stats`: packets by what became of them. */
struct fw_stats {
	__u64 received;
	__u64 accepted;
	__u64 dropped;
	__u64 rejected;
	__u64 malformed;
	__u64 fragments;
	__u64 not_ipv4;
};

#endif
