/* How fast each way of copying scattered pieces from host memory is, on the CUDA device or (to test the
 * program) on the software one: the gather kernel by both methods on 1 to 32 blocks, batches, single copies,
 * and rows of constant pitch, for pieces of 2 KiB to 1 MiB. Each is compared with one contiguous copy
 * measured in the same run.
 *
 *     gather_bench [--device cuda|software] [--bytes N] [--runs N] [--json FILE]
 *
 * Source and destination pieces are in independent random orders, data is random, destinations are poisoned
 * and compared once for each configuration. Figures are medians over the runs, by events of the device; a
 * slow configuration ends after half a second with fewer runs. `layers` is a gather of
 * layers of 28 MiB, which the launch counts, with an event behind each count, as a restore of many layers
 * does it. What it does not show: the cost of preparing descriptors, and any other load on the device. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/device.h"
#include "hostlane/limits.h"

#define SMALLEST 2048ull
#define MOST_RUNS 1000u
#define ENOUGH_NS 500000000ll
#define FEWEST_RUNS 3u
#define LAYER_BYTES (28 * HL_MIB)
#define POISON 0xa5
#define LEAST_BULK (16 * HL_KIB) /* smaller pieces of `layers` go by loads */
/* A call a piece is slow: these ways copy no more pieces than this. */
#define MOST_CALLS 16384u

enum way { WAY_CONTIGUOUS, WAY_BULK, WAY_LOADS, WAY_LAYERS, WAY_BATCH, WAY_SINGLE, WAY_ROWS };
static const char *const way_names[] = {"contiguous", "bulk", "loads", "layers", "batch", "single", "rows"};

struct config {
    enum way way;
    uint64_t piece;
    uint32_t blocks;
};

struct bench {
    hl_device *dev;
    hl_stream stream, events;
    hl_event start, end, layer;
    uint64_t bytes;
    unsigned runs;
    unsigned char *host; /* the registered source, `bytes` long */
    hl_devptr host_mapped;
    hl_devptr counters;                 /* HL_GATHER_LAYERS words */
    uint32_t counted[HL_GATHER_LAYERS]; /* what each was given so far */
    hl_devptr device;                   /* the destination, `bytes` long */
    /* Three arrays in one registered mapping, an element for each of the smallest pieces. */
    struct hl_gather *descriptors;
    uint64_t *offsets, *sums;
    hl_devptr control_mapped;
    size_t control_bytes;
    uint32_t most;  /* pieces of the smallest size */
    uint32_t count; /* pieces of the present size */
    struct hl_copy *copies;
    uint64_t *expected; /* the checksum of piece i */
    double ceiling;     /* bytes a nanosecond of the contiguous copy */
    json_t *rows;
};

static void must(hl_status status, const hl_error *err)
{
    if (status == HL_OK)
        return;
    fprintf(stderr, "gather_bench: %s: %s\n", hl_status_name(status), err->text);
    exit(1);
}

/* A shared mapping of a memfd, registered with the device. */
static void *registered(struct bench *b, const char *name, size_t bytes, hl_devptr *mapped)
{
    hl_error err;
    int fd = memfd_create(name, MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) {
        perror("gather_bench: memory");
        exit(1);
    }
    close(fd);
    must(b->dev->ops->host_register(b->dev, memory, bytes, &err), &err);
    must(b->dev->ops->host_pointer(b->dev, memory, mapped, &err), &err);
    return memory;
}

static void unregister(struct bench *b, void *memory, size_t bytes)
{
    hl_error err;
    must(b->dev->ops->host_unregister(b->dev, memory, &err), &err);
    munmap(memory, bytes);
}

static void open_bench(struct bench *b)
{
    hl_error err;
    const struct hl_device_ops *ops = b->dev->ops;
    must(ops->stream_create(b->dev, &b->stream, &err), &err);
    must(ops->stream_create(b->dev, &b->events, &err), &err);
    must(ops->mem_alloc(b->dev, HL_GATHER_LAYERS * sizeof(uint32_t), &b->counters, &err), &err);
    must(ops->fill(b->dev, b->counters, 0, HL_GATHER_LAYERS * sizeof(uint32_t), b->stream, &err), &err);
    must(ops->stream_synchronize(b->dev, b->stream, &err), &err);
    must(ops->event_create(b->dev, HL_EVENT_TIMING, &b->start, &err), &err);
    must(ops->event_create(b->dev, HL_EVENT_TIMING, &b->end, &err), &err);
    must(ops->event_create(b->dev, 0, &b->layer, &err), &err);
    must(ops->mem_alloc(b->dev, b->bytes, &b->device, &err), &err);
    b->host = registered(b, "gather_bench source", b->bytes, &b->host_mapped);
    b->most = (uint32_t)(b->bytes / SMALLEST);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    b->control_bytes = (b->most * (sizeof(struct hl_gather) + 16) + page - 1) / page * page;
    b->descriptors = registered(b, "gather_bench descriptors", b->control_bytes, &b->control_mapped);
    b->offsets = (uint64_t *)(b->descriptors + b->most);
    b->sums = b->offsets + b->most;
    b->copies = calloc(b->most, sizeof *b->copies);
    b->expected = calloc(b->most, sizeof *b->expected);
    b->rows = json_array();
    if (!b->copies || !b->expected || !b->rows) {
        perror("gather_bench: memory");
        exit(1);
    }
    hl_random random;
    hl_random_seed(&random, 1);
    hl_random_fill(&random, b->host, b->bytes);
}

static void close_bench(struct bench *b)
{
    hl_error err;
    const struct hl_device_ops *ops = b->dev->ops;
    free(b->copies);
    free(b->expected);
    unregister(b, b->descriptors, b->control_bytes);
    unregister(b, b->host, b->bytes);
    must(ops->mem_free(b->dev, b->device, &err), &err);
    must(ops->mem_free(b->dev, b->counters, &err), &err);
    must(ops->stream_destroy(b->dev, b->events, &err), &err);
    must(ops->event_destroy(b->dev, b->layer, &err), &err);
    must(ops->event_destroy(b->dev, b->end, &err), &err);
    must(ops->event_destroy(b->dev, b->start, &err), &err);
    must(ops->stream_destroy(b->dev, b->stream, &err), &err);
}

/* Cuts both sides into pieces and pairs them at random. */
static void scatter(struct bench *b, uint64_t piece)
{
    b->count = (uint32_t)(b->bytes / piece);
    uint32_t *from = calloc(b->count, sizeof *from), *to = calloc(b->count, sizeof *to);
    if (!from || !to) {
        perror("gather_bench: memory");
        exit(1);
    }
    hl_random random;
    hl_random_seed(&random, piece);
    hl_random_permutation(&random, from, b->count);
    hl_random_permutation(&random, to, b->count);
    for (uint32_t i = 0; i < b->count; i++) {
        const uint64_t src = from[i] * piece, dst = to[i] * piece;
        b->copies[i] = (struct hl_copy){b->device + dst, (uintptr_t)b->host + src, piece};
        b->descriptors[i] = (struct hl_gather){b->device + dst, b->host_mapped + src, piece};
        b->expected[i] = hl_page_checksum(b->host + src, piece);
    }
    free(from);
    free(to);
}

/* How many pieces a configuration copies. */
static uint32_t pieces_of(const struct bench *b, const struct config *c)
{
    switch (c->way) {
    case WAY_CONTIGUOUS:
        return 1;
    case WAY_BATCH:
    case WAY_SINGLE:
        return b->count < MOST_CALLS ? b->count : MOST_CALLS;
    case WAY_ROWS:
        return b->count / 2; /* every second piece of either side */
    default:
        return b->count;
    }
}

static void gather(struct bench *b, const struct config *c, uint32_t first, uint32_t count)
{
    hl_error err;
    const struct hl_gather_launch launch = {
        .descriptors = b->control_mapped + first * sizeof(struct hl_gather),
        .count = count,
        .blocks = c->blocks,
        .method = c->way == WAY_LOADS || !b->dev->info.bulk_copy ? HL_GATHER_LOADS : HL_GATHER_BULK};
    must(b->dev->ops->gather(b->dev, &launch, b->stream, &err), &err);
}

/* One launch for up to HL_GATHER_LAYERS layers; the end of the events is the end of all. */
static void gather_layers(struct bench *b, const struct config *c, uint32_t first, uint32_t count,
                          uint32_t layer)
{
    hl_error err;
    const struct hl_device_ops *ops = b->dev->ops;
    uint32_t ends[HL_GATHER_LAYERS], layers = 0;
    for (uint32_t end = 0; end < count; layers++)
        ends[layers] = end = count - end < layer ? count : end + layer;
    const struct hl_gather_launch launch = {
        .descriptors = b->control_mapped + first * sizeof(struct hl_gather),
        .count = count,
        .blocks = c->blocks,
        .method = c->piece < LEAST_BULK || !b->dev->info.bulk_copy ? HL_GATHER_LOADS : HL_GATHER_BULK,
        .layer_count = layers,
        .layer_ends = ends,
        .counters = b->counters};
    must(ops->gather(b->dev, &launch, b->stream, &err), &err);
    for (uint32_t i = 0; i < layers; i++) {
        b->counted[i] += c->blocks;
        must(ops->stream_wait_value(b->dev, b->events, b->counters + 4 * i, b->counted[i], &err), &err);
        must(ops->event_record(b->dev, b->layer, b->events, &err), &err);
    }
    must(ops->stream_wait_event(b->dev, b->stream, b->layer, &err), &err);
}

static void submit(struct bench *b, const struct config *c)
{
    hl_error err;
    const struct hl_device_ops *ops = b->dev->ops;
    const uint32_t count = pieces_of(b, c);
    const uint32_t layer = (uint32_t)(LAYER_BYTES / c->piece), most = layer * HL_GATHER_LAYERS;
    size_t accepted;
    switch (c->way) {
    case WAY_CONTIGUOUS:
        must(ops->copy(b->dev, HL_COPY_H2D, b->device, (uintptr_t)b->host, b->bytes, b->stream, &err), &err);
        break;
    case WAY_BULK:
    case WAY_LOADS:
        gather(b, c, 0, count);
        break;
    case WAY_LAYERS:
        for (uint32_t first = 0; first < count; first += most)
            gather_layers(b, c, first, count - first < most ? count - first : most, layer);
        break;
    case WAY_BATCH:
        must(ops->copy_batch(b->dev, HL_COPY_H2D, b->copies, count, b->stream, &accepted, &err), &err);
        break;
    case WAY_SINGLE:
        for (uint32_t i = 0; i < count; i++)
            must(
                ops->copy(b->dev, HL_COPY_H2D, b->copies[i].dst, b->copies[i].src, c->piece, b->stream, &err),
                &err);
        break;
    case WAY_ROWS:
        must(ops->copy_rows(b->dev, HL_COPY_H2D, b->device, 2 * c->piece, (uintptr_t)b->host, 2 * c->piece,
                            c->piece, count, b->stream, &err),
             &err);
        break;
    }
}

/* Poisons the destination, copies once, and compares the checksum of every piece on the device. */
static void verify(struct bench *b, const struct config *c)
{
    hl_error err;
    const uint32_t count = pieces_of(b, c);
    const struct hl_checksum_launch launch = {
        .base = b->device,
        .offsets = b->control_mapped + b->most * sizeof(struct hl_gather),
        .sums = b->control_mapped + b->most * (sizeof(struct hl_gather) + sizeof(uint64_t)),
        .page_bytes = c->piece,
        .count = count};
    for (uint32_t i = 0; i < count; i++)
        b->offsets[i] = c->way == WAY_ROWS         ? 2 * i * c->piece
                        : c->way == WAY_CONTIGUOUS ? 0
                                                   : b->copies[i].dst - b->device;
    memset(b->sums, 0, count * sizeof *b->sums);
    must(b->dev->ops->fill(b->dev, b->device, POISON, b->bytes, b->stream, &err), &err);
    submit(b, c);
    must(b->dev->ops->checksum(b->dev, &launch, b->stream, &err), &err);
    must(b->dev->ops->stream_synchronize(b->dev, b->stream, &err), &err);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t expected = b->expected[i];
        if (c->way == WAY_ROWS || c->way == WAY_CONTIGUOUS)
            expected = hl_page_checksum(b->host + b->offsets[i], c->piece);
        if (b->sums[i] == expected)
            continue;
        fprintf(stderr, "gather_bench: %s of %llu bytes on %u blocks: piece %u arrived wrong\n",
                way_names[c->way], (unsigned long long)c->piece, c->blocks, i);
        exit(1);
    }
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void record(struct bench *b, const struct config *c, int64_t median, int64_t fastest, unsigned runs)
{
    const uint64_t bytes = pieces_of(b, c) * c->piece;
    const double speed = median > 0 ? (double)bytes / (double)median : 0;
    if (c->way == WAY_CONTIGUOUS)
        b->ceiling = speed;
    const double ratio = b->ceiling > 0 ? speed / b->ceiling : 0;
    printf("%-10s %9llu B %3u blocks %8.2f GB/s  %5.3f of the ceiling (%u runs)\n", way_names[c->way],
           (unsigned long long)c->piece, c->blocks, speed, ratio, runs);
    fflush(stdout);
    json_array_append_new(b->rows,
                          json_pack("{s:s, s:I, s:i, s:I, s:i, s:I, s:I, s:f, s:f}", "way", way_names[c->way],
                                    "piece_bytes", (json_int_t)c->piece, "blocks", (int)c->blocks, "bytes",
                                    (json_int_t)bytes, "runs", (int)runs, "median_ns", (json_int_t)median,
                                    "fastest_ns", (json_int_t)fastest, "gb_per_s", speed, "ratio", ratio));
}

/* The verifying copy is the warm-up. */
static void measure(struct bench *b, enum way way, uint64_t piece, uint32_t blocks)
{
    const struct config c = {way, piece, blocks};
    static int64_t ns[MOST_RUNS];
    hl_error err;
    int64_t total = 0;
    unsigned runs = 0;
    if (!pieces_of(b, &c))
        return;
    verify(b, &c);
    while (runs < b->runs && (runs < FEWEST_RUNS || total < ENOUGH_NS)) {
        must(b->dev->ops->event_record(b->dev, b->start, b->stream, &err), &err);
        submit(b, &c);
        must(b->dev->ops->event_record(b->dev, b->end, b->stream, &err), &err);
        must(b->dev->ops->event_synchronize(b->dev, b->end, &err), &err);
        must(b->dev->ops->event_elapsed(b->dev, b->start, b->end, &ns[runs], &err), &err);
        total += ns[runs++];
    }
    qsort(ns, runs, sizeof ns[0], ascending);
    record(b, &c, ns[runs / 2], ns[0], runs);
}

static void measure_all(struct bench *b)
{
    static const uint64_t pieces[] = {2048, 4096, 8192, 16384, 32768, 131072, 1048576};
    static const uint32_t blocks[] = {1, 2, 4, 8, 16, 32};
    const bool bulk = b->dev->info.bulk_copy;
    measure(b, WAY_CONTIGUOUS, b->bytes, 0);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        scatter(b, pieces[i]);
        for (size_t j = 0; j < sizeof blocks / sizeof blocks[0]; j++) {
            if (bulk)
                measure(b, WAY_BULK, pieces[i], blocks[j]);
            measure(b, WAY_LOADS, pieces[i], blocks[j]);
            if (blocks[j] >= 4 && blocks[j] <= 16)
                measure(b, WAY_LAYERS, pieces[i], blocks[j]);
        }
        measure(b, WAY_BATCH, pieces[i], 0);
        measure(b, WAY_SINGLE, pieces[i], 0);
        measure(b, WAY_ROWS, pieces[i], 0);
    }
    measure(b, WAY_CONTIGUOUS, b->bytes, 0); /* the ceiling again: how much it moved in the meantime */
}

static void write_json(struct bench *b, const char *path)
{
    const struct hl_device_info *info = &b->dev->info;
    json_t *report =
        json_pack("{s:s, s:s, s:i, s:i, s:I, s:i, s:o}", "device", info->name, "pci_id", info->pci_id,
                  "driver_version", info->driver_version, "sm_count", info->sm_count, "bytes",
                  (json_int_t)b->bytes, "runs", (int)b->runs, "results", b->rows);
    if (!report || json_dump_file(report, path, JSON_INDENT(1) | JSON_SORT_KEYS)) {
        fprintf(stderr, "gather_bench: cannot write %s\n", path);
        exit(1);
    }
    json_decref(report);
}

static unsigned long long number(const char *option, const char *text, unsigned long long low,
                                 unsigned long long high)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end || value < low || value > high) {
        fprintf(stderr, "gather_bench: --%s: %s is not a number from %llu to %llu\n", option, text, low,
                high);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"bytes", required_argument, NULL, 'b'},
                                            {"runs", required_argument, NULL, 'r'},
                                            {"json", required_argument, NULL, 'j'},
                                            {0}};
    struct bench b = {.bytes = 256 * HL_MIB, .runs = 20};
    const char *device = "cuda", *json = NULL;
    hl_error err;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (option == 'd')
            device = optarg;
        else if (option == 'b')
            b.bytes = number("bytes", optarg, HL_MIB, 64 * HL_GIB) / HL_MIB * HL_MIB;
        else if (option == 'r')
            b.runs = (unsigned)number("runs", optarg, 1, MOST_RUNS);
        else if (option == 'j')
            json = optarg;
        else
            return 2;
    must(strcmp(device, "software") ? hl_device_open_cuda(0, &b.dev, &err)
                                    : hl_device_open_software(&b.dev, &err),
         &err);
    must(hl_device_enter(b.dev, &err), &err);
    printf("%s, %llu bytes\n", b.dev->info.name, (unsigned long long)b.bytes);
    open_bench(&b);
    measure_all(&b);
    close_bench(&b);
    if (json)
        write_json(&b, json);
    else
        json_decref(b.rows);
    hl_device_leave(b.dev);
    hl_device_close(b.dev);
    return 0;
}
