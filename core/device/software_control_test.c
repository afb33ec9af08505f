/* The test controls of the software device, with its threads running: holds, armed failures, the checker, the
 * throttle, and closing while work is pending. */
#include <pthread.h>
#include <sys/mman.h>

#include "core/device/software_testing.h"

static const struct hl_software_options plain;

static void a_hold_stops_before_the_nth_operation(void)
{
    struct bench t;
    bench_open(&t, &plain);
    hl_software_hold(t.dev, t.a, 3);
    for (unsigned i = 0; i < 4; i++)
        HL_EXPECT_OK(bench_copy(&t, t.a, i * 4096, 4096), t.err);
    hl_software_wait_held(t.dev, t.a);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 8192));
    CU_ASSERT_FALSE(bench_arrived(&t, 8192, 4096));
    HL_EXPECT_STATUS(t.ops->stream_query(t.dev, t.a, &t.err), HL_PENDING, t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 32768, 4096), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err); /* others go on */
    hl_software_release(t.dev, t.a);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 8192, 8192));
    bench_close(&t);
}

static void a_hold_at_once_stops_what_comes_next(void)
{
    struct bench t;
    hl_event event;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    hl_software_hold(t.dev, NULL, 0);
    hl_software_wait_held(t.dev, NULL); /* also with nothing queued */
    HL_EXPECT_OK(bench_copy(&t, NULL, 0, 4096), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, NULL, &t.err), t.err);
    hl_software_wait_held(t.dev, NULL);
    CU_ASSERT_FALSE(bench_arrived(&t, 0, 4096));
    HL_EXPECT_STATUS(t.ops->event_query(t.dev, event, &t.err), HL_PENDING, t.err);
    hl_software_release(t.dev, NULL);
    HL_EXPECT_OK(t.ops->event_synchronize(t.dev, event, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 4096));
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

static void the_nth_submission_fails_and_leaves_nothing(void)
{
    struct bench t;
    struct hl_software_counts counts;
    hl_event event;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    hl_software_fail_submit(t.dev, 2, 719);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_STATUS(bench_copy(&t, t.b, 64, 64), HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 719);
    HL_EXPECT_OK(bench_copy(&t, t.b, 128, 64), t.err);
    hl_software_fail_submit(t.dev, 1, 719);
    HL_EXPECT_STATUS(t.ops->event_record(t.dev, event, t.a, &t.err), HL_E_DEVICE, t.err);
    hl_software_fail_submit(t.dev, 1, 719);
    HL_EXPECT_STATUS(t.ops->stream_wait_event(t.dev, t.a, event, &t.err), HL_E_DEVICE, t.err);
    hl_software_fail_submit(t.dev, 1, 719);
    hl_software_fail_submit(t.dev, 0, 0);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 64, 64));
    CU_ASSERT_TRUE(bench_arrived(&t, 128, 64));
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.submitted, 2);
    CU_ASSERT_EQUAL(counts.executed, 2);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

static void a_failed_batch_has_accepted_its_first_half(void)
{
    struct bench t;
    struct hl_copy copies[5];
    size_t accepted = 77;
    bench_open(&t, &plain);
    for (unsigned i = 0; i < 5; i++)
        copies[i] = (struct hl_copy){t.memory + 64 * i, (uintptr_t)t.host + 64 * i, 64};
    hl_software_fail_submit(t.dev, 1, 700);
    HL_EXPECT_STATUS(t.ops->copy_batch(t.dev, HL_COPY_H2D, copies, 5, t.a, &accepted, &t.err), HL_E_DEVICE,
                     t.err);
    CU_ASSERT_EQUAL(accepted, 2);
    hl_software_fail_submit(t.dev, 1, 700);
    HL_EXPECT_STATUS(t.ops->copy_batch(t.dev, HL_COPY_H2D, copies + 4, 1, t.a, &accepted, &t.err),
                     HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(accepted, 0);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 128));
    CU_ASSERT_FALSE(bench_arrived(&t, 128, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 256, 64));
    bench_close(&t);
}

static void a_failed_execution_sticks_to_its_stream(void)
{
    struct bench t;
    struct hl_software_counts counts;
    hl_event event;
    size_t accepted = 77;
    const struct hl_copy copy = {0};
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, HL_EVENT_TIMING, &event, &t.err), t.err);
    hl_software_hold(t.dev, t.a, 1);
    hl_software_fail_execution(t.dev, 2, 700);
    for (unsigned i = 0; i < 3; i++)
        HL_EXPECT_OK(bench_copy(&t, t.a, i * 64, 64), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.a, &t.err), t.err);
    hl_software_release(t.dev, t.a);
    HL_EXPECT_STATUS(t.ops->event_synchronize(t.dev, event, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(t.ops->stream_synchronize(t.dev, t.a, &t.err), HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 700);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 64, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 128, 64));
    int64_t ns;
    HL_EXPECT_STATUS(t.ops->event_query(t.dev, event, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(t.ops->event_elapsed(t.dev, event, event, &ns, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(t.ops->stream_query(t.dev, t.a, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(bench_copy(&t, t.a, 0, 64), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(t.ops->event_record(t.dev, event, t.a, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_STATUS(t.ops->copy_batch(t.dev, HL_COPY_H2D, &copy, 1, t.a, &accepted, &t.err), HL_E_DEVICE,
                     t.err);
    CU_ASSERT_EQUAL(accepted, 0);
    HL_EXPECT_OK(bench_copy(&t, t.b, 256, 64), t.err); /* the other stream goes on */
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.submitted, 5);
    CU_ASSERT_EQUAL(counts.executed, 2);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t); /* a stream in error can be destroyed */
}

static void a_failure_reaches_the_streams_that_wait_for_it(void)
{
    struct bench t;
    hl_event event;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    hl_software_hold(t.dev, t.a, 1);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_event(t.dev, t.b, event, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 64, 64), t.err);
    hl_software_fail_execution(t.dev, 1, 719);
    hl_software_release(t.dev, t.a);
    HL_EXPECT_STATUS(t.ops->stream_synchronize(t.dev, t.b, &t.err), HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 719);
    CU_ASSERT_FALSE(bench_arrived(&t, 64, 64));
    hl_software_fail_execution(t.dev, 1, 719);
    hl_software_fail_execution(t.dev, 0, 0);
    HL_EXPECT_OK(bench_copy(&t, NULL, 64, 64), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, NULL, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

/* Gives `stream` one launch whose tables lie in the bench's host memory at 4096 and returns what it ends
 * with. */
static int code_of_gather(struct bench *t, struct hl_gather piece, hl_devptr table)
{
    hl_stream stream;
    int code = 0;
    HL_REQUIRE_OK(t->ops->stream_create(t->dev, &stream, &t->err), t->err);
    memcpy(t->host + 4096, &piece, sizeof piece);
    const struct hl_gather_launch launch = {.descriptors = table, .count = 1, .blocks = 1};
    HL_EXPECT_OK(t->ops->gather(t->dev, &launch, stream, &t->err), t->err);
    if (t->ops->stream_synchronize(t->dev, stream, &t->err) == HL_E_DEVICE)
        code = t->err.device_code;
    HL_EXPECT_OK(t->ops->stream_destroy(t->dev, stream, &t->err), t->err);
    return code;
}

static int code_of_checksum(struct bench *t, uint64_t offset, uint64_t page_bytes, hl_devptr offsets,
                            hl_devptr sums)
{
    hl_stream stream;
    int code = 0;
    HL_REQUIRE_OK(t->ops->stream_create(t->dev, &stream, &t->err), t->err);
    memcpy(t->host + 4096, &offset, sizeof offset);
    const struct hl_checksum_launch launch = {
        .base = t->memory, .offsets = offsets, .sums = sums, .page_bytes = page_bytes, .count = 1};
    HL_EXPECT_OK(t->ops->checksum(t->dev, &launch, stream, &t->err), t->err);
    if (t->ops->stream_synchronize(t->dev, stream, &t->err) == HL_E_DEVICE)
        code = t->err.device_code;
    HL_EXPECT_OK(t->ops->stream_destroy(t->dev, stream, &t->err), t->err);
    return code;
}

static void kernels_fail_on_bad_addresses_when_they_run(void)
{
    struct bench t;
    static unsigned char loose[64];
    bench_open(&t, &plain);
    const uint64_t host = (uintptr_t)t.host, table = host + 4096, nowhere = (uintptr_t)loose;
    const uint64_t end = t.memory + BENCH_BYTES;
    CU_ASSERT_EQUAL(code_of_gather(&t, (struct hl_gather){t.memory, host, 64}, table), 0);
    CU_ASSERT_EQUAL(code_of_gather(&t, (struct hl_gather){t.memory, nowhere, 64}, table), 700);
    CU_ASSERT_EQUAL(code_of_gather(&t, (struct hl_gather){nowhere, host, 64}, table), 700);
    CU_ASSERT_EQUAL(code_of_gather(&t, (struct hl_gather){end - 63, host, 64}, table), 700);
    CU_ASSERT_EQUAL(code_of_gather(&t, (struct hl_gather){t.memory, host, 64}, nowhere), 700);
    CU_ASSERT_EQUAL(code_of_checksum(&t, 0, 64, table, host), 0);
    CU_ASSERT_EQUAL(code_of_checksum(&t, 4, 64, table, host), 716);
    CU_ASSERT_EQUAL(code_of_checksum(&t, BENCH_BYTES - 56, 64, table, host), 700);
    CU_ASSERT_EQUAL(code_of_checksum(&t, 0, 64, nowhere, host), 700);
    CU_ASSERT_EQUAL(code_of_checksum(&t, 0, 64, table, nowhere), 700);
    bench_close(&t);
}

/* --- the checker --- */

struct watch {
    struct hl_software_access seen[16];
    unsigned count;
    uint64_t forbidden; /* a destination */
};

static int watch_access(void *user, const struct hl_software_access *access)
{
    struct watch *watch = user;
    if (watch->count < 16)
        watch->seen[watch->count++] = *access;
    return access->dst == watch->forbidden;
}

static void expect_access(const struct watch *watch, unsigned i, enum hl_copy_kind kind, uint64_t dst,
                          uint64_t src, uint64_t bytes)
{
    CU_ASSERT_EQUAL(watch->seen[i].kind, kind);
    CU_ASSERT_EQUAL(watch->seen[i].dst, dst);
    CU_ASSERT_EQUAL(watch->seen[i].src, src);
    CU_ASSERT_EQUAL(watch->seen[i].bytes, bytes);
}

static void the_checker_sees_every_piece(void)
{
    struct watch watch = {0};
    const struct hl_software_options options = {.checker = watch_access, .checker_user = &watch};
    struct bench t;
    size_t accepted;
    bench_open(&t, &options);
    const uint64_t host = (uintptr_t)t.host, memory = t.memory;
    const struct hl_copy batch[] = {{memory, host, 8}, {memory + 8, host + 32, 16}};
    const struct hl_gather piece = {memory + 512, memory, 24};
    const struct hl_gather_launch launch = {.descriptors = host + 4096, .count = 1, .blocks = 1};
    memcpy(t.host + 4096, &piece, sizeof piece);
    HL_EXPECT_OK(bench_copy(&t, t.a, 64, 64), t.err);
    HL_EXPECT_OK(t.ops->copy_rows(t.dev, HL_COPY_D2H, host, 16, memory, 32, 8, 2, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->copy_batch(t.dev, HL_COPY_H2D, batch, 2, t.a, &accepted, &t.err), t.err);
    HL_EXPECT_OK(t.ops->gather(t.dev, &launch, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    CU_ASSERT_EQUAL(watch.count, 6);
    expect_access(&watch, 0, HL_COPY_H2D, memory + 64, host + 64, 64);
    expect_access(&watch, 1, HL_COPY_D2H, host, memory, 8);
    expect_access(&watch, 2, HL_COPY_D2H, host + 16, memory + 32, 8);
    expect_access(&watch, 3, HL_COPY_H2D, memory + 8, host + 32, 16); /* a batch goes last to first */
    expect_access(&watch, 4, HL_COPY_H2D, memory, host, 8);
    expect_access(&watch, 5, HL_COPY_D2D, memory + 512, memory, 24);
    CU_ASSERT_PTR_EQUAL(watch.seen[5].stream, t.a);
    bench_close(&t);
}

static void a_refused_access_moves_nothing_and_is_counted(void)
{
    struct watch watch = {0};
    const struct hl_software_options options = {.checker = watch_access, .checker_user = &watch};
    struct bench t;
    struct hl_software_counts counts;
    bench_open(&t, &options);
    watch.forbidden = t.memory + 64;
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 64, 64), t.err);
    HL_EXPECT_STATUS(t.ops->stream_synchronize(t.dev, t.a, &t.err), HL_E_DEVICE, t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 64, 64));
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.violations, 1);
    bench_close(&t);
}

static int meet(void *user, const struct hl_software_access *access)
{
    (void)access;
    pthread_barrier_wait(user);
    return 0;
}

/* Each copy waits inside for the other: with a lock held while bytes move this would never end. */
static void copies_of_two_streams_overlap(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    const struct hl_software_options options = {.checker = meet, .checker_user = &barrier};
    struct bench t;
    bench_open(&t, &options);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 64, 64), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 128));
    bench_close(&t);
    pthread_barrier_destroy(&barrier);
}

static int meet_twice(void *user, const struct hl_software_access *access)
{
    meet(user, access);
    return meet(user, access);
}

/* The queue is empty while the only operation runs; the stream is busy all the same. */
static void a_running_operation_keeps_its_stream_busy(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    const struct hl_software_options options = {.checker = meet_twice, .checker_user = &barrier};
    struct bench t;
    bench_open(&t, &options);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    pthread_barrier_wait(&barrier); /* it runs */
    HL_EXPECT_STATUS(t.ops->stream_query(t.dev, t.a, &t.err), HL_PENDING, t.err);
    pthread_barrier_wait(&barrier); /* it may end */
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_query(t.dev, t.a, &t.err), t.err);
    bench_close(&t);
    pthread_barrier_destroy(&barrier);
}

static void the_throttle_is_a_lower_bound(void)
{
    const struct hl_software_options options = {.bytes_per_second = 8 << 20};
    struct bench t;
    hl_event start, end;
    int64_t ns = 0;
    bench_open(&t, &options);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, HL_EVENT_TIMING, &start, &t.err), t.err);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, HL_EVENT_TIMING, &end, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, start, t.a, &t.err), t.err);
    for (unsigned i = 0; i < 2; i++)
        HL_EXPECT_OK(bench_copy(&t, t.a, 0, 32768), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, end, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_elapsed(t.dev, start, end, &ns, &t.err), t.err);
    CU_ASSERT_TRUE(ns >= 1000000000ll * 65536 / (8 << 20));
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, start, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, end, &t.err), t.err);
    bench_close(&t);
}

/* --- waiting and closing --- */

static void *free_memory(void *arg)
{
    struct bench *t = arg;
    hl_error err;
    if (hl_device_enter(t->dev, &err))
        return arg;
    hl_status status = t->ops->mem_free(t->dev, t->memory, &err);
    hl_device_leave(t->dev);
    return status ? arg : NULL;
}

static void freed_memory_is_gone_only_after_its_copies(void)
{
    struct bench t;
    struct hl_software_counts counts;
    pthread_t thread;
    void *failed;
    bench_open(&t, &plain);
    hl_software_hold(t.dev, t.a, 0);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, BENCH_BYTES), t.err);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, free_memory, &t), 0);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.allocations, 1);
    hl_software_release(t.dev, t.a);
    pthread_join(thread, &failed);
    CU_ASSERT_PTR_NULL(failed);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.allocations, 0);
    HL_EXPECT_STATUS(bench_copy(&t, t.a, 0, 1), HL_E_INVALID, t.err);
    HL_REQUIRE_OK(t.ops->mem_alloc(t.dev, BENCH_BYTES, &t.memory, &t.err), t.err);
    bench_close(&t);
}

/* The leak checker and the end of the process are the rest of this test. */
static void closing_drops_what_is_pending_and_frees_what_is_left(void)
{
    const struct hl_software_options slow = {.bytes_per_second = 1};
    struct bench t;
    struct hl_software_counts counts;
    hl_stream more[3];
    hl_event event, waited;
    bench_open(&t, &slow);
    for (unsigned i = 0; i < 3; i++)
        HL_REQUIRE_OK(t.ops->stream_create(t.dev, &more[i], &t.err), t.err);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &waited, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, more[0], 0, BENCH_BYTES / 2), t.err); /* 9 hours */
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, more[0], &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_event(t.dev, more[1], event, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, waited, more[1], &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_value(t.dev, more[2], t.memory + BENCH_BYTES / 2, UINT32_MAX / 2, &t.err),
                 t.err);
    hl_software_hold(t.dev, t.a, 0);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_STATUS(t.ops->event_query(t.dev, waited, &t.err), HL_PENDING, t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.streams, 5);
    CU_ASSERT_EQUAL(counts.events, 2);
    CU_ASSERT_EQUAL(counts.submitted, 6);
    hl_device_leave(t.dev);
    hl_device_close(t.dev);
    munmap(t.host, BENCH_BYTES);
}

/* Two layers of a piece each, from host to memory, with counters behind them in the bench's memory. */
static void launch_two_layers(struct bench *t, hl_stream stream)
{
    const uint32_t ends[] = {1, 2};
    const hl_devptr table = t->memory + BENCH_BYTES - 4096;
    hl_devptr mapped;
    HL_REQUIRE_OK(t->ops->host_pointer(t->dev, t->host, &mapped, &t->err), t->err);
    const struct hl_gather pieces[] = {{t->memory, mapped, 64}, {t->memory + 64, mapped + 64, 64}};
    hl_software_poke(t->dev, table, pieces, sizeof pieces);
    const struct hl_gather_launch launch = {.descriptors = table,
                                            .count = 2,
                                            .blocks = 3,
                                            .layer_count = 2,
                                            .layer_ends = ends,
                                            .counters = table + 1024};
    HL_EXPECT_OK(t->ops->gather(t->dev, &launch, stream, &t->err), t->err);
}

static hl_status wait_for_layer(struct bench *t, hl_stream stream, uint32_t layer)
{
    return t->ops->stream_wait_value(t->dev, stream, t->memory + BENCH_BYTES - 4096 + 1024 + 4 * layer, 3,
                                     &t->err);
}

static void a_launch_can_be_held_between_its_layers(void)
{
    struct bench t;
    struct hl_software_counts counts;
    bench_open(&t, &plain);
    hl_software_counts(t.dev, &counts);
    uint64_t submitted = counts.submitted;
    hl_software_hold(t.dev, t.a, 2);
    launch_two_layers(&t, t.a);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.submitted, submitted + 2);
    HL_EXPECT_OK(wait_for_layer(&t, t.b, 0), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 256, 64), t.err);
    HL_EXPECT_OK(wait_for_layer(&t, t.b, 1), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 320, 64), t.err);
    hl_software_wait_held(t.dev, t.a);
    hl_software_wait_settled(t.dev, t.b);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64) && bench_arrived(&t, 256, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 64, 64) || bench_arrived(&t, 320, 64));
    hl_software_release(t.dev, t.a);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 64, 64) && bench_arrived(&t, 320, 64));
    bench_close(&t);
}

static void a_failure_in_a_launch_reaches_the_streams_that_wait_for_its_counts(void)
{
    struct bench t;
    bench_open(&t, &plain);
    hl_software_hold(t.dev, t.a, 0);
    hl_software_fail_submit(t.dev, 1, 2);
    const uint32_t ends[] = {1};
    const struct hl_gather_launch refused = {.descriptors = t.memory,
                                             .count = 1,
                                             .blocks = 1,
                                             .layer_count = 1,
                                             .layer_ends = ends,
                                             .counters = t.memory};
    HL_EXPECT_STATUS(t.ops->gather(t.dev, &refused, t.a, &t.err), HL_E_DEVICE, t.err);
    launch_two_layers(&t, t.a);
    hl_software_fail_execution(t.dev, 2, 700);
    hl_software_release(t.dev, t.a);
    HL_EXPECT_STATUS(t.ops->stream_synchronize(t.dev, t.a, &t.err), HL_E_DEVICE, t.err);
    HL_EXPECT_OK(wait_for_layer(&t, t.b, 0), t.err); /* was counted */
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.b, &t.err), t.err);
    HL_EXPECT_OK(wait_for_layer(&t, t.b, 1), t.err);
    HL_EXPECT_STATUS(t.ops->stream_synchronize(t.dev, t.b, &t.err), HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 700);
    bench_close(&t);
}

static void a_launch_with_bad_counters_is_refused(void)
{
    struct bench t;
    const uint32_t ends[] = {1};
    bench_open(&t, &plain);
    const struct hl_gather_launch launch = {.descriptors = t.memory,
                                            .count = 1,
                                            .blocks = 1,
                                            .layer_count = 1,
                                            .layer_ends = ends,
                                            .counters = t.memory + (UINT64_C(1) << 40)};
    HL_EXPECT_STATUS(t.ops->gather(t.dev, &launch, t.a, &t.err), HL_E_INVALID, t.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.err.text, "counters"));
    bench_close(&t);
}

HL_TESTS(software_control, HL_CASE(a_launch_can_be_held_between_its_layers),
         HL_CASE(a_failure_in_a_launch_reaches_the_streams_that_wait_for_its_counts),
         HL_CASE(a_launch_with_bad_counters_is_refused), HL_CASE(a_hold_stops_before_the_nth_operation),
         HL_CASE(a_hold_at_once_stops_what_comes_next), HL_CASE(the_nth_submission_fails_and_leaves_nothing),
         HL_CASE(a_failed_batch_has_accepted_its_first_half),
         HL_CASE(a_failed_execution_sticks_to_its_stream),
         HL_CASE(a_failure_reaches_the_streams_that_wait_for_it),
         HL_CASE(kernels_fail_on_bad_addresses_when_they_run), HL_CASE(the_checker_sees_every_piece),
         HL_CASE(a_refused_access_moves_nothing_and_is_counted), HL_CASE(copies_of_two_streams_overlap),
         HL_CASE(a_running_operation_keeps_its_stream_busy), HL_CASE(the_throttle_is_a_lower_bound),
         HL_CASE(freed_memory_is_gone_only_after_its_copies),
         HL_CASE(closing_drops_what_is_pending_and_frees_what_is_left));
