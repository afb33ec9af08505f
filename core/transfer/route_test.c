#include <math.h>
#include <stdio.h>

#include "core/testing/cunit.h"
#include "core/transfer/calibrate.h"
#include "core/transfer/route.h"

enum { MOST = 4096 };

/* A layer of `ranges` equal ranges and `runs` equal runs. */
struct sample {
    struct hl_work_range ranges[MOST];
    struct hl_work_run runs[MOST];
    struct hl_work work;
    struct hl_work_layer layer;
};

static struct sample *make_sample(uint32_t ranges, uint64_t range_bytes, uint32_t runs, uint32_t rows,
                                  uint64_t row_bytes)
{
    static struct sample sample;
    sample.work = (struct hl_work){.ranges = sample.ranges, .runs = sample.runs};
    sample.layer = (struct hl_work_layer){.range_count = ranges, .run_count = runs};
    for (uint32_t i = 0; i < ranges; i++)
        sample.ranges[i] = (struct hl_work_range){.bytes = range_bytes};
    for (uint32_t i = 0; i < runs; i++)
        sample.runs[i] = (struct hl_work_run){
            .row_bytes = row_bytes, .rows = rows, .src_pitch = 2 * row_bytes, .dst_pitch = row_bytes};
    return &sample;
}

static struct hl_route_model cuda_model(bool bulk, uint32_t blocks)
{
    struct hl_device_info info = {.kind = HL_DEVICE_CUDA, .bulk_copy = bulk};
    struct hl_route_model model;
    hl_route_default_model(&info, blocks, &model);
    return model;
}

static struct hl_route_choice choose(const struct hl_route_model *model, enum hl_route wanted,
                                     const struct sample *sample)
{
    return hl_route_choose(model, wanted, &sample->work, &sample->layer);
}

static void large_ranges_go_to_the_copy_engines(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    struct hl_route_choice choice = choose(&model, HL_ROUTE_AUTO, make_sample(16, 2 * HL_MIB, 0, 0, 0));
    CU_ASSERT_EQUAL(choice.route, HL_ROUTE_DIRECT);
    choice = choose(&model, HL_ROUTE_AUTO, make_sample(1, 4 * HL_KIB, 0, 0, 0));
    CU_ASSERT_EQUAL(choice.route, HL_ROUTE_DIRECT);
    CU_ASSERT_FALSE(choice.batch);
}

static void scattered_pages_go_to_the_kernel(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    const uint64_t sizes[] = {2 * HL_KIB, 4 * HL_KIB, 16 * HL_KIB, 32 * HL_KIB, 64 * HL_KIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_AUTO, make_sample(1024, sizes[i], 0, 0, 0)).route,
                        HL_ROUTE_KERNEL);
}

static void constant_pitch_goes_strided(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    const struct sample *sample = make_sample(0, 0, 2, 1024, 32 * HL_KIB);
    CU_ASSERT_TRUE(hl_route_strided(&model, &sample->runs[0]));
    CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_AUTO, sample).route, HL_ROUTE_DIRECT);
}

static void a_pitch_beyond_the_limit_goes_row_by_row(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    struct hl_work_run run = {.row_bytes = HL_MIB, .rows = 100, .src_pitch = HL_MIB, .dst_pitch = HL_MIB};
    CU_ASSERT_TRUE(hl_route_strided(&model, &run));
    run.src_pitch = HL_ROUTE_MAX_PITCH + 1;
    CU_ASSERT_FALSE(hl_route_strided(&model, &run));
    run.src_pitch = HL_MIB;
    run.dst_pitch = HL_ROUTE_MAX_PITCH + 1;
    CU_ASSERT_FALSE(hl_route_strided(&model, &run));
}

static void a_short_run_is_not_worth_a_strided_call(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    struct hl_work_run run = {
        .row_bytes = 32 * HL_KIB, .rows = 4, .src_pitch = 64 * HL_KIB, .dst_pitch = 32 * HL_KIB};
    CU_ASSERT_FALSE(hl_route_strided(&model, &run));
}

/* The direct route batches pieces when that is cheaper, and small pieces cost a batch as much as single
 * copies. */
static void batches_are_for_many_pieces(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    CU_ASSERT_FALSE(choose(&model, HL_ROUTE_DIRECT, make_sample(1, 32 * HL_KIB, 0, 0, 0)).batch);
    CU_ASSERT_TRUE(choose(&model, HL_ROUTE_DIRECT, make_sample(64, 32 * HL_KIB, 0, 0, 0)).batch);
    model.batch.small_piece_ns = 2 * model.copy.piece_ns;
    CU_ASSERT_FALSE(choose(&model, HL_ROUTE_DIRECT, make_sample(64, 16 * HL_KIB, 0, 0, 0)).batch);
    CU_ASSERT_TRUE(choose(&model, HL_ROUTE_DIRECT, make_sample(64, 16 * HL_KIB + 1, 0, 0, 0)).batch);
}

static void the_route_asked_for_is_taken(void)
{
    struct hl_route_model model = cuda_model(true, 4);
    const struct sample *sample = make_sample(1000, 4 * HL_KIB, 0, 0, 0);
    CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_DIRECT, sample).route, HL_ROUTE_DIRECT);
    sample = make_sample(1, HL_GIB, 0, 0, 0);
    CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_KERNEL, sample).route, HL_ROUTE_KERNEL);
}

/* Without bulk copies few blocks do not fill the link, so that batches of 64 KiB win. */
static void plain_loads_need_more_blocks(void)
{
    struct hl_route_model few = cuda_model(false, 2), many = cuda_model(false, 16);
    const struct sample *sample = make_sample(256, 64 * HL_KIB, 0, 0, 0);
    CU_ASSERT_EQUAL(choose(&few, HL_ROUTE_AUTO, sample).route, HL_ROUTE_DIRECT);
    CU_ASSERT_EQUAL(choose(&many, HL_ROUTE_AUTO, sample).route, HL_ROUTE_KERNEL);
}

static void the_software_device_never_takes_the_kernel_by_default(void)
{
    struct hl_device_info info = {.kind = HL_DEVICE_SOFTWARE};
    struct hl_route_model model;
    hl_route_default_model(&info, 64, &model);
    CU_ASSERT_FALSE(model.fitted);
    for (uint32_t count = 1; count <= MOST; count *= 2)
        for (uint64_t bytes = 1; bytes <= HL_MIB; bytes *= 4) {
            CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_AUTO, make_sample(count, bytes, 0, 0, 0)).route,
                            HL_ROUTE_DIRECT);
            CU_ASSERT_EQUAL(choose(&model, HL_ROUTE_AUTO, make_sample(0, 0, count, 4, bytes)).route,
                            HL_ROUTE_DIRECT);
        }
}

static bool is_near(double value, double expected)
{
    return fabs(value - expected) <= 1e-6 * fabs(expected);
}

static void the_fit_finds_the_line(void)
{
    const struct hl_route_cost line = {.call_ns = 5000, .piece_ns = 250, .bytes_per_second = 50e9};
    struct hl_calibrate_point one = {1, 4096, hl_route_ns(&line, 1, 4096)};
    struct hl_calibrate_point small = {64, 4096, hl_route_ns(&line, 64, 4096)};
    struct hl_calibrate_point large = {32, 65536, hl_route_ns(&line, 32, 65536)};
    struct hl_route_cost fitted = hl_calibrate_fit(&one, &small, &large);
    CU_ASSERT_TRUE(is_near(fitted.call_ns, line.call_ns));
    CU_ASSERT_TRUE(is_near(fitted.piece_ns, line.piece_ns));
    CU_ASSERT_TRUE(is_near(fitted.bytes_per_second, line.bytes_per_second));
}

static void the_fit_of_nonsense_is_usable(void)
{
    const double times[] = {1, 1e3, 1e9, 1e18};
    for (unsigned a = 0; a < 4; a++)
        for (unsigned b = 0; b < 4; b++)
            for (unsigned c = 0; c < 4; c++) {
                struct hl_calibrate_point one = {1, 4096, times[a]}, small = {64, 4096, times[b]};
                struct hl_calibrate_point large = {4, HL_MIB, times[c]};
                struct hl_route_cost fitted = hl_calibrate_fit(&one, &small, &large);
                CU_ASSERT_TRUE(isfinite(fitted.call_ns) && fitted.call_ns >= 0);
                CU_ASSERT_TRUE(isfinite(fitted.piece_ns) && fitted.piece_ns >= 0);
                CU_ASSERT_TRUE(isfinite(fitted.bytes_per_second) && fitted.bytes_per_second > 0);
            }
}

static void routes_have_names(void)
{
    for (int i = HL_ROUTE_AUTO; i <= HL_ROUTE_KERNEL; i++) {
        enum hl_route route = HL_ROUTE_AUTO;
        hl_error err = {0};
        HL_EXPECT_OK(hl_route_parse(hl_route_name((enum hl_route)i), &route, &err), err);
        CU_ASSERT_EQUAL((int)route, i);
    }
    enum hl_route route = HL_ROUTE_KERNEL;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_route_parse("Kernel", &route, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_route_parse(NULL, &route, &err), HL_E_INVALID, err);
    CU_ASSERT_EQUAL(route, HL_ROUTE_KERNEL);
    CU_ASSERT_STRING_EQUAL(hl_route_name((enum hl_route)9), "unknown");
}

HL_TESTS(route, HL_CASE(large_ranges_go_to_the_copy_engines), HL_CASE(scattered_pages_go_to_the_kernel),
         HL_CASE(constant_pitch_goes_strided), HL_CASE(a_pitch_beyond_the_limit_goes_row_by_row),
         HL_CASE(a_short_run_is_not_worth_a_strided_call), HL_CASE(batches_are_for_many_pieces),
         HL_CASE(the_route_asked_for_is_taken), HL_CASE(plain_loads_need_more_blocks),
         HL_CASE(the_software_device_never_takes_the_kernel_by_default), HL_CASE(the_fit_finds_the_line),
         HL_CASE(the_fit_of_nonsense_is_usable), HL_CASE(routes_have_names));
