/* Random layouts, blocks, pages, part sizes and rings; each route; bytes compared with the naive copier, and
 * every byte outside the restored pages must still be poison. A failing case prints its seed:
 * HOSTLANE_TEST_SEED replays it. */
#include "core/transfer/transfer_testing.h"

enum { CASES = 60 };

static struct rig_shape random_shape(hl_random *random)
{
    static const uint32_t widths[] = {1, 7, 16, 48, 100, 256, 512, 1024, 2064};
    struct rig_shape shape = {.layers = 1 + (uint32_t)hl_random_below(random, 6),
                              .pages = 1 + (uint32_t)hl_random_below(random, 48),
                              .tokens = 1 + (uint32_t)hl_random_below(random, 6),
                              .row_bytes = widths[hl_random_below(random, sizeof widths / sizeof widths[0])],
                              .tensors = (enum rig_tensors)hl_random_below(random, 3),
                              .token_major = hl_random_below(random, 2) != 0,
                              .gap = (uint32_t)(hl_random_below(random, 3) * 8),
                              .skew = (uint32_t)(hl_random_below(random, 4) * 4)};
    shape.blocks = 1 + (uint32_t)hl_random_below(random, shape.pages);
    shape.groups = shape.layers > 1 ? 1 + (uint32_t)hl_random_below(random, 2) : 1;
    return shape;
}

static void open_random_transfer(struct rig *rig, hl_random *random, enum hl_route route)
{
    hl_error err = {0};
    struct hl_transfer_options options = rig_transfer_options(rig, route);
    options.sm_cap = 1 + (uint32_t)hl_random_below(random, 16);
    uint32_t segments = 1 + (uint32_t)hl_random_below(random, 4);
    uint32_t descriptors = 1 + (uint32_t)hl_random_below(random, 64);
    HL_REQUIRE_OK(hl_transfer_open_with_ring(&options, segments, descriptors, &rig->transfer, &err), err);
    /* The model is moved about, so that every choice is made: it may cost time, never bytes. */
    struct hl_route_cost *costs[] = {&rig->transfer->model.copy, &rig->transfer->model.rows,
                                     &rig->transfer->model.batch, &rig->transfer->model.kernel};
    for (unsigned i = 0; i < 4; i++)
        *costs[i] =
            (struct hl_route_cost){.call_ns = (double)hl_random_below(random, 5000),
                                   .piece_ns = (double)hl_random_below(random, 2000),
                                   .bytes_per_second = 1e9 + (double)hl_random_below(random, 1u << 30),
                                   .small_bytes = hl_random_below(random, 512),
                                   .small_piece_ns = (double)hl_random_below(random, 4000)};
}

/* One restore, or two of which the second starts while the first may still drain. */
static bool restore_random(struct rig *rig, hl_random *random)
{
    uint32_t all = (1u << rig->shape.groups) - 1;
    for (uint64_t rounds = 1 + hl_random_below(random, 2); rounds > 0; rounds--) {
        uint64_t part_bytes = hl_random_below(random, 2) ? 320 + hl_random_below(random, 4096) : 0;
        rig_compile(rig, 1 + (uint32_t)hl_random_below(random, all),
                    (uint32_t)hl_random_below(random, rig->shape.blocks + 1), hl_random_below(random, 2) != 0,
                    part_bytes);
        rig_restore(rig);
    }
    return rig_tensors_match(rig);
}

static void run_case(uint64_t seed)
{
    hl_random random;
    struct rig rig;
    hl_random_seed(&random, seed);
    rig_open(&rig, &(struct rig_options){.shape = random_shape(&random), .seed = seed});
    for (int route = HL_ROUTE_AUTO; route <= HL_ROUTE_KERNEL; route++) {
        open_random_transfer(&rig, &random, (enum hl_route)route);
        bool match = restore_random(&rig, &random);
        if (!match)
            fprintf(stderr, "HOSTLANE_TEST_SEED=%llu, route %s: bytes differ\n", (unsigned long long)seed,
                    hl_route_name((enum hl_route)route));
        CU_ASSERT_TRUE(match);
        if (rig.dev->info.kind == HL_DEVICE_SOFTWARE)
            CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
        rig_close_transfer(&rig);
        rig_poison(&rig);
    }
    rig_close(&rig);
}

static void restored_bytes_equal_the_naive_copy(void)
{
    const char *replay = getenv("HOSTLANE_TEST_SEED");
    if (replay) {
        run_case(strtoull(replay, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= CASES; seed++)
        run_case(seed);
}

/* The canary of the comparison and of the checker: one wrong byte and one stray source are seen. */
static void a_wrong_byte_is_seen(void)
{
    struct rig rig;
    hl_random random;
    hl_random_seed(&random, 9);
    rig_open(&rig, &(struct rig_options){.shape = random_shape(&random), .seed = 9, .software = true});
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, rig.shape.blocks, false, 0);
    rig_restore(&rig);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    unsigned char wrong = RIG_POISON ^ 1;
    hl_software_poke(rig.dev, rig.tensors[0].base + rig.tensors[0].bytes - 1, &wrong, 1);
    CU_ASSERT_FALSE(rig_tensors_match(&rig));
    rig_close(&rig);
}

static void a_source_that_is_not_leased_is_seen(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    rig_open(&rig,
             &(struct rig_options){
                 .shape = {.layers = 1, .pages = 4, .blocks = 4, .tokens = 1, .row_bytes = 64, .groups = 1},
                 .seed = 9,
                 .software = true});
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, 4, false, 0);
    memset(rig.allowed, 0, rig.block_count * sizeof *rig.allowed);
    hl_operation *operation = rig_start(&rig);
    rig_submit_part(&rig, operation, 0, &err);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_TRUE(rig_counts(&rig).violations > 0);
    hl_operation_close(operation);
    rig_close(&rig);
}

HL_TESTS(transfer_property, HL_CASE(restored_bytes_equal_the_naive_copy), HL_CASE(a_wrong_byte_is_seen),
         HL_CASE(a_source_that_is_not_leased_is_seen));
