/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libmillstream: optimizes, proves and specializes BPF programs for loaders.
 *
 * Functions that return an int return an enum millstream_code: 0 on success. The text of an error is that of
 * millstream_last_error(), which each thread has for itself. What a function gives through a pointer is
 * unspecified if it fails.
 *
 * Threads: every function may be called by any number of threads at a time, with one exception. One session
 * is used by one thread at a time.
 *
 * Memory that a function gives is the caller's, to be released by millstream_free().
 * No function exits the process, writes to standard output, changes signal handlers, or unwinds into C.
 */
#ifndef MILLSTREAM_H
#define MILLSTREAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum millstream_code {
	MILLSTREAM_DONE = 0,
	MILLSTREAM_NO = 1,          /* the answer is no: programs differ, no report is there */
	MILLSTREAM_INPUT = 2,       /* an argument or an object cannot be used */
	MILLSTREAM_UNDECIDED = 3,   /* there is no answer: a proof was not found */
	MILLSTREAM_UNSUPPORTED = 4, /* this kernel or machine does not permit it */
	MILLSTREAM_BUG = 6          /* an error of this library; the handle, if any, can only be stopped */
};

enum millstream_goal {
	MILLSTREAM_BALANCED = 0, /* short code that costs no time */
	MILLSTREAM_SIZE = 1,     /* few instructions */
	MILLSTREAM_LATENCY = 2,  /* little time */
	MILLSTREAM_VERIFY = 3    /* few instructions for the verifier */
};

enum millstream_adoption {
	MILLSTREAM_ADOPT_NONE = 0, /* the interface has no program */
	MILLSTREAM_ADOPT_SAME = 1, /* take the place of the object's own program, whoever loaded it */
	MILLSTREAM_ADOPT_ANY = 2   /* take the place of any program */
};

/* The version of the library, such as "0.1.0". */
const char *millstream_version(void);

/* The text of the error of the last function that failed in this thread; valid until the next one fails. */
const char *millstream_last_error(void);

/* Releases memory that a function gave; NULL is allowed. */
void millstream_free(void *memory);

/* Options of an optimization; NULL for the defaults. */
struct millstream_options {
	size_t size;        /* sizeof(struct millstream_options) */
	const char *kernel; /* "any" or NULL, "here" for the running one, or a version such as "6.1" */
	uint32_t goal;      /* enum millstream_goal */
	uint32_t reserved;  /* 0 */
};

/* Optimizes an object in memory: gives an object file. The result is that of `millstream opt` with these options. */
int millstream_optimize(const void *object, size_t length, const struct millstream_options *options,
			void **result, size_t *result_length);

/* A program of an object, and its predicted cost. */
struct millstream_program {
	const char *name;
	const char *section;
	uint32_t slots;         /* instructions of 8 bytes, with those of functions that it calls */
	uint32_t machine_bytes; /* estimated bytes of machine code */
	uint64_t millicycles;   /* predicted cycles of one run, in thousandths */
};

/* Lists the programs of an object, in its order. The list and all its texts are one piece of memory. */
int millstream_programs(const void *object, size_t length, struct millstream_program **programs, size_t *count);

/*
 * Proves that the programs of two objects behave alike: MILLSTREAM_DONE if all do, MILLSTREAM_NO if one differs,
 * MILLSTREAM_UNDECIDED if neither was found. Each program has so many milliseconds (0: 20 seconds). The verdicts,
 * unless NULL, get a line of text for each program. Installed solvers (z3, cvc5) run as child processes.
 */
int millstream_prove(const void *before, size_t before_length, const void *after, size_t after_length,
		     uint32_t milliseconds, char **verdicts);

/* A program that is attached to interfaces, and specialized while it runs, by a thread of the library. */
struct millstream_session;

/* Options of a session; NULL for the defaults. */
struct millstream_session_options {
	size_t size;           /* sizeof(struct millstream_session_options) */
	const char *program;   /* name of the program; NULL for the only one */
	const char *pins;      /* directory of a BPF file system for pins; NULL for one named after the interfaces */
	uint32_t adopt;        /* enum millstream_adoption */
	uint32_t egress;       /* 1: a TC program is attached to egress */
	uint32_t generic;      /* 1: generic XDP; 0: the best that the driver offers */
	uint32_t milliseconds; /* interval between two samples of the traffic; 0: 2,000 */
};

/* Attaches a program of an object to interfaces of this thread's network namespace, and keeps it specialized. */
int millstream_session_start(const void *object, size_t length, const char *const *interfaces, size_t count,
			     const struct millstream_session_options *options,
			     struct millstream_session **session);

/* A descriptor to poll: it is readable while millstream_session_next() has something. The session owns it. */
int millstream_session_fd(const struct millstream_session *session);

/*
 * Gives the next report, a line of JSON as `millstream run --json` prints it. MILLSTREAM_NO: there is none now.
 * Another code: the session has ended by itself, for the reason that millstream_last_error() gives; it has yet to
 * be stopped.
 */
int millstream_session_next(struct millstream_session *session, char **report);

/*
 * Ends a session and releases it. The interfaces get back what they had before; with keep_original, they keep the
 * unspecialized program. The code is that of the session's end. NULL is allowed.
 */
int millstream_session_stop(struct millstream_session *session, int keep_original);

#ifdef __cplusplus
}
#endif

#endif
