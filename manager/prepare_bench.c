/* What a range of a restore costs the Manager from the look at its record to GRANTED: claim, descriptor,
 * leases, plan, budgets, the first part into the bank. One block has 128 ranges, and no two merge. The best
 * of several rounds, in nanoseconds a range; beside it the plan's compilation alone. It is a benchmark:
 * nothing is asserted about time. */
#include <malloc.h>

#include "core/base/clock.h"
#include "manager/manager_testing.h"

enum { LAYERS = 64, ROUNDS = 9 };

static hl_layout *bench_layout(uint32_t pages)
{
    const struct hl_model_geometry geometry = {
        .name = "bench", .layers = LAYERS, .kv_heads = 1, .head_dim = 8, .element_bytes = 2};
    const struct hl_layout_options options = {.kind = HL_LAYOUT_CONTIGUOUS, .page_tokens = 1, .pages = pages};
    hl_layout *layout = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &options, &layout, &err), err);
    return layout;
}

/* Takes a whole request to GRANTED, and undoes it; returns the time of the look. */
static int64_t prepare_once(struct world *world, uint32_t blocks, const uint32_t *pages)
{
    uint64_t lease = world_query(world, 0, 0, 0, blocks, NULL);
    engine_reserve(world, 0, 0);
    engine_submit(world, 0, 0, 0, 1, &lease, &blocks, pages);
    int64_t start_ns = hl_clock_ns();
    world_look(world, 0, 0);
    int64_t ns = hl_clock_ns() - start_ns;
    WORLD_EXPECT_STATE(world, 0, 0, HL_GRANT_GRANTED);
    engine_cancel(world, 0, 0);
    world_look(world, 0, 0);
    engine_retire(world, 0, 0);
    return ns;
}

static int64_t compile_once(struct world *world, uint32_t blocks)
{
    const struct hl_plan_request request = {
        .layout = world->layout, .blocks = world->manager->plan_blocks, .block_count = blocks};
    hl_plan *plan;
    int64_t start_ns = hl_clock_ns();
    HL_REQUIRE_OK(hl_plan_compile(&request, &plan, &world->err), world->err);
    int64_t ns = hl_clock_ns() - start_ns;
    hl_plan_free(plan);
    return ns;
}

static void cost_of_preparation(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30); /* as the daemon does: plans come from memory that has been touched */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    printf("%10s %10s %14s %14s\n", "blocks", "ranges", "prepare ns", "compile ns");
    for (uint32_t blocks = 128; blocks <= 4096; blocks *= 2) {
        struct world world;
        hl_random random;
        uint32_t *pages = malloc(2 * blocks * sizeof *pages);
        CU_ASSERT_PTR_NOT_NULL_FATAL(pages);
        hl_random_seed(&random, blocks);
        hl_random_permutation(&random, pages, 2 * blocks);
        world_open(&world, &(struct world_options){.layout = bench_layout(2 * blocks),
                                                   .arena_bytes = 16 * HL_MIB,
                                                   .index_blocks = 8192});
        for (uint32_t i = 0; i < blocks; i++)
            world_store(&world, 0, i);
        int64_t best = INT64_MAX, best_compile = INT64_MAX;
        for (int round = 0; round < ROUNDS; round++) {
            int64_t ns = prepare_once(&world, blocks, pages), compile_ns = compile_once(&world, blocks);
            best = ns < best ? ns : best;
            best_compile = compile_ns < best_compile ? compile_ns : best_compile;
        }
        uint64_t ranges = 2ull * LAYERS * blocks;
        printf("%10u %10llu %14.1f %14.1f\n", blocks, (unsigned long long)ranges,
               (double)best / (double)ranges, (double)best_compile / (double)ranges);
        world_close(&world);
        free(pages);
    }
}

HL_TESTS(prepare_bench, HL_CASE(cost_of_preparation));
