/* Calls every function of the library that needs no kernel, rightly and wrongly, also from two threads. */
#include <millstream.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
	do {                                                                                 \
		if (!(condition)) {                                                          \
			printf("%d: %s: %s\n", __LINE__, #condition, millstream_last_error()); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

struct file {
	void *data;
	size_t length;
};

static struct file object, expected;

static struct file read_file(const char *path)
{
	struct file read = { malloc(1 << 24), 0 };
	FILE *file = fopen(path, "rb");

	if (file && read.data) {
		read.length = fread(read.data, 1, 1 << 24, file);
		fclose(file);
	}
	return read;
}

static void *optimize(void *unused)
{
	size_t length;
	void *made;

	CHECK(millstream_optimize(object.data, object.length, NULL, &made, &length) == MILLSTREAM_DONE);
	CHECK(length == expected.length && !memcmp(made, expected.data, length));
	millstream_free(made);
	return unused;
}

static void check_errors(void)
{
	struct millstream_options options = { .size = 3 };
	struct millstream_session *session;
	const char *none[] = { "no-such-if0" };
	struct millstream_program *programs;
	size_t length;
	char *report;
	void *made;

	CHECK(millstream_optimize(NULL, 0, NULL, &made, &length) == MILLSTREAM_INPUT);
	CHECK(millstream_optimize("not ELF", 7, NULL, &made, &length) == MILLSTREAM_INPUT);
	CHECK(strlen(millstream_last_error()) > 0);
	CHECK(millstream_optimize(object.data, object.length, &options, &made, &length) == MILLSTREAM_INPUT);
	CHECK(strstr(millstream_last_error(), "size"));
	options = (struct millstream_options){ .size = sizeof(options), .goal = 9 };
	CHECK(millstream_optimize(object.data, object.length, &options, &made, &length) == MILLSTREAM_INPUT);
	options = (struct millstream_options){ .size = sizeof(options), .kernel = "one" };
	CHECK(millstream_optimize(object.data, object.length, &options, &made, &length) == MILLSTREAM_INPUT);
	CHECK(millstream_optimize(object.data, object.length, NULL, NULL, &length) == MILLSTREAM_INPUT);
	CHECK(millstream_programs("x", 1, &programs, &length) == MILLSTREAM_INPUT);
	CHECK(millstream_session_start(object.data, object.length, none, 1, NULL, &session) == MILLSTREAM_INPUT);
	CHECK(strstr(millstream_last_error(), "no-such-if0"));
	CHECK(millstream_session_start(object.data, object.length, none, 0, NULL, &session) == MILLSTREAM_INPUT);
	CHECK(millstream_session_fd(NULL) == -1);
	CHECK(millstream_session_next(NULL, &report) == MILLSTREAM_INPUT);
	CHECK(millstream_session_stop(NULL, 0) == MILLSTREAM_DONE);
}

int main(int argc, char **argv)
{
	struct millstream_options options = { .size = sizeof(options), .kernel = "6.1", .goal = MILLSTREAM_SIZE };
	struct millstream_program *programs;
	size_t count, length;
	pthread_t threads[2];
	char *verdicts;
	void *made;

	if (argc != 3)
		return 2;
	object = read_file(argv[1]);
	expected = read_file(argv[2]);
	CHECK(millstream_version()[0]);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, optimize, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(millstream_optimize(object.data, object.length, &options, &made, &length) == MILLSTREAM_DONE);
	millstream_free(made);
	CHECK(millstream_programs(object.data, object.length, &programs, &count) == MILLSTREAM_DONE);
	CHECK(count > 0 && programs[0].name[0] && programs[0].section[0] && programs[0].slots > 0);
	millstream_free(programs);
	CHECK(millstream_prove(object.data, object.length, object.data, object.length, 0, &verdicts) == MILLSTREAM_DONE);
	CHECK(strstr(verdicts, "equivalent"));
	millstream_free(verdicts);
	check_errors();
	printf("all is as it should be\n");
	return 0;
}
