/* What a piece costs: compile with encoding, decode with validation, over the number of pieces, in four
 * patterns: scattered   split K and V of 32 layers, blocks anywhere: no two pieces merge, none but a chance
 * run pitch       the same, blocks one after another: every layer is one run blocks      one latent layer:
 * every piece is a block of its own, with its own allocation page_first  all layers in one tensor, blocks
 * anywhere: the destinations of layers interleave
 *
 *     plan_bench [--json FILE]               the curve: best of several rounds, as a table
 *     plan_bench --once PATTERN PIECES       one compile and one decode, for instruction counts under
 * valgrind */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/plan/plan_fixture.h"

struct point {
    const char *pattern;
    uint64_t pieces;
    uint64_t parts;
    uint64_t metadata_bytes;
    double compile_ns; /* a piece */
    double decode_ns;
};

enum pattern { SCATTERED, PITCH, BLOCKS, PAGE_FIRST, PATTERNS };

static const char *const pattern_names[PATTERNS] = {"scattered", "pitch", "blocks", "page_first"};

/* From a million pieces on, more layers and fewer blocks keep the tables of allocations, and so the metadata,
 * within its bound; where every piece has a block, a million do not fit. */
static struct hl_fixture_shape shape_of(enum pattern pattern, uint64_t pieces, uint32_t *blocks)
{
    static const enum hl_fixture_kind kinds[PATTERNS] = {HL_FIXTURE_SPLIT, HL_FIXTURE_SPLIT, HL_FIXTURE_MLA,
                                                         HL_FIXTURE_PAGE_FIRST};
    uint32_t layers = pattern == BLOCKS ? 1 : pieces >= 1u << 20 ? 512 : 32;
    *blocks = (uint32_t)(pieces / (pattern == BLOCKS ? 1 : 2 * layers));
    return (struct hl_fixture_shape){.kind = kinds[pattern],
                                     .layers = layers,
                                     .groups = 1,
                                     .pages = 2 * *blocks,
                                     .page_tokens = 1,
                                     .k_bytes = 4096,
                                     .v_bytes = 4096,
                                     .slots = 1,
                                     .empty_layer = layers};
}

struct bench {
    hl_layout layout;
    struct hl_fixture_world world;
    struct hl_plan_request request;
};

static void set_up(struct bench *bench, enum pattern pattern, uint64_t pieces)
{
    hl_random random;
    hl_random_seed(&random, 7);
    uint32_t blocks;
    struct hl_fixture_shape shape = shape_of(pattern, pieces, &blocks);
    hl_fixture_layout(&shape, &bench->layout);
    struct hl_fixture_placement placement = {.arenas = 1,
                                             .chunk_bytes = HL_ARENA_CHUNK_BYTES,
                                             .blocks_per_allocation = 1,
                                             .scattered = pattern != PITCH,
                                             .align = HL_ARENA_ALIGN};
    hl_fixture_world(&bench->layout, &blocks, &placement, false, false, &random, &bench->world);
    bench->request = (struct hl_plan_request){
        .layout = &bench->layout, .blocks = bench->world.blocks, .block_count = bench->world.block_count};
}

static void tear_down(struct bench *bench)
{
    hl_fixture_free_world(&bench->world);
    hl_fixture_free_layout(&bench->layout);
}

static hl_plan *compile(const struct bench *bench)
{
    hl_plan *plan = NULL;
    hl_error err;
    if (hl_plan_compile(&bench->request, &plan, &err)) {
        fprintf(stderr, "plan_bench: %s\n", err.text);
        exit(1);
    }
    return plan;
}

static void decode(const struct bench *bench, const hl_plan *plan)
{
    for (size_t i = 0; i < hl_plan_part_count(plan); i++) {
        struct hl_plan_part part;
        hl_error err;
        size_t size;
        const void *bytes = hl_plan_part_bytes(plan, i, &size);
        if (hl_plan_decode(bytes, size, &part, &err) || hl_plan_validate(&part, &bench->world.tables, &err)) {
            fprintf(stderr, "plan_bench: %s\n", err.text);
            exit(1);
        }
    }
}

static double least(double a, double b)
{
    return a == 0 || b < a ? b : a;
}

static struct point measure(enum pattern pattern, uint64_t pieces)
{
    struct bench bench;
    set_up(&bench, pattern, pieces);
    struct point point = {.pattern = pattern_names[pattern], .pieces = pieces};
    unsigned rounds = pieces >= 1u << 20 ? 5 : (unsigned)(4 * (1u << 20) / pieces);
    for (unsigned i = 0; i < rounds; i++) {
        int64_t start = hl_clock_ns();
        hl_plan *plan = compile(&bench);
        int64_t compiled = hl_clock_ns();
        decode(&bench, plan);
        int64_t decoded = hl_clock_ns();
        point.compile_ns = least(point.compile_ns, (double)(compiled - start) / (double)pieces);
        point.decode_ns = least(point.decode_ns, (double)(decoded - compiled) / (double)pieces);
        struct hl_plan_stats stats;
        hl_plan_get_stats(plan, &stats);
        point.parts = hl_plan_part_count(plan);
        point.metadata_bytes = stats.metadata_bytes;
        assert(stats.pieces == pieces);
        assert(pattern == PITCH ? stats.ranges == 0 : stats.run_rows < pieces / 4);
        hl_plan_free(plan);
    }
    tear_down(&bench);
    return point;
}

static int once(const char *name, uint64_t pieces)
{
    enum pattern pattern = SCATTERED;
    while (pattern < PATTERNS && strcmp(name, pattern_names[pattern]) != 0)
        pattern++;
    if (pattern == PATTERNS || pieces < 1024 || pieces > 1u << 20) {
        fprintf(stderr, "plan_bench: no pattern %s with %llu pieces\n", name, (unsigned long long)pieces);
        return 2;
    }
    struct bench bench;
    set_up(&bench, pattern, pieces);
    hl_plan *plan = compile(&bench);
    decode(&bench, plan);
    hl_plan_free(plan);
    tear_down(&bench);
    return 0;
}

static int write_json(const char *path, const struct point *points, size_t count)
{
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return 1;
    }
    fprintf(file, "[\n");
    for (size_t i = 0; i < count; i++)
        fprintf(file,
                "  {\"pattern\": \"%s\", \"pieces\": %llu, \"parts\": %llu, \"metadata_bytes\": %llu, "
                "\"compile_ns_per_piece\": %.2f, \"decode_ns_per_piece\": %.2f}%s\n",
                points[i].pattern, (unsigned long long)points[i].pieces, (unsigned long long)points[i].parts,
                (unsigned long long)points[i].metadata_bytes, points[i].compile_ns, points[i].decode_ns,
                i + 1 < count ? "," : "");
    fprintf(file, "]\n");
    return fclose(file) ? 1 : 0;
}

static int curve(const char *json)
{
    struct point points[6 * PATTERNS];
    size_t count = 0;
    printf("%-10s %8s %6s %10s %18s %18s\n", "pattern", "pieces", "parts", "metadata", "compile ns/piece",
           "decode ns/piece");
    for (enum pattern pattern = 0; pattern < PATTERNS; pattern++)
        for (uint64_t pieces = 1u << 10; pieces <= 1u << (pattern == BLOCKS ? 18 : 20); pieces *= 4) {
            struct point p = points[count++] = measure(pattern, pieces);
            printf("%-10s %8llu %6llu %10llu %18.2f %18.2f\n", p.pattern, (unsigned long long)p.pieces,
                   (unsigned long long)p.parts, (unsigned long long)p.metadata_bytes, p.compile_ns,
                   p.decode_ns);
        }
    return json ? write_json(json, points, count) : 0;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return curve(NULL);
    if (argc == 3 && !strcmp(argv[1], "--json"))
        return curve(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "--once"))
        return once(argv[2], strtoull(argv[3], NULL, 0));
    fprintf(stderr, "usage: plan_bench [--json FILE | --once PATTERN PIECES]\n");
    return 2;
}
