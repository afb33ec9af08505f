/* The single-step scheduler: nothing runs unless a step or a waiting call runs it, in an order that the test
 * chooses. */
#include "core/device/software_testing.h"

static const struct hl_software_options stepping = {.single_step = true, .seed = 1};

static void nothing_runs_without_a_step(void)
{
    struct bench t;
    bench_open(&t, &stepping);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 64), t.err);
    HL_EXPECT_STATUS(t.ops->stream_query(t.dev, t.a, &t.err), HL_PENDING, t.err);
    CU_ASSERT_FALSE(bench_arrived(&t, 0, 64));
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 1);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64));
    HL_EXPECT_OK(t.ops->stream_query(t.dev, t.a, &t.err), t.err);
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 0);
    bench_close(&t);
}

static void a_choice_names_a_stream_in_creation_order(void)
{
    struct bench t;
    bench_open(&t, &stepping);
    HL_EXPECT_OK(bench_copy(&t, NULL, 0, 64), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 64, 64), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 128, 64), t.err);
    CU_ASSERT_EQUAL(hl_software_step(t.dev, 2), 3); /* b */
    CU_ASSERT_TRUE(bench_arrived(&t, 64, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 128, 64));
    CU_ASSERT_EQUAL(hl_software_step(t.dev, 1), 2); /* a */
    CU_ASSERT_TRUE(bench_arrived(&t, 128, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 0, 64));
    CU_ASSERT_EQUAL(hl_software_step(t.dev, 0), 1);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 64));
    bench_close(&t);
}

static void blocked_and_held_streams_cannot_go_on(void)
{
    struct bench t;
    hl_event event;
    bench_open(&t, &stepping);
    uint32_t *word = (uint32_t *)(void *)(t.host + 4096);
    *word = 0;
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_value(t.dev, t.a, (uintptr_t)word, 1, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_event(t.dev, t.b, event, &t.err), t.err);
    hl_software_hold(t.dev, NULL, 1);
    HL_EXPECT_OK(bench_copy(&t, NULL, 0, 64), t.err);
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 0);
    *word = 1;
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 1); /* the wait of a */
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 1); /* its record */
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 1); /* the wait of b */
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 0);
    hl_software_release(t.dev, NULL);
    CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 1);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

/* Three copies a stream to one byte each; the bits of the result are the order in which the streams went. */
static void queue_three_each(struct bench *t)
{
    for (unsigned i = 0; i < 3; i++) {
        HL_EXPECT_OK(bench_copy(t, t->a, 64 * i, 64), t->err);
        HL_EXPECT_OK(bench_copy(t, t->b, 4096 + 64 * i, 64), t->err);
    }
}

static unsigned done_by(struct bench *t, size_t first)
{
    unsigned done = 0;
    while (done < 3 && bench_arrived(t, first + 64 * done, 64))
        done++;
    return done;
}

/* Steps until all has run; bit i of the result says whether step i was of stream b. */
static unsigned run_in_seeded_order(uint64_t seed)
{
    const struct hl_software_options options = {.single_step = true, .seed = seed};
    struct bench t;
    unsigned order = 0, step = 0, b_done = 0;
    bench_open(&t, &options);
    queue_three_each(&t);
    while (hl_software_step(t.dev, -1)) {
        unsigned now = done_by(&t, 4096);
        order |= (now > b_done ? 1u : 0u) << step++;
        b_done = now;
    }
    CU_ASSERT_EQUAL(step, 6);
    bench_close(&t);
    return order;
}

static void a_seed_names_an_order(void)
{
    unsigned first = run_in_seeded_order(1), different = 0;
    CU_ASSERT_EQUAL(run_in_seeded_order(1), first);
    for (uint64_t seed = 2; seed < 20; seed++)
        different += run_in_seeded_order(seed) != first;
    CU_ASSERT_TRUE(different > 5);
}

/* Visits every interleaving: after each run the last step that had another choice takes the next one. */
static void choices_enumerate_every_interleaving(void)
{
    int choices[6] = {0};
    unsigned runnable[6], runs = 0;
    bool more = true, seen[64] = {false};
    while (more && runs < 100) {
        struct bench t;
        unsigned order = 0, step = 0, b_done = 0;
        bench_open(&t, &stepping);
        queue_three_each(&t);
        for (; step < 6; step++) {
            runnable[step] = hl_software_step(t.dev, choices[step]);
            CU_ASSERT_TRUE_FATAL(runnable[step] > 0);
            unsigned now = done_by(&t, 4096);
            order |= (now > b_done ? 1u : 0u) << step;
            b_done = now;
        }
        CU_ASSERT_EQUAL(hl_software_step(t.dev, -1), 0);
        CU_ASSERT_FALSE(seen[order]);
        seen[order] = true;
        runs++;
        bench_close(&t);
        more = false;
        while (step-- > 0 && !more) {
            more = (unsigned)++choices[step] < runnable[step];
            if (!more)
                choices[step] = 0;
        }
    }
    CU_ASSERT_EQUAL(runs, 20); /* 6 over 3 */
}

static void a_wait_runs_what_it_waits_for(void)
{
    struct bench t;
    hl_event event;
    bench_open(&t, &stepping);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 0, 64), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.b, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_wait_event(t.dev, t.a, event, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 64, 64), t.err);
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 0, 128));
    HL_EXPECT_OK(bench_copy(&t, t.a, 128, 64), t.err);
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_synchronize(t.dev, event, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 128, 64));
    hl_software_hold(t.dev, t.a, 2);
    HL_EXPECT_OK(bench_copy(&t, t.a, 192, 64), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 256, 64), t.err);
    hl_software_wait_held(t.dev, t.a);
    CU_ASSERT_TRUE(bench_arrived(&t, 192, 64));
    CU_ASSERT_FALSE(bench_arrived(&t, 256, 64));
    hl_software_release(t.dev, t.a);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

/* Whether mem_free ran the pending work before it freed, in one thread: what the copy brought back from the
 * memory that has gone is right. */
static void removing_memory_runs_the_work_that_uses_it(void)
{
    struct bench t;
    hl_devptr ptr;
    bench_open(&t, &stepping);
    HL_REQUIRE_OK(t.ops->mem_alloc(t.dev, 4096, &ptr, &t.err), t.err);
    const uint64_t host = (uintptr_t)t.host;
    HL_EXPECT_OK(t.ops->fill(t.dev, ptr, 0x5a, 64, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->copy(t.dev, HL_COPY_D2H, host, ptr, 64, t.a, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.b, 64, 64), t.err); /* uses none of it */
    hl_software_hold(t.dev, t.b, 0);
    HL_EXPECT_OK(t.ops->mem_free(t.dev, ptr, &t.err), t.err);
    CU_ASSERT_EQUAL(t.host[0], 0x5a);
    CU_ASSERT_EQUAL(t.host[63], 0x5a);
    HL_EXPECT_STATUS(t.ops->stream_query(t.dev, t.b, &t.err), HL_PENDING, t.err);
    hl_software_release(t.dev, t.b);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host, &t.err), t.err);
    CU_ASSERT_TRUE(bench_arrived(&t, 64, 64));
    HL_EXPECT_OK(t.ops->host_register(t.dev, t.host, BENCH_BYTES, &t.err), t.err);
    bench_close(&t);
}

static void every_kind_of_work_keeps_its_memory(void)
{
    struct bench t;
    struct hl_software_counts counts;
    hl_devptr ptr;
    hl_event event;
    size_t accepted;
    bench_open(&t, &stepping);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    const uint64_t host = (uintptr_t)t.host;
    for (unsigned kind = 0; kind < 7; kind++) {
        HL_REQUIRE_OK(t.ops->mem_alloc(t.dev, 4096, &ptr, &t.err), t.err);
        const struct hl_copy batch[] = {{host, t.memory, 8}, {host + 8, ptr, 8}};
        const struct hl_gather piece = {ptr, host, 8};
        const struct hl_gather_launch gather = {.descriptors = host + 4096, .count = 1, .blocks = 1};
        const struct hl_checksum_launch sums = {
            .base = ptr, .offsets = host + 8192, .sums = host + 8200, .page_bytes = 64, .count = 1};
        memcpy(t.host + 4096, &piece, sizeof piece);
        memset(t.host + 8192, 0, 8);
        hl_status (*const fill)(hl_device *, hl_devptr, uint8_t, size_t, hl_stream, hl_error *) = t.ops->fill;
        const hl_status queued =
            kind == 0   ? t.ops->copy_batch(t.dev, HL_COPY_D2H, batch, 2, t.a, &accepted, &t.err)
            : kind == 1 ? t.ops->copy_rows(t.dev, HL_COPY_H2D, ptr, 16, host, 8, 8, 4, t.a, &t.err)
            : kind == 2 ? fill(t.dev, ptr + 4000, 1, 96, t.a, &t.err)
            : kind == 3 ? t.ops->gather(t.dev, &gather, t.a, &t.err)
            : kind == 4 ? t.ops->checksum(t.dev, &sums, t.a, &t.err)
            : kind == 5 ? t.ops->stream_write_value(t.dev, t.a, ptr, 1, &t.err)
                        : t.ops->stream_wait_value(t.dev, t.a, ptr, 0, &t.err);
        HL_EXPECT_OK(queued, t.err);
        HL_EXPECT_OK(t.ops->mem_free(t.dev, ptr, &t.err), t.err);
        hl_software_counts(t.dev, &counts);
        CU_ASSERT_EQUAL(counts.executed, kind + 1);
    }
    HL_EXPECT_OK(t.ops->event_record(t.dev, event, t.a, &t.err), t.err); /* uses no memory */
    HL_EXPECT_OK(t.ops->stream_wait_event(t.dev, t.a, event, &t.err), t.err);
    HL_REQUIRE_OK(t.ops->mem_alloc(t.dev, 4096, &ptr, &t.err), t.err);
    HL_EXPECT_OK(t.ops->mem_free(t.dev, ptr, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.executed, 7);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

HL_TESTS(software_step, HL_CASE(nothing_runs_without_a_step),
         HL_CASE(a_choice_names_a_stream_in_creation_order), HL_CASE(blocked_and_held_streams_cannot_go_on),
         HL_CASE(a_seed_names_an_order), HL_CASE(choices_enumerate_every_interleaving),
         HL_CASE(a_wait_runs_what_it_waits_for), HL_CASE(removing_memory_runs_the_work_that_uses_it),
         HL_CASE(every_kind_of_work_keeps_its_memory));
