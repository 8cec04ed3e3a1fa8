/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What Millstream calls of DPDK. Much of that is inline functions, macros and structures that change between releases:
 * here they are functions with plain arguments. lib.rs declares them.
 */
/* rte_dev_dma_map, which is as it is since 2019. */
#define ALLOW_EXPERIMENTAL_API
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* lib.rs has these fields of a buffer at these places. */
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0, "buf_addr");
_Static_assert(offsetof(struct rte_mbuf, data_off) == 16, "data_off");
_Static_assert(offsetof(struct rte_mbuf, nb_segs) == 20, "nb_segs");
_Static_assert(offsetof(struct rte_mbuf, pkt_len) == 36, "pkt_len");
_Static_assert(offsetof(struct rte_mbuf, data_len) == 40, "data_len");

enum {
	/* Buffers that a processor keeps for itself. */
	CACHE = 256,
	/* Descriptors of a queue, if the driver takes that many. */
	DESCRIPTORS = 1024,
	PAGE = 4096,
};

struct ms_dpdk_lost {
	uint64_t no_room;
	uint64_t unfit;
};

const char *ms_dpdk_version(void)
{
	return rte_version();
}

const char *ms_dpdk_reason(int error)
{
	return rte_strerror(error);
}

/* 0, or an error number. What EAL prints goes to standard error: standard output is for results. */
int ms_dpdk_init(int count, char **arguments)
{
	fflush(stdout);
	int kept = dup(STDOUT_FILENO);
	if (kept < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return errno;
	int error = rte_eal_init(count, arguments) < 0 ? rte_errno : 0;
	fflush(stdout);
	dup2(kept, STDOUT_FILENO);
	close(kept);
	return error;
}

void ms_dpdk_cleanup(void)
{
	rte_eal_cleanup();
}

/* The bytes that a pool of this many buffers takes, each with `front` bytes before its data and `room` for it. */
size_t ms_dpdk_pool_bytes(unsigned int buffers, uint16_t front, uint16_t room)
{
	struct rte_mempool_objsz size;
	rte_mempool_calc_obj_size(sizeof(struct rte_mbuf) + front + room, 0, &size);
	return ((size_t)buffers + 1) * size.total_size;
}

/* A pool in memory that is ours and begins at a page; the memory must outlive it. NULL on error, with its number. */
struct rte_mempool *ms_dpdk_pool(void *memory, size_t length, unsigned int buffers, uint16_t front, uint16_t room,
				 int *error)
{
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = room, .mbuf_priv_size = front };
	length = RTE_ALIGN_FLOOR(length, PAGE);
	if (rte_eal_iova_mode() != RTE_IOVA_VA) {
		*error = ENOTSUP;
		return NULL;
	}
	if (rte_extmem_register(memory, length, NULL, 0, PAGE) < 0) {
		*error = rte_errno;
		return NULL;
	}
	struct rte_mempool *pool = rte_mempool_create_empty("millstream", buffers, sizeof(struct rte_mbuf) + front + room,
							    CACHE, sizeof(private), SOCKET_ID_ANY, 0);
	if (!pool) {
		*error = rte_errno;
		return NULL;
	}
	rte_pktmbuf_pool_init(pool, &private);
	int added = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (!added)
		added = rte_mempool_populate_iova(pool, memory, (rte_iova_t)memory, length, NULL, NULL);
	if (added < (int)buffers) {
		*error = added < 0 ? -added : ENOMEM;
		rte_mempool_free(pool);
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

void ms_dpdk_pool_free(struct rte_mempool *pool)
{
	rte_mempool_free(pool);
}

/* The number of the port that came of a device; -1 if none did. */
int ms_dpdk_port(const char *device)
{
	uint16_t port;
	return rte_eth_dev_get_port_by_name(device, &port) == 0 ? port : -1;
}

/* Drivers that send packets in several buffers, and do not say so. */
static int gathers(const char *driver)
{
	static const char *const drivers[] = { "net_pcap", "net_ring", "net_null" };
	for (size_t at = 0; at < sizeof(drivers) / sizeof(*drivers); at++)
		if (strcmp(driver, drivers[at]) == 0)
			return 1;
	return 0;
}

/* Configures a port; `chains` becomes 1 if it sends packets in several buffers. Those are asked for with an MTU that
 * does not fit a buffer, and from virtual devices, whose packets have any length. */
static int configure(uint16_t port, uint16_t queues, uint16_t mtu, uint16_t room, int is_virtual,
		     const struct rte_eth_dev_info *info, int *chains)
{
	struct rte_eth_conf conf = { 0 };
	int is_long = mtu + RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN > room - RTE_PKTMBUF_HEADROOM;
	conf.rxmode.mtu = is_virtual ? 0 : mtu;
	if (queues > 1 && info->flow_type_rss_offloads) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf =
			info->flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
	}
	*chains = gathers(info->driver_name);
	if (is_virtual || is_long) {
		conf.rxmode.offloads = info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
		conf.txmode.offloads = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
		*chains |= conf.txmode.offloads != 0;
		if (is_long && !is_virtual && !conf.rxmode.offloads)
			return -ENOTSUP;
	} else {
		/* All buffers come of one pool, each has one owner, and none is chained. */
		conf.txmode.offloads = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	}
	return rte_eth_dev_configure(port, queues, queues, &conf);
}

/* Has a device read and write our memory, if it does so by itself. */
static int reach(const struct rte_eth_dev_info *info, void *memory, size_t length)
{
	length = RTE_ALIGN_FLOOR(length, PAGE);
	if (rte_dev_dma_map(info->device, memory, (rte_iova_t)memory, length) == 0 || rte_errno == ENOTSUP)
		return 0;
	return -rte_errno;
}

/* Starts a port with so many queues each way: 0, or an error number. */
int ms_dpdk_start(uint16_t port, uint16_t queues, uint16_t mtu, int is_virtual, struct rte_mempool *pool, void *memory,
		  size_t length, int *chains)
{
	struct rte_eth_dev_info info;
	uint16_t in = DESCRIPTORS, out = DESCRIPTORS;
	int error = rte_eth_dev_info_get(port, &info);
	if (!error)
		error = reach(&info, memory, length);
	if (!error)
		error = configure(port, queues, mtu, rte_pktmbuf_data_room_size(pool), is_virtual, &info, chains);
	if (!error)
		error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &in, &out);
	for (uint16_t queue = 0; !error && queue < queues; queue++) {
		error = rte_eth_rx_queue_setup(port, queue, in, SOCKET_ID_ANY, NULL, pool);
		if (!error)
			error = rte_eth_tx_queue_setup(port, queue, out, SOCKET_ID_ANY, NULL);
	}
	if (!error)
		error = rte_eth_dev_start(port);
	/* A device that cannot hears everything or is none that has addresses. */
	if (!error)
		rte_eth_promiscuous_enable(port);
	return -error;
}

/* Gives a started port an address: 0, or an error number. */
int ms_dpdk_set_address(uint16_t port, const uint8_t *address)
{
	struct rte_ether_addr own;
	memcpy(own.addr_bytes, address, RTE_ETHER_ADDR_LEN);
	return -rte_eth_dev_default_mac_addr_set(port, &own);
}

void ms_dpdk_stop(uint16_t port)
{
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
}

/* What the driver has dropped. */
void ms_dpdk_lost(uint16_t port, struct ms_dpdk_lost *lost)
{
	struct rte_eth_stats stats;
	memset(&stats, 0, sizeof(stats));
	rte_eth_stats_get(port, &stats);
	lost->no_room = stats.imissed + stats.rx_nombuf;
	lost->unfit = stats.ierrors;
}

/* Makes the calling thread one that has buffers of its own at hand: 0, or an error number. */
int ms_dpdk_enter(void)
{
	return rte_thread_register() < 0 ? rte_errno : 0;
}

void ms_dpdk_leave(void)
{
	rte_thread_unregister();
}

uint16_t ms_dpdk_receive(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t most)
{
	return rte_eth_rx_burst(port, queue, buffers, most);
}

/* Gives away as many of the buffers as the driver takes. */
uint16_t ms_dpdk_send(uint16_t port, uint16_t queue, struct rte_mbuf **buffers, uint16_t count)
{
	uint16_t sent = 0, now;
	do {
		now = rte_eth_tx_burst(port, queue, buffers + sent, count - sent);
		sent += now;
	} while (now > 0 && sent < count);
	return sent;
}

struct rte_mbuf *ms_dpdk_new(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

/* The buffer behind this one of a packet in several; NULL if it is the last. */
struct rte_mbuf *ms_dpdk_next(const struct rte_mbuf *buffer)
{
	return buffer->next;
}

/* Appends a packet's last buffer to it: 0, or an error number if it has too many. */
int ms_dpdk_append(struct rte_mbuf *packet, struct rte_mbuf *buffer)
{
	return -rte_pktmbuf_chain(packet, buffer);
}

void ms_dpdk_free(struct rte_mbuf **buffers, unsigned int count)
{
	rte_pktmbuf_free_bulk(buffers, count);
}
