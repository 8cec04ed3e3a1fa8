// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * An IPv4 router, after RFC 1812.
 *
 * Forwards unicast packets without options along the longest matching route. All that needs a conversation (ARP,
 * local delivery, ICMP errors, options, fragmentation, unknown destinations, other protocols, VLAN tags) goes,
 * untouched, to the kernel's stack, which has the same routes. Malformed packets and martians are dropped.
 */
#include "packet.h"
#include "router.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ROUTER_ROUTES);
	__type(key, struct route_key);
	__type(value, __u32);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ROUTER_NEXT_HOPS);
	__type(key, __u32);
	__type(value, struct next_hop);
} next_hops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTER_PORTS);
	__type(key, __u32);
	__type(value, struct port_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, ROUTER_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} tx_ports SEC(".maps");

/* Counts why the packet leaves the fast path, and passes the verdict on. Not inlined: it is never on the fast path. */
static __noinline int because(__u32 reason, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&reasons, &reason);

	if (count)
		++*count;
	return verdict;
}

/* Destinations that are no unicast address: groups and the limited broadcast are the stack's, the rest nobody's. */
static __always_inline int not_unicast(__be32 dst)
{
	__u32 address = bpf_ntohl(dst);

	if (address >> 28 == 0xe || address == 0xffffffff)
		return because(REASON_NOT_UNICAST, XDP_PASS);
	return because(REASON_MARTIAN, XDP_DROP);
}

/* A header whose first byte is not 0x45: malformed, or with options. */
static __always_inline int odd_header(const struct ipv4 *ip)
{
	if (ip->ihl >> 4 != 4 || (ip->ihl & 15) < 5)
		return because(REASON_BAD_HEADER, XDP_DROP);
	return because(REASON_OPTIONS, XDP_PASS);
}

SEC("xdp")
int router(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	struct ipv4 *ip = data + sizeof(*eth);
	__u64 frame = end - data;
	__u32 in = ctx->ingress_ifindex;

	struct port_counters *rx = bpf_map_lookup_elem(&counters, &in);
	if (!rx)
		return because(REASON_NO_PORT, XDP_PASS);
	rx->rx_packets++;
	rx->rx_bytes += frame;

	/* A frame too short for IPv4 may be anything else. */
	if ((void *)(ip + 1) > end || eth->type != bpf_htons(ETHERTYPE_IPV4))
		return because(REASON_NOT_IPV4, XDP_PASS);
	/* RFC 1812, 5.3.4: what came by link-layer broadcast is never forwarded. */
	if (unlikely(eth->dst[0] & 1))
		return because(REASON_NOT_UNICAST, XDP_PASS);

	/* RFC 1812, 5.2.2: the five checks. Beyond this point the header has no options. */
	if (unlikely(ip->ihl != IPV4_NO_OPTIONS))
		return odd_header(ip);
	__u32 length = bpf_ntohs(ip->length);
	if (unlikely(length < sizeof(*ip) || length > frame - sizeof(*eth)))
		return because(REASON_BAD_LENGTH, XDP_DROP);
	if (unlikely(!ipv4_checksum_ok(ip)))
		return because(REASON_BAD_CHECKSUM, XDP_DROP);

	/* RFC 1812, 5.3.7. */
	if (unlikely(ipv4_is_martian(&ip->src)))
		return because(REASON_MARTIAN, XDP_DROP);
	if (unlikely(ipv4_is_martian(&ip->dst)))
		return not_unicast(ip->dst);

	/* Expired or not, a packet for us is the stack's: it looks at the address first, as RFC 1812, 4.2.2.9 wants. */
	if (unlikely(ip->ttl <= 1))
		return because(REASON_TTL, XDP_PASS);

	struct route_key key = { .prefix_len = 32, .prefix = ip->dst };
	__u32 *id = bpf_map_lookup_elem(&routes, &key);
	if (unlikely(!id))
		return because(REASON_NO_ROUTE, XDP_PASS);
	struct next_hop *hop = bpf_map_lookup_elem(&next_hops, id);
	if (unlikely(!hop))
		return because(REASON_NO_ROUTE, XDP_PASS);
	if (unlikely(hop->action != NEXT_HOP_FORWARD)) {
		if (hop->action == NEXT_HOP_DROP)
			return because(REASON_BLACKHOLE, XDP_DROP);
		return because(REASON_LOCAL, XDP_PASS);
	}
	if (unlikely(length > hop->mtu))
		return because(REASON_TOO_BIG, XDP_PASS);

	/* The next hop may be replaced at any moment: read its port once. */
	__u32 out = *(volatile __u32 *)&hop->port;

	ipv4_decrement_ttl(ip);
	copy_macs(eth, hop->macs);
	if (out == in) {
		rx->tx_packets++;
		rx->tx_bytes += frame;
		return XDP_TX;
	}
	struct port_counters *tx = bpf_map_lookup_elem(&counters, &out);
	if (tx) {
		tx->tx_packets++;
		tx->tx_bytes += frame;
	}
	return bpf_redirect_map(&tx_ports, out, XDP_DROP);
}

char _license[] SEC("license") = "Dual BSD/GPL";
