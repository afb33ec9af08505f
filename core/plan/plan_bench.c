/* What a piece costs: compile with encoding, decode with validation, over the number of pieces, for blocks
 * that lie anywhere (no two pieces merge or form a run) and for blocks one after another (every layer is one
 * run).
 *
 *     plan_bench [--json FILE]             the curve: best of several rounds, as a table
 *     plan_bench --once PIECES [pitch]     one compile and one decode, for instruction counts under valgrind
 */
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

/* Split K and V: 2 pieces a layer and block. From a million on, more layers and fewer blocks keep the tables
 * of allocations, and so the metadata, within its bound. */
static struct hl_fixture_shape shape_of(uint64_t pieces, uint32_t *blocks)
{
    uint32_t layers = pieces >= 1u << 20 ? 512 : 32;
    *blocks = (uint32_t)(pieces / (2 * layers));
    return (struct hl_fixture_shape){.kind = HL_FIXTURE_SPLIT,
                                     .layers = layers,
                                     .groups = 1,
                                     .pages = 2 * *blocks,
                                     .page_tokens = 16,
                                     .k_bytes = 256,
                                     .v_bytes = 256,
                                     .slots = 1,
                                     .empty_layer = layers};
}

struct bench {
    hl_layout layout;
    struct hl_fixture_world world;
    struct hl_plan_request request;
};

static void set_up(struct bench *bench, uint64_t pieces, bool scattered)
{
    hl_random random;
    hl_random_seed(&random, 7);
    uint32_t blocks;
    struct hl_fixture_shape shape = shape_of(pieces, &blocks);
    hl_fixture_layout(&shape, &bench->layout);
    struct hl_fixture_placement placement = {.arenas = 1,
                                             .chunk_bytes = HL_ARENA_CHUNK_BYTES,
                                             .blocks_per_allocation = 1,
                                             .scattered = scattered,
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

static struct point measure(uint64_t pieces, bool scattered)
{
    struct bench bench;
    set_up(&bench, pieces, scattered);
    struct point point = {.pattern = scattered ? "scattered" : "pitch", .pieces = pieces};
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
        assert(scattered ? stats.run_rows < pieces / 4 : stats.ranges == 0);
        hl_plan_free(plan);
    }
    tear_down(&bench);
    return point;
}

static int once(uint64_t pieces, bool scattered)
{
    struct bench bench;
    set_up(&bench, pieces, scattered);
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
    struct point points[12];
    size_t count = 0;
    printf("%-10s %8s %6s %10s %18s %18s\n", "pattern", "pieces", "parts", "metadata", "compile ns/piece",
           "decode ns/piece");
    for (int scattered = 1; scattered >= 0; scattered--)
        for (uint64_t pieces = 1u << 10; pieces <= 1u << 20; pieces *= 4) {
            struct point p = points[count++] = measure(pieces, scattered);
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
    if ((argc == 3 || argc == 4) && !strcmp(argv[1], "--once"))
        return once(strtoull(argv[2], NULL, 0), argc == 3);
    fprintf(stderr, "usage: plan_bench [--json FILE | --once PIECES [pitch]]\n");
    return 2;
}
