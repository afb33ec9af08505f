/* Conformance: contexts, streams and events. */
#include <pthread.h>

#include "core/device/device_conformance.h"

enum { INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600 };

void a_context_is_entered_nested_and_restored(void)
{
    hl_device *dev = conformance_device();
    hl_error err = {0};
    uint64_t free_bytes, total_bytes;
    HL_REQUIRE_OK(hl_device_enter(dev, &err), err);
    HL_REQUIRE_OK(hl_device_enter(dev, &err), err);
    HL_EXPECT_OK(dev->ops->memory_info(dev, &free_bytes, &total_bytes, &err), err);
    hl_device_leave(dev);
    HL_EXPECT_OK(dev->ops->memory_info(dev, &free_bytes, &total_bytes, &err), err);
    hl_device_leave(dev);
    CU_ASSERT_NOT_EQUAL(dev->ops->memory_info(dev, &free_bytes, &total_bytes, &err), HL_OK);
    CU_ASSERT_EQUAL(err.device_code, INVALID_CONTEXT);
}

static void *allocate_outside(void *arg)
{
    hl_devptr ptr = 7;
    hl_error *err = arg;
    hl_device *dev = conformance_device();
    (void)dev->ops->mem_alloc(dev, 4096, &ptr, err);
    return ptr == 7 ? arg : NULL;
}

void a_thread_is_outside_until_it_enters(void)
{
    struct conformance c;
    pthread_t thread;
    void *untouched;
    hl_error err = {0};
    conformance_open(&c);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, allocate_outside, &err), 0);
    pthread_join(thread, &untouched);
    CU_ASSERT_PTR_NOT_NULL(untouched);
    CU_ASSERT_EQUAL(err.device_code, INVALID_CONTEXT);
    conformance_close(&c);
}

void operations_of_a_stream_run_in_order(void)
{
    struct conformance c;
    conformance_open(&c);
    for (unsigned i = 0; i < 100; i++) /* each leaves its value in one byte only */
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory + i, (uint8_t)(i + 1), 100 - i, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_D2D, c.other, c.memory, 100, c.stream, &c.err), c.err);
    conformance_read(&c, c.other, 100);
    for (unsigned i = 0; i < 100; i++)
        CU_ASSERT_EQUAL(c.result[i], i + 1);
    conformance_close(&c);
}

void the_null_stream_runs_work(void)
{
    struct conformance c;
    conformance_open(&c);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)c.source, 777, NULL, &c.err), c.err);
    conformance_sync(&c, NULL);
    HL_EXPECT_OK(c.ops->stream_query(c.dev, NULL, &c.err), c.err);
    conformance_read(&c, c.memory, 777);
    CU_ASSERT_EQUAL(memcmp(c.result, c.source, 777), 0);
    conformance_close(&c);
}

void query_is_pending_until_the_work_is_done(void)
{
    struct conformance c;
    hl_event event;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->stream_query(c.dev, c.stream, &c.err), c.err);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
    HL_EXPECT_STATUS(c.ops->stream_query(c.dev, c.stream, &c.err), HL_PENDING, c.err);
    HL_EXPECT_STATUS(c.ops->event_query(c.dev, event, &c.err), HL_PENDING, c.err);
    conformance_release(&c, 0, 1);
    HL_EXPECT_OK(c.ops->event_synchronize(c.dev, event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_query(c.dev, event, &c.err), c.err);
    conformance_sync(&c, c.stream);
    HL_EXPECT_OK(c.ops->stream_query(c.dev, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, event, &c.err), c.err);
    conformance_close(&c);
}

void a_wait_binds_to_the_record_at_its_call(void)
{
    struct conformance c;
    hl_event event;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &event, &c.err), c.err);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->stream_wait_event(c.dev, c.second, event, &c.err), c.err);
    conformance_hold(&c, c.stream, 0, 2);
    HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
    HL_EXPECT_STATUS(c.ops->stream_query(c.dev, c.second, &c.err), HL_PENDING, c.err);
    conformance_release(&c, 0, 1);
    conformance_sync(&c, c.second); /* the first record is enough */
    HL_EXPECT_STATUS(c.ops->event_query(c.dev, event, &c.err), HL_PENDING, c.err);
    conformance_release(&c, 0, 2);
    HL_EXPECT_OK(c.ops->event_synchronize(c.dev, event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, event, &c.err), c.err);
    conformance_close(&c);
}

void an_event_never_recorded_is_complete(void)
{
    struct conformance c;
    hl_event event;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, HL_EVENT_TIMING, &event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_query(c.dev, event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_synchronize(c.dev, event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->stream_wait_event(c.dev, c.second, event, &c.err), c.err);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
    conformance_sync(&c, c.second); /* the wait came before the record */
    conformance_release(&c, 0, 1);
    conformance_sync(&c, c.stream);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, event, &c.err), c.err);
    conformance_close(&c);
}

void recording_again_makes_an_event_pending(void)
{
    struct conformance c;
    hl_event event;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &event, &c.err), c.err);
    for (uint32_t round = 1; round <= 3; round++) {
        conformance_hold(&c, c.stream, 0, round);
        HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
        HL_EXPECT_STATUS(c.ops->event_query(c.dev, event, &c.err), HL_PENDING, c.err);
        conformance_release(&c, 0, round);
        HL_EXPECT_OK(c.ops->event_synchronize(c.dev, event, &c.err), c.err);
        HL_EXPECT_OK(c.ops->event_query(c.dev, event, &c.err), c.err);
    }
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, event, &c.err), c.err);
    conformance_close(&c);
}

void a_destroyed_event_still_releases_its_waiters(void)
{
    struct conformance c;
    hl_event event;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &event, &c.err), c.err);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->event_record(c.dev, event, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->stream_wait_event(c.dev, c.second, event, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, event, &c.err), c.err);
    HL_EXPECT_STATUS(c.ops->stream_query(c.dev, c.second, &c.err), HL_PENDING, c.err);
    conformance_release(&c, 0, 1);
    conformance_sync(&c, c.second);
    conformance_close(&c);
}

void elapsed_time_has_a_sign(void)
{
    struct conformance c;
    hl_event start, end;
    int64_t forth = 0, back = 0;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, HL_EVENT_TIMING, &start, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, HL_EVENT_TIMING, &end, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_record(c.dev, start, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)c.source, AREA_BYTES, c.stream, &c.err),
                 c.err);
    HL_EXPECT_OK(c.ops->event_record(c.dev, end, c.stream, &c.err), c.err);
    conformance_sync(&c, c.stream);
    HL_EXPECT_OK(c.ops->event_elapsed(c.dev, start, end, &forth, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_elapsed(c.dev, end, start, &back, &c.err), c.err);
    CU_ASSERT_TRUE(forth > 0);
    CU_ASSERT_TRUE(back < 0);
    HL_EXPECT_OK(c.ops->event_elapsed(c.dev, start, start, &forth, &c.err), c.err);
    CU_ASSERT_EQUAL(forth, 0);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, start, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, end, &c.err), c.err);
    conformance_close(&c);
}

static void expect_no_elapsed(struct conformance *c, hl_event start, hl_event end, int code)
{
    int64_t ns = 7;
    c->err = (hl_error){0};
    CU_ASSERT_TRUE(c->ops->event_elapsed(c->dev, start, end, &ns, &c->err) < 0);
    CU_ASSERT_EQUAL(c->err.device_code, code);
    CU_ASSERT_EQUAL(ns, 7);
}

void elapsed_time_needs_timed_complete_events(void)
{
    struct conformance c;
    hl_event timed, untimed, fresh;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, HL_EVENT_TIMING, &timed, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &untimed, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, HL_EVENT_TIMING, &fresh, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_record(c.dev, timed, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_record(c.dev, untimed, c.stream, &c.err), c.err);
    conformance_sync(&c, c.stream);
    expect_no_elapsed(&c, timed, untimed, INVALID_HANDLE);
    expect_no_elapsed(&c, untimed, timed, INVALID_HANDLE);
    expect_no_elapsed(&c, timed, fresh, INVALID_HANDLE);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->event_record(c.dev, fresh, c.stream, &c.err), c.err);
    expect_no_elapsed(&c, timed, fresh, NOT_READY);
    conformance_release(&c, 0, 1);
    conformance_sync(&c, c.stream);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, timed, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, untimed, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, fresh, &c.err), c.err);
    conformance_close(&c);
}

void destroying_a_stream_finishes_its_work(void)
{
    struct conformance c;
    hl_stream stream;
    hl_event done;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->event_create(c.dev, 0, &done, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->stream_create(c.dev, &stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)c.source, AREA_BYTES, stream, &c.err),
                 c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_D2H, (uintptr_t)c.result, c.memory, AREA_BYTES, stream, &c.err),
                 c.err);
    HL_EXPECT_OK(c.ops->event_record(c.dev, done, stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->stream_destroy(c.dev, stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->event_synchronize(c.dev, done, &c.err),
                 c.err); /* CUDA's destroy does not wait itself */
    CU_ASSERT_EQUAL(memcmp(c.result, c.source, AREA_BYTES), 0);
    HL_EXPECT_OK(c.ops->event_destroy(c.dev, done, &c.err), c.err);
    conformance_close(&c);
}

void wait_value_compares_cyclically(void)
{
    struct conformance c;
    conformance_open(&c);
    conformance_release(&c, 0, 5);
    conformance_hold(&c, c.stream, 0, 5);           /* equal */
    conformance_hold(&c, c.stream, 0, 0xfffffff0u); /* 21 before 5 */
    conformance_sync(&c, c.stream);
    conformance_hold(&c, c.stream, 0, 6);
    HL_EXPECT_STATUS(c.ops->stream_query(c.dev, c.stream, &c.err), HL_PENDING, c.err);
    conformance_release(&c, 0, 0x80000005u); /* 2^31 - 1 after 6 */
    conformance_sync(&c, c.stream);
    conformance_close(&c);
}

void write_value_releases_another_stream(void)
{
    struct conformance c;
    conformance_open(&c);
    const hl_devptr words[] = {c.words_mapped + 8, c.memory + 64};
    HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0, 4096, c.stream, &c.err), c.err);
    conformance_sync(&c, c.stream);
    for (unsigned i = 0; i < 2; i++) {
        HL_EXPECT_OK(c.ops->stream_wait_value(c.dev, c.stream, words[i], 3, &c.err), c.err);
        HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_D2D, c.memory, c.other, 16, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.other, (uint8_t)(0x40 + i), 16, c.second, &c.err), c.err);
        HL_EXPECT_OK(c.ops->stream_write_value(c.dev, c.second, words[i], 3, &c.err), c.err);
        conformance_read(&c, c.memory, 16);
        CU_ASSERT_TRUE(all_bytes_are(c.result, (unsigned char)(0x40 + i), 16));
    }
    CU_ASSERT_EQUAL(__atomic_load_n(&c.words[2], __ATOMIC_ACQUIRE), 3);
    conformance_close(&c);
}

enum { THREADS = 4, FILLS = 50 };

struct submitter {
    struct conformance *c;
    unsigned index;
    hl_status status;
};

static void *submit_fills(void *arg)
{
    struct submitter *self = arg;
    struct conformance *c = self->c;
    hl_error err;
    self->status = hl_device_enter(c->dev, &err);
    if (self->status)
        return NULL;
    for (unsigned i = 0; i < FILLS && !self->status; i++)
        self->status = c->ops->fill(c->dev, c->memory + (i * THREADS + self->index) * 64,
                                    (uint8_t)(self->index * FILLS + i), 64, c->stream, &err);
    hl_device_leave(c->dev);
    return NULL;
}

void one_stream_takes_work_from_many_threads(void)
{
    struct conformance c;
    pthread_t threads[THREADS];
    struct submitter submitters[THREADS];
    conformance_open(&c);
    for (unsigned t = 0; t < THREADS; t++) {
        submitters[t] = (struct submitter){.c = &c, .index = t};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, submit_fills, &submitters[t]), 0);
    }
    for (unsigned t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        CU_ASSERT_EQUAL(submitters[t].status, HL_OK);
    }
    conformance_read(&c, c.memory, THREADS * FILLS * 64);
    for (unsigned i = 0; i < FILLS; i++)
        for (unsigned t = 0; t < THREADS; t++)
            CU_ASSERT_TRUE(
                all_bytes_are(c.result + (i * THREADS + t) * 64, (unsigned char)(t * FILLS + i), 64));
    conformance_close(&c);
}
