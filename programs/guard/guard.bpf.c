// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * Sees every bpf(2) call that may write a map before the kernel applies it, and says so in memory that specialised
 * programs look at.
 *
 * On entry: which map will be written? The attribute is read from the caller's memory, the descriptor is looked up in
 * the caller's table. A watched map's count of writes started goes up, then specialised code is revoked, or, where it can do
 * without this map alone, told to; what cannot be resolved counts for all maps. On return: the count of writes finished. What the return finds to be another map than the
 * entry did, or whose entry was not seen (it was inside when we were attached), revokes before the caller
 * goes on, so that no packet that arrives after the call's return meets an old value.
 *
 * The programs run where the kernel enters and leaves bpf(2) itself, so that other system calls cost nothing (`guard_call`,
 * `guard_return`, and for 32-bit callers those ending in `32`); or, where a kernel does not permit that, at entry to and
 * return from every system call (`guard_enter`, `guard_exit`).
 *
 * Each program is here twice. Kernels before 5.12 have no atomic exchange and no atomic addition that gives the old value; there the
 * programs ending in `_plain` do with an addition and a store, and a write to any watched map revokes all specialised code.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "guard.h"

#define EBADF 9
#define EFAULT 14
#define NR_BPF 321
#define NR_BPF_IA32 357
#define NR_X32 0x40000000
#define PF_KTHREAD 0x00200000
/* Set in a command that has a second attribute, after Linux 7.1 (BPF_COMMON_ATTRS). */
#define COMMON_ATTRIBUTES (1u << 16)
/* BPF_PROG_ASSOC_STRUCT_OPS, the last command whose effect on maps is known here. */
#define LAST_COMMAND 38

/* Of the kernel's structures, what is used; CO-RE finds it. */
struct pt_regs___kernel {
	unsigned long bx, cx, dx, si, di, orig_ax;
} __attribute__((preserve_access_index));

struct file {
	void *private_data;
} __attribute__((preserve_access_index));

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} __attribute__((preserve_access_index));

struct files_struct {
	struct fdtable *fdt;
} __attribute__((preserve_access_index));

struct task_struct {
	struct files_struct *files;
	__u64 start_boottime;
	unsigned int flags;
	int pid;
} __attribute__((preserve_access_index));

struct bpf_map {
	enum bpf_map_type map_type;
	__u32 id;
	char name[16];
} __attribute__((preserve_access_index));

struct bpf_prog_aux {
	__u32 used_map_cnt;
	struct bpf_map **used_maps;
} __attribute__((preserve_access_index));

struct bpf_prog {
	enum bpf_prog_type type;
	struct bpf_prog_aux *aux;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_state);
} guard SEC(".maps");

/* Id of a watched map: its index in `maps`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GUARD_WATCHED);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

/* What a call was found to write: a map, and the key if it is a write to one element whose key could be read. */
struct guard_call {
	__u32 what;
	__u32 key_size;
	__u64 key[GUARD_KEY / 8];
};

/* Threads that are inside such a call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct guard_call);
} inside SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* What a call writes: the index of a watched map, or one of these. */
#define NOTHING 0xffffffff /* not a call that writes */
#define UNWATCHED 0xfffffffe
#define ANY 0xfffffffd
#define FOREIGN 0xfffffffc

struct call {
	__u32 command;
	__u64 attr;
};

/* Instructions that the kernel has. */
enum instructions {
	PLAIN,
	ATOMIC,
};

/* Not inlined into each other's branches by hand: the verifier walks every path, so keep them few. */
static __always_inline int arguments(struct pt_regs___kernel *regs, long nr, struct call *call)
{
	nr &= ~(long)NR_X32;
	if (nr == NR_BPF) {
		call->command = (__u32)regs->di & ~COMMON_ATTRIBUTES;
		call->attr = regs->si;
		return 1;
	}
	if (nr == NR_BPF_IA32) {
		call->command = (__u32)regs->bx & ~COMMON_ATTRIBUTES;
		call->attr = (__u32)regs->cx;
		return 1;
	}
	return 0;
}

/* What the descriptor's file is about; 0 if the descriptor is free or cannot be resolved. */
static __always_inline void *object_of(__u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table;
	struct file **files, *file;

	table = BPF_CORE_READ(task, files, fdt);
	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd) || !file)
		return 0;
	return BPF_CORE_READ(file, private_data);
}

/* What a write to this map is a write to. */
static __always_inline __u32 kind_of(struct bpf_map *map)
{
	__u32 id, type, *index;

	if (!map || bpf_core_read(&id, sizeof(id), &map->id) || bpf_core_read(&type, sizeof(type), &map->map_type))
		return ANY;
	/* A map of maps hands out its inner maps to whoever holds it. */
	if (type == BPF_MAP_TYPE_ARRAY_OF_MAPS || type == BPF_MAP_TYPE_HASH_OF_MAPS)
		return FOREIGN;
	index = bpf_map_lookup_elem(&watched, &id);
	return index ? *index : UNWATCHED;
}

/* Whether a program that has just been loaded, and runs nowhere yet, can reach a watched map. */
static __always_inline int reaches_watched(__u32 fd)
{
	struct bpf_prog *prog = object_of(fd);
	struct bpf_map **maps, *map;
	__u32 count;

	if (!prog)
		return 1;
	count = BPF_CORE_READ(prog, aux, used_map_cnt);
	maps = BPF_CORE_READ(prog, aux, used_maps);
	for (__u32 i = 0; i < 64 && i < count; i++) {
		if (bpf_probe_read_kernel(&map, sizeof(map), maps + i) || kind_of(map) != UNWATCHED)
			return 1;
	}
	return 0;
}

/* Other threads of the same process may have sessions of their own, which are as foreign as anybody. */
static __always_inline int is_session(struct guard_state *state)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return state->session_thread == (__u32)bpf_get_current_pid_tgid() &&
	       state->session_start == BPF_CORE_READ(task, start_boottime) / 10000000;
}

/* Whether it is a copy that a session writes for itself, this one or another of the same process. */
static __always_inline int is_shadow(struct guard_state *state, struct bpf_map *map)
{
	char shadow[] = GUARD_SHADOW, name[sizeof(shadow)];

	if (state->session_process != bpf_get_current_pid_tgid() >> 32)
		return 0;
	if (bpf_core_read(&name, sizeof(name), &map->name))
		return 0;
	for (__u32 i = 0; i < sizeof(shadow); i++) {
		if (name[i] != shadow[i])
			return 0;
	}
	return 1;
}

/* The map that a descriptor names. A file of another kind gives a number that means nothing; the kernel refuses it. */
static __always_inline __u32 map_of(struct guard_state *state, __u32 fd)
{
	struct bpf_map *map = object_of(fd);
	__u32 what = kind_of(map);

	return what == FOREIGN && is_shadow(state, map) ? UNWATCHED : what;
}

/* Where the descriptor is in the attribute, for the commands that matter. */
static __always_inline int place_of_fd(__u32 command)
{
	switch (command) {
	case BPF_MAP_UPDATE_ELEM:
	case BPF_MAP_DELETE_ELEM:
	case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
	case BPF_PROG_TEST_RUN:
	case BPF_LINK_CREATE:
		return 0;
	case BPF_MAP_LOOKUP_AND_DELETE_BATCH:
	case BPF_MAP_UPDATE_BATCH:
	case BPF_MAP_DELETE_BATCH:
		return __builtin_offsetof(union bpf_attr, batch.map_fd);
	default:
		return -1;
	}
}

static __always_inline __u32 target(struct guard_state *state, const struct call *call)
{
	__u32 fd, type;
	int place;

	/* Of a newer kernel: whatever it does, all maps may be written by it, and later by others. */
	if (call->command > LAST_COMMAND)
		return FOREIGN;
	place = place_of_fd(call->command);
	if (place < 0)
		return NOTHING;
	if (bpf_probe_read_user(&fd, sizeof(fd), (void *)(call->attr + place)))
		return ANY;
	if (call->command == BPF_LINK_CREATE) {
		/* Iterators may write the values of the map that they walk. */
		place = __builtin_offsetof(union bpf_attr, link_create.attach_type);
		if (bpf_probe_read_user(&type, sizeof(type), (void *)(call->attr + place)))
			return FOREIGN;
		return type == BPF_TRACE_ITER ? FOREIGN : NOTHING;
	}
	if (call->command == BPF_PROG_TEST_RUN) {
		struct bpf_prog *prog = object_of(fd);

		/* A program of type SYSCALL may call bpf(2) in the kernel: write, and load whoever writes later. */
		if (!prog || bpf_core_read(&type, sizeof(type), &prog->type))
			return ANY;
		return type == BPF_PROG_TYPE_SYSCALL ? FOREIGN : NOTHING;
	}
	return map_of(state, fd);
}

static __always_inline struct guard_writes *writes_of(struct guard_state *state, __u32 what)
{
	__u32 at = what < GUARD_MAPS ? what : GUARD_ANY_MAP;

	/* Keeps clang from choosing between pointers, whose offsets the verifier would not know. */
	barrier_var(at);
	return &state->maps[at & (GUARD_MAPS - 1)];
}

/* Fills in the key, if the call writes a single element of a watched map. */
static __always_inline void read_key(struct guard_state *state, const struct call *call, struct guard_call *to)
{
	__u32 what = to->what, size;
	__u64 key;

	if (what >= GUARD_MAPS)
		return;
	if (call->command != BPF_MAP_UPDATE_ELEM && call->command != BPF_MAP_DELETE_ELEM &&
	    call->command != BPF_MAP_LOOKUP_AND_DELETE_ELEM)
		return;
	size = state->key_sizes[what & (GUARD_MAPS - 1)];
	if (!size || size > GUARD_KEY)
		return;
	if (bpf_probe_read_user(&key, sizeof(key), (void *)(call->attr + __builtin_offsetof(union bpf_attr, key))))
		return;
	if (!bpf_probe_read_user(to->key, size, (void *)key))
		to->key_size = size;
}

static __always_inline int same_key(const struct guard_call *a, const struct guard_call *b)
{
	__u64 differ = a->key_size ^ b->key_size;

	for (int i = 0; i < GUARD_KEY / 8; i++)
		differ |= a->key[i] ^ b->key[i];
	return !differ;
}

static __always_inline void wake(struct guard_state *state, __u32 what, __u64 version, const struct guard_call *call)
{
	struct guard_event *event;

	if (what == FOREIGN)
		__sync_fetch_and_add(&state->strangers, 1);
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&state->unsent, 1);
		return;
	}
	event->time = bpf_ktime_get_ns();
	event->version = version;
	event->map = what;
	event->kind = what < GUARD_MAPS ? GUARD_WRITE : what == FOREIGN ? GUARD_FOREIGN : GUARD_ANY;
	event->key_size = call ? call->key_size : 0;
	event->reserved = 0;
	if (call)
		__builtin_memcpy(event->key, call->key, sizeof(event->key));
	else
		__builtin_memset(event->key, 0, sizeof(event->key));
	bpf_ringbuf_submit(event, 0);
}

/* How often another may have changed the token meanwhile. */
#define TRIES 4

/*
 * Has specialised code look this one map up itself, and go on with the rest. 0 if the generation that may run cannot do that.
 * While none may run, nothing is lost by it: a generation is approved only if it can, or nothing was written.
 */
static __always_inline int do_without(struct guard_state *state, __u32 what)
{
	__u64 mark = *(volatile __u64 *)&state->marks[what & (GUARD_MAPS - 1)], token, new;

	if (!mark)
		return 0;
	for (int i = 0; i < TRIES; i++) {
		token = *(volatile __u64 *)&state->token;
		if (!(token & GUARD_REVOKED) && (token ^ mark) >> 32)
			return 0;
		new = (token | (mark & GUARD_BEHIND)) & ~(mark & GUARD_UNWRITTEN);
		if (__sync_val_compare_and_swap(&state->token, token, new) == token)
			return 1;
	}
	return 0;
}

static __always_inline __u64 revoked(__u64 version)
{
	return GUARD_REVOKED | (version & 0x3fffffff) << 32;
}

/*
 * With plain instructions, two calls at once may take the same number, the later one. Nothing rests on their being different: a look
 * that either of them undoes is found undone by the bits that only the daemon sets. The store cannot undo a change by another call,
 * which would be a revocation too, and the daemon, whose exchanges compare, sees it or is overwritten by it.
 */
static __always_inline void bump(struct guard_state *state, __u32 what, const struct guard_call *call,
				 const enum instructions have)
{
	__u64 version;

	if (have == ATOMIC) {
		version = __sync_fetch_and_add(&state->version, 1) + 1;
		if (what >= GUARD_MAPS || !do_without(state, what))
			__sync_lock_test_and_set(&state->token, revoked(version));
	} else {
		__sync_fetch_and_add(&state->version, 1);
		version = *(volatile __u64 *)&state->version;
		*(volatile __u64 *)&state->token = revoked(version);
	}
	wake(state, what, version, call);
}

/* Whether the kernel, too, could not read the attribute, or found no such descriptor. */
static __always_inline int was_refused(__s64 result)
{
	return result == -EFAULT || result == -EBADF;
}

static __always_inline int enter(__u64 *ctx, long nr, const enum instructions have)
{
	struct pt_regs___kernel *regs = (void *)ctx[0];
	__u64 thread = bpf_get_current_pid_tgid();
	struct guard_call write = {};
	__u32 zero = 0, what;
	struct guard_state *state;
	struct call call;

	if (!arguments(regs, nr, &call))
		return 0;
	state = bpf_map_lookup_elem(&guard, &zero);
	if (!state)
		return 0;
	what = target(state, &call);
	if (what == NOTHING)
		return 0;
	write.what = what;
	read_key(state, &call, &write);
	/* Full: the return takes it for a stray and bumps. */
	if (bpf_map_update_elem(&inside, &thread, &write, BPF_ANY))
		what = what == UNWATCHED ? ANY : what;
	else if (what != UNWATCHED)
		__sync_fetch_and_add(&writes_of(state, what)->started, 1);
	if (what != UNWATCHED)
		bump(state, what, &write, have);
	return 0;
}

static __always_inline int leave(__u64 *ctx, long nr, const enum instructions have)
{
	struct pt_regs___kernel *regs = (void *)ctx[0];
	__u64 thread = bpf_get_current_pid_tgid();
	struct guard_call *entered, write, again = {};
	__u32 zero = 0, before, now;
	struct guard_state *state;
	struct call call;

	if (!arguments(regs, nr, &call))
		return 0;
	state = bpf_map_lookup_elem(&guard, &zero);
	if (!state)
		return 0;
	if (call.command == BPF_PROG_LOAD) {
		/* Counted, so that no snapshot begins between the new token and the event. */
		if ((int)ctx[1] >= 0 && !is_session(state) && reaches_watched(ctx[1])) {
			__sync_fetch_and_add(&writes_of(state, FOREIGN)->started, 1);
			bump(state, FOREIGN, 0, have);
			__sync_fetch_and_add(&writes_of(state, FOREIGN)->finished, 1);
		}
		return 0;
	}
	now = target(state, &call);
	entered = bpf_map_lookup_elem(&inside, &thread);
	if (!entered) {
		if (now != NOTHING && now != UNWATCHED) {
			__sync_fetch_and_add(&state->strays, 1);
			bump(state, now, 0, have);
		}
		return 0;
	}
	write = *entered;
	before = write.what;
	bpf_map_delete_elem(&inside, &thread);
	if (now < GUARD_MAPS && now != before && before != ANY && before != FOREIGN) {
		__sync_fetch_and_add(&state->late, 1);
		bump(state, now, 0, have);
	}
	/* A map of maps after all, or what it was can still not be told. */
	if (before != FOREIGN && (now == FOREIGN || (before == ANY && now == ANY && !was_refused(ctx[1])))) {
		__sync_fetch_and_add(&state->late, 1);
		bump(state, FOREIGN, 0, have);
	}
	/* Another thread may have changed the key, before or after the kernel read it. */
	again.what = before;
	if (write.key_size)
		read_key(state, &call, &again);
	if (!same_key(&write, &again)) {
		__sync_fetch_and_add(&state->late, 1);
		bump(state, before, 0, have);
	}
	if (before != UNWATCHED)
		__sync_fetch_and_add(&writes_of(state, before)->finished, 1);
	return 0;
}

static __always_inline long number(__u64 *ctx)
{
	struct pt_regs___kernel *regs = (void *)ctx[0];

	return regs->orig_ax;
}

SEC("tp_btf/sys_enter")
int guard_enter(__u64 *ctx)
{
	return enter(ctx, ctx[1], ATOMIC);
}

SEC("tp_btf/sys_exit")
int guard_exit(__u64 *ctx)
{
	return leave(ctx, number(ctx), ATOMIC);
}

SEC("?tp_btf/sys_enter")
int guard_enter_plain(__u64 *ctx)
{
	return enter(ctx, ctx[1], PLAIN);
}

SEC("?tp_btf/sys_exit")
int guard_exit_plain(__u64 *ctx)
{
	return leave(ctx, number(ctx), PLAIN);
}

/* The functions of bpf(2) take the caller's registers; behind these, the context of a return has the result. */
#define AT_CALLS(suffix, function, nr, have)           \
	SEC("?fentry/" #function)                      \
	int guard_call##suffix(__u64 *ctx)             \
	{                                              \
		return enter(ctx, nr, have);           \
	}                                              \
	SEC("?fexit/" #function)                       \
	int guard_return##suffix(__u64 *ctx)           \
	{                                              \
		return leave(ctx, nr, have);           \
	}

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

/*
 * The numbers of all threads that may be inside bpf(2). What is saved at the top of a thread's kernel stack has the number of the system
 * call that it is in; outside of one, that of the last, or none.
 */
SEC("?iter/task")
int guard_threads(struct bpf_iter__task *ctx)
{
	struct seq_file *out = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct pt_regs___kernel *regs;
	long nr;
	int pid;

	if (!task || task->flags & PF_KTHREAD)
		return 0;
	regs = (void *)bpf_task_pt_regs(task);
	nr = regs->orig_ax & ~(long)NR_X32;
	if (nr != NR_BPF && nr != NR_BPF_IA32)
		return 0;
	pid = task->pid;
	bpf_seq_write(out, &pid, sizeof(pid));
	return 0;
}

AT_CALLS(, __x64_sys_bpf, NR_BPF, ATOMIC)
AT_CALLS(32, __ia32_sys_bpf, NR_BPF_IA32, ATOMIC)
AT_CALLS(_plain, __x64_sys_bpf, NR_BPF, PLAIN)
AT_CALLS(32_plain, __ia32_sys_bpf, NR_BPF_IA32, PLAIN)

char _license[] SEC("license") = "Dual BSD/GPL";
