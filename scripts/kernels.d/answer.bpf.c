// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * Answers each question of `stale` with what it finds in two tables, on XDP and on TC.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define QUESTION 0x88b5
#define ANSWER 0x88b6

/* Of `stale.c`, too. */
struct message {
	__u8 dst[6];
	__u8 src[6];
	__be16 type;
	__u16 pad;
	__u32 key;
	__u64 sent[2];
	__u64 found[2];
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} tab SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} conf SEC(".maps");

/* Fills in the answer; 0 if it is no question. */
static __always_inline int answer(void *data, void *end)
{
	struct message *m = data;
	__u32 zero = 0, key;
	__u64 *entry, *setting;

	if ((void *)(m + 1) > end || m->type != bpf_htons(QUESTION))
		return 0;
	key = m->key;
	entry = bpf_map_lookup_elem(&tab, &key);
	setting = bpf_map_lookup_elem(&conf, &zero);
	m->found[0] = entry ? *entry : 0;
	m->found[1] = setting ? *setting : 0;
	m->type = bpf_htons(ANSWER);
	return 1;
}

SEC("xdp")
int answer_xdp(struct xdp_md *ctx)
{
	return answer((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_TX : XDP_PASS;
}

SEC("tc")
int answer_tc(struct __sk_buff *skb)
{
	if (bpf_skb_pull_data(skb, sizeof(struct message)))
		return TC_ACT_UNSPEC;
	if (!answer((void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_ACT_UNSPEC;
	return bpf_redirect(skb->ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
