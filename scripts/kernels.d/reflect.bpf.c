// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/* Sends packets of `traffic` back with their addresses exchanged, and drops others. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	unsigned char address[ETH_ALEN];

	if ((void *)(eth + 1) > end || eth->h_proto != bpf_htons(0x88b5))
		return XDP_DROP;
	__builtin_memcpy(address, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, address, ETH_ALEN);
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";
