// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * A stateless IPv4 packet filter: thousands of ordered 5-tuple rules, first match wins.
 *
 * See firewall.h for the classifier. Frames may carry up to two VLAN tags. Malformed packets are dropped before they
 * are classified, for what a later host would make of them is not known.
 */
#include "transport.h"
#include "firewall.h"

#define VLAN_TAGS 2
#define PROTO_DCCP 33
#define PROTO_SCTP 132
#define PROTO_UDPLITE 136

/* What the rules are matched against. Ports are classes already, as a packet without ports has one, too. */
struct packet {
	__be32 source;
	__be32 destination;
	__u32 source_port_class;
	__u32 destination_port_class;
	__u8 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, FW_MAX_ADDRESS_CLASSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fw_prefix);
	__type(value, __u32);
} src_prefixes SEC(".maps"), dst_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} sport_classes SEC(".maps"), dport_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_MAX_ADDRESS_CLASSES);
	__type(key, __u32);
	__type(value, struct fw_rule_set);
} src_sets SEC(".maps"), dst_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_MAX_PORT_CLASSES);
	__type(key, __u32);
	__type(value, struct fw_rule_set);
} sport_sets SEC(".maps"), dport_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct fw_rule_set);
} proto_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_MAX_RULES + 1);
	__type(key, __u32);
	__type(value, struct fw_rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FW_MAX_RULES + 1);
	__type(key, __u32);
	__type(value, struct fw_counter);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fw_stats);
} stats SEC(".maps");

/* Ports by the interface that a packet came in by. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} egress SEC(".maps");

/*
 * Position of the lowest set bit of a non-zero word. The instruction set has no such operation, so the bit is
 * isolated and multiplied with a de Bruijn sequence, whose top six bits are then different for each position.
 */
#define DE_BRUIJN 0x0218a392cd3d5dbfULL
static const __u8 bit_position[64] = {
	 0,  1,  2,  7,  3, 13,  8, 19,  4, 25, 14, 28,  9, 34, 20, 40,
	 5, 17, 26, 38, 15, 46, 29, 48, 10, 31, 35, 54, 21, 50, 41, 57,
	63,  6, 12, 18, 24, 27, 33, 39, 16, 37, 45, 47, 30, 53, 49, 56,
	62, 11, 23, 32, 36, 44, 52, 55, 61, 22, 43, 51, 60, 42, 59, 58,
};

static __always_inline __u32 lowest_bit(__u64 word)
{
	__u32 position = bit_position[((word & -word) * DE_BRUIJN) >> 58];

	/* The compiler sees that the table stays below 64 and would drop the mask; the kernel's verifier needs it. */
	asm volatile("" : "+r"(position));
	return position & 63;
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_SCTP ||
	       protocol == PROTO_DCCP || protocol == PROTO_UDPLITE;
}

/* The lowest rule that is in the packet's set for each field, or FW_DEFAULT_RULE. */
static __always_inline __u32 classify(const struct packet *p)
{
	struct fw_prefix source = { .length = 32, .address = p->source };
	struct fw_prefix destination = { .length = 32, .address = p->destination };
	__u32 protocol = p->protocol, sport = p->source_port_class, dport = p->destination_port_class;
	__u32 none = 0;
	const __u32 *src_class, *dst_class;
	const struct fw_rule_set *proto, *sports, *dports, *src, *dst;

	proto = bpf_map_lookup_elem(&proto_sets, &protocol);
	sports = bpf_map_lookup_elem(&sport_sets, &sport);
	dports = bpf_map_lookup_elem(&dport_sets, &dport);
	if (!proto || !sports || !dports)
		return FW_DEFAULT_RULE;
	src_class = bpf_map_lookup_elem(&src_prefixes, &source);
	src = bpf_map_lookup_elem(&src_sets, src_class ? src_class : &none);
	if (!src)
		return FW_DEFAULT_RULE;
	dst_class = bpf_map_lookup_elem(&dst_prefixes, &destination);
	dst = bpf_map_lookup_elem(&dst_sets, dst_class ? dst_class : &none);
	if (!dst)
		return FW_DEFAULT_RULE;

	for (__u32 s = 0; s < FW_SUMMARY_WORDS; s++) {
		__u64 live = src->summary[s] & dst->summary[s] & sports->summary[s] & dports->summary[s] &
			     proto->summary[s];

		for (__u32 n = 0; n < 64 && live; n++) {
			__u32 w = s * 64 + lowest_bit(live);
			__u64 hit = src->words[w] & dst->words[w] & sports->words[w] & dports->words[w] &
				    proto->words[w];

			if (hit)
				return w * 64 + lowest_bit(hit);
			live &= live - 1;
		}
	}
	return FW_DEFAULT_RULE;
}

enum parsed {
	PARSED,
	PARSED_NOT_IPV4,
	PARSED_ARP,
	PARSED_MALFORMED,
	/* A fragment, and the policy is to drop them all. */
	PARSED_FRAGMENT_DROP,
	/* A fragment without ports, and the policy is to accept those. */
	PARSED_FRAGMENT_ACCEPT,
};

/* Fills the classes of both ports; the protocol must have them. */
static __always_inline enum parsed parse_ports(struct packet *p, const void *l4, const void *end)
{
	const struct ports *ports = l4;
	const __u32 *sport, *dport;
	__u32 key;

	if ((const void *)(ports + 1) > end)
		return PARSED_MALFORMED;
	key = bpf_ntohs(ports->src);
	sport = bpf_map_lookup_elem(&sport_classes, &key);
	key = bpf_ntohs(ports->dst);
	dport = bpf_map_lookup_elem(&dport_classes, &key);
	if (!sport || !dport)
		return PARSED_MALFORMED;
	p->source_port_class = *sport;
	p->destination_port_class = *dport;
	return PARSED;
}

static __always_inline enum parsed parse_ipv4(struct packet *p, const struct ipv4 *ip, const void *end,
					      const struct fw_settings *set, struct fw_stats *st)
{
	__u32 header = ipv4_header(ip, end), total, fragment;

	if (!header)
		return PARSED_MALFORMED;
	total = bpf_ntohs(ip->length);

	p->source = ip->src;
	p->destination = ip->dst;
	p->protocol = ip->protocol;
	p->source_port_class = FW_CLASS_NO_PORTS;
	p->destination_port_class = FW_CLASS_NO_PORTS;

	fragment = bpf_ntohs(ip->fragment) & (IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK);
	if (fragment) {
		st->fragments++;
		if (set->fragments == FW_FRAGMENTS_DROP)
			return PARSED_FRAGMENT_DROP;
		/* RFC 3128: an offset of one lets a second fragment overwrite the TCP flags of the first. */
		if ((fragment & IPV4_OFFSET_MASK) == 1 && ip->protocol == PROTO_TCP)
			return PARSED_MALFORMED;
		if (fragment & IPV4_OFFSET_MASK)
			return set->fragments == FW_FRAGMENTS_ACCEPT ? PARSED_FRAGMENT_ACCEPT : PARSED;
	}
	if (!has_ports(ip->protocol))
		return PARSED;
	if (total < header + sizeof(struct ports))
		return PARSED_MALFORMED;
	/* The checks above imply parse_ports' own, which the compiler would drop; the kernel's verifier needs it. */
	asm volatile("" : "+r"(header));
	return parse_ports(p, (const void *)ip + header, end);
}

static __always_inline enum parsed parse(struct packet *p, const void *data, const void *end,
					 const struct fw_settings *set, struct fw_stats *st)
{
	const struct eth *eth = data;
	const void *next = eth + 1;
	__be16 type;

	if (next > end)
		return PARSED_MALFORMED;
	type = eth->type;
#pragma unroll
	for (int i = 0; i < VLAN_TAGS; i++) {
		const struct vlan_tag *tag = next;

		if (type != bpf_htons(ETHERTYPE_VLAN) && type != bpf_htons(ETHERTYPE_SERVICE_VLAN))
			break;
		if ((const void *)(tag + 1) > end)
			return PARSED_MALFORMED;
		type = tag->type;
		next = tag + 1;
	}
	if (type == bpf_htons(ETHERTYPE_IPV4))
		return parse_ipv4(p, next, end, set, st);
	return type == bpf_htons(ETHERTYPE_ARP) ? PARSED_ARP : PARSED_NOT_IPV4;
}

/* Carries out an action and counts it. */
static __always_inline int act(struct xdp_md *ctx, __u32 action, const struct fw_settings *set, struct fw_stats *st)
{
	switch (action) {
	case FW_ACCEPT:
		st->accepted++;
		if (set->forward == FW_FORWARD_HAIRPIN)
			return XDP_TX;
		if (set->forward == FW_FORWARD_PORT)
			return bpf_redirect_map(&egress, ctx->ingress_ifindex, XDP_DROP);
		return XDP_PASS;
	case FW_REJECT:
		st->rejected++;
		return XDP_PASS;
	default:
		st->dropped++;
		return XDP_DROP;
	}
}

SEC("xdp")
int firewall(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	const struct fw_settings *set;
	const struct fw_rule *rule;
	struct fw_counter *counter;
	struct fw_stats *st;
	struct packet p = {};
	__u32 zero = 0, index;

	set = bpf_map_lookup_elem(&settings, &zero);
	st = bpf_map_lookup_elem(&stats, &zero);
	if (!set || !st)
		return XDP_ABORTED;
	st->received++;

	switch (parse(&p, data, end, set, st)) {
	case PARSED:
		break;
	case PARSED_ARP:
		return XDP_PASS;
	case PARSED_NOT_IPV4:
		st->not_ipv4++;
		return act(ctx, set->non_ipv4, set, st);
	case PARSED_FRAGMENT_ACCEPT:
		return act(ctx, FW_ACCEPT, set, st);
	case PARSED_FRAGMENT_DROP:
		return act(ctx, FW_DROP, set, st);
	case PARSED_MALFORMED:
		st->malformed++;
		return act(ctx, FW_DROP, set, st);
	}

	index = classify(&p);
	counter = bpf_map_lookup_elem(&counters, &index);
	if (counter) {
		counter->packets++;
		counter->bytes += end - data;
	}
	rule = bpf_map_lookup_elem(&rules, &index);
	return act(ctx, rule ? rule->action : FW_DROP, set, st);
}

char _license[] SEC("license") = "Dual BSD/GPL";
