/* One operation on the software device against a scripted Manager: bytes, events, parts, owners, readiness.
 * The comment before a case names the requirements that it shows. */
#include "engine/fake_peer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static hl_restore_request make_request(void)
{
    hl_restore_request request;
    hl_restore_request_init(&request);
    return request;
}

static hl_stream copy_stream(struct fake_client *client)
{
    return hl_transfer_stream(client->binding->transfer);
}

static bool is_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

/* R1, R6, R9, R10, G1 */
static void blocks_arrive_and_every_layer_event_is_recorded(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 3, 20);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    CU_ASSERT_FALSE(is_readable(hl_engine_completion_fd(client.engine)));
    uint32_t record = fake_grant_next(&fake);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(is_readable(hl_engine_completion_fd(client.engine)));
    hl_engine_completion_clear(client.engine);
    CU_ASSERT_FALSE(is_readable(hl_engine_completion_fd(client.engine)));
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        CU_ASSERT_EQUAL(fake_event_query(&fake, fake.events[i]), HL_OK);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
    CU_ASSERT_EQUAL(fake.received[HL_MESSAGE_RELEASE], 0); /* consumed leases are not given back */
}

/* R8, G6: a part's bank space is free as soon as it has been copied out, while its copies still run. */
static void parts_are_consumed_and_drained_one_by_one(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *restore = fake_restore(&client, 0, 24);
    uint32_t record = fake_await_submission(&fake);
    struct hl_grant_record *shared = hl_grant_record_at(fake.grants, record);
    fake_prepare(&fake, record);
    size_t parts = hl_plan_part_count(fake.operations[record].plan);
    CU_ASSERT_FATAL(parts > 2);
    for (uint32_t part = 0; part < parts; part++) {
        hl_software_hold(fake.dev, copy_stream(&client), 0);
        fake_grant(&fake, record, 64 * part);
        while (atomic_load(&shared->consumed) != part + 1)
            fake_await_fd(fake.retirement_fd);
        memset((unsigned char *)hl_grant_bank(fake.grants) + 64 * part, 0xee, shared->bank_bytes);
        CU_ASSERT_EQUAL(hl_grant_load(fake.grants, record).state, HL_GRANT_ACTIVE);
        hl_software_release(fake.dev, copy_stream(&client));
        if (part + 1 < parts) {
            CU_ASSERT_EQUAL(hl_restore_wait_enqueued(restore, 0, &client.err), HL_E_TIMEOUT);
            fake_await_state(&fake, record, HL_GRANT_PART_DRAINED);
        }
    }
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

/* R8, R16: the second operation goes on while the first one is between two parts. */
static void operations_take_turns(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *first = fake_restore(&client, 0, 24);
    uint32_t a = fake_grant_next(&fake);
    fake_await_state(&fake, a, HL_GRANT_PART_DRAINED);
    hl_restore *second = fake_restore(&client, 0, 24);
    uint32_t b = fake_grant_next(&fake);
    CU_ASSERT_NOT_EQUAL(a, b);
    fake_await_state(&fake, b, HL_GRANT_PART_DRAINED);
    fake_stop_grants(&fake);
    while (hl_grant_load(fake.grants, a).state != HL_GRANT_DRAINED ||
           hl_grant_load(fake.grants, b).state != HL_GRANT_DRAINED) {
        if (hl_grant_load(fake.grants, a).state == HL_GRANT_PART_DRAINED)
            fake_grant(&fake, a, 0);
        else if (hl_grant_load(fake.grants, b).state == HL_GRANT_PART_DRAINED)
            fake_grant(&fake, b, 4096);
        else
            fake_await_fd(fake.retirement_fd);
    }
    fake_reap(&fake, a);
    fake_reap(&fake, b);
    fake_expect_outcome(first, HL_OK, false);
    fake_expect_outcome(second, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

/* R11: the outcome does not wait for the Manager's reaping, and the record serves the next generation. */
static void a_record_is_held_until_it_is_reaped(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    uint32_t record = fake_grant_next(&fake);
    fake_expect_outcome(restore, HL_OK, false);
    struct hl_grant_word word = hl_grant_load(fake.grants, record);
    CU_ASSERT_EQUAL(word.state, HL_GRANT_DRAINED);
    restore = fake_restore(&client, 4, 2);
    CU_ASSERT_NOT_EQUAL(fake_await_submission(&fake), record);
    fake_reap(&fake, record);
    fake_await_retired(&fake, record, word.generation);
    uint32_t other = fake_grant_next(&fake);
    fake_await_and_reap(&fake, other);
    fake_expect_outcome(restore, HL_OK, false);
    fake_close_all(&fake, &client);
}

/* R5, F9: copies wait for a busy ready stream; the events are recorded all the same. */
static void nothing_is_written_before_the_ready_stream(void)
{
    struct fake fake;
    struct fake_client client;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    hl_stream busy = fake_busy_stream(&fake);
    request.has_ready_stream = true;
    request.ready_stream = busy;
    hl_restore *restore = fake_restore_with(&client, 0, 16, &request);
    uint32_t record = fake_grant_next(&fake);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    CU_ASSERT_FALSE(fake_tensors_match(&fake));
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        CU_ASSERT_EQUAL(fake_event_query(&fake, fake.events[i]), HL_PENDING);
    hl_software_release(fake.dev, busy);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_stream_end(&fake, busy);
    fake_close_all(&fake, &client);
}

/* R5: each operation waits for its own stream, also when both were started before either was granted. */
static void two_busy_ready_streams_are_told_apart(void)
{
    struct fake fake;
    struct fake_client client;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    hl_stream first = fake_busy_stream(&fake), second = fake_busy_stream(&fake);
    request.has_ready_stream = true;
    request.ready_stream = first;
    hl_restore *a = fake_restore_with(&client, 0, 4, &request);
    uint32_t record_a = fake_await_submission(&fake);
    fake_prepare(&fake, record_a);
    request.ready_stream = second;
    hl_restore *b = fake_restore_with(&client, 0, 4, &request);
    uint32_t record_b = fake_await_submission(&fake);
    fake_prepare(&fake, record_b);
    hl_software_release(fake.dev, second);
    fake_grant(&fake, record_a, 0);
    HL_EXPECT_OK(hl_restore_wait_enqueued(a, -1, &client.err), client.err);
    hl_software_wait_held(fake.dev, first);
    CU_ASSERT_EQUAL(fake_event_query(&fake, fake.events[0]), HL_PENDING);
    hl_software_release(fake.dev, first);
    fake_await_and_reap(&fake, record_a);
    fake_grant(&fake, record_b, 0);
    fake_await_and_reap(&fake, record_b);
    fake_expect_outcome(a, HL_OK, false);
    fake_expect_outcome(b, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_stream_end(&fake, first);
    fake_stream_end(&fake, second);
    fake_close_all(&fake, &client);
}

/* R5: a stream that reports an error rejects the operation, without any effect. */
static void a_failed_ready_stream_rejects(void)
{
    struct fake fake;
    struct fake_client client;
    const uint32_t page = 0;
    hl_restore *restore = NULL;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    hl_stream bad = fake_stream(&fake);
    hl_software_fail_execution(fake.dev, 1, 700);
    HL_REQUIRE_OK(hl_device_enter(fake.dev, &client.err), client.err);
    fake.dev->ops->fill(fake.dev, fake.tensors[0].device_ptr, FAKE_POISON, 1, bad, NULL);
    fake.dev->ops->stream_synchronize(fake.dev, bad, NULL);
    hl_device_leave(fake.dev);
    hl_restore_source source = {.lease = fake_query(&client, 0, 1), .pages = &page, .count = 1};
    request.sources = &source;
    request.source_count = 1;
    request.has_ready_stream = true;
    request.ready_stream = bad;
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), HL_E_DEVICE,
                     client.err);
    CU_ASSERT_EQUAL(client.engine->free_count, HL_GRANT_RECORDS);
    CU_ASSERT_FALSE(fake_is_entered(&fake));
    hl_lease_release(source.lease);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, 1);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_RELEASE), 1);
    fake_stream_end(&fake, bad);
    fake_close_all(&fake, &client);
}

/* R5: the caller's device context is as it was, inside and outside, after success and failure. */
static void the_callers_context_is_preserved(void)
{
    struct fake fake;
    struct fake_client client;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    for (int inside = 0; inside < 2; inside++) {
        if (inside)
            HL_REQUIRE_OK(hl_device_enter(fake.dev, &client.err), client.err);
        hl_stream busy = fake_busy_stream(&fake);
        request.has_ready_stream = true;
        request.ready_stream = busy;
        hl_restore *restore = fake_restore_with(&client, 0, 2, &request);
        CU_ASSERT_EQUAL(fake_is_entered(&fake), inside == 1);
        hl_restore *refused = NULL;
        HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &refused, &client.err), HL_E_INVALID,
                         client.err);
        CU_ASSERT_EQUAL(fake_is_entered(&fake), inside == 1);
        hl_software_release(fake.dev, busy);
        uint32_t record = fake_grant_next(&fake);
        fake_await_and_reap(&fake, record);
        fake_expect_outcome(restore, HL_OK, false);
        CU_ASSERT_EQUAL(fake_is_entered(&fake), inside == 1);
        fake_stream_end(&fake, busy);
        if (inside)
            hl_device_leave(fake.dev);
    }
    fake_close_all(&fake, &client);
}

static void signal_owner(void *owner)
{
    engine_signal(*(const int *)owner);
}

/* R4, R10, F8: a dropped handle and a timeout free nothing; owners are released once, after the drain. */
static void owners_are_kept_until_the_copies_have_drained(void)
{
    struct fake fake;
    struct fake_client client;
    hl_restore_request request = make_request();
    uint64_t releases = 0;
    fake_open_all(&fake, &client);
    int released = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    request.events_owner = &released;
    request.release_events = signal_owner;
    hl_restore *restore = fake_restore_with(&client, 0, 16, &request);
    hl_software_hold(fake.dev, copy_stream(&client), 0);
    uint32_t record = fake_grant_next(&fake);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
    hl_software_wait_held(fake.dev, copy_stream(&client));
    HL_EXPECT_STATUS(hl_restore_wait(restore, 1000, NULL, &client.err), HL_E_TIMEOUT, client.err);
    hl_restore_close(restore);
    CU_ASSERT_FALSE(is_readable(released));
    CU_ASSERT_EQUAL(hl_grant_load(fake.grants, record).state, HL_GRANT_ACTIVE);
    hl_software_release(fake.dev, copy_stream(&client));
    fake_await_and_reap(&fake, record);
    fake_disconnect(&client);
    CU_ASSERT_EQUAL(read(released, &releases, sizeof releases), (ssize_t)sizeof releases);
    CU_ASSERT_EQUAL(releases, 1);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    close(released);
    fake_close(&fake);
}

/* O1, O2: six cumulative clocks with `trace`, none without. */
static void stage_clocks_are_taken_when_asked_for(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    for (int trace = 0; trace < 2; trace++) {
        hl_restore_request request = make_request();
        hl_restore_result result;
        request.trace = trace;
        hl_restore *restore = fake_restore_with(&client, 0, 2, &request);
        uint32_t record = fake_await_submission(&fake);
        struct hl_grant_record *shared = hl_grant_record_at(fake.grants, record);
        CU_ASSERT_EQUAL(shared->flags, trace ? HL_GRANT_TRACE : 0);
        fake_prepare(&fake, record);
        fake_grant(&fake, record, 0);
        HL_EXPECT_OK(hl_restore_wait(restore, -1, &result, &client.err), client.err);
        uint64_t before = 0;
        for (uint32_t i = 0; i < HL_STAGE_COUNT; i++) {
            CU_ASSERT_EQUAL(result.stage_ns[i] > 0, trace == 1);
            CU_ASSERT_EQUAL(result.stage_ns[i], shared->stage_ns[i]);
            /* DISPATCHED is read by the caller while the worker may be at DEQUEUED and later stages. */
            if (i != HL_STAGE_DEQUEUED)
                CU_ASSERT_TRUE(result.stage_ns[i] >= before);
            before = result.stage_ns[i];
        }
        fake_await_and_reap(&fake, record);
        hl_restore_close(restore);
    }
    fake_close_all(&fake, &client);
}

/* Two leases are one operation; pages are the leases' in order. */
static void several_leases_are_one_operation(void)
{
    struct fake fake;
    struct fake_client client;
    const uint32_t first_pages[2] = {9, 4}, second_pages[3] = {1, 0, 7};
    hl_restore *restore = NULL;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    hl_restore_source sources[2] = {{fake_query(&client, 0, 2), first_pages, 2},
                                    {fake_query(&client, 10, 4), second_pages, 3}};
    request.sources = sources;
    request.source_count = 2;
    HL_REQUIRE_OK(hl_restore_start(client.binding, &request, &restore, &client.err), client.err);
    for (uint32_t i = 0; i < 2; i++)
        fake_expect(&fake, i, first_pages[i]);
    for (uint32_t i = 0; i < 3; i++)
        fake_expect(&fake, 10 + i, second_pages[i]);
    uint32_t record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    /* Consumed: no second operation, and releasing asks nobody. */
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), HL_E_STATE,
                     client.err);
    hl_lease_release(sources[0].lease);
    hl_lease_release(sources[1].lease);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_RELEASE), 0);
    fake_close_all(&fake, &client);
}

/* The Manager's worker ran it: the outcome is taken over, and the consumers are let go by fresh records. */
static void a_managed_operation_completes(void)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        struct fake fake;
        struct fake_client client;
        fake_open_all(&fake, &client);
        hl_restore *restore = fake_restore(&client, 0, 4);
        uint32_t record = fake_await_submission(&fake);
        fake_prepare(&fake, record);
        CU_ASSERT_TRUE(fake_move(&fake, record, HL_GRANT_PREPARING, HL_GRANT_MANAGED));
        hl_grant_record_at(fake.grants, record)->status = HL_OK;
        hl_grant_record_at(fake.grants, record)->bytes = 4 * client.binding->page_bytes[0] - (wrong ? 1 : 0);
        CU_ASSERT_TRUE(fake_move(&fake, record, HL_GRANT_MANAGED, HL_GRANT_COMPLETED));
        fake_reap(&fake, record);
        fake_expect_outcome(restore, wrong ? HL_E_PROTOCOL : HL_OK, false);
        for (uint32_t i = 0; i < FAKE_LAYERS; i++)
            CU_ASSERT_EQUAL(fake_event_query(&fake, fake.events[i]), HL_OK);
        fake_close_all(&fake, &client);
    }
}

/* G3: 1024 operations may be pending, and no more; each can still be taken back. */
static void the_record_budget_is_exact(void)
{
    static hl_restore *restores[HL_GRANT_RECORDS];
    struct fake fake;
    struct fake_client client;
    const uint32_t page = 0;
    hl_restore *extra = NULL;
    hl_restore_request request = make_request();
    fake_open_all(&fake, &client);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        restores[i] = fake_restore(&client, 0, 1);
    hl_restore_source source = {.lease = fake_query(&client, 0, 1), .pages = &page, .count = 1};
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &extra, &client.err), HL_E_BUDGET,
                     client.err);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        hl_restore_cancel(restores[i]);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        fake_expect_outcome(restores[i], HL_E_CANCELLED, true);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, HL_GRANT_RECORDS);
    while (hl_restore_start(client.binding, &request, &extra, &client.err) == HL_E_BUDGET)
        continue; /* until the retirement thread has put a record back */
    hl_restore_cancel(extra);
    fake_expect_outcome(extra, HL_E_CANCELLED, true);
    hl_lease_release(source.lease);
    fake_close_all(&fake, &client);
}

HL_TESTS(engine_restore, HL_CASE(blocks_arrive_and_every_layer_event_is_recorded),
         HL_CASE(parts_are_consumed_and_drained_one_by_one), HL_CASE(operations_take_turns),
         HL_CASE(a_record_is_held_until_it_is_reaped), HL_CASE(nothing_is_written_before_the_ready_stream),
         HL_CASE(two_busy_ready_streams_are_told_apart), HL_CASE(a_failed_ready_stream_rejects),
         HL_CASE(the_callers_context_is_preserved), HL_CASE(owners_are_kept_until_the_copies_have_drained),
         HL_CASE(stage_clocks_are_taken_when_asked_for), HL_CASE(several_leases_are_one_operation),
         HL_CASE(a_managed_operation_completes), HL_CASE(the_record_budget_is_exact));
