/* Does what the lines of its input say with the program of an object file, and says what it found. */
#include HEADER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

static struct millstream_packet packets[MOST];
static unsigned char bytes[MOST][4096];
static unsigned char first[4096], second[4096];

static unsigned unhex(const char *text, unsigned char *out)
{
	unsigned length = 0, byte;

	while (sscanf(text + 2 * length, "%2x", &byte) == 1)
		out[length++] = byte;
	return length;
}

static void hex(const unsigned char *data, unsigned length)
{
	for (unsigned i = 0; i < length; i++)
		printf("%02x", data[i]);
	printf("\n");
}

static int count(void *context, const void *key, const void *value)
{
	++*(unsigned *)context;
	return !key || !value;
}

static void run(struct millstream *program, size_t batch)
{
	struct millstream_packet out;
	int code = millstream_run(program, packets, batch);

	printf("run %d\n", code);
#ifdef GRAPH
	for (size_t at = 0; millstream_sent(program, at, &out) == 0; at++) {
		printf("%u %u ", out.port, (unsigned)out.number);
		hex(out.data, out.length);
	}
#else
	printf("sent %d\n", millstream_sent(program, 0, &out));
	for (size_t at = 0; at < batch; at++) {
		printf("%d %u ", (int)packets[at].verdict, packets[at].target);
		hex(packets[at].data, packets[at].length);
	}
#endif
}

int main(void)
{
	char why[200] = "";
	struct millstream *program = millstream_open(&PROGRAM, MOST, why, sizeof why);
	static char line[1 << 16], name[256], one[1 << 14], two[1 << 14];
	unsigned number;
	size_t batch = 0;

	if (!program) {
		printf("%s\n", why);
		return 1;
	}
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "packet %u %16383s", &number, one) == 2) {
			unsigned length = unhex(one, bytes[batch]);

			packets[batch] = (struct millstream_packet){ .data = bytes[batch], .length = length, .port = number };
			batch++;
		} else if (!strcmp(line, "run\n")) {
			run(program, batch);
			batch = 0;
		} else if (sscanf(line, "set %255s %16383s %16383s", name, one, two) == 3) {
			unhex(one, first);
			unhex(two, second);
			printf("set %d\n", millstream_map_set(program, name, first, second, 0));
		} else if (sscanf(line, "get %255s %16383s %u", name, one, &number) == 3) {
			unhex(one, first);
			printf("get %d ", millstream_map_get(program, name, first, second));
			hex(second, number);
		} else if (sscanf(line, "delete %255s %16383s", name, one) == 2) {
			unhex(one, first);
			printf("delete %d\n", millstream_map_delete(program, name, first));
		} else if (sscanf(line, "each %255s", name) == 1) {
			number = 0;
			printf("each %d ", millstream_map_each(program, name, count, &number));
			printf("%u\n", number);
		} else if (sscanf(line, "read %255s", name) == 1) {
			long long length = millstream_read(program, name, one, 8);

			printf("read %lld %s\n", length, length < 0 ? "" : one);
		} else if (sscanf(line, "write %255s", name) == 1) {
			printf("write %d\n", millstream_write(program, name));
		} else if (!strcmp(line, "account\n")) {
			struct millstream_account a;
			uint64_t dropped;

			millstream_account(program, &a);
			printf("account %d %d %d %d\n", (int)a.received, (int)a.copies, (int)a.sent, (int)a.dropped);
			for (size_t at = 0; millstream_dropped(program, at, one, sizeof one, &dropped) == 0; at++)
				printf("dropped %s %d\n", one, (int)dropped);
		} else if (!strcmp(line, "again\n")) {
			printf("again %d ", millstream_open(&PROGRAM, MOST, why, sizeof why) != NULL);
			printf("%s\n", why);
			millstream_close(program);
			program = millstream_open(&PROGRAM, MOST, why, sizeof why);
			printf("then %d\n", program != NULL);
		}
	}
	millstream_close(program);
	return 0;
}
