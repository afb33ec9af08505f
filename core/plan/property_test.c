/* Random layouts, placements and part sizes: a plan moves exactly the bytes that layout and blocks say. Each
 * seed is a case of its own; a failure prints the seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan_fixture.h"
#include "core/testing/cunit.h"

enum { SEEDS = 20000 };

static struct hl_fixture_shape random_shape(hl_random *r)
{
    struct hl_fixture_shape shape = {.kind = hl_random_below(r, HL_FIXTURE_KINDS),
                                     .layers = 1 + (uint32_t)hl_random_below(r, 6),
                                     .pages = 1 + (uint32_t)hl_random_below(r, 12),
                                     .page_tokens = 1 + (uint32_t)hl_random_below(r, 5),
                                     .k_bytes = 1 + (uint32_t)hl_random_below(r, 24),
                                     .token_major = hl_random_below(r, 3) == 0,
                                     .slots = 1 + (uint32_t)hl_random_below(r, 2)};
    shape.groups = 1 + (uint32_t)hl_random_below(r, shape.layers < 3 ? shape.layers : 3);
    bool equal_sides = hl_random_below(r, 2) || shape.kind == HL_FIXTURE_ROW_FIRST;
    shape.v_bytes = equal_sides ? shape.k_bytes : 1 + (uint32_t)hl_random_below(r, 24);
    shape.slot = (uint32_t)hl_random_below(r, shape.slots);
    shape.empty_layer = hl_random_below(r, 4) ? shape.layers : (uint32_t)hl_random_below(r, shape.layers);
    return shape;
}

static void random_world(const hl_layout *layout, bool disjoint, hl_random *r, struct hl_fixture_world *world)
{
    uint32_t counts[HL_LAYOUT_GROUPS], pages = layout->groups[0].pages, left = pages;
    uint64_t largest = 1;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        counts[g] = (uint32_t)hl_random_below(r, (disjoint ? left : pages) + 1);
        left -= disjoint ? counts[g] : 0;
        if (layout->groups[g].block_bytes > largest)
            largest = layout->groups[g].block_bytes;
    }
    struct hl_fixture_placement placement = {.arenas = 1 + (uint32_t)hl_random_below(r, 2),
                                             .blocks_per_allocation = 1 + (uint32_t)hl_random_below(r, 3),
                                             .scattered = hl_random_below(r, 3) != 0,
                                             .align = hl_random_below(r, 2) ? 1 : 8};
    placement.chunk_bytes = largest * placement.blocks_per_allocation + hl_random_below(r, 8 * largest);
    hl_fixture_world(layout, counts, &placement, true, disjoint, r, world);
}

/* What a reader sees of a plan, part after part. */
struct reading {
    uint32_t layer; /* whose last section is awaited */
    uint64_t payload;
    bool ok;
};

static void read_part(const hl_plan *plan, size_t index, const struct hl_plan_request *request,
                      struct hl_fixture_world *world, struct reading *reading)
{
    size_t size;
    const void *bytes = hl_plan_part_bytes(plan, index, &size);
    void *copy = hl_fixture_private(bytes, size);
    struct hl_plan_part part;
    hl_error err = {0};
    uint64_t bound = request->part_bytes;
    if (request->first_part_bytes && index < 20 && request->first_part_bytes << index < bound)
        bound = request->first_part_bytes << index;
    if (hl_plan_decode(copy, size, &part, &err) || hl_plan_validate(&part, &world->tables, &err)) {
        fprintf(stderr, "part %zu: %s\n", index, err.text);
        reading->ok = false;
        goto out;
    }
    reading->ok &= size <= bound && part.header->part_index == index &&
                   part.header->part_count == hl_plan_part_count(plan) && part.header->identity.epoch == 11;
    for (uint32_t i = 0; i < part.header->section_count; i++) {
        reading->ok &=
            part.sections[i].layer == reading->layer; /* nothing of a layer follows its last section */
        hl_fixture_apply_section(&part, i, world);
        reading->layer += part.sections[i].flags & HL_PLAN_LAYER_LAST;
    }
    reading->payload += part.header->payload_bytes;
out:
    free(copy);
}

static bool moves_the_same_bytes(struct hl_fixture_world *world)
{
    size_t tensors = world->tables.tensor_count;
    bool same = true;
    unsigned char **expected = calloc(tensors, sizeof *expected);
    for (size_t t = 0; t < tensors; t++) {
        expected[t] = malloc(world->tensor_bytes[t] + 1);
        memset(expected[t], HL_FIXTURE_POISON, world->tensor_bytes[t]);
    }
    hl_fixture_copy_naively(world, expected);
    for (size_t t = 0; t < tensors; t++) {
        same &= memcmp(expected[t], world->tensor_memory[t], world->tensor_bytes[t]) == 0;
        free(expected[t]);
    }
    free(expected);
    return same;
}

static uint64_t naive_payload(const struct hl_fixture_world *world, uint64_t *pieces)
{
    uint64_t bytes = 0;
    *pieces = 0;
    for (size_t i = 0; i < world->block_count; i++)
        for (uint32_t k = 0; k < world->layout->component_count; k++) {
            const struct hl_layout_component *c = &world->layout->components[k];
            if (c->group != world->blocks[i].group)
                continue;
            bytes += c->rows * c->row_bytes;
            *pieces += c->rows;
        }
    return bytes;
}

/* Sums over all seeds, to see that the seeds reach what they are for. */
static struct hl_plan_stats totals;
static uint64_t parts_total;

static bool check_plan(const struct hl_plan_request *request, struct hl_fixture_world *world)
{
    hl_plan *plan = NULL;
    hl_error err = {0};
    struct hl_plan_stats stats;
    struct reading reading = {.ok = true};
    uint64_t pieces, payload = naive_payload(world, &pieces);
    if (hl_plan_compile(request, &plan, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    hl_plan_get_stats(plan, &stats);
    for (size_t i = 0; i < hl_plan_part_count(plan); i++)
        read_part(plan, i, request, world, &reading);
    bool ok = reading.ok && reading.layer == request->layout->layers && reading.payload == payload &&
              stats.payload_bytes == payload && stats.pieces == pieces &&
              stats.ranges + stats.run_rows <= pieces && moves_the_same_bytes(world);
    totals.ranges += stats.ranges;
    totals.runs += stats.runs;
    totals.pieces += stats.pieces;
    totals.run_rows += stats.run_rows;
    parts_total += hl_plan_part_count(plan);
    hl_plan_free(plan);
    return ok;
}

static bool check_seed(uint64_t seed)
{
    hl_random random;
    hl_random_seed(&random, seed);
    struct hl_fixture_shape shape = random_shape(&random);
    hl_layout layout;
    struct hl_fixture_world world;
    hl_fixture_layout(&shape, &layout);
    random_world(&layout, shape.kind == HL_FIXTURE_SHARED, &random, &world);
    struct hl_plan_request request = {.layout = &layout,
                                      .identity = {.epoch = 11},
                                      .blocks = world.blocks,
                                      .block_count = world.block_count,
                                      .chunk_bytes = world.arenas[0].chunk_bytes,
                                      .part_bytes =
                                          320 + hl_random_below(&random, 4) * hl_random_below(&random, 1000)};
    if (hl_random_below(&random, 2))
        request.first_part_bytes = 320 + hl_random_below(&random, request.part_bytes - 319);
    bool ok = check_plan(&request, &world);
    if (!ok)
        fprintf(stderr,
                "seed %llu: kind %d, layers %u, groups %u, pages %u, tokens %u, k %u, v %u, token_major %d\n",
                (unsigned long long)seed, shape.kind, shape.layers, shape.groups, shape.pages,
                shape.page_tokens, shape.k_bytes, shape.v_bytes, shape.token_major);
    hl_fixture_free_world(&world);
    hl_fixture_free_layout(&layout);
    return ok;
}

static void a_plan_moves_exactly_the_bytes_of_its_blocks(void)
{
    unsigned failed = 0;
    for (uint64_t seed = 1; seed <= SEEDS && failed < 5; seed++)
        failed += !check_seed(seed);
    CU_ASSERT_EQUAL(failed, 0);
    CU_ASSERT_TRUE(totals.runs > SEEDS / 4);
    CU_ASSERT_TRUE(totals.run_rows > 4 * totals.runs);
    CU_ASSERT_TRUE(totals.ranges > SEEDS);
    CU_ASSERT_TRUE(totals.ranges + totals.run_rows < totals.pieces);
    CU_ASSERT_TRUE(parts_total > 2 * SEEDS);
}

HL_TESTS(plan_property, HL_CASE(a_plan_moves_exactly_the_bytes_of_its_blocks));
