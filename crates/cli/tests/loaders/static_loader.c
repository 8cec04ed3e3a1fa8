/* Loads programs by bpf(2) itself, and prints everything that it sees: results, errors, logs, test runs. */
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOV(reg, value) { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = reg, .imm = value }
#define ADD(to, from) { .code = BPF_ALU64 | BPF_ADD | BPF_X, .dst_reg = to, .src_reg = from }
#define EXIT { .code = BPF_JMP | BPF_EXIT }

static char log_text[1 << 16];

static int call(int command, union bpf_attr *attr, size_t size)
{
	return syscall(SYS_bpf, command, attr, size);
}

static int load(const char *name, struct bpf_insn *insns, uint32_t count, int level)
{
	union bpf_attr attr = { .prog_type = BPF_PROG_TYPE_XDP };

	memset(log_text, 0, sizeof(log_text));
	attr.insns = (uintptr_t)insns;
	attr.insn_cnt = count;
	attr.license = (uintptr_t)"GPL";
	attr.log_level = level;
	attr.log_buf = level ? (uintptr_t)log_text : 0;
	attr.log_size = level ? sizeof(log_text) : 0;
	snprintf(attr.prog_name, sizeof(attr.prog_name), "%s", name);
	return call(BPF_PROG_LOAD, &attr, sizeof(attr));
}

static void show(const char *name, struct bpf_insn *insns, uint32_t count, int level)
{
	union bpf_attr attr = { 0 };
	unsigned char packet[64] = { 0 };
	int fd = load(name, insns, count, level);

	if (fd < 0) {
		printf("%s: %s\n%s\n", name, strerror(errno), log_text);
		return;
	}
	attr.test.prog_fd = fd;
	attr.test.data_in = (uintptr_t)packet;
	attr.test.data_size_in = sizeof(packet);
	if (call(BPF_PROG_TEST_RUN, &attr, sizeof(attr)))
		printf("%s: no run: %s\n", name, strerror(errno));
	printf("%s: %u\n%s\n", name, attr.test.retval, log_text);
	close(fd);
}

/* Stores five into an array by its descriptor, and reads it back. */
static int with_map(void)
{
	union bpf_attr attr = { .map_type = BPF_MAP_TYPE_ARRAY };
	struct bpf_insn insns[] = {
		MOV(BPF_REG_3, 9),
		MOV(BPF_REG_3, 0),
		{ .code = BPF_STX | BPF_MEM | BPF_W, .dst_reg = BPF_REG_10, .src_reg = BPF_REG_3, .off = -4 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_10 },
		{ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_2, .imm = -4 },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD },
		{ 0 },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_map_lookup_elem },
		{ .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = BPF_REG_0, .off = 3 },
		{ .code = BPF_ST | BPF_MEM | BPF_W, .dst_reg = BPF_REG_0, .imm = 5 },
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = BPF_REG_0, .src_reg = BPF_REG_0 },
		EXIT,
		MOV(BPF_REG_0, 0),
		EXIT,
	};
	uint32_t key = 0, value = 0;
	int map;

	attr.key_size = 4;
	attr.value_size = 4;
	attr.max_entries = 1;
	map = call(BPF_MAP_CREATE, &attr, sizeof(attr));
	insns[5].imm = map;
	show("with_map", insns, sizeof(insns) / sizeof(*insns), 0);
	memset(&attr, 0, sizeof(attr));
	attr.map_fd = map;
	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)&value;
	if (call(BPF_MAP_LOOKUP_ELEM, &attr, sizeof(attr)) == 0)
		printf("value: %u\n", value);
	return map;
}

int main(void)
{
	struct bpf_insn wasteful[] = {
		MOV(BPF_REG_0, 7), MOV(BPF_REG_0, 1), MOV(BPF_REG_1, 1), MOV(BPF_REG_2, 9), ADD(BPF_REG_0, BPF_REG_1), EXIT,
	};
	struct bpf_insn wrong[] = {
		MOV(BPF_REG_2, 0), MOV(BPF_REG_2, 0),
		{ .code = BPF_LDX | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_0, .src_reg = BPF_REG_2 }, EXIT,
	};
	/* The optimizer would remove what the kernel rejects: a probe must fail as before. */
	struct bpf_insn probe[] = {
		MOV(BPF_REG_6, 0), { .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_6, .src_reg = BPF_REG_5 },
		MOV(BPF_REG_0, 1), EXIT,
	};

	show("wasteful", wasteful, 6, 0);
	show("with_log", wasteful, 6, 1);
	show("wrong", wrong, 4, 1);
	show("probe", probe, 4, 1);
	with_map();
	if (setuid(65534) == 0)
		show("unprivileged", wasteful, 6, 0);
	return 3;
}
