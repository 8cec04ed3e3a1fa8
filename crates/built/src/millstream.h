#ifndef MILLSTREAM_H
#define MILLSTREAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is in an object file that `millstream build --emit obj` has made. */
struct millstream_program;

/* A program that was opened: its tables, and the buffers of a batch. It is used by one thread at a time. */
struct millstream;

/* A packet. */
struct millstream_packet {
	/* Its bytes, and how many there are: at most MILLSTREAM_LONGEST. What comes out lies in buffers of the program,
	 * until it runs again or is closed. */
	const void *data;
	uint32_t length;
	/* Where it comes from: of an XDP program the number of the interface, of a configuration the source, from 1;
	 * where there is one source only it makes no difference.
	 * Of what a configuration sends the output, from 0. */
	uint32_t port;
	/* What an XDP program returned, as enum xdp_action has it, or MILLSTREAM_UNFIT. */
	uint32_t verdict;
	/* The interface that it is redirected to. */
	uint32_t target;
	/* Of what a configuration sends: which of the batch's packets it was, or is a copy of. */
	uint64_t number;
};

/* The verdict on a packet that no buffer takes: shorter than 14 bytes or too long. The program has not seen it. */
#define MILLSTREAM_UNFIT UINT32_MAX
#define MILLSTREAM_LONGEST 3520

/* What became of all packets so far: received + copies = sent + dropped. */
struct millstream_account {
	uint64_t received;
	uint64_t copies;
	uint64_t sent;
	uint64_t dropped;
};

/* Opens a program for batches of at most `most` packets (1 to 4096). A program is open once at a time in a process. NULL if it cannot
 * be: then `why`, if it is not NULL, has a text of less than `room` bytes. */
struct millstream *millstream_open(const struct millstream_program *program, uint32_t most, char *why, size_t room);

/* Closes it. Nothing that it gave may be used any more. */
void millstream_close(struct millstream *program);

/* Runs a batch: 0, or -E2BIG if it is larger than it was opened for. Of an XDP program `packets` say afterwards what it made of them: data, length,
 * verdict, target. Of a configuration, millstream_sent() does. */
int millstream_run(struct millstream *program, struct millstream_packet *packets, size_t count);

/* The packet number `at`, from 0, of those that a configuration has sent in the last batch, in order; 0, or -ENOENT if there is none. */
int millstream_sent(const struct millstream *program, size_t at, struct millstream_packet *packet);

/* The account. Sent are, of an XDP program, XDP_TX and XDP_REDIRECT to a target. */
void millstream_account(struct millstream *program, struct millstream_account *account);

/* Why packets were dropped: reason number `at`, from 0, as "ELEMENT REASON" or "REASON", cut to `room` bytes, and how many. 0, or -ENOENT if there is
 * no further reason. */
int millstream_dropped(struct millstream *program, size_t at, char *reason, size_t room, uint64_t *packets);

/* Maps by name, with keys and values of the sizes that they are declared with. 0, or the error that bpf(2) would give; -ENOENT, too, if
 * there is no such map, -EINVAL if its values are programs or maps. */
int millstream_map_get(struct millstream *program, const char *map, const void *key, void *value);
int millstream_map_set(struct millstream *program, const char *map, const void *key, const void *value, uint64_t flags);
int millstream_map_delete(struct millstream *program, const char *map, const void *key);

/* Calls `visit` with each entry of a map, in no order, until it gives something else than 0, and returns that. `visit` must not use the program. */
int millstream_map_each(struct millstream *program, const char *map,
			int (*visit)(void *context, const void *key, const void *value), void *context);

/* A configuration's handler, "ELEMENT.NAME" or "ELEMENT.NAME ARGUMENT": its text, cut to `room` bytes with the 0 behind it. Its whole length, or -ENOENT if there is
 * none that is read. */
int64_t millstream_read(struct millstream *program, const char *handler, char *text, size_t room);

/* Writes a handler, with its value behind a blank: "counter.reset_counts", "rt.add 10.0.0.0/8 1". 0, -ENOENT if there is none that is written, or
 * -EINVAL for a value that does not fit; nothing has changed then. Settings are written in programs that were built with --writable. */
int millstream_write(struct millstream *program, const char *handler);

#ifdef __cplusplus
}
#endif

#endif /* MILLSTREAM_H */
