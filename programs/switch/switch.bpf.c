// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * An Ethernet switch with VLANs, after IEEE 802.1Q.
 *
 * Learns stations, filters by VLAN at both ends, pushes and pops tags, and forwards between ports. What needs more
 * than one copy (broadcast, groups, unknown destinations) and what belongs to the control plane (01-80-C2-00-00-0X:
 * spanning tree, link aggregation, LLDP) goes to the kernel's stack as it came; the control tool floods from there,
 * ages stations and sets spanning-tree states.
 */
#include "packet.h"
#include "switch.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SWITCH_PORTS);
	__type(key, __u32);
	__type(value, struct switch_port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SWITCH_STATIONS);
	__type(key, struct station_key);
	__type(value, struct station);
} stations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SWITCH_PORTS);
	__type(key, __u32);
	__type(value, struct port_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VLANS);
	__type(key, __u32);
	__type(value, struct vlan_counters);
} vlan_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENTS);
	__type(key, __u32);
	__type(value, __u64);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, SWITCH_PORTS);
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

static __always_inline int is_member(const struct switch_port *port, __u32 vlan)
{
	return port->members[(vlan / 64) & (VLANS / 64 - 1)] >> (vlan & 63) & 1;
}

static __always_inline struct station_key station_key(const __u8 *mac, __u32 vlan)
{
	struct station_key key = { .vlan = vlan };

	*(__u32 *)key.mac = *(const __u32 *)mac;
	*(__u16 *)(key.mac + 4) = *(const __u16 *)(mac + 4);
	return key;
}

/* 01-80-C2-00-00-00 to -0F, which no bridge forwards. */
static __always_inline int is_link_local(const __u8 *mac)
{
	return *(const __u32 *)mac == bpf_htonl(0x0180c200) &&
	       (*(const __u16 *)(mac + 4) & bpf_htons(0xfff0)) == 0;
}

/* A station that has not been seen in this VLAN. Not inlined: rare, and the stack of its operands would cost the rest. */
static __noinline int learn_new(__u64 mac_and_vlan, __u32 in, __u64 now)
{
	struct station fresh = { .port = in, .seen = now };

	bpf_map_update_elem(&stations, &mac_and_vlan, &fresh, BPF_ANY);
	return because(EVENT_LEARNED, 0);
}

/* Learns where the sender is; 0 if the frame must not go on. */
static __always_inline int learn(const __u8 *mac, __u32 vlan, __u32 in)
{
	struct station_key key = station_key(mac, vlan);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct station *station = bpf_map_lookup_elem(&stations, &key);

	if (unlikely(!station)) {
		learn_new(*(__u64 *)&key, in, now);
		return 1;
	}
	if (unlikely(station->port != in)) {
		if (station->flags & STATION_STATIC)
			return 0;
		station->port = in;
		station->seen = now;
		because(EVENT_MOVED, 0);
	} else if (now - station->seen > SEEN_GRANULARITY) {
		station->seen = now;
	}
	return 1;
}

/* Puts a tag between the addresses and what follows them. */
static __always_inline int push_tag(struct xdp_md *ctx, __u32 vlan)
{
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct vlan_tag)))
		return -1;
	__u8 *data = (void *)(long)ctx->data;
	if (data + sizeof(struct eth) + sizeof(struct vlan_tag) > (__u8 *)(long)ctx->data_end)
		return -1;
	__u64 first = *(__u64 *)(data + 4);
	__u32 rest = *(__u32 *)(data + 12);
	*(__u64 *)data = first;
	*(__u32 *)(data + 8) = rest;
	*(__be16 *)(data + 12) = bpf_htons(ETHERTYPE_VLAN);
	*(__be16 *)(data + 14) = bpf_htons(vlan);
	return 0;
}

/* Takes the tag out again. */
static __always_inline int pop_tag(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;

	if (data + sizeof(struct eth) + sizeof(struct vlan_tag) > (__u8 *)(long)ctx->data_end)
		return -1;
	__u64 first = *(__u64 *)data;
	__u32 rest = *(__u32 *)(data + 8);
	*(__u64 *)(data + 4) = first;
	*(__u32 *)(data + 12) = rest;
	return bpf_xdp_adjust_head(ctx, sizeof(struct vlan_tag));
}

SEC("xdp")
int switch_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct eth *eth = data;
	__u64 frame = end - data;
	__u32 in = ctx->ingress_ifindex;

	struct switch_port *port = bpf_map_lookup_elem(&ports, &in);
	if (!port || port->state == PORT_DISABLED)
		return because(EVENT_NO_PORT, XDP_PASS);
	if (unlikely((void *)(eth + 1) > end))
		return because(EVENT_RUNT, XDP_DROP);
	struct port_counters *rx = bpf_map_lookup_elem(&counters, &in);
	if (rx) {
		rx->rx_packets++;
		rx->rx_bytes += frame;
	}
	if (unlikely(is_link_local(eth->dst)))
		return because(EVENT_LINK_LOCAL, XDP_PASS);
	if (unlikely(port->state == PORT_BLOCKING))
		return because(EVENT_BLOCKED, XDP_DROP);

	/* Which VLAN? A tag with VLAN 0 carries a priority only (802.1Q, 9.6). */
	struct vlan_tag *tag = NULL;
	__u32 tagged_as = 0, vlan = port->pvid;
	if (eth->type == bpf_htons(ETHERTYPE_VLAN)) {
		tag = (void *)(eth + 1);
		if (unlikely((void *)(tag + 1) > end))
			return because(EVENT_RUNT, XDP_DROP);
		tagged_as = bpf_ntohs(tag->tci) & VLAN_ID;
		if (tagged_as) {
			if (unlikely(port->mode == PORT_ACCESS))
				return because(EVENT_NOT_ADMITTED, XDP_DROP);
			vlan = tagged_as;
		}
	}
	if (unlikely(!vlan || !is_member(port, vlan)))
		return because(EVENT_NOT_ADMITTED, XDP_DROP);
	struct vlan_counters *count = bpf_map_lookup_elem(&vlan_counters, &vlan);
	if (count) {
		count->packets++;
		count->bytes += frame;
	}

	if (unlikely(eth->src[0] & 1))
		return because(EVENT_BAD_SOURCE, XDP_DROP);
	if (unlikely(!learn(eth->src, vlan, in)))
		return because(EVENT_STATIC_MOVED, XDP_DROP);
	if (unlikely(port->state != PORT_FORWARDING))
		return because(EVENT_BLOCKED, XDP_DROP);

	if (eth->dst[0] & 1)
		return because(EVENT_FLOOD_GROUP, XDP_PASS);
	struct station_key key = station_key(eth->dst, vlan);
	struct station *to = bpf_map_lookup_elem(&stations, &key);
	if (unlikely(!to))
		return because(EVENT_FLOOD_UNKNOWN, XDP_PASS);
	/* The station may move at any moment: read its port once. */
	__u32 out = *(volatile __u32 *)&to->port;
	if (unlikely(!out))
		return because(EVENT_LOCAL, XDP_PASS);
	if (unlikely(out == in))
		return because(EVENT_SAME_PORT, XDP_DROP);

	struct switch_port *egress = bpf_map_lookup_elem(&ports, &out);
	if (unlikely(!egress || egress->state != PORT_FORWARDING || !is_member(egress, vlan)))
		return because(EVENT_EGRESS_FILTERED, XDP_DROP);
	if (vlan != egress->pvid) {
		if (!tag) {
			if (push_tag(ctx, vlan))
				return XDP_ABORTED;
			frame += sizeof(*tag);
		} else if (!tagged_as) {
			/* The priority stays. */
			tag->tci |= bpf_htons(vlan);
		}
	} else if (tag) {
		if (pop_tag(ctx))
			return XDP_ABORTED;
		frame -= sizeof(*tag);
	}

	struct port_counters *tx = bpf_map_lookup_elem(&counters, &out);
	if (tx) {
		tx->tx_packets++;
		tx->tx_bytes += frame;
	}
	return bpf_redirect_map(&tx_ports, out, XDP_DROP);
}

char _license[] SEC("license") = "Dual BSD/GPL";
