/* Restores by every route, on the software device or, with HOSTLANE_TEST_DEVICE=cuda, on a GPU. */
#include "core/transfer/transfer_testing.h"

static const struct rig_shape small_shape = {
    .layers = 4, .pages = 24, .blocks = 16, .tokens = 4, .row_bytes = 256, .groups = 1};

static void open_rig(struct rig *rig, struct rig_shape shape)
{
    rig_open(rig, &(struct rig_options){.shape = shape, .seed = 11});
}

static void expect_refusal(const struct hl_transfer_options *options, const char *named)
{
    hl_transfer *transfer = NULL;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_transfer_open(options, &transfer, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NULL(transfer);
    if (!strstr(err.text, named))
        fprintf(stderr, "\"%s\" does not name %s\n", err.text, named);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, named));
}

static void opening_refuses_and_names_the_option(void)
{
    struct rig rig;
    open_rig(&rig, small_shape);
    const struct hl_transfer_options good = rig_transfer_options(&rig, HL_ROUTE_AUTO);
    struct hl_transfer_options bad = good;
    expect_refusal(NULL, "dev");
    bad.dev = NULL;
    expect_refusal(&bad, "dev");
    bad = good;
    bad.layers = 0;
    expect_refusal(&bad, "layers");
    bad.layers = HL_LAYOUT_LAYERS + 1;
    expect_refusal(&bad, "layers");
    bad = good;
    bad.route = (enum hl_route)7;
    expect_refusal(&bad, "route");
    bad = good;
    bad.sm_cap = HL_TRANSFER_MAX_SMS + 1;
    expect_refusal(&bad, "sm_cap");
    bad = good;
    bad.tensors = NULL;
    expect_refusal(&bad, "tensor_count");
    bad = good;
    bad.tensor_count = HL_LAYOUT_TENSORS + 1;
    expect_refusal(&bad, "tensor_count");
    bad = good;
    struct hl_tensor_binding tensor = {.base = 0, .bytes = 16};
    bad.tensors = &tensor;
    bad.tensor_count = 1;
    expect_refusal(&bad, "tensors[0]");
    tensor = (struct hl_tensor_binding){.base = 16, .bytes = 0};
    expect_refusal(&bad, "tensors[0]");
    tensor = (struct hl_tensor_binding){.base = 16, .bytes = UINT64_MAX};
    expect_refusal(&bad, "tensors[0]");
    bad = good;
    bad.registrations = NULL;
    expect_refusal(&bad, "registration_count");
    bad = good;
    bad.registration_count = HL_ARENA_IMPORTS + 1;
    expect_refusal(&bad, "registration_count");
    hl_registration *twice[] = {rig.registrations[0], rig.registrations[0]};
    bad = good;
    bad.registrations = twice;
    expect_refusal(&bad, "registrations[0] and [1]");
    twice[1] = NULL;
    expect_refusal(&bad, "registrations[1]");
    rig_close(&rig);
}

/* Sums over the layers agree with the operation and the plan. */
static void check_layers(struct rig *rig, hl_operation *operation, enum hl_route route)
{
    const struct hl_layer_result *layers = hl_operation_layers(operation);
    struct hl_plan_stats stats;
    uint64_t bytes = 0;
    hl_plan_get_stats(rig->plan, &stats);
    for (uint32_t i = 0; i < rig->shape.layers; i++) {
        bytes += layers[i].bytes;
        CU_ASSERT_TRUE(layers[i].recorded);
        if (layers[i].bytes == 0 || route == HL_ROUTE_DIRECT)
            CU_ASSERT_EQUAL(layers[i].route, HL_ROUTE_DIRECT);
        if (layers[i].bytes > 0 && route == HL_ROUTE_KERNEL)
            CU_ASSERT_EQUAL(layers[i].route, HL_ROUTE_KERNEL);
        uint32_t copies = layers[i].copies + layers[i].row_copies;
        CU_ASSERT_EQUAL(layers[i].route == HL_ROUTE_KERNEL, layers[i].descriptors > 0);
        CU_ASSERT_EQUAL(layers[i].bytes > 0, copies + layers[i].descriptors > 0);
    }
    CU_ASSERT_EQUAL(bytes, stats.payload_bytes);
}

static void restore_with(struct rig *rig, enum hl_route route, uint64_t part_bytes)
{
    hl_error err = {0};
    struct hl_operation_result result = {0};
    struct hl_plan_stats stats;
    rig_open_transfer(rig, route);
    rig_compile(rig, 3, rig->shape.blocks, false, part_bytes);
    hl_plan_get_stats(rig->plan, &stats);
    hl_operation *operation = rig_start(rig);
    for (size_t i = 0; i < hl_plan_part_count(rig->plan); i++)
        HL_EXPECT_OK(rig_submit_part(rig, operation, i, &err), err);
    HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
    CU_ASSERT_EQUAL(result.status, HL_OK);
    CU_ASSERT_TRUE(result.drained && result.submitted);
    CU_ASSERT_EQUAL(result.bytes, stats.payload_bytes);
    check_layers(rig, operation, route);
    hl_operation_close(operation);
    CU_ASSERT_TRUE(rig_tensors_match(rig));
    rig_close_transfer(rig);
    rig_poison(rig);
}

static void each_route_restores_each_layout(void)
{
    for (int tensors = RIG_SPLIT; tensors <= RIG_PAGE_FIRST; tensors++)
        for (int token_major = 0; token_major < 2; token_major++) {
            struct rig_shape shape = small_shape;
            struct rig rig;
            shape.tensors = (enum rig_tensors)tensors;
            shape.token_major = token_major;
            shape.groups = 2;
            open_rig(&rig, shape);
            for (int route = HL_ROUTE_AUTO; route <= HL_ROUTE_KERNEL; route++)
                restore_with(&rig, (enum hl_route)route, 0);
            rig_close(&rig);
        }
}

/* Widths and places that are multiples of nothing: the kernel may not use bulk copies for them. */
static void unaligned_pieces_arrive_by_each_route(void)
{
    struct rig_shape shape = small_shape;
    struct rig rig;
    shape.row_bytes = 101;
    shape.gap = 5;
    shape.skew = 3;
    open_rig(&rig, shape);
    for (int route = HL_ROUTE_AUTO; route <= HL_ROUTE_KERNEL; route++)
        restore_with(&rig, (enum hl_route)route, 0);
    rig_close(&rig);
}

/* Aligned K pages beside V pages that are not: both lists of one layer. */
static void aligned_and_unaligned_pieces_share_a_layer(void)
{
    struct rig_shape shape = small_shape;
    struct rig rig;
    shape.tensors = RIG_CONTIGUOUS;
    shape.pages = shape.blocks = 15;
    shape.gap = 8; /* every other page of K, and of V, is 16-byte aligned */
    open_rig(&rig, shape);
    for (int route = HL_ROUTE_AUTO; route <= HL_ROUTE_KERNEL; route++)
        restore_with(&rig, (enum hl_route)route, 0);
    rig_close(&rig);
}

static void a_plan_in_many_parts_restores(void)
{
    struct rig rig;
    open_rig(&rig, small_shape);
    for (int route = HL_ROUTE_AUTO; route <= HL_ROUTE_KERNEL; route++)
        restore_with(&rig, (enum hl_route)route, 512);
    rig_close(&rig);
}

/* A layer's event follows its last range over all parts, and an operation can be drained between two of them.
 */
static void layers_complete_over_parts_in_order(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig, small_shape);
    rig_open_transfer(&rig, HL_ROUTE_DIRECT);
    rig_compile(&rig, 1, rig.shape.blocks, false, 512);
    size_t parts = hl_plan_part_count(rig.plan);
    CU_ASSERT_TRUE_FATAL(parts > 2 * rig.shape.layers);
    hl_operation *operation = rig_start(&rig);
    const struct hl_layer_result *layers = hl_operation_layers(operation);
    uint64_t before = 0;
    HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
    CU_ASSERT_TRUE(result.drained && !result.submitted);
    for (size_t i = 0; i < parts; i++) {
        HL_EXPECT_OK(rig_submit_part(&rig, operation, i, &err), err);
        HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
        CU_ASSERT_TRUE(result.drained);
        CU_ASSERT_EQUAL(result.submitted, i + 1 == parts);
        CU_ASSERT_TRUE(result.bytes > before);
        before = result.bytes;
        for (uint32_t layer = 1; layer < rig.shape.layers; layer++)
            CU_ASSERT_TRUE(layers[layer - 1].recorded || !layers[layer].recorded);
        CU_ASSERT_EQUAL(layers[rig.shape.layers - 1].recorded, i + 1 == parts);
    }
    hl_operation_close(operation);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

/* Neighbouring pages of one allocation-sized block merge into ranges far over 64 KiB. */
static void long_ranges_are_cut_into_descriptors(void)
{
    struct rig_shape shape = {.layers = 1,
                              .pages = 2,
                              .blocks = 2,
                              .tokens = 4,
                              .row_bytes = 50 * 1024,
                              .groups = 1,
                              .tensors = RIG_SPLIT};
    struct rig rig;
    hl_error err = {0};
    open_rig(&rig, shape);
    rig_open_transfer(&rig, HL_ROUTE_KERNEL);
    rig_compile(&rig, 1, 2, false, 0);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    CU_ASSERT_EQUAL(hl_operation_layers(operation)[0].descriptors, 4 * 4); /* 200 KiB each */
    hl_operation_close(operation);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

static void the_descriptor_ring_wraps(void)
{
    const struct {
        uint32_t segments, descriptors;
    } rings[] = {{1, 1}, {1, 3}, {2, 4}, {3, 40}};
    for (unsigned i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        struct rig rig;
        hl_error err = {0};
        open_rig(&rig, small_shape);
        struct hl_transfer_options options = rig_transfer_options(&rig, HL_ROUTE_KERNEL);
        HL_REQUIRE_OK(hl_transfer_open_with_ring(&options, rings[i].segments, rings[i].descriptors,
                                                 &rig.transfer, &err),
                      err);
        for (unsigned round = 0; round < 3; round++) {
            rig_compile(&rig, 1, rig.shape.blocks, false, round == 2 ? 512 : 0);
            rig_restore(&rig);
            CU_ASSERT_TRUE(rig_tensors_match(&rig));
            rig_poison(&rig);
        }
        rig_close(&rig);
    }
}

static void layers_without_bytes_are_recorded(void)
{
    struct rig_shape shape = small_shape;
    struct rig rig;
    shape.groups = 2;
    open_rig(&rig, shape);
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    for (uint32_t groups = 0; groups < 3; groups++) {
        hl_error err = {0};
        rig_compile(&rig, groups, rig.shape.blocks, false, 0);
        hl_operation *operation = rig_start(&rig);
        HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
        const struct hl_layer_result *layers = hl_operation_layers(operation);
        for (uint32_t i = 0; i < rig.shape.layers; i++) {
            CU_ASSERT_TRUE(layers[i].recorded);
            CU_ASSERT_EQUAL(layers[i].bytes > 0, (groups >> (i % 2) & 1) != 0);
        }
        hl_operation_close(operation);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
    }
    rig_close(&rig);
}

static void a_calibrated_executor_restores(void)
{
    struct rig rig;
    hl_error err = {0};
    open_rig(&rig, small_shape);
    struct hl_transfer_options options = rig_transfer_options(&rig, HL_ROUTE_AUTO);
    HL_REQUIRE_OK(hl_transfer_open(&options, &rig.transfer, &err), err);
    CU_ASSERT_FALSE(hl_transfer_model(rig.transfer)->fitted);
    rig_close_transfer(&rig);
    rig_close(&rig);

    /* Where the checker sees every copy, those of the calibration are strangers. */
    hl_device *dev = NULL;
    open_rig(&rig, small_shape);
    if (rig.dev->info.kind == HL_DEVICE_CUDA)
        dev = rig.dev;
    else
        HL_REQUIRE_OK(hl_device_open_software(&dev, &err), err);
    options = rig_transfer_options(&rig, HL_ROUTE_AUTO);
    options.dev = dev;
    options.calibrate = true;
    if (dev != rig.dev)
        options.registration_count = 0;
    HL_REQUIRE_OK(hl_transfer_open(&options, &rig.transfer, &err), err);
    const struct hl_route_model *model = hl_transfer_model(rig.transfer);
    CU_ASSERT_TRUE(model->fitted);
    const struct hl_route_cost *costs[] = {&model->copy, &model->rows, &model->batch, &model->kernel};
    for (unsigned i = 0; i < 4; i++) {
        CU_ASSERT_TRUE(costs[i]->bytes_per_second > 0);
        CU_ASSERT_TRUE(costs[i]->call_ns >= 0 && costs[i]->piece_ns >= 0);
    }
    if (dev == rig.dev) {
        rig_compile(&rig, 1, rig.shape.blocks, false, 0);
        rig_restore(&rig);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
    }
    rig_close_transfer(&rig);
    if (dev != rig.dev)
        hl_device_close(dev);
    rig_close(&rig);
}

static void events_are_live_and_distinct(void)
{
    struct rig rig;
    hl_error err = {0};
    hl_operation *operation = NULL;
    open_rig(&rig, small_shape);
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    hl_event events[4];
    struct hl_operation_options options = {.identity = rig.identity, .layer_events = events};
    memcpy(events, rig.events, sizeof events);
    events[2] = NULL;
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "layer_events[2]"));
    events[2] = events[0];
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "layer_events[2]"));
    CU_ASSERT_PTR_NULL(operation);
    rig_close(&rig);
}

static void events_are_optional(void)
{
    struct rig rig;
    hl_error err = {0};
    hl_operation *operation = NULL;
    struct hl_operation_result result = {0};
    open_rig(&rig, small_shape);
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, rig.shape.blocks, false, 0);
    struct hl_operation_options options = {.identity = rig.identity};
    HL_REQUIRE_OK(hl_operation_start(rig.transfer, &options, &operation, &err), err);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
    CU_ASSERT_TRUE(result.submitted && !hl_operation_layers(operation)[0].recorded);
    hl_operation_close(operation);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

/* Parts of two operations take turns: the second one's go between the first one's. */
static void parts_of_two_operations_take_turns(void)
{
    struct rig rig;
    hl_error err = {0};
    hl_operation *second = NULL;
    struct hl_operation_result result = {0};
    open_rig(&rig, small_shape);
    rig_open_transfer(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, rig.shape.blocks, false, 512);
    size_t parts = hl_plan_part_count(rig.plan);
    struct hl_operation_options options = {.identity = rig.identity};
    hl_operation *first = rig_start(&rig);
    HL_REQUIRE_OK(hl_operation_start(rig.transfer, &options, &second, &err), err);
    CU_ASSERT_TRUE_FATAL(parts > 1);
    for (size_t i = 0; i < parts; i++) {
        HL_EXPECT_OK(rig_submit_part(&rig, first, i, &err), err);
        if (i + 1 < parts)
            HL_EXPECT_OK(rig_submit_part(&rig, second, i, &err), err);
    }
    HL_EXPECT_STATUS(rig_submit_part(&rig, first, 0, &err), HL_E_STATE, err);
    HL_EXPECT_OK(hl_operation_drain(second, &result, &err), err);
    CU_ASSERT_TRUE(!result.submitted && result.drained && result.accepted);
    hl_operation_close(second); /* unfinished: drained */
    HL_EXPECT_OK(hl_operation_drain(first, &result, &err), err);
    CU_ASSERT_TRUE(result.submitted && result.drained);
    HL_EXPECT_OK(hl_operation_poll(first, &result, &err), err);
    hl_operation_close(first);
    rig_restore(&rig);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

static void closing_nothing_is_allowed(void)
{
    hl_operation_close(NULL);
    hl_transfer_close(NULL);
    CU_PASS("no crash");
}

HL_TESTS(transfer, HL_CASE(opening_refuses_and_names_the_option), HL_CASE(each_route_restores_each_layout),
         HL_CASE(unaligned_pieces_arrive_by_each_route), HL_CASE(aligned_and_unaligned_pieces_share_a_layer),
         HL_CASE(a_plan_in_many_parts_restores), HL_CASE(layers_complete_over_parts_in_order),
         HL_CASE(long_ranges_are_cut_into_descriptors), HL_CASE(the_descriptor_ring_wraps),
         HL_CASE(layers_without_bytes_are_recorded), HL_CASE(a_calibrated_executor_restores),
         HL_CASE(events_are_live_and_distinct), HL_CASE(events_are_optional),
         HL_CASE(parts_of_two_operations_take_turns), HL_CASE(closing_nothing_is_allowed));
