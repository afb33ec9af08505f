/* What only the software device can show: when events are recorded, what failures leave behind, how much is
 * pinned, and in whose context calls run. */
#include <stdatomic.h>

#include "core/weights/upload/upload_testing.h"

static const uint64_t several[] = {5000, 1, 70000, 0, 4096, 65536, 262144 + 17, 3, 0};
enum { SEVERAL = sizeof several / sizeof several[0], OTHER = 700 /* a driver's code for a failure */ };

static const struct rig_options small = {
    .bytes = several, .count = SEVERAL, .files = 2, .header = 777, .gap = 16, .software = true};

static struct rig_options on_tmpfs(struct rig_options options, bool tmpfs)
{
    options.tmpfs = tmpfs;
    return options;
}

/* --- what the device is asked to do --- */

static struct watch {
    struct rig *rig;
    atomic_uint accesses, early; /* copies; and those of a tensor whose event was complete already */
} watch;

static int watch_access(void *user, const struct hl_software_access *access)
{
    struct watch *watched = user;
    struct rig *rig = watched->rig;
    if (!rig || access->kind != HL_COPY_H2D)
        return 0;
    atomic_fetch_add(&watched->accesses, 1);
    if (hl_device_enter(rig->dev, NULL))
        return 1;
    for (size_t i = 0; i < rig->count; i++) {
        const hl_weight_destination *destination = &rig->destinations[i];
        const bool ends_before = destination->device_ptr + rig->sizes[i] <= access->dst;
        const bool begins_after = access->dst + access->bytes <= destination->device_ptr;
        if (!ends_before && !begins_after && destination->event &&
            rig->ops->event_query(rig->dev, destination->event, NULL) != HL_PENDING)
            atomic_fetch_add(&watched->early, 1);
    }
    hl_device_leave(rig->dev);
    return 0;
}

/* A never recorded event counts as complete, so each is first recorded behind a held operation of another
 * stream: pending until the upload records it anew. */
static void an_event_is_pending_until_the_last_byte_has_arrived(void)
{
    static const struct hl_software_options watched = {.checker = watch_access, .checker_user = &watch};
    for (int variant = 0; variant < 2 * RIG_WAYS; variant++) {
        struct rig rig;
        struct rig_options options = on_tmpfs(small, rig_way_tmpfs(variant / 2));
        options.shuffled = variant % 2;
        options.device = &watched;
        rig_open(&rig, &options);
        hl_stream held;
        HL_REQUIRE_OK(rig.ops->stream_create(rig.dev, &held, &rig.err), rig.err);
        hl_software_hold(rig.dev, held, 1);
        for (size_t i = 0; i < rig.count; i++)
            HL_EXPECT_OK(rig.ops->event_record(rig.dev, rig.destinations[i].event, held, &rig.err), rig.err);
        rig.options.route = rig_way_route(variant / 2);
        watch = (struct watch){.rig = &rig};
        rig_upload(&rig);
        watch.rig = NULL;
        CU_ASSERT_TRUE(atomic_load(&watch.accesses) > 0);
        CU_ASSERT_EQUAL(atomic_load(&watch.early), 0);
        hl_software_release(rig.dev, held);
        HL_EXPECT_OK(rig.ops->stream_destroy(rig.dev, held, &rig.err), rig.err);
        rig_close(&rig);
    }
}

static void one_copy_serves_tensors_that_follow_each_other(void)
{
    enum { COUNT = 1000, BYTES = 100 };
    static const struct hl_software_options watched = {.checker = watch_access, .checker_user = &watch};
    uint64_t bytes[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        bytes[i] = BYTES;
    for (int variant = 0; variant < 2 * RIG_WAYS; variant++) {
        struct rig rig;
        const struct rig_options options = {.bytes = bytes,
                                            .count = COUNT,
                                            .header = 50,
                                            .files = 2,
                                            .tmpfs = rig_way_tmpfs(variant / 2),
                                            .gap = variant % 2,
                                            .no_events = true,
                                            .device = &watched};
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(variant / 2);
        watch = (struct watch){.rig = &rig};
        rig_upload(&rig);
        watch.rig = NULL;
        const unsigned accesses = atomic_load(&watch.accesses);
        CU_ASSERT_TRUE(options.gap ? accesses >= COUNT : accesses <= 16);
        rig_close(&rig);
    }
}

static void stepped_devices_get_every_byte(void)
{
    for (uint64_t seed = 0; seed < 16; seed++) {
        struct rig rig;
        const struct hl_software_options stepped = {.single_step = true, .seed = seed};
        struct rig_options options = on_tmpfs(small, rig_way_tmpfs(seed % RIG_WAYS));
        options.device = &stepped;
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(seed % RIG_WAYS);
        rig_upload(&rig);
        rig_close(&rig);
    }
}

/* --- failures --- */

/* Targets that the failed upload reported as recorded are complete; nothing outside the tensors was written.
 */
static void expect_no_stray_byte(struct rig *rig)
{
    rig_read(rig);
    for (size_t i = 0; i < rig->bytes; i++)
        if (rig->host[i] != rig->expected[i] && rig->host[i] != RIG_POISON) {
            CU_FAIL("a byte is neither the tensor's nor poison");
            return;
        }
}

static void a_failing_submission_is_drained_and_typed(void)
{
    for (int way = 0; way < RIG_WAYS; way++) {
        unsigned nth = 0;
        for (bool failed = true; failed && nth < 500;) {
            struct rig rig;
            const struct rig_options options = on_tmpfs(small, rig_way_tmpfs(way));
            hl_weight_upload_result result;
            rig_open(&rig, &options);
            rig.options.route = rig_way_route(way);
            hl_software_fail_submit(rig.dev, ++nth, OTHER);
            hl_upload *upload = rig_start(&rig);
            failed = hl_upload_wait(upload, -1, &result, &rig.err) != HL_OK;
            CU_ASSERT_TRUE(result.drained);
            if (failed) {
                CU_ASSERT_EQUAL(rig.err.status, HL_E_DEVICE);
                CU_ASSERT_EQUAL(rig.err.device_code, OTHER);
            }
            CU_ASSERT_TRUE(hl_upload_close(upload));
            hl_software_fail_submit(rig.dev, 0, 0);
            rig_expect_nothing_left(&rig);
            CU_ASSERT_EQUAL(testing_lease_holds(rig.lease), 1);
            expect_no_stray_byte(&rig);
            if (!failed)
                CU_ASSERT_TRUE(rig_matches(&rig));
            rig_close(&rig);
        }
        CU_ASSERT_TRUE(nth > SEVERAL && nth < 500);
    }
}

/* The device has failed: nobody knows what still writes, so everything stays. */
static void a_failing_execution_is_not_drained_and_keeps_everything(void)
{
    for (int way = 0; way < RIG_WAYS; way++) {
        struct rig rig;
        const struct rig_options options = on_tmpfs(small, rig_way_tmpfs(way));
        hl_weight_upload_result result;
        struct hl_software_counts counts;
        const unsigned leases = testing_leases();
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(way);
        hl_software_fail_execution(rig.dev, 3, OTHER);
        hl_upload *upload = rig_start(&rig);
        HL_EXPECT_STATUS(hl_upload_wait(upload, -1, &result, &rig.err), HL_E_DEVICE, rig.err);
        CU_ASSERT_EQUAL(rig.err.device_code, OTHER);
        CU_ASSERT_FALSE(result.drained);
        CU_ASSERT_FALSE(hl_upload_close(upload));
        hl_software_counts(rig.dev, &counts);
        CU_ASSERT_TRUE(counts.registered_bytes > rig.before.registered_bytes);
        CU_ASSERT_TRUE(counts.streams > rig.before.streams);
        CU_ASSERT_EQUAL(testing_lease_holds(rig.lease), 2);
        hl_weight_lease_release(rig.lease);
        rig.lease = NULL;
        CU_ASSERT_EQUAL(testing_leases(), leases + 1); /* mapped for ever */
        expect_no_stray_byte(&rig);
        rig_close(&rig);
    }
}

/* Whether the k-th registration of an upload is its first, which start() makes, or a later one. */
static void a_failing_registration_rolls_back(void)
{
    for (int tmpfs = 0; tmpfs < 2; tmpfs++) {
        bool failed = true;
        unsigned nth = 0;
        while (failed && nth < 100) {
            struct rig rig;
            const struct rig_options options = on_tmpfs(small, tmpfs);
            hl_weight_upload_result result = {.drained = true};
            hl_upload *upload = NULL;
            rig_open(&rig, &options);
            rig.options.route = tmpfs ? HL_WEIGHT_UPLOAD_REGISTERED : HL_WEIGHT_UPLOAD_STAGING;
            hl_software_fail_register(rig.dev, ++nth, 2);
            hl_status status = hl_upload_start(rig.dev, rig.lease, &rig.options, rig.destinations, rig.count,
                                               &upload, &rig.err);
            CU_ASSERT_EQUAL(status != HL_OK, nth == 1);
            if (status == HL_OK)
                status = hl_upload_wait(upload, -1, &result, &rig.err);
            failed = status != HL_OK;
            if (failed) {
                CU_ASSERT_EQUAL(status, nth == 1 && tmpfs ? HL_E_UNSUPPORTED : HL_E_NOMEM);
                CU_ASSERT_EQUAL(rig.err.device_code, 2);
            }
            CU_ASSERT_TRUE(result.drained);
            CU_ASSERT_TRUE(hl_upload_close(upload));
            rig_expect_nothing_left(&rig);
            CU_ASSERT_EQUAL(testing_lease_holds(rig.lease), 1);
            expect_no_stray_byte(&rig);
            hl_software_fail_register(rig.dev, 0, 0);
            rig_close(&rig);
        }
        CU_ASSERT_TRUE(nth > 2 && nth < 100);
    }
}

static void registered_is_refused_where_the_pages_cannot_be_pinned(void)
{
    const struct hl_software_options cannot = {.no_read_only_registration = true};
    for (int variant = 0; variant < 2; variant++) {
        struct rig rig;
        struct rig_options options = on_tmpfs(small, true);
        hl_upload *upload = NULL;
        options.device = variant ? &cannot : NULL;
        rig_open(&rig, &options);
        if (!variant)
            hl_software_fail_register(rig.dev, 1, 304);
        rig.options.route = HL_WEIGHT_UPLOAD_REGISTERED;
        HL_EXPECT_STATUS(
            hl_upload_start(rig.dev, rig.lease, &rig.options, rig.destinations, rig.count, &upload, &rig.err),
            HL_E_UNSUPPORTED, rig.err);
        CU_ASSERT_PTR_NULL(upload);
        rig_expect_nothing_left(&rig);
        rig.options.route = HL_WEIGHT_UPLOAD_AUTO;
        rig_upload(&rig);
        rig_close(&rig);
    }
}

/* A destination that is no device memory is the device's to refuse. */
static void a_destination_outside_device_memory_fails_and_is_drained(void)
{
    struct rig rig;
    hl_weight_upload_result result;
    rig_open(&rig, &small);
    rig.destinations[2].device_ptr = rig.memory + rig.bytes - 10;
    hl_upload *upload = rig_start(&rig);
    HL_EXPECT_STATUS(hl_upload_wait(upload, -1, &result, &rig.err), HL_E_INVALID, rig.err);
    CU_ASSERT_TRUE(result.drained);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    rig_expect_nothing_left(&rig);
    rig_close(&rig);
}

/* --- bounds and contexts --- */

static void pinned_memory_is_bounded(void)
{
    static const uint64_t bytes[] = {3000000, 100, 2000000};
    for (int way = 0; way < RIG_WAYS; way++) {
        struct rig rig;
        struct hl_software_counts counts;
        const struct rig_options options = {
            .bytes = bytes, .count = 3, .header = 8, .software = true, .tmpfs = rig_way_tmpfs(way)};
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(way);
        rig.options.staging_bytes = rig.options.register_chunk_bytes = 512 << 10;
        rig_upload(&rig);
        hl_software_counts(rig.dev, &counts);
        const uint64_t peak = counts.registered_bytes_peak - rig.before.registered_bytes;
        CU_ASSERT_TRUE(peak > 0 && peak <= 512 << 10);
        rig_close(&rig);
    }
}

static void a_small_upload_pins_no_more_slots_than_it_needs(void)
{
    static const uint64_t bytes[] = {100, 200};
    const struct rig_options options = {.bytes = bytes, .count = 2, .software = true};
    struct rig rig;
    struct hl_software_counts counts;
    rig_open(&rig, &options);
    rig.options.staging_bytes = 64 << 20;
    rig_upload(&rig);
    hl_software_counts(rig.dev, &counts);
    CU_ASSERT_EQUAL(counts.registered_bytes_peak - rig.before.registered_bytes, 65536);
    rig_close(&rig);
}

static void the_callers_context_is_preserved(void)
{
    struct rig rig, other;
    hl_devptr ptr;
    rig_open(&rig, &small);
    rig_open(&other, &small); /* its device is the current one now */
    hl_upload *upload = rig_start(&rig);
    HL_EXPECT_STATUS(rig.ops->mem_alloc(rig.dev, 1, &ptr, &rig.err), HL_E_STATE, rig.err);
    HL_EXPECT_OK(hl_upload_wait_enqueued(upload, -1, &rig.err), rig.err);
    HL_EXPECT_OK(hl_upload_wait(upload, -1, NULL, &rig.err), rig.err);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    HL_EXPECT_OK(other.ops->mem_alloc(other.dev, 1, &ptr, &other.err), other.err);
    HL_EXPECT_OK(other.ops->mem_free(other.dev, ptr, &other.err), other.err);
    rig_close(&other);
    CU_ASSERT_TRUE(rig_matches(&rig));
    hl_device_leave(rig.dev); /* and from a thread that is in no context */
    upload = rig_start(&rig);
    HL_EXPECT_STATUS(rig.ops->mem_alloc(rig.dev, 1, &ptr, &rig.err), HL_E_STATE, rig.err);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    HL_REQUIRE_OK(hl_device_enter(rig.dev, &rig.err), rig.err);
    rig_close(&rig);
}

HL_TESTS(upload_software, HL_CASE(an_event_is_pending_until_the_last_byte_has_arrived),
         HL_CASE(one_copy_serves_tensors_that_follow_each_other), HL_CASE(stepped_devices_get_every_byte),
         HL_CASE(a_failing_submission_is_drained_and_typed),
         HL_CASE(a_failing_execution_is_not_drained_and_keeps_everything),
         HL_CASE(a_failing_registration_rolls_back),
         HL_CASE(registered_is_refused_where_the_pages_cannot_be_pinned),
         HL_CASE(a_destination_outside_device_memory_fails_and_is_drained), HL_CASE(pinned_memory_is_bounded),
         HL_CASE(a_small_upload_pins_no_more_slots_than_it_needs), HL_CASE(the_callers_context_is_preserved));
