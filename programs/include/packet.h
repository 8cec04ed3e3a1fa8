/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Frames as our data planes see them, and the arithmetic they share.
 *
 * Fields are declared with their natural alignment, not packed: the kernel's verifier allows unaligned packet
 * loads where the machine does them well, and a packed struct would make clang assemble every field from bytes.
 */
#ifndef MILLSTREAM_PACKET_H
#define MILLSTREAM_PACKET_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_SERVICE_VLAN 0x88a8

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Ethernet II. */
struct eth {
	__u8 dst[6];
	__u8 src[6];
	__be16 type;
};

/* IEEE 802.1Q: stands between the addresses and the type of what follows. */
struct vlan_tag {
	__be16 tci;
	__be16 type;
};

#define VLAN_ID 0x0fff

/* IPv4 without options, RFC 791. `ihl` is version and header length. */
struct ipv4 {
	__u8 ihl;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 src;
	__be32 dst;
};

#define IPV4_NO_OPTIONS 0x45
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_OFFSET_MASK 0x1fff

/*
 * True if the packet has `length` octets from `at` on, which must lie in it. The difference of the pointers is compared, and
 * the length never added to one: kernels before 6.15 do not know that a length read in network byte order is bounded,
 * and refuse to add it.
 */
static __always_inline int holds(const void *at, __u64 length, const void *end)
{
	return (__u64)(end - at) >= length;
}

/*
 * Octets of the header, with its options; 0 for one that is malformed, or a packet that its frame does not hold.
 */
static __always_inline __u32 ipv4_header(const struct ipv4 *ip, const void *end)
{
	if ((const void *)(ip + 1) > end || ip->ihl >> 4 != 4 || (ip->ihl & 15) < 5)
		return 0;
	__u32 header = (ip->ihl & 15) * 4;
	__u32 length = bpf_ntohs(ip->length);

	return length < header || !holds(ip, length, end) ? 0 : header;
}

/* Both addresses of a frame in two moves. */
static __always_inline void copy_macs(void *to, const void *from)
{
	*(__u64 *)to = *(const __u64 *)from;
	*(__u32 *)(to + 8) = *(const __u32 *)(from + 8);
}

/* One step of folding. The barrier keeps clang from turning shift and mask into a multiplication. */
static __always_inline __u64 csum_fold_once(__u64 sum)
{
	__u64 high = sum >> 16;

	asm volatile("" : "+r"(high));
	return high + (sum & 0xffff);
}

/* Folds a sum of up to 16 32-bit words into 16 bits of one's complement, RFC 1071. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	return csum_fold_once(csum_fold_once(csum_fold_once(sum)));
}

/* True if the header without options sums to minus zero, as it must. */
static __always_inline int ipv4_checksum_ok(const struct ipv4 *ip)
{
	const __u32 *word = (const __u32 *)ip;
	__u64 sum = (__u64)word[0] + word[1] + word[2] + word[3] + word[4];

	/* Five words: below 2^20 after one step, so two leave 1 to 0x1000e, of which only 0xffff is zero modulo 0xffff. */
	return csum_fold_once(csum_fold_once(sum)) == 0xffff;
}

/* One hop less; the checksum by RFC 1141 with RFC 1624's care for minus zero. */
static __always_inline void ipv4_decrement_ttl(struct ipv4 *ip)
{
	__u32 sum = (__u32)ip->checksum + bpf_htons(0x0100);

	ip->checksum = sum + (sum >= 0xffff);
	ip->ttl--;
}

/* Addresses that are no unicast source or destination (RFC 1812, 5.3.7): 0/8, 127/8, 224/4 and 240/4. */
static __always_inline int ipv4_is_martian(const __be32 *address)
{
	__u8 first = *(const __u8 *)address;

	return (__u8)(first - 1) >= 223 || first == 127;
}

#endif
