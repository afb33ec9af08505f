/* Every submission and every execution of an operation fails once. What must hold each time: the caller
 * learns of it, what it is told about draining is true, and what it then reuses is not touched again.
 * Software device only. */
#include "core/transfer/calibrate.h"
#include "core/transfer/transfer_testing.h"

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, CONTEXT_NESTING = 32 };

static const struct rig_shape shape = {
    .layers = 3, .pages = 16, .blocks = 8, .tokens = 2, .row_bytes = 128, .groups = 2};

static const struct {
    enum hl_route route;
    uint32_t segments, descriptors;
    uint64_t part_bytes;
} variants[] = {
    {HL_ROUTE_DIRECT, 1, 1, 0},
    {HL_ROUTE_DIRECT, 1, 1, 400},
    {HL_ROUTE_KERNEL, 16, 512, 400},
    {HL_ROUTE_KERNEL, 2, 3, 0}, /* segments are closed and waited for inside the operation */
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void open_rig(struct rig *rig)
{
    rig_open(rig, &(struct rig_options){.shape = shape, .seed = 3, .software = true});
}

static void open_variant(struct rig *rig, unsigned variant)
{
    hl_error err = {0};
    struct hl_transfer_options options = rig_transfer_options(rig, variants[variant].route);
    HL_REQUIRE_OK(hl_transfer_open_with_ring(&options, variants[variant].segments,
                                             variants[variant].descriptors, &rig->transfer, &err),
                  err);
}

/* From here on no block may be read: the Manager would have reaped them. */
static void revoke_sources(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    memset(rig->allowed, 0, rig->block_count * sizeof *rig->allowed);
    pthread_mutex_unlock(&rig->lock);
}

/* Submits parts until one fails, and says which did: the part count when none did. */
static size_t submit_parts(struct rig *rig, hl_operation *operation, hl_error *err)
{
    size_t part = 0, parts = hl_plan_part_count(rig->plan);
    while (part < parts && rig_submit_part(rig, operation, part, err) == HL_OK)
        part++;
    return part;
}

static void check_failed(struct rig *rig, hl_operation *operation, size_t part, int code, bool drained)
{
    struct hl_operation_result result = {0};
    hl_error err = {0};
    HL_EXPECT_STATUS(rig_submit_part(rig, operation, part, &err), HL_E_STATE, err);
    err = (hl_error){0};
    HL_EXPECT_STATUS(hl_operation_poll(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_EQUAL(err.device_code, code);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_EQUAL(result.status, HL_E_DEVICE);
    CU_ASSERT_EQUAL(result.drained, drained);
    CU_ASSERT_FALSE(result.submitted);
}

static void a_failed_submission_has_drained_before_it_is_reported(void)
{
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        struct rig rig;
        open_rig(&rig);
        open_variant(&rig, variant);
        unsigned failures = 0;
        for (uint64_t nth = 1;; nth++) {
            hl_error err = {0};
            rig_poison(&rig);
            rig_compile(&rig, 3, shape.blocks, false, variants[variant].part_bytes);
            size_t parts = hl_plan_part_count(rig.plan);
            hl_operation *operation = rig_start(&rig);
            hl_software_fail_submit(rig.dev, nth, OUT_OF_MEMORY);
            size_t part = submit_parts(&rig, operation, &err);
            hl_software_fail_submit(rig.dev, 0, 0);
            if (part == parts) {
                hl_operation_close(operation);
                break;
            }
            failures++;
            struct hl_software_counts drained = rig_counts(&rig);
            CU_ASSERT_EQUAL(drained.executed, drained.submitted);
            CU_ASSERT_EQUAL(err.device_code, OUT_OF_MEMORY);
            revoke_sources(&rig);
            check_failed(&rig, operation, part, OUT_OF_MEMORY, true);
            hl_operation_close(operation);
            CU_ASSERT_EQUAL(rig_counts(&rig).submitted, drained.submitted);
        }
        CU_ASSERT_TRUE(failures > shape.layers);
        CU_ASSERT_TRUE(rig_tensors_match(&rig)); /* the last round's: the executor is as good as before */
        CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
        rig_close(&rig);
    }
}

/* Events after the failure keep their state from before the operation: here never recorded, hence complete.
 */
static void layers_after_a_failure_are_not_recorded(void)
{
    struct rig rig;
    hl_error err = {0};
    open_rig(&rig);
    open_variant(&rig, 0);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_operation *operation = rig_start(&rig);
    const struct hl_layer_result *layers = hl_operation_layers(operation);
    uint64_t before = rig_counts(&rig).submitted;
    hl_software_fail_submit(rig.dev, 4, OUT_OF_MEMORY);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 0, &err), HL_E_DEVICE, err);
    CU_ASSERT_TRUE(rig_counts(&rig).submitted >= before + 3);
    CU_ASSERT_TRUE(layers[0].recorded);
    CU_ASSERT_FALSE(layers[1].recorded || layers[2].recorded);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* A failed copy leaves the stream with an error, which is no proof that its work has ended. */
static void a_failed_execution_is_never_called_drained(void)
{
    for (unsigned variant = 0; variant < VARIANTS; variant++)
        for (uint64_t nth = 1, failed = 1; failed; nth++) {
            struct rig rig;
            hl_error err = {0};
            struct hl_operation_result result = {0};
            open_rig(&rig);
            struct hl_software_counts closed = rig_counts(&rig);
            open_variant(&rig, variant);
            rig_compile(&rig, 3, shape.blocks, false, variants[variant].part_bytes);
            hl_operation *operation = rig_start(&rig);
            hl_software_fail_execution(rig.dev, nth, ILLEGAL_ADDRESS);
            size_t part = submit_parts(&rig, operation, &err);
            hl_status status = hl_operation_drain(operation, &result, &err);
            hl_software_fail_execution(rig.dev, 0, 0);
            failed = status != HL_OK;
            CU_ASSERT_EQUAL(result.drained, !failed);
            if (failed) {
                hl_operation *next = NULL;
                struct hl_operation_options options = {.identity = rig.identity};
                hl_software_wait_settled(rig.dev, rig.transfer->event_stream);
                uint64_t executed = rig_counts(&rig).executed;
                CU_ASSERT_EQUAL(err.device_code, ILLEGAL_ADDRESS);
                HL_EXPECT_STATUS(rig_submit_part(&rig, operation, part % hl_plan_part_count(rig.plan), &err),
                                 HL_E_STATE, err);
                HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &next, &err), HL_E_STATE, err);
                HL_EXPECT_STATUS(hl_operation_poll(operation, &result, &err), HL_E_DEVICE, err);
                CU_ASSERT_FALSE(result.drained);
                CU_ASSERT_EQUAL(rig_counts(&rig).executed, executed);
            } else {
                CU_ASSERT_TRUE(nth > shape.layers && rig_tensors_match(&rig));
            }
            hl_operation_close(operation);
            rig_close_transfer(&rig);
            struct hl_software_counts after = rig_counts(&rig);
            CU_ASSERT_EQUAL(after.streams, closed.streams);
            CU_ASSERT_EQUAL(after.events, closed.events);
            CU_ASSERT_EQUAL(after.registrations, closed.registrations);
            CU_ASSERT_EQUAL(after.violations, 0);
            rig_close(&rig);
        }
}

/* The launch's first layer has been counted when its second one fails. */
static void a_failure_inside_a_launch_spares_the_layers_before_it(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig);
    open_variant(&rig, 2);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_stream stream = hl_transfer_stream(rig.transfer);
    hl_software_hold(rig.dev, stream, 2);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    hl_software_wait_held(rig.dev, stream);
    hl_software_wait_settled(rig.dev, rig.transfer->event_stream);
    hl_software_fail_execution(rig.dev, 1, ILLEGAL_ADDRESS);
    hl_software_release(rig.dev, stream);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
    HL_EXPECT_OK(rig.dev->ops->event_synchronize(rig.dev, rig.events[0], &err), err);
    for (uint32_t i = 1; i < shape.layers; i++)
        HL_EXPECT_STATUS(rig.dev->ops->event_synchronize(rig.dev, rig.events[i], &err), HL_E_DEVICE, err);
    hl_device_leave(rig.dev);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* The copies are fine and the stream with the layers' events fails: nothing says that readers may go on. */
static void a_failed_event_stream_loses_the_executor(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig);
    open_variant(&rig, 2);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_stream events = rig.transfer->event_stream;
    hl_software_hold(rig.dev, events, 0);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    hl_software_wait_settled(rig.dev, hl_transfer_stream(rig.transfer));
    CU_ASSERT_EQUAL(hl_operation_poll(operation, &result, &err), HL_PENDING); /* the copies are done */
    hl_software_fail_execution(rig.dev, 1, ILLEGAL_ADDRESS);
    hl_software_release(rig.dev, events);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* A submission fails while an earlier copy fails as well, so that the synchronisation reports that one. */
static void a_failure_that_cannot_be_drained_says_so(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig);
    open_variant(&rig, 0);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_operation *operation = rig_start(&rig);
    hl_software_fail_execution(rig.dev, 1, ILLEGAL_ADDRESS);
    hl_software_fail_submit(rig.dev, 3, OUT_OF_MEMORY);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 0, &err), HL_E_DEVICE, err);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    hl_software_fail_submit(rig.dev, 0, 0);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* An operation behind another one that fails: neither is called drained. */
static void the_next_operation_is_lost_with_the_stream(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig);
    open_variant(&rig, 0);
    hl_stream stream = hl_transfer_stream(rig.transfer);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_software_hold(rig.dev, stream, 0);
    hl_software_fail_execution(rig.dev, 2, ILLEGAL_ADDRESS);
    hl_operation *first = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, first, 0, &err), err);
    hl_operation *second = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, second, 0, &err), err);
    hl_software_release(rig.dev, stream);
    HL_EXPECT_STATUS(hl_operation_drain(second, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    HL_EXPECT_STATUS(hl_operation_drain(first, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    hl_operation_close(first);
    hl_operation_close(second);
    rig_close(&rig);
}

static void a_start_that_fails_leaves_nothing(void)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        struct rig rig;
        hl_error err = {0};
        hl_stream busy = NULL;
        hl_operation *operation = NULL;
        open_rig(&rig);
        open_variant(&rig, 0);
        HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
        HL_REQUIRE_OK(rig.dev->ops->stream_create(rig.dev, &busy, &err), err);
        hl_software_hold(rig.dev, busy, 0);
        HL_REQUIRE_OK(rig.dev->ops->fill(rig.dev, rig.tensors[0].base, RIG_POISON, 1, busy, &err), err);
        hl_device_leave(rig.dev);
        struct hl_operation_options options = {
            .identity = rig.identity, .has_ready_stream = true, .ready_stream = busy};
        hl_software_fail_submit(rig.dev, nth, OUT_OF_MEMORY); /* the record, then the wait */
        HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_DEVICE, err);
        CU_ASSERT_EQUAL(err.device_code, OUT_OF_MEMORY);
        CU_ASSERT_PTR_NULL(operation);
        rig_compile(&rig, 3, shape.blocks, false, 0);
        rig_restore(&rig); /* waits for nothing */
        hl_software_release(rig.dev, busy);
        HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
        rig.dev->ops->stream_destroy(rig.dev, busy, NULL);
        hl_device_leave(rig.dev);
        rig_close(&rig);
    }
}

static void enter_to_the_limit(struct rig *rig)
{
    hl_error err = {0};
    for (int i = 0; i < CONTEXT_NESTING; i++)
        HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
}

static void leave_all(struct rig *rig)
{
    for (int i = 0; i < CONTEXT_NESTING; i++)
        hl_device_leave(rig->dev);
}

/* The device's context cannot be made current: nothing is submitted, and what was cannot be asked about. */
static void a_device_that_cannot_be_entered_is_an_error(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    hl_operation *refused = NULL;
    hl_transfer *unopened = NULL;
    struct hl_operation_options options = {0};
    open_rig(&rig);
    open_variant(&rig, 0);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    options.identity = rig.identity;
    struct hl_transfer_options transfer_options = rig_transfer_options(&rig, HL_ROUTE_AUTO);

    enter_to_the_limit(&rig);
    HL_EXPECT_STATUS(hl_transfer_open(&transfer_options, &unopened, &err), HL_E_LIMIT, err);
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &refused, &err), HL_E_LIMIT, err);
    leave_all(&rig);

    hl_operation *operation = rig_start(&rig);
    enter_to_the_limit(&rig);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 0, &err), HL_E_LIMIT, err);
    leave_all(&rig);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_LIMIT, err);
    CU_ASSERT_TRUE(result.drained); /* nothing had been accepted */
    hl_operation_close(operation);

    operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    enter_to_the_limit(&rig);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &err), HL_E_LIMIT, err);
    leave_all(&rig);
    CU_ASSERT_FALSE(result.drained);
    hl_operation_close(operation);
    rig_close(&rig);
}

static void an_executor_that_does_not_open_leaves_nothing(void)
{
    hl_error err = {0};
    hl_device *dev = NULL;
    hl_transfer *transfer = NULL;
    struct hl_software_counts counts;
    struct hl_software_options small_device = {.memory_bytes = HL_CALIBRATE_BYTES / 2};
    struct hl_tensor_binding tensor = {.base = 4096, .bytes = 4096};
    HL_REQUIRE_OK(hl_device_open_software_with(&small_device, &dev, &err), err);
    struct hl_transfer_options options = {
        .dev = dev, .tensors = &tensor, .tensor_count = 1, .layers = 1, .calibrate = true};
    for (uint64_t nth = 1; nth <= 3;
         nth++) { /* ring, scratch, and the scratch of the device, which is too small */
        hl_software_fail_register(dev, nth, OUT_OF_MEMORY);
        HL_EXPECT_STATUS(hl_transfer_open(&options, &transfer, &err), HL_E_NOMEM, err);
        hl_software_fail_register(dev, 0, 0);
        CU_ASSERT_PTR_NULL(transfer);
        hl_software_counts(dev, &counts);
        CU_ASSERT_EQUAL(counts.streams + counts.events + counts.registrations + counts.allocations, 0);
    }
    hl_device_close(dev);
}

static void a_calibration_that_fails_leaves_nothing(void)
{
    hl_error err = {0};
    hl_device *dev = NULL;
    hl_transfer *transfer = NULL;
    struct hl_software_counts counts;
    struct hl_tensor_binding tensor = {.base = 4096, .bytes = 4096};
    HL_REQUIRE_OK(hl_device_open_software(&dev, &err), err);
    struct hl_transfer_options options = {
        .dev = dev, .tensors = &tensor, .tensor_count = 1, .layers = 1, .calibrate = true};
    /* A round is a record, copies and a record: the first few, then a sparse sweep until none fails. */
    uint64_t nth = 1;
    for (hl_status status = HL_E_DEVICE; status != HL_OK; nth += nth < 8 ? 1 : 37) {
        hl_software_fail_submit(dev, nth, OUT_OF_MEMORY);
        status = hl_transfer_open(&options, &transfer, &err);
        hl_software_fail_submit(dev, 0, 0);
        if (status == HL_OK)
            break;
        CU_ASSERT_EQUAL(status, HL_E_DEVICE);
        CU_ASSERT_PTR_NULL(transfer);
        hl_software_counts(dev, &counts);
        CU_ASSERT_EQUAL(counts.streams + counts.events + counts.registrations + counts.allocations, 0);
    }
    CU_ASSERT_TRUE(nth > 8);
    hl_transfer_close(transfer);
    hl_device_close(dev);
}

HL_TESTS(transfer_fault, HL_CASE(a_failed_submission_has_drained_before_it_is_reported),
         HL_CASE(layers_after_a_failure_are_not_recorded),
         HL_CASE(a_failed_execution_is_never_called_drained),
         HL_CASE(a_failure_inside_a_launch_spares_the_layers_before_it),
         HL_CASE(a_failed_event_stream_loses_the_executor), HL_CASE(a_failure_that_cannot_be_drained_says_so),
         HL_CASE(the_next_operation_is_lost_with_the_stream), HL_CASE(a_start_that_fails_leaves_nothing),
         HL_CASE(a_device_that_cannot_be_entered_is_an_error),
         HL_CASE(an_executor_that_does_not_open_leaves_nothing),
         HL_CASE(a_calibration_that_fails_leaves_nothing));
