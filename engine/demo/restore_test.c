#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "engine/demo/demo_testing.h"

/* The demo's whole way, called step by step, and again with each of its device operations failing in turn. */

static hl_status open_all(hl_demo *demo, hl_error *err)
{
    hl_status status = hl_demo_plan_pages(demo, err);
    if (!status)
        status = hl_demo_allocate_memory(demo, err);
    return status ? status : hl_demo_open_restore(demo, err);
}

/* Publishes, restores and compares; a difference is given as HL_E_CHECKSUM. */
static hl_status go_all_the_way(hl_demo *demo, hl_error *err)
{
    struct hl_demo_mismatch mismatch = {0};
    struct hl_demo_run run;
    hl_status status = open_all(demo, err);
    if (!status)
        status = hl_demo_fill(demo, HL_DEMO_SOURCES, err);
    if (!status)
        status = hl_demo_publish(demo, err);
    if (!status)
        status = hl_demo_verify_published(demo, &mismatch, err);
    if (!status)
        status = hl_demo_measure_ceiling(demo, 1, err);
    if (!status)
        status = hl_demo_poison(demo, err);
    if (!status)
        status = hl_demo_restore(demo, 1, &run, err);
    if (status)
        return status;
    hl_demo_verify_order(demo, &run, &mismatch);
    hl_demo_free_run(&run);
    if (!mismatch.what)
        status = hl_demo_verify_sums(demo, &mismatch, err);
    if (!status && !mismatch.what)
        status = hl_demo_verify_restored(demo, &mismatch, err);
    return mismatch.what ? HL_FAIL(err, HL_E_CHECKSUM, "demo.test", "%s", mismatch.what) : status;
}

static void every_route_and_layout_restores_every_byte(void)
{
    static const enum hl_layout_kind kinds[] = {HL_LAYOUT_SPLIT, HL_LAYOUT_CONTIGUOUS, HL_LAYOUT_FUSED,
                                                HL_LAYOUT_PAGE_FIRST};
    static const enum hl_route routes[] = {HL_ROUTE_AUTO, HL_ROUTE_DIRECT, HL_ROUTE_KERNEL};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t r = 0; r < sizeof routes / sizeof routes[0]; r++) {
            hl_demo *demo = hl_demo_testing_open(kinds[k], 1 + r);
            demo->options.route = routes[r];
            hl_error err;
            HL_EXPECT_OK(go_all_the_way(demo, &err), err);
            CU_ASSERT_EQUAL(demo->plan_stats.payload_bytes, demo->payload_bytes);
            hl_demo_testing_close(demo);
        }
}

typedef void (*arm)(hl_device *dev, uint64_t nth, int device_code);

/* Fails the n-th operation for n = 1, 2, … until none is left to fail; returns how many were. */
static unsigned sweep(arm function, int device_code, hl_status expected)
{
    for (unsigned n = 1; n < 1000; n++) {
        hl_demo *demo = hl_demo_testing_open(HL_LAYOUT_SPLIT, 5);
        demo->options.route = n % 2 ? HL_ROUTE_DIRECT : HL_ROUTE_KERNEL;
        function(demo->dev, n, device_code);
        hl_error err = {0};
        hl_status status = go_all_the_way(demo, &err);
        function(demo->dev, 0, 0);
        if (status) {
            CU_ASSERT_EQUAL(status, expected);
            CU_ASSERT_EQUAL(err.status, status);
            CU_ASSERT_EQUAL(err.device_code, device_code);
            CU_ASSERT_PTR_NOT_NULL(err.stage);
        }
        hl_demo_testing_close(demo);
        if (!status)
            return n - 1;
    }
    return 0;
}

static void each_failing_submission_is_reported_and_leaks_nothing(void)
{
    CU_ASSERT_TRUE(sweep(hl_software_fail_submit, 700, HL_E_DEVICE) > 50);
}

static void each_failing_execution_is_reported_and_leaks_nothing(void)
{
    CU_ASSERT_TRUE(sweep(hl_software_fail_execution, 719, HL_E_DEVICE) > 50);
}

static void each_failing_registration_is_reported_and_leaks_nothing(void)
{
    CU_ASSERT_TRUE(sweep(hl_software_fail_register, 2, HL_E_NOMEM) >= 2); /* staging and arena */
}

static void too_little_device_memory_is_reported_and_leaks_nothing(void)
{
    for (uint64_t memory = 512; memory <= 6144; memory += 512) { /* the tensors alone take 6144 bytes */
        hl_demo *demo = hl_demo_testing_open(HL_LAYOUT_SPLIT, 6);
        hl_error err;
        hl_device_leave(demo->dev);
        hl_device_close(demo->dev);
        struct hl_software_options options = {.memory_bytes = memory};
        HL_REQUIRE_OK(hl_device_open_software_with(&options, &demo->dev, &err), err);
        HL_REQUIRE_OK(hl_device_enter(demo->dev, &err), err);
        HL_EXPECT_STATUS(open_all(demo, &err), HL_E_NOMEM, err);
        hl_demo_testing_close(demo);
    }
}

static void a_unit_that_the_consumer_cannot_read_is_refused(void)
{
    hl_demo *demo = hl_demo_testing_open(HL_LAYOUT_SPLIT, 7);
    demo->geometry.kv_heads = 1;
    demo->geometry.head_dim = demo->geometry.value_head_dim = 3;
    demo->options.page_tokens = 1;
    hl_error err;
    HL_EXPECT_STATUS(open_all(demo, &err), HL_E_UNSUPPORTED, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "component 0"));
    hl_demo_testing_close(demo);
}

static void a_sliding_window_group_has_only_the_pages_that_its_window_touches(void)
{
    hl_demo *demo = hl_demo_testing_open(HL_LAYOUT_SPLIT, 8);
    demo->geometry.window_tokens = 5; /* of 4-token pages: two, and one more when it starts inside a page */
    demo->geometry.sliding[1] = 1;
    hl_error err;
    HL_EXPECT_OK(go_all_the_way(demo, &err), err);
    CU_ASSERT_EQUAL(demo->layout->group_count, 2);
    CU_ASSERT_EQUAL(hl_demo_group_blocks(demo, 0), HL_DEMO_TESTING_PAGES);
    CU_ASSERT_EQUAL(hl_demo_group_blocks(demo, 1), 3);
    hl_demo_testing_close(demo);
}

static void a_config_path_that_does_not_exist_or_fit_is_refused(void)
{
    hl_demo *demo = hl_demo_testing_open(HL_LAYOUT_SPLIT, 9);
    static char path[8192];
    memset(path, 'x', sizeof path - 1);
    demo->options.model_config = path;
    hl_error err;
    HL_EXPECT_STATUS(hl_demo_plan_geometry(demo, &err), HL_E_LIMIT, err);
    demo->options.model_config = "no/such/config.json";
    HL_EXPECT_STATUS(hl_demo_plan_geometry(demo, &err), HL_E_SYSTEM, err);
    hl_demo_testing_close(demo);
    char found[64];
    unsetenv("HOSTLANE_CONFIGS");
    HL_EXPECT_STATUS(hl_demo_find_config(found, 8, &err), HL_E_NOT_FOUND, err);
}

static void an_error_is_told_with_what_to_do(void)
{
    static hl_demo demo;
    static const struct {
        hl_status status;
        const char *text;
    } told[] = {{HL_E_NO_DEVICE, "--device software"},
                {HL_E_NOMEM, "fewer --pages"},
                {HL_E_SYSTEM, "ulimit -l"},
                {HL_E_INVALID, "--help"},
                {HL_E_LIMIT, "--page-tokens"},
                {HL_E_DEVICE, "dmesg"},
                {HL_E_STATE, "a defect"}};
    for (size_t i = 0; i <= sizeof told / sizeof told[0]; i++) {
        bool huge = i == sizeof told / sizeof told[0];
        demo.options.huge = huge;
        hl_error err;
        hl_status status = huge ? HL_E_NOMEM : told[i].status;
        (void)HL_FAIL_DEVICE(&err, status, "demo.test", 17, "a reason");
        char text[1024] = "";
        FILE *out = fmemopen(text, sizeof text - 1, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(out);
        hl_demo_report_error(&demo, &err, out);
        fclose(out);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, hl_status_name(status)));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "at demo.test: a reason"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "device code: 17"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, huge ? "vm.nr_hugepages" : told[i].text));
    }
}

static void a_mismatch_is_told_with_its_place(void)
{
    struct hl_demo_mismatch mismatch = {.what = "restored page",
                                        .layer = 3,
                                        .role = HL_ROLE_V,
                                        .page = 17,
                                        .offset = 99,
                                        .expected = 0xa5,
                                        .got = 0x5a};
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    hl_demo_report_mismatch(&mismatch, out);
    fclose(out);
    CU_ASSERT_STRING_EQUAL(
        text, "MISMATCH  restored page: layer 3, V, page 17, offset 99: expected 0xa5, got 0x5a\n");
}

static void the_median_is_the_lower_of_the_middle_two(void)
{
    int64_t values[] = {9, 1, 7, 3};
    CU_ASSERT_EQUAL(hl_demo_median(values, 4), 3);
    CU_ASSERT_EQUAL(hl_demo_median(values, 3), 7);
    CU_ASSERT_EQUAL(hl_demo_median(values, 1), 9);
}

HL_TESTS(restore, HL_CASE(every_route_and_layout_restores_every_byte),
         HL_CASE(each_failing_submission_is_reported_and_leaks_nothing),
         HL_CASE(each_failing_execution_is_reported_and_leaks_nothing),
         HL_CASE(each_failing_registration_is_reported_and_leaks_nothing),
         HL_CASE(too_little_device_memory_is_reported_and_leaks_nothing),
         HL_CASE(a_unit_that_the_consumer_cannot_read_is_refused),
         HL_CASE(a_sliding_window_group_has_only_the_pages_that_its_window_touches),
         HL_CASE(a_config_path_that_does_not_exist_or_fit_is_refused),
         HL_CASE(an_error_is_told_with_what_to_do), HL_CASE(a_mismatch_is_told_with_its_place),
         HL_CASE(the_median_is_the_lower_of_the_middle_two));
