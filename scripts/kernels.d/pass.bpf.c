// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/* Passes all frames: only with a program does a veth device take those that the other end transmits by XDP. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
