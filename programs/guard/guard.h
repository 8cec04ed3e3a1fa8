/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What the guard, the variants that trust it and the daemon share: one value of a memory-mapped array. Offsets are
 * repeated in `millstream_specializer::guard_state`; tests hold them against this header's BTF.
 */
#ifndef MILLSTREAM_GUARD_H
#define MILLSTREAM_GUARD_H

#include <linux/types.h>

#define GUARD_MAPS 64
/* Maps that are watched, inner maps of maps of maps among them, which have one index together. */
#define GUARD_WATCHED 1024
#define GUARD_RECENT 4
/* The first of them counts calls that may have written any map; watched maps have the others. */
#define GUARD_ANY_MAP 0

/*
 * The token. Upper half: the generation of specialised code that may run, or GUARD_REVOKED with a number. Lower half: which side
 * of its twins packets read; for each map that has a slot, whether its twin is behind, so that packets look it up
 * itself; for each of these, and for all else, whether nothing was written since the daemon began to look.
 */
#define GUARD_REVOKED (1ull << 62)
#define GUARD_SLOTS 14
#define GUARD_BEHIND 0x0000fffcull
#define GUARD_UNWRITTEN 0x3fff0000ull
#define GUARD_ALL_UNWRITTEN 0x80000000ull
/* Keys up to this size are told. */
#define GUARD_KEY 32
/* The name of maps of maps that a session fills for itself, of which nobody else knows: what its process writes there is no news. */
#define GUARD_SHADOW "ms.shadow"

/* Writes that have begun (before the kernel applies them) and that have returned. Equal: nobody is writing. */
struct guard_writes {
	__u64 started;
	__u64 finished;
};

struct guard_state {
	/*
	 * As the daemon set it. Before each write to a watched map, and after those noticed late, GUARD_REVOKED with the
	 * number of the write, or, by the map's mark, this map alone behind.
	 */
	__u64 token;
	/* When its first packet came, by the monotonic clock, or 0: generation n has element n % GUARD_RECENT. */
	__u64 first_packet[GUARD_RECENT];
	/* Bumps. */
	__u64 version;
	/* Calls that were already inside bpf(2) when the guard was attached, seen when they returned. */
	__u64 strays;
	/* Calls whose target had changed between entry and return. */
	__u64 late;
	/* Writes whose event did not fit the ring. */
	__u64 unsent;
	/* The session's thread: its loads of programs are its own affair. Start time in hundredths of a second since boot. */
	__u64 session_thread;
	__u64 session_start;
	/* Packets that specialised code turned away to the original, where it counts them. */
	__u64 missed;
	/* The number of bumps when program arrays were last found to hold what the session's own hold. */
	__u64 chained;
	/* Calls after which somebody new may write watched maps, whether their events fitted the ring or not. */
	__u64 strangers;
	/* The generation that stands by, in the upper half, and its slot in the session's array of such programs; no generation, if none does. */
	__u64 standby;
	/* The session's process, which may have other sessions. */
	__u64 session_process;
	struct guard_writes maps[GUARD_MAPS];
	/* Of each watched map, the bytes of its keys; 0 if they are not to be told. */
	__u32 key_sizes[GUARD_MAPS];
	/*
	 * Of each watched map that a generation does without by itself: the generation in the upper half, and the bits of the map's
	 * slot in the lower half of the token. Otherwise 0.
	 */
	__u64 marks[GUARD_MAPS];
};

enum guard_kind {
	/* A write to one watched map. */
	GUARD_WRITE = 0,
	/* A call whose target could not be resolved. */
	GUARD_ANY = 1,
	/* A call that may write through others, or after which somebody new may write watched maps: look who holds them. */
	GUARD_FOREIGN = 2,
};

/* What wakes the daemon. */
struct guard_event {
	/* When, by the monotonic clock: before the kernel applied the write. */
	__u64 time;
	__u64 version;
	/* Index of the map in `maps`, for GUARD_WRITE. */
	__u32 map;
	__u32 kind;
	/* The key of a write to a single element; 0 bytes if it is not known which elements are written. */
	__u32 key_size;
	__u32 reserved;
	__u8 key[GUARD_KEY];
};

#endif
