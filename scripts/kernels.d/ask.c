// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * ask IFACE KEY COUNT MILLISECONDS: asks the program behind IFACE (answer.bpf.c) for a key, COUNT times, one question after the other, and waits so
 * long for each answer. Prints the number of answers.
 */
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

struct message {
	struct ethhdr eth;
	uint16_t pad;
	uint32_t key;
	uint64_t sent[2], found[2];
} __attribute__((packed));

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(0x88b6) };
	int line = socket(AF_PACKET, SOCK_RAW, htons(0x88b6)), answers = 0;

	if (argc != 5)
		return 2;
	at.sll_ifindex = if_nametoindex(argv[1]);
	if (line < 0 || bind(line, (void *)&at, sizeof(at))) {
		perror(argv[1]);
		return 2;
	}
	uint32_t key = atoi(argv[2]);
	for (int n = 0, count = atoi(argv[3]); n < count; n++) {
		unsigned char frame[64] = { 0 };
		struct message m = { .key = key, .sent = { n + 1 } };
		double end = seconds() + atoi(argv[4]) / 1000.0;
		int answered = 0;

		memset(m.eth.h_dest, 0xff, sizeof(m.eth.h_dest));
		m.eth.h_source[0] = 2;
		m.eth.h_proto = htons(0x88b5);
		memcpy(frame, &m, sizeof(m));
		if (send(line, frame, sizeof(frame), 0) != sizeof(frame))
			continue;
		while (!answered && seconds() < end) {
			struct pollfd asked = { .fd = line, .events = POLLIN };

			poll(&asked, 1, 10);
			if (recv(line, frame, sizeof(frame), MSG_DONTWAIT) < (ssize_t)sizeof(m))
				continue;
			memcpy(&m, frame, sizeof(m));
			/* Answers to others' questions have other keys. */
			answered = m.key == key && m.sent[0] == (uint64_t)n + 1;
		}
		answers += answered;
	}
	printf("%d\n", answers);
	return 0;
}
