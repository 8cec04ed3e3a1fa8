// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// An XDP filter of IPv4 packets by their source address, with a counter for each of its verdicts.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024);
    __type(key, __u32);
    __type(value, __u32);
} blocked SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} verdicts SEC(".maps");

static __always_inline int count(__u32 verdict, int action)
{
    __u64 *packets = bpf_map_lookup_elem(&verdicts, &verdict);

    if (packets)
        *packets += 1;
    return action;
}

SEC("xdp")
int filter(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);

    if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
        return count(0, XDP_PASS);
    if (bpf_map_lookup_elem(&blocked, &ip->saddr))
        return count(1, XDP_DROP);
    return count(0, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
