// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * Source NAT with port translation, both directions, after RFC 3022, 4787, 5382 and 5508.
 *
 * A packet from inside whose source has a rule gets an external address and a port of its own for its connection;
 * what comes back is translated back and sent the way that the connection's first packet came. TCP, UDP and ICMP
 * queries are translated, ICMP errors about them with the packet that they quote, fragments by their first one.
 * Everything else (other protocols, packets without a connection, to ourselves, with options) is the kernel's stack's.
 *
 * The connection table is a plain hash map: a lookup writes nothing, and no connection is lost to another one's
 * coming. Idle connections are removed by the control tool, or here where a port is wanted again.
 */
#include "transport.h"
#include "nat.h"

/* How many ports are tried for a new connection. */
#define PROBES 24

/* What one hop less adds to the sum of an IP header. */
#define ONE_HOP ((__u16)~bpf_htons(0x0100))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NAT_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAT_RULES);
	__type(key, struct prefix_key);
	__type(value, struct nat_rule);
} rules SEC(".maps");

/* Destinations that are not translated to: our own addresses and the networks inside. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAT_RULES);
	__type(key, struct prefix_key);
	__type(value, __u32);
} exempt SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NAT_EXTERNALS);
	__type(key, __u32);
	__type(value, struct external);
} externals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NAT_CONNECTIONS);
	__type(key, struct flow);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NAT_FRAGMENTS);
	__type(key, struct fragment);
	__type(value, struct flow);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NAT_PORTS);
	__type(key, __u32);
	__type(value, struct port_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS);
	__type(key, __u32);
	__type(value, __u64);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, NAT_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} tx_ports SEC(".maps");

/* Counts an event, and passes the verdict on. */
static __noinline int because(__u32 event, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&events, &event);

	if (count)
		++*count;
	return verdict;
}

/* What replacing one value by another adds to a sum of 16-bit words. */
static __always_inline __u16 csum_delta(__u32 from, __u32 to)
{
	return csum_fold((__u64)(__u32)~from + to);
}

/* A checksum after its sum has grown by this much (RFC 1624, equation 3). */
static __always_inline __sum16 csum_adjust(__sum16 checksum, __u16 delta)
{
	__u32 sum = (__u16)~checksum + (__u32)delta;

	return ~(__u16)(sum + (sum >> 16));
}

/* The finalizer of MurmurHash3. */
static __always_inline __u64 mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

static __always_inline struct flow opposite(const struct flow *flow, __be32 address, __be16 port)
{
	struct flow other = {
		.src = flow->dst, .dst = address, .src_port = flow->dst_port, .dst_port = port,
		.protocol = flow->protocol, .direction = !flow->direction,
	};

	return other;
}

/* True if the connection, of which these are the two directions, has been idle for too long. `out` may be missing. */
static __always_inline int is_idle(const struct nat_settings *limit, __u8 protocol, const struct connection *in,
				   const struct connection *out, __u64 now)
{
	__u64 seen = in->seen, limit_ns = limit->udp;
	__u16 both = 0, either = in->tcp;

	if (out) {
		if (out->seen > seen)
			seen = out->seen;
		both = in->tcp & out->tcp;
		either |= out->tcp;
	}
	if (protocol == PROTO_ICMP)
		limit_ns = limit->icmp;
	else if (protocol == PROTO_TCP)
		limit_ns = (both & TCP_ACK) && !(both & TCP_FIN) && !(either & TCP_RST) ? limit->tcp_established
											: limit->tcp_transitory;
	return now > seen + limit_ns;
}

/* Frees the inbound flow's place if its connection is idle. */
static __noinline int reclaim(struct flow *inbound, struct nat_settings *limit, __u64 now)
{
	if (!inbound || !limit)
		return 0;
	struct connection *in = bpf_map_lookup_elem(&connections, inbound);
	if (!in)
		return 1;
	struct flow outbound = opposite(inbound, inbound->src, inbound->src_port);
	outbound.src = in->address;
	outbound.src_port = in->port;
	if (!is_idle(limit, inbound->protocol, in, bpf_map_lookup_elem(&connections, &outbound), now))
		return 0;
	bpf_map_delete_elem(&connections, &outbound);
	bpf_map_delete_elem(&connections, inbound);
	because(EVENT_RECLAIMED, 0);
	return 1;
}

/* The inbound half: a free port of the external address, and the way back. Returns the port, 0 if none is free. */
static __always_inline __be16 allocate(const struct flow *flow, const struct external *external,
				       struct nat_settings *limit, struct connection *inbound, __u64 now)
{
	struct flow key = opposite(flow, external->address, 0);
	__u32 ports_in_all = (__u32)external->port_max - external->port_min + 1;
	__u64 hash = mix(limit->secret ^ ((__u64)flow->src << 32 | flow->dst));
	__u32 at = mix(hash ^ ((__u64)flow->src_port << 32 | (__u32)flow->dst_port << 16 | flow->protocol));

	_Pragma("clang loop unroll(disable)")
	for (int i = 0; i < PROBES; i++) {
		key.dst_port = bpf_htons(external->port_min + (at + i) % ports_in_all);
		inbound->transport_delta = csum_delta(key.dst_port, flow->src_port);
		if (flow->protocol != PROTO_ICMP)
			inbound->transport_delta = csum_fold((__u64)inbound->transport_delta +
							     csum_delta(external->address, flow->src));
		/* Two CPUs may want one port: the kernel lets one of them have it. */
		if (!bpf_map_update_elem(&connections, &key, inbound, BPF_NOEXIST))
			return key.dst_port;
		if (reclaim(&key, limit, now) && !bpf_map_update_elem(&connections, &key, inbound, BPF_NOEXIST))
			return key.dst_port;
	}
	return 0;
}

/* A first packet from inside. Its connection is in the table afterwards, or the verdict says what to do instead. */
static __noinline int connect(struct xdp_md *ctx, struct flow *flow)
{
	__u32 zero = 0;
	__u8 *data = (void *)(long)ctx->data;

	if (!flow || data + sizeof(struct eth) > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	struct prefix_key to = { .prefix_len = 32, .prefix = flow->dst };
	struct prefix_key from = { .prefix_len = 32, .prefix = flow->src };
	struct nat_rule *rule = bpf_map_lookup_elem(&rules, &from);
	if (!rule || !rule->count || bpf_map_lookup_elem(&exempt, &to))
		return because(EVENT_NO_RULE, XDP_PASS);
	struct nat_settings *limit = bpf_map_lookup_elem(&settings, &zero);
	if (!limit)
		return because(EVENT_NO_RULE, XDP_PASS);
	/* A host inside keeps to one external address (RFC 4787, REQ-2). */
	__u32 index = rule->first + (__u32)mix(limit->secret ^ flow->src) % rule->count;
	struct external *external = bpf_map_lookup_elem(&externals, &index);
	if (!external || !external->port_min || external->port_max < external->port_min)
		return because(EVENT_NO_RULE, XDP_PASS);

	__u64 now = bpf_ktime_get_coarse_ns();
	struct connection inbound = {
		.address = flow->src, .port = flow->src_port, .out = ctx->ingress_ifindex, .external = index, .seen = now,
		.ip_delta = csum_fold((__u64)csum_delta(external->address, flow->src) + ONE_HOP),
	};
	/* Back to whoever sent it: a host, or a router inside. */
	__builtin_memcpy(inbound.macs, data + 6, 6);
	__builtin_memcpy(inbound.macs + 6, data, 6);
	__be16 port = allocate(flow, external, limit, &inbound, now);
	if (!port)
		return because(EVENT_NO_FREE_PORT, XDP_DROP);

	struct connection outbound = {
		.address = external->address, .port = port, .out = external->out, .external = index, .seen = now,
		.ip_delta = csum_fold((__u64)csum_delta(flow->src, external->address) + ONE_HOP),
		.transport_delta = csum_delta(flow->src_port, port),
	};
	if (flow->protocol != PROTO_ICMP)
		outbound.transport_delta =
			csum_fold((__u64)outbound.transport_delta + csum_delta(flow->src, external->address));
	if (bpf_map_update_elem(&connections, flow, &outbound, BPF_NOEXIST)) {
		struct flow taken = opposite(flow, external->address, port);

		bpf_map_delete_elem(&connections, &taken);
		/* Another CPU was first with the same connection, or there is no room. */
		if (!bpf_map_lookup_elem(&connections, flow))
			return because(EVENT_TABLE_FULL, XDP_DROP);
		return XDP_TX;
	}
	because(EVENT_CREATED, 0);
	return XDP_TX;
}

/* Keeps account of the connection's life. Nothing is written that does not change. */
static __always_inline void touch(struct connection *connection, __u8 tcp_flags)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	__u16 tcp = connection->tcp;

	if (now - connection->seen > SEEN_GRANULARITY)
		connection->seen = now;
	/* A SYN after the end begins a new connection on the old port. */
	if (unlikely((tcp_flags & TCP_SYN) && (tcp & (TCP_FIN | TCP_RST))))
		connection->tcp = tcp_flags;
	else if (unlikely((tcp | tcp_flags) != tcp))
		connection->tcp = tcp | tcp_flags;
}

/* Rewrites addresses and time to live, and sends the packet on its way. */
static __always_inline int send(struct xdp_md *ctx, struct connection *connection, __u16 ip_delta, const int direction)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + sizeof(struct eth);
	__u32 out = connection->out;

	if ((void *)(ip + 1) > end)
		return XDP_ABORTED;
	if (direction == NAT_OUTBOUND) {
		struct external *external = bpf_map_lookup_elem(&externals, &connection->external);

		if (!external)
			return XDP_ABORTED;
		out = external->out;
		copy_macs(data, external->macs);
		ip->src = connection->address;
	} else {
		copy_macs(data, connection->macs);
		ip->dst = connection->address;
	}
	ip->checksum = csum_adjust(ip->checksum, ip_delta);
	ip->ttl--;

	struct port_counters *tx = bpf_map_lookup_elem(&counters, &out);
	if (tx) {
		tx->tx_packets++;
		tx->tx_bytes += end - data;
	}
	if (out == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect_map(&tx_ports, out, XDP_DROP);
}

/* The quoted packet of an ICMP error, as the flow of the packets that go the error's own way. */
static __always_inline int quoted_flow(struct ipv4 *quoted, void *end, struct flow *flow, const int direction)
{
	struct icmp *transport = (void *)(quoted + 1);

	if ((void *)(transport + 1) > end || quoted->ihl != IPV4_NO_OPTIONS ||
	    (quoted->fragment & bpf_htons(IPV4_OFFSET_MASK)))
		return -1;
	flow->src = quoted->dst;
	flow->dst = quoted->src;
	flow->protocol = quoted->protocol;
	flow->direction = direction;
	if (quoted->protocol == PROTO_TCP || quoted->protocol == PROTO_UDP) {
		flow->src_port = ((struct udp *)transport)->ports.dst;
		flow->dst_port = ((struct udp *)transport)->ports.src;
		return 0;
	}
	if (quoted->protocol != PROTO_ICMP)
		return -1;
	/* Our side's query came from inside, so the quoted one is a request on its way out or a reply on its way in. */
	if (transport->type != (direction == NAT_INBOUND ? ICMP_ECHO : ICMP_ECHO_REPLY))
		return -1;
	if (direction == NAT_INBOUND)
		flow->dst_port = transport->id;
	else
		flow->src_port = transport->id;
	return 0;
}

/* An ICMP error: translates what it quotes, then itself (RFC 5508, REQ-4 and 5). */
static __always_inline int translate_error(struct xdp_md *ctx, const int direction)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + sizeof(struct eth);
	struct icmp *icmp = (void *)(ip + 1);
	struct ipv4 *quoted = (void *)(icmp + 1);
	struct udp *transport = (void *)(quoted + 1);
	struct flow flow = {};

	if ((void *)(transport + 1) > end || quoted_flow(quoted, end, &flow, direction))
		return because(EVENT_PROTOCOL, XDP_PASS);
	struct connection *connection = bpf_map_lookup_elem(&connections, &flow);
	if (!connection)
		return because(EVENT_NO_CONNECTION, XDP_PASS);

	/* The error comes from anywhere on the path, but goes to the connection's end. */
	__be32 *ours = direction == NAT_OUTBOUND ? &quoted->dst : &quoted->src;
	__be16 *our_port = direction == NAT_OUTBOUND ? &transport->ports.dst : &transport->ports.src;
	__sum16 *sum = &transport->checksum;
	if (quoted->protocol == PROTO_ICMP) {
		our_port = &((struct icmp *)transport)->id;
		sum = &((struct icmp *)transport)->checksum;
	} else if (quoted->protocol == PROTO_TCP) {
		/* Only the first eight bytes of the transport are sure to be quoted. */
		sum = &((struct tcp *)transport)->checksum;
		if ((void *)(sum + 1) > end)
			sum = NULL;
	} else if (!*sum) {
		sum = NULL;
	}
	__u16 address_delta = csum_delta(*ours, connection->address);
	__u16 port_delta = csum_delta(*our_port, connection->port);
	/* The quoted IP header sums to the same with its checksum mended, so the error's own sum only sees the rest. */
	__u16 delta = port_delta;
	*ours = connection->address;
	*our_port = connection->port;
	quoted->checksum = csum_adjust(quoted->checksum, address_delta);
	if (sum) {
		__sum16 before = *sum;

		*sum = csum_adjust(before, connection->transport_delta);
		delta = csum_fold((__u64)delta + csum_delta(before, *sum));
	}
	icmp->checksum = csum_adjust(icmp->checksum, delta);

	/* Outbound, the error's source may be a router inside, which is not the connection's. */
	__be32 address = direction == NAT_OUTBOUND ? ip->src : ip->dst;
	__u16 ip_delta = csum_fold((__u64)csum_delta(address, connection->address) + ONE_HOP);
	because(EVENT_ICMP_ERROR, 0);
	return send(ctx, connection, ip_delta, direction);
}

static __noinline int translate_error_outbound(struct xdp_md *ctx)
{
	return translate_error(ctx, NAT_OUTBOUND);
}

static __noinline int translate_error_inbound(struct xdp_md *ctx)
{
	return translate_error(ctx, NAT_INBOUND);
}

/* The first fragment tells the others where they belong. */
static __noinline int remember_fragment(struct ipv4 *ip, struct flow *flow)
{
	if (!ip || !flow)
		return 0;
	struct fragment key = {
		.src = flow->src, .dst = flow->dst, .id = ip->id, .protocol = flow->protocol,
		.direction = flow->direction,
	};

	return bpf_map_update_elem(&fragments, &key, flow, BPF_ANY);
}

/* A later fragment: only its IP header is translated. */
static __noinline int translate_fragment(struct xdp_md *ctx, struct fragment *key)
{
	if (!key)
		return XDP_ABORTED;
	struct flow *flow = bpf_map_lookup_elem(&fragments, key);
	if (!flow)
		return because(EVENT_ORPHAN_FRAGMENT, XDP_DROP);
	struct connection *connection = bpf_map_lookup_elem(&connections, flow);
	if (!connection)
		return because(EVENT_ORPHAN_FRAGMENT, XDP_DROP);
	if (key->direction == NAT_OUTBOUND)
		return send(ctx, connection, connection->ip_delta, NAT_OUTBOUND);
	return send(ctx, connection, connection->ip_delta, NAT_INBOUND);
}

/* One direction of the fast path. The IP header has been checked. */
static __always_inline int translate(struct xdp_md *ctx, struct ipv4 *ip, void *end, const int direction)
{
	struct udp *udp = (void *)(ip + 1);
	struct tcp *tcp = (void *)udp;
	struct icmp *icmp = (void *)udp;
	struct flow flow = { .src = ip->src, .dst = ip->dst, .protocol = ip->protocol, .direction = direction };
	__be16 *our_port = direction == NAT_OUTBOUND ? &udp->ports.src : &udp->ports.dst;
	__sum16 *sum;
	__u8 tcp_flags = 0;

	if (unlikely(ip->fragment & bpf_htons(IPV4_OFFSET_MASK))) {
		struct fragment key = {
			.src = ip->src, .dst = ip->dst, .id = ip->id, .protocol = ip->protocol, .direction = direction,
		};

		return translate_fragment(ctx, &key);
	}
	if ((void *)(udp + 1) > end)
		return because(EVENT_BAD_LENGTH, XDP_DROP);
	if (ip->protocol == PROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return because(EVENT_BAD_LENGTH, XDP_DROP);
		tcp_flags = tcp->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);
		sum = &tcp->checksum;
	} else if (ip->protocol == PROTO_UDP) {
		sum = &udp->checksum;
	} else if (ip->protocol == PROTO_ICMP) {
		if (icmp->type == ICMP_UNREACHABLE || icmp->type == ICMP_TIME_EXCEEDED || icmp->type == ICMP_PARAMETER)
			return direction == NAT_OUTBOUND ? translate_error_outbound(ctx) : translate_error_inbound(ctx);
		if (icmp->type != (direction == NAT_OUTBOUND ? ICMP_ECHO : ICMP_ECHO_REPLY))
			return because(EVENT_PROTOCOL, XDP_PASS);
		our_port = &icmp->id;
		sum = &icmp->checksum;
	} else {
		return because(EVENT_PROTOCOL, XDP_PASS);
	}
	if (ip->protocol != PROTO_ICMP) {
		flow.src_port = udp->ports.src;
		flow.dst_port = udp->ports.dst;
	} else if (direction == NAT_OUTBOUND) {
		flow.src_port = icmp->id;
	} else {
		flow.dst_port = icmp->id;
	}

	struct connection *connection = bpf_map_lookup_elem(&connections, &flow);
	if (unlikely(!connection)) {
		if (direction == NAT_INBOUND)
			return because(EVENT_NO_CONNECTION, XDP_PASS);
		int verdict = connect(ctx, &flow);
		if (verdict != XDP_TX)
			return verdict;
		connection = bpf_map_lookup_elem(&connections, &flow);
		if (!connection)
			return XDP_ABORTED;
	}
	touch(connection, tcp_flags);
	if (unlikely(ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS)))
		remember_fragment(ip, &flow);

	*our_port = connection->port;
	/* UDP may go without a checksum, and writes one that is zero as its negative (RFC 768). */
	if (ip->protocol != PROTO_UDP) {
		*sum = csum_adjust(*sum, connection->transport_delta);
	} else if (*sum) {
		__sum16 new = csum_adjust(*sum, connection->transport_delta);

		*sum = new ? new : 0xffff;
	}
	return send(ctx, connection, connection->ip_delta, direction);
}

SEC("xdp")
int nat(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	struct ipv4 *ip = data + sizeof(*eth);
	__u64 frame = end - data;
	__u32 in = ctx->ingress_ifindex;

	__u32 *role = bpf_map_lookup_elem(&ports, &in);
	if (!role || *role == NAT_NONE)
		return because(EVENT_NO_PORT, XDP_PASS);
	struct port_counters *rx = bpf_map_lookup_elem(&counters, &in);
	if (rx) {
		rx->rx_packets++;
		rx->rx_bytes += frame;
	}
	if ((void *)(ip + 1) > end || eth->type != bpf_htons(ETHERTYPE_IPV4))
		return because(EVENT_NOT_IPV4, XDP_PASS);
	if (unlikely(eth->dst[0] & 1))
		return because(EVENT_NOT_UNICAST, XDP_PASS);
	/* RFC 1812, 5.2.2: a NAT is a router. */
	if (unlikely(ip->ihl != IPV4_NO_OPTIONS)) {
		if (ip->ihl >> 4 != 4 || (ip->ihl & 15) < 5)
			return because(EVENT_BAD_HEADER, XDP_DROP);
		return because(EVENT_OPTIONS, XDP_PASS);
	}
	__u32 length = bpf_ntohs(ip->length);
	if (unlikely(length < sizeof(*ip) || length > frame - sizeof(*eth)))
		return because(EVENT_BAD_LENGTH, XDP_DROP);
	if (unlikely(!ipv4_checksum_ok(ip)))
		return because(EVENT_BAD_CHECKSUM, XDP_DROP);
	if (unlikely(ipv4_is_martian(&ip->src)))
		return because(EVENT_MARTIAN, XDP_DROP);
	if (unlikely(ipv4_is_martian(&ip->dst)))
		return because(EVENT_NOT_UNICAST, XDP_PASS);
	if (unlikely(ip->ttl <= 1))
		return because(EVENT_TTL, XDP_PASS);
	if (*role == NAT_INSIDE)
		return translate(ctx, ip, end, NAT_OUTBOUND);
	return translate(ctx, ip, end, NAT_INBOUND);
}

char _license[] SEC("license") = "Dual BSD/GPL";
