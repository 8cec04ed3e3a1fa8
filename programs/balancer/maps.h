/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* The balancer's maps; what they hold is said in balancer.h. */
#ifndef MILLSTREAM_BALANCER_MAPS_H
#define MILLSTREAM_BALANCER_MAPS_H

#include "packet.h"
#include "balancer.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCER_VIPS);
	__type(key, struct vip4);
	__type(value, struct vip);
} vips4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCER_VIPS);
	__type(key, struct vip6);
	__type(value, struct vip);
} vips6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCER_VIPS);
	__type(key, struct address);
	__type(value, __u32);
} vip_addresses SEC(".maps");

/* One row of BALANCER_RING entries for each VIP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCER_VIPS * BALANCER_RING);
	__type(key, __u32);
	__type(value, __u32);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCER_REALS);
	__type(key, __u32);
	__type(value, struct real);
} reals SEC(".maps");

/* Each CPU has its own list of recent use; the table is common, so that a flow that moves to another CPU is found. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__uint(max_entries, BALANCER_FLOWS);
	__type(key, struct flow4);
	__type(value, struct connection);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__uint(max_entries, BALANCER_FLOWS);
	__type(key, struct flow6);
	__type(value, struct connection);
} flows6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCER_QUIC_SERVERS);
	__type(key, struct quic_server);
	__type(value, __u32);
} quic_servers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCER_VIPS);
	__type(key, __u32);
	__type(value, struct traffic);
} vip_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCER_REALS);
	__type(key, __u32);
	__type(value, struct traffic);
} real_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIMITS);
	__type(key, __u32);
	__type(value, struct budget);
} limits SEC(".maps");

/* Counts why the packet leaves the shortest way, and passes the verdict on. */
static __noinline int because(__u32 reason, int verdict)
{
	__u64 *count = bpf_map_lookup_elem(&reasons, &reason);

	if (count)
		++*count;
	return verdict;
}

/* True if this second's limit is used up on this CPU; else uses one of it. */
static __noinline int over_limit(__u32 which, __u64 limit)
{
	struct budget *budget = bpf_map_lookup_elem(&limits, &which);
	__u64 second = bpf_ktime_get_coarse_ns() / 1000000000;

	if (!budget)
		return 1;
	if (budget->second != second) {
		budget->second = second;
		budget->used = 0;
	}
	if (budget->used >= limit)
		return 1;
	budget->used++;
	return 0;
}

#endif
