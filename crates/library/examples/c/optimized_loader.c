/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Optimizes an object before libbpf loads it, prints what that gained, and attaches its XDP program if an
 * interface is named:
 *
 *	cc -o optimized_loader optimized_loader.c $(pkg-config --cflags --libs millstream) -lbpf
 *	optimized_loader OBJECT [INTERFACE]
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <millstream.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

static void *read_file(const char *path, size_t *length)
{
	FILE *file = fopen(path, "rb");
	char *data = NULL;
	long size;

	if (!file)
		return NULL;
	if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0) {
		data = malloc(size);
		rewind(file);
		*length = data ? fread(data, 1, size, file) : 0;
	}
	fclose(file);
	return data;
}

static void print_costs(const char *which, const void *object, size_t length)
{
	struct millstream_program *programs;
	size_t count;

	if (millstream_programs(object, length, &programs, &count) != MILLSTREAM_DONE)
		return;
	for (size_t at = 0; at < count; at++)
		printf("%s: %s (%s): %u slots, %.1f cycles\n", which, programs[at].name, programs[at].section,
		       programs[at].slots, programs[at].millicycles / 1e3);
	millstream_free(programs);
}

/* The optimized object if there is one, else the one that was given: a loader must not fail for want of speed. */
static struct bpf_object *open_optimized(const void *object, size_t length)
{
	struct millstream_options options = { .size = sizeof(options), .kernel = "here" };
	struct bpf_object *opened;
	size_t made_length;
	void *made;

	if (millstream_optimize(object, length, &options, &made, &made_length) != MILLSTREAM_DONE) {
		fprintf(stderr, "not optimized: %s\n", millstream_last_error());
		return bpf_object__open_mem(object, length, NULL);
	}
	print_costs("before", object, length);
	print_costs("after", made, made_length);
	/* libbpf keeps a copy. */
	opened = bpf_object__open_mem(made, made_length, NULL);
	millstream_free(made);
	return opened;
}

static struct bpf_object *load(const void *object, size_t length)
{
	struct bpf_object *opened = open_optimized(object, length);

	if (opened && bpf_object__load(opened) == 0)
		return opened;
	bpf_object__close(opened);
	fprintf(stderr, "loading the object as it is\n");
	opened = bpf_object__open_mem(object, length, NULL);
	if (opened && bpf_object__load(opened) == 0)
		return opened;
	bpf_object__close(opened);
	return NULL;
}

int main(int argc, char **argv)
{
	struct bpf_program *program;
	struct bpf_object *loaded;
	struct bpf_link *link;
	size_t length;
	void *object;

	if (argc < 2 || !(object = read_file(argv[1], &length))) {
		fprintf(stderr, "usage: optimized_loader OBJECT [INTERFACE]\n");
		return 2;
	}
	loaded = load(object, length);
	free(object);
	if (!loaded)
		return 1;
	program = bpf_object__next_program(loaded, NULL);
	printf("loaded: %s\n", program ? bpf_program__name(program) : "no program");
	if (program && argc > 2) {
		link = bpf_program__attach_xdp(program, if_nametoindex(argv[2]));
		if (!link)
			return 1;
		printf("attached until a line comes\n");
		getchar();
		bpf_link__destroy(link);
	}
	bpf_object__close(loaded);
	return 0;
}
