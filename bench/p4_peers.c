// Forwarding loops written by hand, which bench/p4.py measures beside P4 programs: the same packets from memory, and as
// many entries and look-ups.
//
//     p4_peers APPLICATION FORM BATCH ENTRIES FLOWS SECONDS ROUNDS [PREFIXES]
//
// Applications: l2 (two exact look-ups of 48 bits), ipv4 and ipv6 (longest prefix), ndn (exact look-up of 32 bytes).
// Forms:
//   plain      one packet after the other
//   switching  the order of G-Opt (Kalia, Zhou, Kaminsky and Andersen, NSDI'15): each access that is expensive is a
//              prefetch, after which the next packet of the batch goes on where it stopped
//   dpdk       ipv4 and ipv6 with the tables of DPDK and their look-ups for several packets, as l3fwd has them; needs
//              -DWITH_DPDK
// PREFIXES is a file of prefixes, one a line. It prints nanoseconds per packet of each round, and the share of packets
// that were forwarded, as JSON.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef WITH_DPDK
#include <rte_eal.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#endif

enum { MOST_BATCH = 64, FRAME = 96, BUFFER = 2048, ETHERNET = 14, NAME = 32, SLOTS = 8, NO_PORT = 0xffff };
#define CHILD 0x80000000u

static uint64_t random_state = 1;

// xorshift64* (Vigna, 2016).
static uint64_t next_random(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull;
}

static void fail(const char *message) {
    fprintf(stderr, "p4_peers: %s\n", message);
    exit(1);
}

// Memory in large pages where the kernel has some.
static void *large_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory");
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

// The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
static inline uint64_t mixed(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

// --- Exact tables: cuckoo hashing, two buckets of a cache line for each key ------------------------------------------

// A slot is a key of 48 bits and a value of 16, or a tag of 32 bits and the number of a name; 0 is empty.
struct exact_table {
    uint64_t (*buckets)[SLOTS];
    uint64_t mask;
};

static void exact_make(struct exact_table *table, uint64_t entries) {
    uint64_t count = 16;
    while (count * SLOTS * 9 / 10 < entries) count *= 2;
    table->buckets = large_memory(count * sizeof *table->buckets);
    table->mask = count - 1;
}

static inline uint64_t first_bucket(const struct exact_table *table, uint64_t hash) { return hash & table->mask; }

// The other bucket of a slot, from its tag: so that a slot can move without its key.
static inline uint64_t other_bucket(const struct exact_table *table, uint64_t bucket, uint64_t tag) {
    return (bucket ^ mixed(~tag)) & table->mask;
}

// `shift` bits of a slot are its value.
static inline uint64_t find_slot(const struct exact_table *table, uint64_t bucket, uint64_t tag, unsigned shift) {
    const uint64_t *slots = table->buckets[bucket];
    for (int at = 0; at < SLOTS; at++)
        if (slots[at] >> shift == tag) return slots[at];
    return 0;
}

static void exact_insert(struct exact_table *table, uint64_t bucket, uint64_t slot, unsigned shift) {
    for (int moves = 0; moves < 2000; moves++) {
        for (int side = 0; side < 2; side++) {
            for (int at = 0; at < SLOTS; at++)
                if (table->buckets[bucket][at] == 0) {
                    table->buckets[bucket][at] = slot;
                    return;
                }
            bucket = other_bucket(table, bucket, slot >> shift);
        }
        int victim = next_random() % SLOTS;
        uint64_t moved = table->buckets[bucket][victim];
        table->buckets[bucket][victim] = slot;
        slot = moved;
        bucket = other_bucket(table, bucket, slot >> shift);
    }
    fail("a table is full");
}

// --- Longest prefixes: 24 bits at the root, 8 bits in each node below (DIR-24-8) --------------------------------------

static uint32_t *places;
static uint32_t used_places = 1 << 24;

static uint32_t place_of_root(const uint8_t *address) { return address[0] << 16 | address[1] << 8 | address[2]; }

// Prefixes come in the order of their lengths, so that no longer one is overwritten.
static void prefix_insert(const uint8_t *address, unsigned length, uint32_t port) {
    uint32_t node = 0, place = place_of_root(address);
    unsigned covered = 24;
    while (length > covered) {
        uint32_t word = places[node + place];
        if (!(word & CHILD)) {
            for (int at = 0; at < 256; at++) places[used_places + at] = word;
            word = places[node + place] = CHILD | used_places >> 8;
            used_places += 256;
        }
        node = (word & ~CHILD) << 8;
        place = address[covered / 8];
        covered += 8;
    }
    uint32_t count = 1u << (covered - length);
    for (uint32_t at = place & ~(count - 1), end = at + count; at < end; at++) places[node + at] = port + 1;
}

// --- Packets and tables ---------------------------------------------------------------------------------------------

struct name_entry {
    uint8_t name[NAME];
    uint64_t port;
} __attribute__((aligned(64)));

struct prefix {
    uint8_t address[16];
    unsigned length;
};

static struct exact_table sources, destinations, index_of_names;
static struct name_entry *names;
static struct prefix *prefixes;
static uint64_t entries, flows;
static uint8_t (*frames)[FRAME];
static unsigned frame_length;
static uint8_t *buffers;
static uint32_t ports[MOST_BATCH];
static uint64_t unknown;
#ifdef WITH_DPDK
static struct rte_lpm *lpm;
static struct rte_lpm6 *lpm6;
#endif

static inline uint8_t *packet_at(unsigned at) { return buffers + (size_t)at * BUFFER; }

static inline uint64_t address48(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value & 0xffffffffffffull;
}

static inline uint64_t name_hash(const uint8_t *name) {
    uint64_t words[NAME / 8], hash = 0;
    memcpy(words, name, NAME);
    for (int at = 0; at < NAME / 8; at++) hash = mixed(hash ^ words[at]);
    return hash;
}

static inline uint64_t tag_of(uint64_t hash) { return hash >> 32 | 1; }

static int by_length(const void *a, const void *b) {
    const struct prefix *left = a, *right = b;
    return (int)left->length - (int)right->length;
}

static void read_prefixes(const char *path, int family) {
    FILE *file = fopen(path, "r");
    if (!file) fail("no file of prefixes");
    prefixes = calloc(entries, sizeof *prefixes);
    char line[128];
    uint64_t count = 0;
    while (count < entries && fgets(line, sizeof line, file)) {
        char *length = strchr(line, '/');
        if (!length) continue;
        *length = 0;
        if (inet_pton(family, line, prefixes[count].address) != 1) continue;
        prefixes[count++].length = atoi(length + 1);
    }
    fclose(file);
    entries = count;
    qsort(prefixes, entries, sizeof *prefixes, by_length);
}

// An address in a random prefix, with random bits behind it.
static void random_address(uint8_t *to, unsigned bytes) {
    const struct prefix *prefix = &prefixes[next_random() % entries];
    for (unsigned at = 0; at < bytes; at++) {
        int fixed = (int)prefix->length - 8 * (int)at;
        uint8_t free = fixed >= 8 ? 0 : fixed <= 0 ? 0xff : 0xff >> fixed;
        to[at] = (prefix->address[at] & ~free) | (next_random() & free);
    }
}

static void make_l2(void) {
    uint64_t *keys = calloc(entries, 8);
    exact_make(&sources, entries);
    exact_make(&destinations, entries);
    for (uint64_t at = 0; at < entries; at++) {
        // A permutation of 47 bits: no key comes twice, and none is a group address.
        keys[at] = (at + 1) * 0x9e3779b97f4bull << 1 & 0xfffffffffffeull;
        uint64_t slot = keys[at] << 16 | at % 512;
        exact_insert(&sources, first_bucket(&sources, mixed(keys[at])), slot, 16);
        exact_insert(&destinations, first_bucket(&destinations, mixed(keys[at])), slot, 16);
    }
    frame_length = 64;
    for (uint64_t at = 0; at < flows; at++) {
        memcpy(frames[at], &keys[next_random() % entries], 6);
        memcpy(frames[at] + 6, &keys[next_random() % entries], 6);
    }
    free(keys);
}

static void make_ndn(void) {
    exact_make(&index_of_names, entries);
    names = large_memory((entries + 1) * sizeof *names);
    for (uint64_t at = 1; at <= entries; at++) {
        for (int word = 0; word < NAME / 8; word++) ((uint64_t *)names[at].name)[word] = next_random();
        names[at].port = at % 512;
        uint64_t hash = name_hash(names[at].name);
        exact_insert(&index_of_names, first_bucket(&index_of_names, hash), tag_of(hash) << 32 | at, 32);
    }
    frame_length = 64;
    for (uint64_t at = 0; at < flows; at++) memcpy(frames[at] + ETHERNET, names[1 + next_random() % entries].name, NAME);
}

static void make_prefixes(const char *path, int family, int with_dpdk) {
    read_prefixes(path, family);
    if (with_dpdk) {
#ifdef WITH_DPDK
        struct rte_lpm_config config = {.max_rules = entries, .number_tbl8s = 1 << 16};
        struct rte_lpm6_config config6 = {.max_rules = entries, .number_tbl8s = 1 << 21};
        lpm = family == AF_INET ? rte_lpm_create("ipv4", 0, &config) : NULL;
        lpm6 = family == AF_INET6 ? rte_lpm6_create("ipv6", 0, &config6) : NULL;
        if (!lpm && !lpm6) fail("DPDK makes no table");
        for (uint64_t at = 0; at < entries; at++) {
            uint32_t address;
            memcpy(&address, prefixes[at].address, 4);
            if (lpm ? rte_lpm_add(lpm, ntohl(address), prefixes[at].length, at % 512)
                    : rte_lpm6_add(lpm6, prefixes[at].address, prefixes[at].length, at % 512))
                fail("DPDK takes no more prefixes");
        }
#endif
    } else {
        places = large_memory(sizeof *places * (size_t)((1 << 24) + 256 * entries * (family == AF_INET ? 1 : 13)));
        for (uint64_t at = 0; at < entries; at++) prefix_insert(prefixes[at].address, prefixes[at].length, at % 512);
    }
    int is_ipv6 = family == AF_INET6;
    frame_length = is_ipv6 ? 78 : 64;
    for (uint64_t at = 0; at < flows; at++) {
        uint8_t *header = frames[at] + ETHERNET;
        header[0] = is_ipv6 ? 0x60 : 0x45;
        header[is_ipv6 ? 7 : 8] = 64;
        random_address(header + (is_ipv6 ? 24 : 16), is_ipv6 ? 16 : 4);
    }
}

// --- What becomes of a packet whose port is known --------------------------------------------------------------------

static inline void forward_ipv4(unsigned at, uint32_t port) {
    uint8_t *header = packet_at(at) + ETHERNET;
    uint16_t checksum;
    header[8]--;
    memcpy(&checksum, header + 10, 2);
    // RFC 1624.
    uint32_t sum = (uint16_t)~ntohs(checksum) + 0xfeffu;
    sum = (sum & 0xffff) + (sum >> 16);
    checksum = htons(~(uint16_t)(sum + (sum >> 16)));
    memcpy(header + 10, &checksum, 2);
    ports[at] = port;
}

static inline void forward_ipv6(unsigned at, uint32_t port) {
    packet_at(at)[ETHERNET + 7]--;
    ports[at] = port;
}

// --- The two orders --------------------------------------------------------------------------------------------------

#define IN_ORDER(label, address) (void)(address)
#define SWITCHING(label, address)              \
    do {                                       \
        __builtin_prefetch(address);           \
        resume[i] = &&label;                   \
        i = i + 1 == count ? 0 : i + 1;        \
        goto *resume[i];                       \
    label:;                                    \
    } while (0)

// A function of a batch in both orders. What outlives a fetch is in arrays; a packet that is done passes on its turns.
#define FUNCTION(name, STATE, BODY)                                \
    static void name##_plain(unsigned count) {                     \
        STATE;                                                     \
        for (unsigned i = 0; i < count; i++) {                     \
            BODY(IN_ORDER)                                         \
        }                                                          \
    }                                                              \
    static void name##_switching(unsigned count) {                 \
        STATE;                                                     \
        void *resume[MOST_BATCH];                                  \
        uint64_t open = count == 64 ? ~0ull : (1ull << count) - 1; \
        unsigned i = 0;                                            \
        for (unsigned at = 0; at < count; at++) resume[at] = &&begin; \
    begin:;                                                        \
        BODY(SWITCHING)                                            \
        resume[i] = &&end;                                         \
    end:                                                           \
        open &= ~(1ull << i);                                      \
        if (open == 0) return;                                     \
        i = i + 1 == count ? 0 : i + 1;                            \
        goto *resume[i];                                           \
    }

#define EXACT_STATE uint64_t key[MOST_BATCH], bucket[MOST_BATCH], slot[MOST_BATCH]

#define LOOK_UP(FETCH, table, first, other, shift)                          \
    FETCH(first, (table).buckets[bucket[i]]);                               \
    slot[i] = find_slot(&(table), bucket[i], key[i], shift);                \
    if (slot[i] == 0) {                                                     \
        bucket[i] = other_bucket(&(table), bucket[i], key[i]);              \
        FETCH(other, (table).buckets[bucket[i]]);                           \
        slot[i] = find_slot(&(table), bucket[i], key[i], shift);            \
    }

#define L2_BODY(FETCH)                                              \
    key[i] = address48(packet_at(i) + 6);                           \
    bucket[i] = first_bucket(&sources, mixed(key[i]));              \
    LOOK_UP(FETCH, sources, source, other_source, 16)               \
    unknown += slot[i] == 0;                                        \
    key[i] = address48(packet_at(i));                               \
    bucket[i] = first_bucket(&destinations, mixed(key[i]));         \
    LOOK_UP(FETCH, destinations, destination, other_destination, 16) \
    ports[i] = slot[i] ? slot[i] & 0xffff : NO_PORT;

#define NDN_BODY(FETCH)                                                                  \
    key[i] = name_hash(packet_at(i) + ETHERNET);                                         \
    bucket[i] = first_bucket(&index_of_names, key[i]);                                   \
    key[i] = tag_of(key[i]);                                                             \
    LOOK_UP(FETCH, index_of_names, in_index, other_in_index, 32)                         \
    ports[i] = NO_PORT;                                                                  \
    if (slot[i]) {                                                                       \
        FETCH(name, &names[(uint32_t)slot[i]]);                                          \
        const struct name_entry *entry = &names[(uint32_t)slot[i]];                      \
        if (memcmp(entry->name, packet_at(i) + ETHERNET, NAME) == 0) ports[i] = entry->port; \
    }

#define PREFIX_STATE uint32_t where[MOST_BATCH], word[MOST_BATCH], depth[MOST_BATCH]

#define PREFIX_BODY(FETCH, first, forward)                                                     \
    where[i] = place_of_root(packet_at(i) + first);                                            \
    depth[i] = first + 3;                                                                      \
    FETCH(root, &places[where[i]]);                                                            \
    word[i] = places[where[i]];                                                                \
    while (word[i] & CHILD) {                                                                  \
        where[i] = (word[i] & ~CHILD) << 8 | packet_at(i)[depth[i]++];                         \
        FETCH(node, &places[where[i]]);                                                        \
        word[i] = places[where[i]];                                                            \
    }                                                                                          \
    if (word[i])                                                                               \
        forward(i, word[i] - 1);                                                               \
    else                                                                                       \
        ports[i] = NO_PORT;

#define IPV4_BODY(FETCH) PREFIX_BODY(FETCH, ETHERNET + 16, forward_ipv4)
#define IPV6_BODY(FETCH) PREFIX_BODY(FETCH, ETHERNET + 24, forward_ipv6)

FUNCTION(l2, EXACT_STATE, L2_BODY)
FUNCTION(ndn, EXACT_STATE, NDN_BODY)
FUNCTION(ipv4, PREFIX_STATE, IPV4_BODY)
FUNCTION(ipv6, PREFIX_STATE, IPV6_BODY)

#ifdef WITH_DPDK
static void ipv4_dpdk(unsigned count) {
    uint32_t addresses[MOST_BATCH], hops[MOST_BATCH];
    for (unsigned at = 0; at < count; at++) {
        memcpy(&addresses[at], packet_at(at) + ETHERNET + 16, 4);
        addresses[at] = ntohl(addresses[at]);
    }
    rte_lpm_lookup_bulk(lpm, addresses, hops, count);
    for (unsigned at = 0; at < count; at++) {
        if (hops[at] & RTE_LPM_LOOKUP_SUCCESS)
            forward_ipv4(at, hops[at] & ~RTE_LPM_LOOKUP_SUCCESS);
        else
            ports[at] = NO_PORT;
    }
}

static void ipv6_dpdk(unsigned count) {
    uint8_t addresses[MOST_BATCH][RTE_LPM6_IPV6_ADDR_SIZE];
    int32_t hops[MOST_BATCH];
    for (unsigned at = 0; at < count; at++) memcpy(addresses[at], packet_at(at) + ETHERNET + 24, 16);
    rte_lpm6_lookup_bulk_func(lpm6, addresses, hops, count);
    for (unsigned at = 0; at < count; at++) {
        if (hops[at] >= 0)
            forward_ipv6(at, hops[at]);
        else
            ports[at] = NO_PORT;
    }
}

static void start_dpdk(void) {
    char *words[] = {"p4_peers", "--no-huge", "-m", "4096", "--no-pci", "--no-telemetry", "--log-level=1", "-l", "0"};
    if (rte_eal_init(sizeof words / sizeof *words, words) < 0) fail("DPDK does not start");
}
#define IPV4_DPDK ipv4_dpdk
#define IPV6_DPDK ipv6_dpdk
#else
#define IPV4_DPDK NULL
#define IPV6_DPDK NULL
static void start_dpdk(void) { fail("built without DPDK"); }
#endif

// --- Measurement ----------------------------------------------------------------------------------------------------

// Seconds of the processor, as `bench-user` counts them.
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Nanoseconds per packet of a round; counts packets and forwarded ones.
static double run(void (*process)(unsigned), unsigned batch, double seconds, uint64_t *received, uint64_t *sent) {
    static uint64_t next, by_port[512];
    uint64_t count = 0;
    double begun = now(), taken;
    do {
        for (int turn = 0; turn < 64; turn++) {
            for (unsigned at = 0; at < batch; at++) {
                memcpy(packet_at(at), frames[next], frame_length);
                next = next + 1 == flows ? 0 : next + 1;
            }
            process(batch);
            for (unsigned at = 0; at < batch; at++)
                if (ports[at] != NO_PORT) by_port[ports[at] % 512]++;
            count += batch;
        }
        taken = now() - begun;
    } while (taken < seconds);
    *received += count;
    *sent = 0;
    for (int port = 0; port < 512; port++) *sent += by_port[port];
    return taken * 1e9 / count;
}

struct application {
    const char *name;
    void (*forms[3])(unsigned);
};

int main(int count, char **words) {
    if (count < 8) fail("see the head of its source");
    const char *form_names[] = {"plain", "switching", "dpdk"};
    const struct application applications[] = {
        {"l2", {l2_plain, l2_switching, NULL}},
        {"ndn", {ndn_plain, ndn_switching, NULL}},
        {"ipv4", {ipv4_plain, ipv4_switching, IPV4_DPDK}},
        {"ipv6", {ipv6_plain, ipv6_switching, IPV6_DPDK}},
    };
    void (*process)(unsigned) = NULL;
    for (size_t at = 0; at < sizeof applications / sizeof *applications; at++)
        for (int form = 0; form < 3; form++)
            if (!strcmp(words[1], applications[at].name) && !strcmp(words[2], form_names[form]))
                process = applications[at].forms[form];
    unsigned batch = atoi(words[3]), rounds = atoi(words[7]);
    entries = strtoull(words[4], NULL, 10), flows = strtoull(words[5], NULL, 10);
    double seconds = atof(words[6]);
    if (!process || batch < 1 || batch > MOST_BATCH || !entries || !flows || !rounds) fail("see the head of its source");
    int with_dpdk = !strcmp(words[2], "dpdk"), has_prefixes = !strncmp(words[1], "ipv", 3);
    if (has_prefixes && count < 9) fail("a file of prefixes is missing");
    if (with_dpdk) start_dpdk();
    buffers = large_memory(MOST_BATCH * BUFFER);
    frames = large_memory(flows * sizeof *frames);
    if (has_prefixes)
        make_prefixes(words[8], words[1][3] == '6' ? AF_INET6 : AF_INET, with_dpdk);
    else if (!strcmp(words[1], "l2"))
        make_l2();
    else
        make_ndn();
    uint64_t received = 0, sent = 0;
    run(process, batch, seconds, &received, &sent);
    printf("{\"ns_rounds\": [");
    for (unsigned round = 0; round < rounds; round++)
        printf("%s%.3f", round ? ", " : "", run(process, batch, seconds, &received, &sent));
    printf("], \"entries\": %lu, \"sent\": %.6f}\n", entries, (double)sent / received);
    return unknown > received;
}
