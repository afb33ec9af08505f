/* The executor while each of its device steps in turn reports an error, before and after the device has got
 * it: opening, starting, submitting, observing, closing. What is said about draining is true, and a new
 * executor on the same device restores. */
#include <errno.h>

#include "core/transfer/transfer_testing.h"
#include "faults/testing.h"

enum { MOST_HITS = 64 };

static const struct rig_shape shape = {
    .layers = 3, .pages = 16, .blocks = 8, .tokens = 2, .row_bytes = 128, .groups = 2};

static const enum hl_route routes[] = {HL_ROUTE_DIRECT, HL_ROUTE_KERNEL};

static const char *const points[] = {
    "device_enter_before",
    "device_mem_alloc_before",
    "device_host_register_before",
    "device_host_pointer_before",
    "device_stream_create_before",
    "device_stream_synchronize_before",
    "device_stream_wait_event_before",
    "device_stream_wait_event_after",
    "device_stream_wait_value_before",
    "device_stream_wait_value_after",
    "device_event_create_before",
    "device_event_record_before",
    "device_event_record_after",
    "device_event_synchronize_before",
    "device_fill_before",
    "device_fill_after",
    "device_copy_before",
    "device_copy_after",
    "device_copy_rows_before",
    "device_copy_rows_after",
    "device_copy_batch_before",
    "device_copy_batch_after",
    "device_gather_before",
    "device_gather_after",
};

static hl_event ready; /* of a producer that has finished */

struct faults {
    hl_fault_board *board;
    unsigned rule;
    bool armed;
};

static void arm(struct faults *faults, const char *point, uint32_t nth)
{
    faults->rule = hl_fault_arm(faults->board, point, nth, HL_FAULT_ERROR, EIO);
    faults->armed = true;
}

static bool disarm(struct faults *faults)
{
    const bool fired = hl_fault_fired(faults->board, faults->rule) > 0;
    hl_fault_disarm(faults->board, faults->rule);
    faults->armed = false;
    return fired;
}

/* Nobody may read a source after the operation has been reported drained. */
static void revoke_sources(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    memset(rig->allowed, 0, rig->block_count * sizeof *rig->allowed);
    pthread_mutex_unlock(&rig->lock);
}

static hl_status submit_all(struct rig *rig, hl_operation *operation, hl_error *err)
{
    hl_status status = HL_OK;
    for (size_t part = 0; status == HL_OK && part < hl_plan_part_count(rig->plan); part++)
        status = rig_submit_part(rig, operation, part, err);
    return status;
}

/* Start, submit, drain with a fault somewhere; *status is the first failure. */
static void run_operation(struct rig *rig, hl_status *status)
{
    struct hl_operation_result result = {0};
    hl_error err = {0};
    hl_operation *operation = NULL;
    struct hl_operation_options options = {
        .identity = rig->identity, .layer_events = rig->events, .ready_event = ready};
    *status = hl_operation_start(rig->transfer, &options, &operation, &err);
    if (*status != HL_OK)
        return;
    *status = submit_all(rig, operation, &err);
    const hl_status end = hl_operation_drain(operation, &result, &err);
    CU_ASSERT_EQUAL(end, result.status);
    if (*status == HL_OK)
        *status = end;
    if (*status != HL_OK)
        CU_ASSERT_NOT_EQUAL(end, HL_OK);
    if (result.drained)
        revoke_sources(rig);
    hl_operation_close(operation);
}

static hl_status open_transfer(struct rig *rig, enum hl_route route)
{
    hl_error err = {0};
    struct hl_transfer_options options = rig_transfer_options(rig, route);
    return hl_transfer_open(&options, &rig->transfer, &err);
}

static void expect_whole(struct rig *rig, enum hl_route route)
{
    rig_close_transfer(rig);
    rig->transfer = NULL;
    CU_ASSERT_FALSE(rig_is_entered(rig));
    const struct hl_software_counts left = rig_counts(rig);
    CU_ASSERT_EQUAL(left.streams, 0);
    CU_ASSERT_EQUAL(left.events, shape.layers + (ready != NULL));
    CU_ASSERT_EQUAL(left.violations, 0);
    rig_poison(rig);
    rig_open_transfer(rig, route);
    rig_compile(rig, 3, shape.blocks, false, 400);
    rig_restore(rig);
    CU_ASSERT_TRUE(rig_tensors_match(rig));
    rig_close_transfer(rig);
    rig->transfer = NULL;
}

/* Opens and runs one operation with the n-th hit of `point` failing; false when there is no n-th hit. */
static bool fail_nth(struct rig *rig, struct faults *faults, enum hl_route route, const char *point,
                     uint32_t nth)
{
    hl_status status;
    rig_poison(rig);
    rig_compile(rig, 3, shape.blocks, false, 400);
    arm(faults, point, nth);
    status = open_transfer(rig, route);
    if (status == HL_OK)
        run_operation(rig, &status);
    const bool fired = disarm(faults);
    CU_ASSERT_EQUAL(status, fired ? HL_E_DEVICE : HL_OK);
    expect_whole(rig, route);
    return fired;
}

static void every_step_of_an_operation_may_fail(void)
{
    struct faults faults = {.board = hl_fault_board_create()};
    for (size_t r = 0; r < sizeof routes / sizeof routes[0]; r++) {
        struct rig rig;
        rig_open(&rig, &(struct rig_options){.shape = shape, .seed = 3, .software = true});
        hl_error err = {0};
        HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
        HL_REQUIRE_OK(rig.dev->ops->event_create(rig.dev, 0, &ready, &err), err);
        hl_device_leave(rig.dev);
        hl_fault_use_board(faults.board);
        for (size_t i = 0; i < sizeof points / sizeof points[0]; i++)
            for (uint32_t nth = 1; nth < MOST_HITS && fail_nth(&rig, &faults, routes[r], points[i], nth);
                 nth++)
                continue;
        hl_fault_use_board(NULL);
        HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
        HL_EXPECT_OK(rig.dev->ops->event_destroy(rig.dev, ready, &err), err);
        hl_device_leave(rig.dev);
        rig_close(&rig);
    }
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++)
        if (strncmp(points[i], "device_copy_rows", 16) != 0) {
            if (hl_fault_hits(faults.board, points[i]) == 0)
                fprintf(stderr, "%s: never hit\n", points[i]);
            CU_ASSERT_TRUE(hl_fault_hits(faults.board, points[i]) > 0);
        }
    hl_fault_board_free(faults.board);
}

/* I9: a copy stream whose end cannot be seen is not called drained, and its executor takes nothing more. */
static void a_failure_that_cannot_be_drained_is_not_called_drained(void)
{
    ready = NULL;
    struct rig rig;
    struct hl_operation_result result = {0};
    hl_error err = {0};
    hl_fault_board *board = hl_fault_board_create();
    rig_open(&rig, &(struct rig_options){.shape = shape, .seed = 3, .software = true});
    rig_open_transfer(&rig, HL_ROUTE_DIRECT);
    rig_compile(&rig, 3, shape.blocks, false, 0);
    hl_fault_use_board(board);
    hl_operation *operation = rig_start(&rig);
    hl_fault_arm(board, "device_event_record_before", 1, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, "device_stream_synchronize_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_STATUS(submit_all(&rig, operation, &err), HL_E_DEVICE, err);
    HL_EXPECT_STATUS(hl_operation_poll(operation, &result, &err), HL_E_DEVICE, err);
    CU_ASSERT_FALSE(result.drained);
    hl_operation_close(operation);
    struct hl_operation_options options = {.identity = rig.identity};
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_STATE, err);
    expect_whole(&rig, HL_ROUTE_DIRECT);
    hl_fault_use_board(NULL);
    rig_close(&rig);
    hl_fault_board_free(board);
}

/* What the device refuses to give back stays the device's; the executor's own memory goes. */
static void an_executor_closes_although_the_device_gives_nothing_back(void)
{
    static const char *const refused[] = {"device_stream_destroy_before", "device_event_destroy_before",
                                          "device_mem_free_before", "device_host_unregister_before"};
    hl_fault_board *board = hl_fault_board_create();
    struct rig rig;
    rig_open(&rig, &(struct rig_options){.shape = shape, .seed = 3, .software = true});
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct hl_software_counts before = rig_counts(&rig);
        rig_open_transfer(&rig, HL_ROUTE_KERNEL);
        hl_fault_use_board(board);
        const unsigned rule = hl_fault_arm(board, refused[i], 1, HL_FAULT_ERROR, EIO);
        rig_close_transfer(&rig);
        rig.transfer = NULL;
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        hl_fault_use_board(NULL);
        const struct hl_software_counts after = rig_counts(&rig);
        CU_ASSERT_EQUAL(after.streams + after.events + after.allocations + after.registrations,
                        before.streams + before.events + before.allocations + before.registrations + 1);
        rig_open_transfer(&rig, HL_ROUTE_KERNEL);
        rig_compile(&rig, 3, shape.blocks, false, 0);
        rig_restore(&rig);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
        rig_close_transfer(&rig);
        rig.transfer = NULL;
    }
    hl_fault_board_free(board);
    rig.dev->info.kind = HL_DEVICE_CUDA; /* what the device kept is known: rig_close() is not to count it */
    rig_close(&rig);
}

HL_TESTS(transfer_steps, HL_CASE(every_step_of_an_operation_may_fail),
         HL_CASE(a_failure_that_cannot_be_drained_is_not_called_drained),
         HL_CASE(an_executor_closes_although_the_device_gives_nothing_back));
