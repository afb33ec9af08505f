/* What hl_upload_start() refuses of its arguments, and that a refusal starts and keeps nothing. */
#include "core/weights/upload/upload_testing.h"

static const uint64_t sizes[] = {1000, 0, 3000, 500};
enum { COUNT = 4 };
static const struct rig_options four = {.bytes = sizes, .count = COUNT, .gap = 64, .software = true};

/* The rig's destinations after a change are refused, and the text has `word`. */
static void expect_refused(struct rig *rig, size_t count, hl_status status, const char *word)
{
    hl_upload *upload = NULL;
    HL_EXPECT_STATUS(
        hl_upload_start(rig->dev, rig->lease, &rig->options, rig->destinations, count, &upload, &rig->err),
        status, rig->err);
    CU_ASSERT_PTR_NULL(upload);
    if (!strstr(rig->err.text, word))
        fprintf(stderr, "not in \"%s\": %s\n", rig->err.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(rig->err.text, word));
    CU_ASSERT_EQUAL(testing_lease_holds(rig->lease), 1);
    rig_expect_nothing_left(rig);
}

static void tensors_that_are_unknown_unnamed_or_repeated_are_refused(void)
{
    struct rig rig;
    rig_open(&rig, &four);
    rig.destinations[2].tensor = NULL;
    expect_refused(&rig, COUNT, HL_E_INVALID, "destinations[2].tensor");
    rig.destinations[2].tensor = "t9";
    expect_refused(&rig, COUNT, HL_E_INVALID, "t9");
    rig.destinations[2].tensor = "";
    expect_refused(&rig, COUNT, HL_E_INVALID, "destinations[2].tensor");
    rig.destinations[2].tensor = "t0";
    expect_refused(&rig, COUNT, HL_E_INVALID, "destinations[0] and [2]");
    rig.destinations[2].tensor = "t2";
    rig.destinations[3].tensor = "t1"; /* without bytes, but the same tensor */
    expect_refused(&rig, COUNT, HL_E_INVALID, "same tensor");
    rig_close(&rig);
}

static void too_little_room_is_refused_and_more_is_not(void)
{
    struct rig rig;
    rig_open(&rig, &four);
    rig.destinations[2].bytes = 2999;
    expect_refused(&rig, COUNT, HL_E_RANGE, "t2 has 3000 bytes");
    rig.destinations[2].bytes = 3064;
    rig.destinations[1].bytes = 0;
    rig_upload(&rig);
    rig.destinations[2].device_ptr = UINT64_MAX - 3000;
    expect_refused(&rig, COUNT, HL_E_RANGE, "pass the end");
    rig_close(&rig);
}

static void an_address_of_0_is_refused_unless_nothing_goes_there(void)
{
    struct rig rig;
    rig_open(&rig, &four);
    rig.destinations[1].device_ptr = 0;
    rig_upload(&rig);
    rig.destinations[0].device_ptr = 0;
    expect_refused(&rig, COUNT, HL_E_INVALID, "t0: device_ptr");
    rig_close(&rig);
}

/* With a gap of 600 bytes: t0 in [0, 1000), t2 in [2200, 5200), t3 in [5800, 6300). */
static void destinations_that_overlap_are_refused(void)
{
    static const struct {
        size_t moved, beside;
        int64_t by; /* from the other's first byte */
        hl_status status;
    } rows[] = {{2, 0, 999, HL_E_OVERLAP},  {2, 0, 1000, HL_OK}, {3, 2, 100, HL_E_OVERLAP},
                {3, 2, -499, HL_E_OVERLAP}, {3, 2, -500, HL_OK}, {0, 3, 0, HL_E_OVERLAP},
                {1, 2, 10, HL_OK} /* without bytes */};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rig rig;
        struct rig_options options = four;
        options.gap = 600;
        rig_open(&rig, &options);
        rig.destinations[rows[i].moved].device_ptr =
            rig.destinations[rows[i].beside].device_ptr + (uint64_t)rows[i].by;
        if (rows[i].status)
            expect_refused(&rig, COUNT, rows[i].status, "overlap");
        else
            CU_ASSERT_TRUE(hl_upload_close(rig_start(&rig)));
        rig_close(&rig);
    }
}

static void an_event_given_twice_is_refused(void)
{
    struct rig rig;
    rig_open(&rig, &four);
    void *own = rig.destinations[3].event;
    rig.destinations[3].event = rig.destinations[1].event;
    expect_refused(&rig, COUNT, HL_E_INVALID, "destinations[1] and [3]");
    CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, "event"));
    rig.destinations[3].event = own;
    rig_upload(&rig);
    rig_close(&rig);
}

static void no_destinations_or_too_many_are_refused(void)
{
    struct rig rig;
    rig_open(&rig, &four);
    expect_refused(&rig, 0, HL_E_INVALID, "destinations");
    expect_refused(&rig, HL_WEIGHT_TENSORS + 1, HL_E_LIMIT, "count");
    rig_close(&rig);
}

static void missing_arguments_are_named(void)
{
    struct rig rig;
    hl_upload *upload = NULL;
    rig_open(&rig, &four);
    struct {
        hl_device *dev;
        hl_weight_lease *lease;
        const hl_weight_upload_options *options;
        hl_upload **upload;
        const char *name;
    } rows[] = {{NULL, rig.lease, &rig.options, &upload, "dev"},
                {rig.dev, NULL, &rig.options, &upload, "lease"},
                {rig.dev, rig.lease, NULL, &upload, "options"},
                {rig.dev, rig.lease, &rig.options, NULL, "upload"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HL_EXPECT_STATUS(hl_upload_start(rows[i].dev, rows[i].lease, rows[i].options, rig.destinations, COUNT,
                                         rows[i].upload, &rig.err),
                         HL_E_INVALID, rig.err);
        CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, rows[i].name));
    }
    HL_EXPECT_STATUS(hl_upload_start(rig.dev, rig.lease, &rig.options, NULL, COUNT, &upload, &rig.err),
                     HL_E_INVALID, rig.err);
    HL_EXPECT_STATUS(hl_upload_wait(NULL, 0, NULL, &rig.err), HL_E_INVALID, rig.err);
    HL_EXPECT_STATUS(hl_upload_wait_enqueued(NULL, 0, &rig.err), HL_E_INVALID, rig.err);
    rig_expect_nothing_left(&rig);
    rig_close(&rig);
}

/* --- options --- */

static void defaults_are_filled_in(void)
{
    hl_weight_upload_options options, resolved;
    hl_error err;
    hl_weight_upload_options_init(&options);
    CU_ASSERT_EQUAL(options.size, sizeof options);
    CU_ASSERT_EQUAL(options.route, HL_WEIGHT_UPLOAD_AUTO);
    HL_REQUIRE_OK(hl_upload_options_resolve(&options, &resolved, &err), err);
    CU_ASSERT_EQUAL(resolved.staging_bytes, 64 * HL_MIB);
    CU_ASSERT_EQUAL(resolved.slot_bytes, 2 * HL_MIB);
    CU_ASSERT_EQUAL(resolved.register_chunk_bytes, 1 * HL_GIB);
    CU_ASSERT_EQUAL(resolved.register_piece_bytes, 64 * HL_MIB);
    CU_ASSERT_TRUE(resolved.copy_threads >= 1 && resolved.copy_threads <= 12);
}

static void three_quarters_of_the_cores_copy(void)
{
    static const uint32_t rows[][2] = {{1, 1}, {2, 1}, {3, 2}, {4, 3}, {8, 6}, {15, 11}, {16, 12}, {96, 12}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CU_ASSERT_EQUAL(hl_upload_threads_for(rows[i][0]), rows[i][1]);
}

static void a_ring_and_a_slot_fit_each_other(void)
{
    static const struct {
        uint64_t staging, slot, want_staging, want_slot;
    } rows[] = {{4 * HL_MIB, 0, 4 * HL_MIB, 1 * HL_MIB},
                {8 * HL_MIB, 0, 8 * HL_MIB, 2 * HL_MIB},
                {256 * HL_MIB, 0, 256 * HL_MIB, 2 * HL_MIB},
                {8192, 0, 8192, 4096},
                {5 * 4096, 0, 5 * 4096, 4096},
                {0, 16 * HL_MIB, 64 * HL_MIB, 16 * HL_MIB},
                {0, HL_GIB, 4 * HL_GIB, HL_GIB}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hl_weight_upload_options options, resolved;
        hl_error err;
        hl_weight_upload_options_init(&options);
        options.staging_bytes = rows[i].staging;
        options.slot_bytes = rows[i].slot;
        HL_REQUIRE_OK(hl_upload_options_resolve(&options, &resolved, &err), err);
        CU_ASSERT_EQUAL(resolved.staging_bytes, rows[i].want_staging);
        CU_ASSERT_EQUAL(resolved.slot_bytes, rows[i].want_slot);
    }
}

#define EXPECT_OPTION(change, status, word)                                                                  \
    do {                                                                                                     \
        hl_weight_upload_options options, resolved = {.size = 7};                                            \
        hl_error err = {0};                                                                                  \
        hl_weight_upload_options_init(&options);                                                             \
        change;                                                                                              \
        HL_EXPECT_STATUS(hl_upload_options_resolve(&options, &resolved, &err), status, err);                 \
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));                                                      \
        CU_ASSERT_EQUAL(resolved.size, 7);                                                                   \
    } while (0)

static void options_out_of_bounds_are_refused_by_name(void)
{
    EXPECT_OPTION(options.size--, HL_E_INVALID, "options.size");
    EXPECT_OPTION(options.route = (hl_weight_upload_route)3, HL_E_INVALID, "route");
    EXPECT_OPTION(options.slot_bytes = 4095, HL_E_INVALID, "slot_bytes");
    EXPECT_OPTION(options.slot_bytes = HL_UPLOAD_SLOT_BYTES + 4096, HL_E_LIMIT, "slot_bytes");
    EXPECT_OPTION(options.staging_bytes = 8193, HL_E_INVALID, "staging_bytes");
    EXPECT_OPTION(options.staging_bytes = 4096, HL_E_INVALID, "staging_bytes");
    EXPECT_OPTION((options.staging_bytes = 1 << 20, options.slot_bytes = 1 << 20), HL_E_INVALID,
                  "staging_bytes");
    EXPECT_OPTION(options.staging_bytes = HL_ARENA_CHUNK_BYTES + 4096, HL_E_LIMIT, "staging_bytes");
    EXPECT_OPTION(options.register_chunk_bytes = 4097, HL_E_INVALID, "register_chunk_bytes");
    EXPECT_OPTION(options.register_piece_bytes = 5000, HL_E_INVALID, "register_piece_bytes");
    EXPECT_OPTION((options.register_chunk_bytes = 8192, options.register_piece_bytes = 12288), HL_E_LIMIT,
                  "register_piece_bytes");
    EXPECT_OPTION(options.register_chunk_bytes = HL_ARENA_CHUNK_BYTES + 4096, HL_E_LIMIT,
                  "register_chunk_bytes");
    EXPECT_OPTION(options.copy_threads = HL_UPLOAD_THREADS + 1, HL_E_LIMIT, "copy_threads");
}

HL_TESTS(upload_check, HL_CASE(tensors_that_are_unknown_unnamed_or_repeated_are_refused),
         HL_CASE(too_little_room_is_refused_and_more_is_not),
         HL_CASE(an_address_of_0_is_refused_unless_nothing_goes_there),
         HL_CASE(destinations_that_overlap_are_refused), HL_CASE(an_event_given_twice_is_refused),
         HL_CASE(no_destinations_or_too_many_are_refused), HL_CASE(missing_arguments_are_named),
         HL_CASE(defaults_are_filled_in), HL_CASE(three_quarters_of_the_cores_copy),
         HL_CASE(a_ring_and_a_slot_fit_each_other), HL_CASE(options_out_of_bounds_are_refused_by_name));
