/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* What our data planes count alike. */
#ifndef MILLSTREAM_COUNTERS_H
#define MILLSTREAM_COUNTERS_H

#include <linux/types.h>

/* Of a port: one for each CPU. */
struct port_counters {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 tx_packets;
	__u64 tx_bytes;
};

#endif
