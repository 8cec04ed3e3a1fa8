// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * traffic IFACE COUNT LENGTH...: sends packets out of IFACE, and compares what comes back. They have ethertype 0x88b5, these lengths by
 * turns, a number, and bytes that depend on it and their place. Each must come back once, with its addresses exchanged and otherwise unchanged.
 * At most WINDOW are on the way; those that do not come within a second are lost, as on a link that is down. Ends with 0 if none was wrong or
 * lost, with 1 if some were, with 2 if the interface cannot be used.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 128, LONGEST = 65536, HEADER = 14 };

static unsigned char packet[LONGEST], came[LONGEST];
static const unsigned char ours[ETH_ALEN] = { 2, 0, 0, 0, 0, 1 }, theirs[ETH_ALEN] = { 2, 0, 0, 0, 0, 2 };

static void fill(unsigned char *bytes, uint64_t number, size_t length, int is_answer)
{
	memcpy(bytes, is_answer ? ours : theirs, ETH_ALEN);
	memcpy(bytes + ETH_ALEN, is_answer ? theirs : ours, ETH_ALEN);
	bytes[12] = 0x88;
	bytes[13] = 0xb5;
	memcpy(bytes + HEADER, &number, sizeof(number));
	memset(bytes + HEADER + sizeof(number), (int)number, length - HEADER - sizeof(number));
	/* The ends of buffers. */
	for (size_t at = 256; at + 8 <= length; at += 256)
		memcpy(bytes + at, &at, 8);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	uint64_t count = strtoull(argv[2], NULL, 10), sent = 0, back = 0, lost = 0, wrong = 0;
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(0x88b5) };
	int one = 1, room = 16 << 20, wire = socket(AF_PACKET, SOCK_RAW, 0);
	address.sll_ifindex = (int)if_nametoindex(argv[1]);
	setsockopt(wire, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	setsockopt(wire, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	setsockopt(wire, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one));
	if (bind(wire, (struct sockaddr *)&address, sizeof(address)) < 0) {
		perror(argv[1]);
		return 2;
	}
	double start = now(), last = start;
	while (back + lost < count) {
		while (sent < count && sent - back - lost < WINDOW) {
			size_t length = strtoul(argv[3 + sent % (uint64_t)(argc - 3)], NULL, 10);
			fill(packet, sent, length, 0);
			if (send(wire, packet, length, MSG_DONTWAIT) < 0) {
				if (errno == ENXIO || errno == ENODEV) {
					perror(argv[1]);
					return 2;
				}
				/* Down, or busy. */
				break;
			}
			sent++;
		}
		struct pollfd asked = { .fd = wire, .events = POLLIN };
		ssize_t length = recv(wire, came, sizeof(came), MSG_DONTWAIT);
		if (length < 0) {
			if (errno == ENXIO || errno == ENODEV) {
				perror(argv[1]);
				return 2;
			}
			poll(&asked, 1, 100);
			if (now() - last > 1) {
				lost += sent - back - lost;
				last = now();
				if (last - start > 600)
					break;
			}
			continue;
		}
		last = now();
		uint64_t number;
		memcpy(&number, came + HEADER, sizeof(number));
		size_t expected = number < sent ? strtoul(argv[3 + number % (uint64_t)(argc - 3)], NULL, 10) : 0;
		if ((size_t)length != expected) {
			wrong++;
		} else {
			fill(packet, number, expected, 1);
			wrong += memcmp(packet, came, expected) != 0;
		}
		back++;
		/* One that was given up comes late. */
		lost -= back + lost > sent;
	}
	double seconds = now() - start;
	printf("sent=%llu back=%llu lost=%llu wrong=%llu seconds=%.1f\n", (unsigned long long)sent, (unsigned long long)back,
	       (unsigned long long)lost, (unsigned long long)wrong, seconds);
	return lost > 0 || wrong > 0 || back != sent;
}
