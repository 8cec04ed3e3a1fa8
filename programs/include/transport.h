/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* Transport headers as our data planes see them. */
#ifndef MILLSTREAM_TRANSPORT_H
#define MILLSTREAM_TRANSPORT_H

#include "packet.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER 12

struct ports {
	__be16 src;
	__be16 dst;
};

struct udp {
	struct ports ports;
	__be16 length;
	__sum16 checksum;
};

struct tcp {
	struct ports ports;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
};

/* Of ICMP and ICMPv6; what follows the checksum depends on the type. */
struct icmp {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	union {
		__be32 rest;
		/* Of an echo request or reply. */
		struct {
			__be16 id;
			__be16 sequence;
		};
	};
};

#endif
