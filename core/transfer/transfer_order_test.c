/* What waits for what, shown on the software device by holding streams: nothing here depends on time. */
#include <pthread.h>

#include "core/transfer/transfer_testing.h"

static const struct rig_shape shape = {
    .layers = 4, .pages = 16, .blocks = 8, .tokens = 2, .row_bytes = 128, .groups = 2};

static void open_rig(struct rig *rig, enum hl_route route)
{
    rig_open(rig, &(struct rig_options){.shape = shape, .seed = 5, .software = true});
    rig_open_transfer(rig, route);
}

/* A stream of the caller's with one copy that stands at a hold, like a forward pass that still runs. */
static hl_stream make_busy_stream(struct rig *rig)
{
    hl_stream stream = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->stream_create(rig->dev, &stream, &err), err);
    hl_software_hold(rig->dev, stream, 0);
    HL_REQUIRE_OK(rig->dev->ops->fill(rig->dev, rig->tensors[0].base, RIG_POISON, 1, stream, &err), err);
    hl_device_leave(rig->dev);
    return stream;
}

static void destroy_stream(struct rig *rig, hl_stream stream)
{
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    rig->dev->ops->stream_destroy(rig->dev, stream, NULL);
    hl_device_leave(rig->dev);
}

static hl_status query(struct rig *rig, hl_event event)
{
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    hl_status status = rig->dev->ops->event_query(rig->dev, event, &err);
    hl_device_leave(rig->dev);
    return status;
}

static bool is_poisoned(struct rig *rig)
{
    bool poisoned = true;
    for (uint32_t i = 0; i < rig->layout->tensor_count; i++) {
        unsigned char *bytes = malloc(rig->tensors[i].bytes);
        rig_peek(rig, i, bytes);
        for (uint64_t b = 0; b < rig->tensors[i].bytes; b++)
            poisoned = poisoned && bytes[b] == RIG_POISON;
        free(bytes);
    }
    return poisoned;
}

static hl_operation *start_behind(struct rig *rig, hl_stream ready_stream)
{
    hl_error err = {0};
    hl_operation *operation = NULL;
    struct hl_operation_options options = {.identity = rig->identity,
                                           .has_ready_stream = true,
                                           .ready_stream = ready_stream,
                                           .layer_events = rig->events};
    HL_REQUIRE_OK(hl_operation_start(rig->transfer, &options, &operation, &err), err);
    return operation;
}

static void nothing_is_written_before_a_busy_ready_stream(void)
{
    for (int route = HL_ROUTE_DIRECT; route <= HL_ROUTE_KERNEL; route++) {
        struct rig rig;
        hl_error err = {0};
        struct hl_operation_result result = {0};
        open_rig(&rig, (enum hl_route)route);
        hl_stream busy = make_busy_stream(&rig);
        rig_compile(&rig, 3, rig.shape.blocks, false, 0);
        uint64_t submitted = rig_counts(&rig).submitted;
        hl_operation *operation = start_behind(&rig, busy);
        CU_ASSERT_EQUAL(rig_counts(&rig).submitted,
                        submitted + 2); /* a record and a wait, nothing on the host */
        HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
        CU_ASSERT_EQUAL(hl_operation_poll(operation, &result, &err), HL_PENDING);
        for (uint32_t i = 0; i < shape.layers; i++)
            CU_ASSERT_EQUAL(query(&rig, rig.events[i]), HL_PENDING);
        CU_ASSERT_TRUE(is_poisoned(&rig));
        hl_software_release(rig.dev, busy);
        HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
        CU_ASSERT_TRUE(result.drained && result.submitted);
        hl_operation_close(operation);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
        CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
        destroy_stream(&rig, busy);
        rig_close(&rig);
    }
}

static void an_idle_ready_stream_costs_nothing(void)
{
    struct rig rig;
    open_rig(&rig, HL_ROUTE_AUTO);
    uint64_t submitted = rig_counts(&rig).submitted;
    hl_operation *operation = start_behind(&rig, NULL);
    CU_ASSERT_EQUAL(rig_counts(&rig).submitted, submitted);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* A caller that recorded an event when it looked at the stream: the copy stream waits for that record. */
static void nothing_is_written_before_a_ready_event(void)
{
    struct rig rig;
    hl_error err = {0};
    hl_event ready = NULL;
    hl_operation *operation = NULL;
    struct hl_operation_result result = {0};
    open_rig(&rig, HL_ROUTE_DIRECT);
    hl_stream busy = make_busy_stream(&rig);
    rig_compile(&rig, 3, rig.shape.blocks, false, 0);
    HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
    HL_REQUIRE_OK(rig.dev->ops->event_create(rig.dev, 0, &ready, &err), err);
    HL_REQUIRE_OK(rig.dev->ops->event_record(rig.dev, ready, busy, &err), err);
    hl_device_leave(rig.dev);
    struct hl_operation_options options = {
        .identity = rig.identity, .ready_event = ready, .layer_events = rig.events};
    HL_REQUIRE_OK(hl_operation_start(rig.transfer, &options, &operation, &err), err);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    CU_ASSERT_EQUAL(hl_operation_poll(operation, &result, &err), HL_PENDING);
    CU_ASSERT_TRUE(is_poisoned(&rig));
    hl_software_release(rig.dev, busy);
    HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
    hl_operation_close(operation);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
    HL_EXPECT_OK(rig.dev->ops->event_destroy(rig.dev, ready, &err), err);
    /* No longer an event: refused, and nothing of the operation is left. */
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_INVALID, err);
    hl_device_leave(rig.dev);
    destroy_stream(&rig, busy);
    rig_close(&rig);
}

/* The one reusable event is recorded again while the copy stream still waits for its earlier record. */
static void two_busy_ready_streams_are_both_waited_for(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig, HL_ROUTE_DIRECT);
    hl_stream first = make_busy_stream(&rig), second = make_busy_stream(&rig);
    rig_compile(&rig, 1, rig.shape.blocks, false, 0);
    hl_operation *a = start_behind(&rig, first);
    HL_EXPECT_OK(rig_submit_part(&rig, a, 0, &err), err);
    hl_operation *b = start_behind(&rig, second);
    HL_EXPECT_OK(rig_submit_part(&rig, b, 0, &err), err);
    hl_software_release(rig.dev, second);
    hl_software_wait_held(rig.dev, first);
    CU_ASSERT_TRUE(is_poisoned(&rig));
    hl_software_release(rig.dev, first);
    HL_EXPECT_OK(hl_operation_drain(b, &result, &err), err);
    HL_EXPECT_OK(hl_operation_poll(a, &result, &err), err);
    hl_operation_close(a);
    hl_operation_close(b);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    destroy_stream(&rig, first);
    destroy_stream(&rig, second);
    rig_close(&rig);
}

static void a_failed_ready_stream_is_refused(void)
{
    struct rig rig;
    hl_error err = {0};
    hl_operation *operation = NULL;
    open_rig(&rig, HL_ROUTE_DIRECT);
    hl_stream stream = make_busy_stream(&rig);
    hl_software_fail_execution(rig.dev, 1, 700);
    hl_software_release(rig.dev, stream);
    HL_REQUIRE_OK(hl_device_enter(rig.dev, &err), err);
    HL_EXPECT_STATUS(rig.dev->ops->stream_synchronize(rig.dev, stream, &err), HL_E_DEVICE, err);
    hl_device_leave(rig.dev);
    uint64_t submitted = rig_counts(&rig).submitted;
    struct hl_operation_options options = {
        .identity = rig.identity, .has_ready_stream = true, .ready_stream = stream};
    err = (hl_error){0};
    HL_EXPECT_STATUS(hl_operation_start(rig.transfer, &options, &operation, &err), HL_E_DEVICE, err);
    CU_ASSERT_EQUAL(err.device_code, 700);
    CU_ASSERT_PTR_NULL(operation);
    CU_ASSERT_EQUAL(rig_counts(&rig).submitted, submitted);
    /* The executor itself is as good as before. */
    rig_compile(&rig, 1, rig.shape.blocks, false, 0);
    rig_restore(&rig);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    destroy_stream(&rig, stream);
    rig_close(&rig);
}

/* The copy stream stands at each of its operations in turn: the events are complete from the front, and the
 * bytes of every complete layer are there. */
static void layer_events_complete_in_order(void)
{
    for (int route = HL_ROUTE_DIRECT; route <= HL_ROUTE_KERNEL; route++) {
        struct rig rig;
        hl_error err = {0};
        struct hl_operation_result result = {0};
        open_rig(&rig, (enum hl_route)route);
        hl_stream stream = hl_transfer_stream(rig.transfer);
        for (unsigned round = 0;; round++) {
            rig_compile(&rig, 1u << round % 2, rig.shape.blocks, false, 0);
            hl_software_hold(rig.dev, stream, round + 1);
            hl_operation *operation = rig_start(&rig);
            HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
            hl_software_wait_settled(rig.dev, stream);
            hl_software_wait_settled(rig.dev, rig.transfer->event_stream);
            uint32_t complete = 0;
            while (complete < shape.layers && query(&rig, rig.events[complete]) == HL_OK)
                complete++;
            for (uint32_t i = complete; i < shape.layers; i++)
                CU_ASSERT_EQUAL(query(&rig, rig.events[i]),
                                HL_PENDING); /* recorded afresh by this operation */
            for (uint32_t tensor = 0; tensor < 2 * complete; tensor++) {
                unsigned char *bytes = malloc(rig.tensors[tensor].bytes);
                rig_peek(&rig, tensor, bytes);
                CU_ASSERT_EQUAL(memcmp(bytes, rig.expected[tensor], rig.tensors[tensor].bytes), 0);
                free(bytes);
            }
            bool over = hl_operation_poll(operation, &result, &err) == HL_OK;
            CU_ASSERT_TRUE(round > 0 || complete == 0);
            CU_ASSERT_TRUE(!over || complete == shape.layers);
            hl_software_release(rig.dev, stream);
            HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
            hl_operation_close(operation);
            if (over)
                break;
        }
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
        CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
        rig_close(&rig);
    }
}

/* The launch stands between two of its layers, and those before are there for their consumers. */
static void a_layers_event_comes_while_its_launch_copies_the_next(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig, HL_ROUTE_KERNEL);
    hl_stream stream = hl_transfer_stream(rig.transfer);
    for (uint32_t copied = 0; copied <= shape.layers; copied++) {
        rig_poison(&rig);
        rig_compile(&rig, 3, rig.shape.blocks, false, 0);
        hl_software_hold(rig.dev, stream, copied + 1);
        hl_operation *operation = rig_start(&rig);
        HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
        hl_software_wait_held(rig.dev, stream);
        hl_software_wait_settled(rig.dev, rig.transfer->event_stream);
        for (uint32_t i = 0; i < shape.layers; i++)
            CU_ASSERT_EQUAL(query(&rig, rig.events[i]), i < copied ? HL_OK : HL_PENDING);
        CU_ASSERT_EQUAL(hl_operation_poll(operation, &result, &err), HL_PENDING);
        hl_software_release(rig.dev, stream);
        HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
        hl_operation_close(operation);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
    }
    rig_close(&rig);
}

static bool layer_is_there(struct rig *rig, uint32_t layer)
{
    bool there = true;
    for (uint32_t tensor = 2 * layer; tensor < 2 * layer + 2; tensor++) {
        unsigned char *bytes = malloc(rig->tensors[tensor].bytes);
        rig_peek(rig, tensor, bytes);
        there = there && memcmp(bytes, rig->expected[tensor], rig->tensors[tensor].bytes) == 0;
        free(bytes);
    }
    return there;
}

/* Steps until nothing can go on; after each step, complete layers come first and have their bytes. */
static bool step_through(struct rig *rig)
{
    bool good = true;
    do {
        bool complete = true;
        for (uint32_t i = 0; i < shape.layers; i++) {
            bool now = query(rig, rig->events[i]) == HL_OK;
            good = good && (complete || !now) && (!now || layer_is_there(rig, i));
            complete = now;
        }
    } while (hl_software_step(rig->dev, -1) > 0);
    return good;
}

/* Parts of one operation take different routes, so that layers begin on one and end on another, and events
 * are on both streams: in whatever order the streams go on, events keep theirs. */
static void events_keep_their_order_over_both_routes(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct rig rig;
        hl_error err = {0};
        struct hl_operation_result result = {0};
        rig_open(&rig,
                 &(struct rig_options){.shape = shape, .seed = seed, .software = true, .single_step = true});
        rig_open_transfer(&rig, HL_ROUTE_KERNEL);
        rig_compile(&rig, seed % 4 ? 3 : 1 + seed / 4 % 2, rig.shape.blocks, false, 600 + 100 * (seed % 16));
        hl_operation *operation = rig_start(&rig);
        for (size_t i = 0; i < hl_plan_part_count(rig.plan); i++) {
            rig.transfer->route = hl_random_below(&rig.random, 2) ? HL_ROUTE_KERNEL : HL_ROUTE_DIRECT;
            HL_EXPECT_OK(rig_submit_part(&rig, operation, i, &err), err);
        }
        CU_ASSERT_TRUE(step_through(&rig));
        HL_EXPECT_OK(hl_operation_poll(operation, &result, &err), err);
        for (uint32_t i = 0; i < shape.layers; i++)
            CU_ASSERT_EQUAL(query(&rig, rig.events[i]), HL_OK);
        hl_operation_close(operation);
        CU_ASSERT_TRUE(rig_tensors_match(&rig));
        CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
        rig_close(&rig);
    }
}

static void two_operations_are_in_flight_at_once(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig, HL_ROUTE_KERNEL);
    hl_stream stream = hl_transfer_stream(rig.transfer);
    hl_software_hold(rig.dev, stream, 0);
    rig_compile(&rig, 1, rig.shape.blocks, true, 0);
    hl_operation *first = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, first, 0, &err), err);
    rig.keep_allowed = true;
    rig_compile(&rig, 2, rig.shape.blocks, true, 320);
    hl_operation *second = rig_start(&rig);
    size_t parts = hl_plan_part_count(rig.plan);
    CU_ASSERT_TRUE(parts > 1);
    for (size_t i = 0; i < parts; i++)
        HL_EXPECT_OK(rig_submit_part(&rig, second, i, &err), err);
    CU_ASSERT_EQUAL(hl_operation_poll(first, &result, &err), HL_PENDING);
    CU_ASSERT_EQUAL(hl_operation_poll(second, &result, &err), HL_PENDING);
    CU_ASSERT_TRUE(is_poisoned(&rig));
    hl_software_release(rig.dev, stream);
    HL_EXPECT_OK(hl_operation_drain(second, &result, &err), err);
    HL_EXPECT_OK(hl_operation_poll(first, &result, &err), err);
    hl_operation_close(first);
    hl_operation_close(second);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
    rig_close(&rig);
}

struct outsider {
    struct rig *rig;
    hl_operation *operation;
    bool entered; /* after any of the calls */
};

static void *drive_from_outside(void *arg)
{
    struct outsider *outsider = arg;
    struct rig *rig = outsider->rig;
    struct hl_operation_result result;
    hl_operation *refused = NULL;
    hl_error err = {0};
    hl_event events[8] = {0};
    struct hl_operation_options bad = {.layer_events = events};
    hl_operation_start(rig->transfer, &bad, &refused, &err);
    outsider->entered = outsider->entered || rig_is_entered(rig);
    outsider->operation = rig_start(rig);
    outsider->entered = outsider->entered || rig_is_entered(rig);
    HL_EXPECT_OK(rig_submit_part(rig, outsider->operation, 0, &err), err);
    outsider->entered = outsider->entered || rig_is_entered(rig);
    while (hl_operation_poll(outsider->operation, &result, &err) == HL_PENDING)
        outsider->entered = outsider->entered || rig_is_entered(rig);
    hl_operation_drain(outsider->operation, &result, &err);
    outsider->entered = outsider->entered || rig_is_entered(rig);
    return NULL;
}

static void the_callers_context_is_left_as_it_was(void)
{
    struct rig rig;
    struct hl_operation_result result;
    hl_error err = {0};
    hl_device *other = NULL;
    open_rig(&rig, HL_ROUTE_AUTO);
    rig_compile(&rig, 1, rig.shape.blocks, false, 0);

    struct outsider outsider = {.rig = &rig};
    pthread_t thread;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, drive_from_outside, &outsider), 0);
    pthread_join(thread, NULL);
    CU_ASSERT_FALSE(outsider.entered);
    hl_operation_close(outsider.operation);
    CU_ASSERT_FALSE(rig_is_entered(&rig));

    /* Inside another device's context: leave() would find a foreign device if one were left behind. */
    HL_REQUIRE_OK(hl_device_open_software(&other, &err), err);
    HL_REQUIRE_OK(hl_device_enter(other, &err), err);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 0, &err), HL_E_STATE, err);
    hl_operation_drain(operation, &result, &err);
    hl_operation_close(operation);
    operation = rig_start(&rig);
    hl_software_fail_submit(rig.dev, 2, 2);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 0, &err), HL_E_DEVICE, err);
    hl_operation_close(operation);
    CU_ASSERT_FALSE(rig_is_entered(&rig));
    uint64_t free_bytes, total_bytes;
    HL_EXPECT_OK(other->ops->memory_info(other, &free_bytes, &total_bytes, &err), err);
    hl_device_leave(other);
    hl_device_close(other);
    rig_close(&rig);
}

HL_TESTS(transfer_order, HL_CASE(nothing_is_written_before_a_busy_ready_stream),
         HL_CASE(an_idle_ready_stream_costs_nothing), HL_CASE(nothing_is_written_before_a_ready_event),
         HL_CASE(two_busy_ready_streams_are_both_waited_for), HL_CASE(a_failed_ready_stream_is_refused),
         HL_CASE(layer_events_complete_in_order),
         HL_CASE(a_layers_event_comes_while_its_launch_copies_the_next),
         HL_CASE(events_keep_their_order_over_both_routes), HL_CASE(two_operations_are_in_flight_at_once),
         HL_CASE(the_callers_context_is_left_as_it_was));
