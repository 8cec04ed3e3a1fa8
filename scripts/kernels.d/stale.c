// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * stale IFACE PINS UPDATES GO: asks the program behind IFACE (answer.bpf.c) without pause. Once the file GO is there, changes its tables,
 * pinned in PINS, UPDATES times. A question carries what was in the tables when the last update of each had returned; an answer with
 * anything older is stale. Ends with 1 if one was, with 2 if no answer came.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KEYS 8
#define BURST 32
/* Seconds for which GO is waited for. */
#define PATIENCE 240

struct message {
	struct ethhdr eth;
	uint16_t pad;
	uint32_t key;
	uint64_t sent[2], found[2];
} __attribute__((packed));

static uint64_t asked, answered, stale;
/* What was in `tab`, for all keys, and in `conf`. */
static uint64_t now[2] = { 1, 1 };
static int line;

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int table(const char *pins, const char *name)
{
	char path[300];
	union bpf_attr attr = { 0 };

	snprintf(path, sizeof(path), "%s/maps/%s", pins, name);
	attr.pathname = (uintptr_t)path;
	return syscall(SYS_bpf, BPF_OBJ_GET, &attr, sizeof(attr));
}

static void update(int map, uint32_t key, uint64_t value)
{
	union bpf_attr attr = { 0 };

	attr.map_fd = map;
	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)&value;
	if (syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr))) {
		perror("update");
		exit(2);
	}
}

static void ask(uint32_t key, uint64_t tab)
{
	unsigned char frame[64] = { 0 };
	struct message m = { .key = key, .sent = { tab, now[1] } };

	memset(m.eth.h_dest, 0xff, sizeof(m.eth.h_dest));
	m.eth.h_source[0] = 2;
	m.eth.h_proto = htons(0x88b5);
	memcpy(frame, &m, sizeof(m));
	asked += send(line, frame, sizeof(frame), 0) == sizeof(frame);
}

static void take(void)
{
	unsigned char frame[2048];
	ssize_t size;

	while ((size = recv(line, frame, sizeof(frame), MSG_DONTWAIT)) > 0) {
		struct message m;

		if (size < (ssize_t)sizeof(m))
			continue;
		memcpy(&m, frame, sizeof(m));
		if (m.eth.h_proto != htons(0x88b6))
			continue;
		answered++;
		if (m.found[0] < m.sent[0] || m.found[1] < m.sent[1]) {
			if (stale++ < 5)
				printf("stale: key %u sent %lu %lu found %lu %lu\n", m.key, m.sent[0], m.sent[1],
				       m.found[0], m.found[1]);
		}
	}
}

static void burst(void)
{
	for (uint32_t n = 0; n < BURST; n++)
		ask(n % KEYS, now[0]);
	take();
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int updates = atoi(argv[3]), big = 4 << 20, done = 0;
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };

	at.sll_ifindex = if_nametoindex(argv[1]);
	line = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	if (line < 0 || bind(line, (void *)&at, sizeof(at))) {
		perror(argv[1]);
		return 2;
	}
	setsockopt(line, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof(big));
	int tab = table(argv[2], "tab"), conf = table(argv[2], "conf");
	if (tab < 0 || conf < 0) {
		perror(argv[2]);
		return 2;
	}
	for (uint32_t key = 0; key < KEYS; key++)
		update(tab, key, now[0]);
	update(conf, 0, now[1]);
	double start = seconds();
	while (access(argv[4], F_OK) && seconds() < start + PATIENCE) {
		burst();
		usleep(500);
	}
	srand(7);
	for (; done < updates; done++) {
		if (done % 4 == 3) {
			update(conf, 0, now[1] + 1);
			now[1]++;
		} else {
			for (uint32_t key = 0; key < KEYS; key++) {
				update(tab, key, now[0] + 1);
				/* This key has its new value already. */
				ask(key, now[0] + 1);
			}
			now[0]++;
		}
		/* Some updates come one on the other's heels, some when code was made anew. */
		for (int pause = rand() % (done % 16 ? 4 : 100); pause >= 0; pause--) {
			burst();
			usleep(1000);
		}
	}
	for (int n = 0; n < 300; n++) {
		take();
		usleep(1000);
	}
	printf("%d updates, %lu questions, %lu answers, %lu stale, %.1f s\n", done, asked, answered, stale,
	       seconds() - start);
	return stale ? 1 : answered ? 0 : 2;
}
