/* Measures the index at growing numbers of blocks on one core: publishing, look-ups of one key and of
 * prefixes in random order, misses, pins, evictions, and what it takes in memory. Writes a table to standard
 * output and, with --json PATH, the same figures as JSON. --most N is the largest number of blocks (10000000,
 * which needs 1.4 GB). The resident size is the process's, less what it was before the index. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/random.h"
#include "hostlane/limits.h"
#include "manager/index.h"

enum { ROUNDS = 5, PREFIX = 256, LOOKUPS = 1 << 20 };

static void must(hl_status status, const hl_error *err)
{
    if (status == HL_OK)
        return;
    fprintf(stderr, "index_bench: %s: %s\n", hl_status_name(status), err->text);
    exit(1);
}

static void *must_allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        fprintf(stderr, "index_bench: no memory\n");
        exit(1);
    }
    return memory;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof values[0], by_value);
    return values[count / 2];
}

static uint64_t resident_bytes(void)
{
    char line[128] = "", *rest = line;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || !fgets(line, sizeof line, file)) {
        fprintf(stderr, "index_bench: cannot read /proc/self/statm\n");
        exit(1);
    }
    fclose(file);
    (void)strtoull(rest, &rest, 10); /* the size; the resident pages come next */
    return strtoull(rest, &rest, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Key i of those that are present (even) or absent (odd): as an engine's hash, it looks random. */
static void key_hash(uint64_t i, unsigned char hash[HL_KEY_BYTES])
{
    hl_random random;
    hl_random_seed(&random, i);
    hl_random_fill(&random, hash, HL_KEY_BYTES);
}

struct figures {
    uint64_t blocks;
    double insert, find, miss, prefix, prefix_miss, pin, evict; /* calls or keys a second */
    double longest_insert_ms;  /* with growing: the pause that one publish may see */
    double resident, computed; /* bytes a block */
};

static void publish(hl_index *index, uint64_t i)
{
    struct hl_index_key key = {.space = 1};
    struct hl_index_source source = {.allocation = i + 1, .offset = i << 10, .bytes = 1024, .residency = 1};
    hl_entry_id id;
    bool present;
    hl_error err;
    key_hash(2 * i, key.hash);
    must(hl_index_reserve(index, &key, &id, &present, &err), &err);
    must(hl_index_complete(index, id, &source, &err), &err);
}

/* Keys are made outside the clock, in pieces; the longest call is seen with a clock a call. */
static void measure_inserts(hl_index *index, struct figures *f)
{
    int64_t longest = 0, start = hl_clock_ns(), before = start;
    for (uint64_t i = 0; i < f->blocks; i++) {
        publish(index, i);
        int64_t now = hl_clock_ns();
        longest = now - before > longest ? now - before : longest;
        before = now;
    }
    f->insert = (double)f->blocks / ((double)(before - start) / HL_NS_PER_S);
    f->longest_insert_ms = (double)longest / 1e6;
}

/* `chosen` keys in random order; with `absent` 1, none of them present. */
static unsigned char *choose_keys(uint64_t blocks, size_t chosen, unsigned absent, hl_random *random)
{
    unsigned char *keys = must_allocate(chosen, HL_KEY_BYTES);
    for (size_t i = 0; i < chosen; i++)
        key_hash(2 * hl_random_below(random, blocks) + absent, keys + i * HL_KEY_BYTES);
    return keys;
}

static void must_hit(size_t hits, size_t expected)
{
    if (hits == expected)
        return;
    fprintf(stderr, "index_bench: %zu hits, expected %zu\n", hits, expected);
    exit(1);
}

static double find_rate(const hl_index *index, const unsigned char *keys, size_t count, bool expect)
{
    struct hl_index_key key = {.space = 1};
    hl_entry_id id;
    size_t hits = 0;
    int64_t start = hl_clock_ns();
    for (size_t i = 0; i < count; i++) {
        memcpy(key.hash, keys + i * HL_KEY_BYTES, HL_KEY_BYTES);
        hits += hl_index_find(index, &key, &id, NULL) == HL_OK;
    }
    double seconds = (double)(hl_clock_ns() - start) / HL_NS_PER_S;
    must_hit(hits, expect ? count : 0);
    return (double)count / seconds;
}

static double prefix_rate(const hl_index *index, const unsigned char *keys, size_t count, hl_entry_id *ids)
{
    size_t hits = 0;
    int64_t start = hl_clock_ns();
    for (size_t i = 0; i < count; i += PREFIX)
        hits += hl_index_find_prefix(index, 1, 0, keys + i * HL_KEY_BYTES, PREFIX, ids + i);
    double seconds = (double)(hl_clock_ns() - start) / HL_NS_PER_S;
    must_hit(hits, count);
    return (double)count / seconds;
}

/* Queries of which nothing is present: each costs one window of look-ups for its one miss. */
static double prefix_miss_rate(const hl_index *index, const unsigned char *keys, size_t count)
{
    hl_entry_id ids[PREFIX];
    size_t hits = 0;
    int64_t start = hl_clock_ns();
    for (size_t i = 0; i < count; i += PREFIX)
        hits += hl_index_find_prefix(index, 1, 0, keys + i * HL_KEY_BYTES, PREFIX, ids);
    double seconds = (double)(hl_clock_ns() - start) / HL_NS_PER_S;
    must_hit(hits, 0);
    return (double)count / PREFIX / seconds;
}

static double pin_rate(hl_index *index, const hl_entry_id *ids, size_t count)
{
    hl_error err;
    int64_t start = hl_clock_ns();
    for (size_t i = 0; i < count; i++)
        must(hl_index_pin(index, ids[i], &err), &err);
    for (size_t i = 0; i < count; i++)
        must(hl_index_unpin(index, ids[i], &err), &err);
    return (double)count / ((double)(hl_clock_ns() - start) / HL_NS_PER_S);
}

/* Each eviction makes room for a new block, as in a full cache. */
static double evict_rate(hl_index *index, uint64_t blocks)
{
    struct hl_index_victim victim;
    hl_error err;
    int64_t evicting = 0;
    uint64_t count = blocks < LOOKUPS ? blocks : LOOKUPS;
    for (uint64_t i = 0; i < count; i++) {
        int64_t start = hl_clock_ns();
        must(hl_index_evict_next(index, &victim, &err), &err);
        evicting += hl_clock_ns() - start;
        publish(index, blocks + i);
    }
    return (double)count / ((double)evicting / HL_NS_PER_S);
}

static struct figures measure(uint64_t blocks, uint64_t capacity)
{
    static const uint64_t seed[2] = {1, 2};
    struct figures f = {.blocks = blocks};
    struct hl_index_options options = {.capacity = capacity, .seed = seed};
    struct hl_index_stats stats;
    double find[ROUNDS], miss[ROUNDS], prefix[ROUNDS], prefix_miss[ROUNDS], pin[ROUNDS];
    hl_index *index = NULL;
    hl_random random;
    hl_error err;
    hl_entry_id *ids = must_allocate(LOOKUPS, sizeof *ids);
    memset(ids, 1, LOOKUPS * sizeof *ids);
    hl_random_seed(&random, blocks);
    uint64_t before = resident_bytes();
    must(hl_index_create(&options, &index, &err), &err);
    measure_inserts(index, &f);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char *keys = choose_keys(blocks, LOOKUPS, 0, &random);
        prefix[round] = prefix_rate(index, keys, LOOKUPS, ids);
        pin[round] = pin_rate(index, ids, LOOKUPS);
        find[round] = find_rate(index, keys, LOOKUPS, true);
        free(keys);
        keys = choose_keys(blocks, LOOKUPS, 1, &random);
        miss[round] = find_rate(index, keys, LOOKUPS, false);
        prefix_miss[round] = prefix_miss_rate(index, keys, LOOKUPS);
        free(keys);
    }
    f.evict = evict_rate(index, blocks);
    hl_index_get_stats(index, &stats);
    f.resident = (double)(resident_bytes() - before) / (double)blocks;
    f.computed = (double)stats.memory_bytes / (double)blocks;
    must(hl_index_check(index, &err), &err);
    hl_index_destroy(index);
    free(ids);
    f.find = median(find, ROUNDS);
    f.miss = median(miss, ROUNDS);
    f.prefix = median(prefix, ROUNDS);
    f.prefix_miss = median(prefix_miss, ROUNDS);
    f.pin = median(pin, ROUNDS);
    return f;
}

static json_t *print_figures(const struct figures *f)
{
    printf("%10" PRIu64 " %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %10.1f %9.1f %9.1f\n", f->blocks,
           f->insert / 1e6, f->find / 1e6, f->miss / 1e6, f->prefix / 1e6, f->prefix_miss / 1e6, f->pin / 1e6,
           f->evict / 1e6, f->longest_insert_ms, f->resident, f->computed);
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "blocks",
                     (json_int_t)f->blocks, "inserts_per_s", f->insert, "finds_per_s", f->find,
                     "misses_per_s", f->miss, "prefix_keys_per_s", f->prefix, "prefix_misses_per_s",
                     f->prefix_miss, "pin_unpins_per_s", f->pin, "evictions_per_s", f->evict,
                     "longest_insert_ms", f->longest_insert_ms, "resident_bytes_per_block", f->resident,
                     "computed_bytes_per_block", f->computed);
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    uint64_t most = HL_INDEX_BLOCKS;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json") && i + 1 < argc) {
            path = argv[++i];
        } else if (!strcmp(argv[i], "--most") && i + 1 < argc) {
            most = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: index_bench [--json PATH] [--most BLOCKS]\n");
            return 2;
        }
    }
    if (most < 10000 || most > HL_INDEX_BLOCKS) {
        fprintf(stderr, "index_bench: --most is not from 10000 to %u\n", HL_INDEX_BLOCKS);
        return 2;
    }
    json_t *rows = json_array();
    printf("millions a second on one core, medians of %d rounds of %d keys; prefixes of %d keys\n", ROUNDS,
           LOOKUPS, PREFIX);
    printf("%10s %8s %8s %8s %8s %8s %8s %8s %10s %9s %9s\n", "blocks", "insert", "find", "miss", "prefix",
           "pfx miss", "pin", "evict", "longest ms", "rss/block", "computed");
    for (uint64_t blocks = 10000; blocks < most; blocks *= 10) {
        struct figures f = measure(blocks, blocks);
        json_array_append_new(rows, print_figures(&f));
    }
    struct figures f = measure(most, most);
    json_array_append_new(rows, print_figures(&f));
    printf("and 10000 blocks in an index that may hold %" PRIu64 "\n", most);
    f = measure(10000, most);
    json_t *figures = json_pack("{s:s, s:o, s:o}", "benchmark", "index", "curve", rows, "10000_in_largest",
                                print_figures(&f));
    int failed = path && json_dump_file(figures, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
    if (failed)
        fprintf(stderr, "index_bench: cannot write %s\n", path);
    json_decref(figures);
    return failed;
}
