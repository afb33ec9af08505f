/* Uploads on any device: every byte in its place, order, waiting and ends. The same program with
 * HOSTLANE_TEST_DEVICE=cuda is the conformance test on a GPU. */
#include <unistd.h>

#include "core/weights/upload/upload_testing.h"

#define KIB 1024ull

static const uint64_t several[] = {5000, 1, 70000, 0, 4096, 65536, 262144 + 17, 3, 0};
enum { SEVERAL = sizeof several / sizeof several[0] };

static const struct rig_options small = {.bytes = several, .count = SEVERAL, .files = 2, .header = 777};

/* Uploads by STAGING and, where it can be, by the others. */
static void upload_by_each_route(const struct rig_options *options, uint64_t slot_bytes, uint32_t slots,
                                 uint32_t threads)
{
    for (int way = 0; way < RIG_WAYS; way++) {
        struct rig_options placed = *options;
        struct rig rig;
        placed.tmpfs = rig_way_tmpfs(way);
        rig_open(&rig, &placed);
        rig.options.slot_bytes = slot_bytes;
        rig.options.staging_bytes = slots * slot_bytes;
        rig.options.register_chunk_bytes = slots * slot_bytes;
        rig.options.copy_threads = threads;
        rig.options.route = rig_way_route(way);
        if (rig.options.route != HL_WEIGHT_UPLOAD_REGISTERED || rig_can_register(&rig))
            rig_upload(&rig);
        rig_expect_nothing_left(&rig);
        rig_close(&rig);
    }
    CU_ASSERT_EQUAL(testing_leases(), 0);
}

static void tensors_of_every_shape_arrive(void)
{
    static const struct {
        unsigned files;
        uint64_t header, gap;
        bool shuffled;
    } rows[] = {{1, 0, 0, false},      {1, 777, 0, false},    {3, 777, 1, false},   {9, 8, 300, false},
                {2, 4096, 0, true},    {1, 104, 256, true},   {4, 4096, 512, true}, {1, 4096, 4096, false},
                {2, 99999, 13, false}, {1, 1000000, 64, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct rig_options options = {.bytes = several,
                                            .count = SEVERAL,
                                            .files = rows[i].files,
                                            .header = rows[i].header,
                                            .gap = rows[i].gap,
                                            .shuffled = rows[i].shuffled,
                                            .seed = i};
        upload_by_each_route(&options, 64 * KIB, 4, 3);
        upload_by_each_route(&options, 4 * KIB, 2, 1);
        upload_by_each_route(&options, 1024 * KIB, 8, 4);
    }
}

static void a_tensor_larger_than_the_ring_arrives(void)
{
    static const uint64_t bytes[] = {100, 3 * 1024 * KIB + 5, 100};
    const struct rig_options options = {.bytes = bytes, .count = 3, .header = 10, .gap = 8};
    upload_by_each_route(&options, 64 * KIB, 2, 4);
    upload_by_each_route(&options, 128 * KIB, 3, 2);
}

static void thousands_of_tiny_tensors_arrive(void)
{
    enum { COUNT = 5000 };
    static uint64_t bytes[COUNT];
    hl_random random;
    hl_random_seed(&random, 5);
    for (size_t i = 0; i < COUNT; i++)
        bytes[i] = hl_random_below(&random, 300);
    struct rig_options options = {
        .bytes = bytes, .count = COUNT, .files = 5, .header = 64, .no_events = true};
    upload_by_each_route(&options, 64 * KIB, 4, 3);
    options.gap = 40;
    options.shuffled = true;
    upload_by_each_route(&options, 64 * KIB, 4, 3);
}

static void tensors_without_bytes_only_record_their_events(void)
{
    static const uint64_t bytes[] = {0, 0, 0};
    const struct rig_options options = {.bytes = bytes, .count = 3, .files = 2};
    upload_by_each_route(&options, 4 * KIB, 2, 2);
}

/* Pages in common between chunks under way, which no device registers twice. */
static void random_orders_by_pages_arrive(void)
{
    enum { COUNT = 60 };
    uint64_t bytes[COUNT];
    for (uint64_t seed = 0; seed < 8; seed++) {
        hl_random random;
        hl_random_seed(&random, seed);
        for (size_t i = 0; i < COUNT; i++)
            bytes[i] = hl_random_below(&random, 3) ? hl_random_below(&random, 9000) : 20000;
        const struct rig_options options = {
            .bytes = bytes, .count = COUNT, .header = 100, .gap = 7, .shuffled = true, .seed = seed};
        upload_by_each_route(&options, 4 * KIB, 8, 4);
        upload_by_each_route(&options, 8 * KIB, 16, 2);
    }
}

static void a_subset_of_a_lease_is_uploaded_alone(void)
{
    struct rig rig;
    struct rig_options options = small;
    options.shuffled = true;
    rig_open(&rig, &options);
    const size_t all = rig.count;
    for (size_t i = 4; i < all; i++) {
        const hl_devptr at = rig.destinations[i].device_ptr - rig.memory;
        memset(rig.expected + at, RIG_POISON, rig.sizes[i]);
    }
    rig.count = 4;
    rig_upload(&rig);
    rig.count = all;
    rig_close(&rig);
}

static void auto_stages_wherever_the_lease_is(void)
{
    for (int tmpfs = 0; tmpfs < 2; tmpfs++) {
        struct rig rig;
        struct rig_options options = small;
        hl_weight_upload_result result;
        options.tmpfs = tmpfs;
        rig_open(&rig, &options);
        rig.options.route = HL_WEIGHT_UPLOAD_AUTO;
        hl_upload *upload = rig_start(&rig);
        HL_EXPECT_OK(hl_upload_wait(upload, -1, &result, &rig.err), rig.err);
        CU_ASSERT_EQUAL(result.route, HL_WEIGHT_UPLOAD_STAGING);
        CU_ASSERT_TRUE(hl_upload_close(upload));
        CU_ASSERT_TRUE(rig_matches(&rig));
        rig_close(&rig);
    }
}

static void registering_files_of_another_file_system_is_unsupported(void)
{
    struct rig rig;
    hl_upload *upload = NULL;
    rig_open(&rig, &small);
    rig.options.route = HL_WEIGHT_UPLOAD_REGISTERED;
    HL_EXPECT_STATUS(
        hl_upload_start(rig.dev, rig.lease, &rig.options, rig.destinations, rig.count, &upload, &rig.err),
        HL_E_UNSUPPORTED, rig.err);
    CU_ASSERT_PTR_NULL(upload);
    if (rig.dev->info.read_only_registration)
        CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, "part0.safetensors"));
    rig_close(&rig);
}

/* Holds rig.stream until the word becomes 1. */
static volatile uint32_t *hold(struct rig *rig)
{
    hl_devptr word;
    *(volatile uint32_t *)(void *)rig->host = 0;
    HL_REQUIRE_OK(rig->ops->host_pointer(rig->dev, rig->host, &word, &rig->err), rig->err);
    HL_REQUIRE_OK(rig->ops->stream_wait_value(rig->dev, rig->stream, word, 1, &rig->err), rig->err);
    return (volatile uint32_t *)(void *)rig->host;
}

static void let_go(volatile uint32_t *word)
{
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/* A driver may wait for all of a GPU's work when pages are unregistered, also for a stream that is held: with
 * held streams only the STAGING route is run there. */
static int ways_with_holds(void)
{
    return rig_runs_on_gpu() ? 1 : RIG_WAYS;
}

/* The ready stream writes the destinations; had the upload not waited, its bytes would be overwritten. */
static void nothing_is_written_before_the_ready_stream_has_finished(void)
{
    for (int way = 0; way < ways_with_holds(); way++) {
        struct rig rig;
        struct rig_options options = small;
        options.tmpfs = rig_way_tmpfs(way);
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(way);
        rig.options.ready_stream = rig.stream;
        rig.options.staging_bytes =
            16 * 65536; /* room for all: every event is recorded in spite of the hold */
        rig.options.register_chunk_bytes = 64 * 65536;
        volatile uint32_t *word = hold(&rig);
        HL_EXPECT_OK(rig.ops->fill(rig.dev, rig.memory, RIG_POISON, rig.bytes, rig.stream, &rig.err),
                     rig.err);
        hl_upload *upload = rig_start(&rig);
        HL_EXPECT_OK(hl_upload_wait_enqueued(upload, -1, &rig.err), rig.err);
        CU_ASSERT_EQUAL(rig.ops->event_query(rig.dev, rig.destinations[0].event, &rig.err), HL_PENDING);
        HL_EXPECT_STATUS(hl_upload_wait(upload, 1000000, NULL, &rig.err), HL_E_TIMEOUT, rig.err);
        let_go(word);
        HL_EXPECT_OK(hl_upload_wait(upload, -1, NULL, &rig.err), rig.err);
        CU_ASSERT_TRUE(hl_upload_close(upload));
        CU_ASSERT_TRUE(rig_matches(&rig));
        rig_close(&rig);
    }
}

static void the_null_stream_is_a_ready_stream_when_it_is_given(void)
{
    struct rig rig;
    rig_open(&rig, &small);
    rig.options.ready_stream_given = true;
    HL_EXPECT_OK(rig.ops->fill(rig.dev, rig.memory, 0x11, rig.bytes, NULL, &rig.err), rig.err);
    HL_EXPECT_OK(rig.ops->fill(rig.dev, rig.memory, RIG_POISON, rig.bytes, NULL, &rig.err), rig.err);
    rig_upload(&rig);
    rig_close(&rig);
}

/* A ring that cannot take all stands still while the ready stream does. */
static void a_timeout_changes_nothing(void)
{
    struct rig rig;
    hl_weight_upload_result result = {.bytes = 77};
    rig_open(&rig, &small);
    rig.options.staging_bytes = 2 * 4096;
    rig.options.slot_bytes = 4096;
    rig.options.ready_stream = rig.stream;
    volatile uint32_t *word = hold(&rig);
    hl_upload *upload = rig_start(&rig);
    HL_EXPECT_STATUS(hl_upload_wait_enqueued(upload, 0, &rig.err), HL_E_TIMEOUT, rig.err);
    HL_EXPECT_STATUS(hl_upload_wait_enqueued(upload, 2000000, &rig.err), HL_E_TIMEOUT, rig.err);
    HL_EXPECT_STATUS(hl_upload_wait(upload, 0, &result, &rig.err), HL_E_TIMEOUT, rig.err);
    CU_ASSERT_EQUAL(result.bytes, 77);
    let_go(word);
    HL_EXPECT_OK(hl_upload_wait_enqueued(upload, INT64_MAX, &rig.err), rig.err);
    HL_EXPECT_OK(hl_upload_wait(upload, INT64_MAX, &result, &rig.err), rig.err);
    HL_EXPECT_OK(hl_upload_wait(upload, 0, &result, &rig.err), rig.err); /* again */
    CU_ASSERT_TRUE(result.drained);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    CU_ASSERT_TRUE(rig_matches(&rig));
    rig_close(&rig);
}

/* Each tensor is copied off the device by a stream that waited for its event alone. */
static void a_stream_that_waits_for_an_event_sees_the_tensor(void)
{
    struct rig rig;
    rig_open(&rig, &small);
    memset(rig.host, 0, rig.bytes);
    hl_upload *upload = rig_start(&rig);
    HL_EXPECT_OK(hl_upload_wait_enqueued(upload, -1, &rig.err), rig.err);
    for (size_t i = 0; i < rig.count; i++) {
        const hl_devptr from = rig.destinations[i].device_ptr;
        HL_EXPECT_OK(rig.ops->stream_wait_event(rig.dev, rig.stream, rig.destinations[i].event, &rig.err),
                     rig.err);
        HL_EXPECT_OK(rig.ops->copy(rig.dev, HL_COPY_D2H, (uintptr_t)rig.host + (from - rig.memory), from,
                                   rig.sizes[i], rig.stream, &rig.err),
                     rig.err);
    }
    HL_EXPECT_OK(rig.ops->stream_synchronize(rig.dev, rig.stream, &rig.err), rig.err);
    for (size_t i = 0; i < rig.count; i++) {
        const size_t at = rig.destinations[i].device_ptr - rig.memory;
        CU_ASSERT_EQUAL(memcmp(rig.host + at, rig.expected + at, rig.sizes[i]), 0);
    }
    HL_EXPECT_OK(hl_upload_wait(upload, -1, NULL, &rig.err), rig.err);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    rig_close(&rig);
}

static void a_lease_released_at_once_stays_until_drained(void)
{
    for (int way = 0; way < ways_with_holds(); way++) {
        struct rig rig;
        struct rig_options options = small;
        options.tmpfs = rig_way_tmpfs(way);
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(way);
        rig.options.ready_stream = rig.stream;
        volatile uint32_t *word = hold(&rig);
        hl_upload *upload = rig_start(&rig);
        CU_ASSERT_EQUAL(testing_lease_holds(rig.lease), 2);
        hl_weight_lease_release(rig.lease);
        CU_ASSERT_EQUAL(testing_leases(), 1);
        rig.lease = NULL;
        let_go(word);
        HL_EXPECT_OK(hl_upload_wait(upload, -1, NULL, &rig.err), rig.err);
        CU_ASSERT_TRUE(hl_upload_close(upload));
        CU_ASSERT_EQUAL(testing_leases(), 0);
        CU_ASSERT_TRUE(rig_matches(&rig));
        rig_close(&rig);
    }
}

static void close_without_a_wait_drains(void)
{
    for (int i = 0; i < 10 * RIG_WAYS; i++) {
        struct rig rig;
        struct rig_options options = small;
        options.tmpfs = rig_way_tmpfs(i % RIG_WAYS);
        rig_open(&rig, &options);
        rig.options.route = rig_way_route(i % RIG_WAYS);
        if (rig.options.route == HL_WEIGHT_UPLOAD_REGISTERED && !rig_can_register(&rig))
            rig.options.route = HL_WEIGHT_UPLOAD_STAGING;
        hl_upload *upload = rig_start(&rig);
        if (i >= 15)
            HL_EXPECT_OK(hl_upload_wait_enqueued(upload, -1, &rig.err), rig.err);
        CU_ASSERT_TRUE(hl_upload_close(upload));
        rig_expect_nothing_left(&rig);
        if (i >= 15)
            CU_ASSERT_TRUE(rig_matches(&rig));
        rig_close(&rig); /* frees the memory that was written to */
    }
    CU_ASSERT_TRUE(hl_upload_close(NULL));
}

/* Cut in the middle of its last tensor, as nobody may do with an artifact. */
static void a_file_cut_short_after_validation_is_corrupt(void)
{
    for (int way = 0; way < RIG_WAYS; way++) {
        struct rig rig;
        struct rig_options options = small;
        hl_weight_upload_result result;
        options.tmpfs = rig_way_tmpfs(way);
        rig_open(&rig, &options);
        rig.options.route = rig_can_register(&rig) ? rig_way_route(way) : HL_WEIGHT_UPLOAD_STAGING;
        testing_lease_cut(rig.lease, 1, 50000);
        hl_upload *upload = rig_start(&rig);
        HL_EXPECT_STATUS(hl_upload_wait(upload, -1, &result, &rig.err), HL_E_CORRUPT, rig.err);
        CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, "part1.safetensors"));
        CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, "50000"));
        CU_ASSERT_TRUE(result.drained);
        CU_ASSERT_EQUAL(hl_upload_wait_enqueued(upload, -1, &rig.err), HL_E_CORRUPT);
        CU_ASSERT_TRUE(hl_upload_close(upload));
        rig_expect_nothing_left(&rig);
        rig_close(&rig);
    }
}

static void a_file_that_cannot_be_read_fails_with_its_errno(void)
{
    struct rig rig;
    hl_weight_upload_result result;
    rig_open(&rig, &small);
    testing_lease_break(rig.lease, 0);
    hl_upload *upload = rig_start(&rig);
    HL_EXPECT_STATUS(hl_upload_wait(upload, -1, &result, &rig.err), HL_E_SYSTEM, rig.err);
    CU_ASSERT_NOT_EQUAL(rig.err.sys_errno, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.text, "part0.safetensors"));
    CU_ASSERT_TRUE(result.drained);
    CU_ASSERT_EQUAL(result.bytes, 0);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    rig_expect_nothing_left(&rig);
    rig_close(&rig);
}

static void two_uploads_of_one_lease_run_at_once(void)
{
    struct rig first, second;
    rig_open(&first, &small);
    rig_open(&second, &small);
    hl_device_leave(second.dev);
    hl_upload *one = rig_start(&first);
    hl_weight_lease *own = second.lease;
    second.lease = first.lease;
    hl_upload *two = rig_start(&second);
    HL_EXPECT_OK(hl_upload_wait(two, -1, NULL, &second.err), second.err);
    HL_EXPECT_OK(hl_upload_wait(one, -1, NULL, &first.err), first.err);
    CU_ASSERT_TRUE(hl_upload_close(two));
    CU_ASSERT_TRUE(hl_upload_close(one));
    CU_ASSERT_TRUE(rig_matches(&first));
    second.lease = own;
    HL_REQUIRE_OK(hl_device_enter(second.dev, &second.err), second.err);
    CU_ASSERT_TRUE(rig_matches(&second));
    rig_close(&second);
    rig_close(&first);
}

HL_TESTS(upload, HL_CASE(tensors_of_every_shape_arrive), HL_CASE(a_tensor_larger_than_the_ring_arrives),
         HL_CASE(thousands_of_tiny_tensors_arrive), HL_CASE(tensors_without_bytes_only_record_their_events),
         HL_CASE(random_orders_by_pages_arrive), HL_CASE(a_subset_of_a_lease_is_uploaded_alone),
         HL_CASE(auto_stages_wherever_the_lease_is),
         HL_CASE(registering_files_of_another_file_system_is_unsupported),
         HL_CASE(nothing_is_written_before_the_ready_stream_has_finished),
         HL_CASE(the_null_stream_is_a_ready_stream_when_it_is_given), HL_CASE(a_timeout_changes_nothing),
         HL_CASE(a_stream_that_waits_for_an_event_sees_the_tensor),
         HL_CASE(a_lease_released_at_once_stays_until_drained), HL_CASE(close_without_a_wait_drains),
         HL_CASE(a_file_cut_short_after_validation_is_corrupt),
         HL_CASE(a_file_that_cannot_be_read_fails_with_its_errno),
         HL_CASE(two_uploads_of_one_lease_run_at_once));
