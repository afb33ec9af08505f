/* Every step of the engine that can fail, one at a time: a typed error, nothing left open or on the device,
 * the lease and the record where they belong, and the next use works. */
#include "engine/fake_peer.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>

#include "faults/testing.h"

struct failure {
    const char *point;
    uint32_t nth;
    int error;
    hl_status status;
};

static hl_fault_board *board;

static unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *list = opendir("/proc/self/fd");
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

static void begin(void)
{
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

static void end(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

static unsigned arm(const struct failure *failure)
{
    return hl_fault_arm(board, failure->point, failure->nth, HL_FAULT_ERROR, (uint64_t)failure->error);
}

static void expect_fired(const struct failure *failure, unsigned rule)
{
    if (hl_fault_fired(board, rule) != 1)
        fprintf(stderr, "%s, hit %u: fired %u times\n", failure->point, failure->nth,
                hl_fault_fired(board, rule));
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    hl_fault_disarm(board, rule);
}

static void expect_restores(struct fake *fake, struct fake_client *client)
{
    hl_restore *restore = fake_restore(client, 3, 8);
    const uint32_t record = fake_grant_next(fake);
    fake_await_and_reap(fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(fake));
}

static void a_connection_that_fails_leaves_nothing_open(void)
{
    static const struct failure failures[] = {
        {"engine_eventfd_create_before", 1, EMFILE, HL_E_SYSTEM},
        {"engine_eventfd_create_before", 2, EMFILE, HL_E_SYSTEM},
        {"engine_eventfd_create_before", 3, EMFILE, HL_E_SYSTEM},
        {"channel_connect_before", 1, ECONNREFUSED, HL_E_PEER},
        {"engine_manager_watch_before", 1, ESRCH, HL_E_SYSTEM},
        {"channel_send_before", 1, EPIPE, HL_E_PEER},
        {"channel_send_after", 1, EPIPE, HL_E_PEER},
        {"channel_fds_receive", 1, EMFILE, HL_E_PROTOCOL},
        {"channel_descriptors_map_before", 1, ENOMEM, HL_E_NOMEM},
        {"grant_memory_map_before", 1, ENOMEM, HL_E_NOMEM},
        {"engine_retire_start_before", 1, EAGAIN, HL_E_SYSTEM},
        {"engine_courier_start_before", 1, EAGAIN, HL_E_SYSTEM},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct fake fake;
        struct fake_client client;
        hl_engine_options options;
        hl_engine *engine = NULL;
        hl_error err = {0};
        fake_open(&fake);
        const struct engine_tuning tuning = fake_tuning(&fake);
        hl_engine_options_init(&options);
        options.socket_path = fake.path;
        options.name = "engine test";
        const unsigned before = open_fds();
        const unsigned rule = arm(&failures[i]);
        HL_EXPECT_STATUS(engine_connect_with(&options, &tuning, &engine, &err), failures[i].status, err);
        expect_fired(&failures[i], rule);
        CU_ASSERT_PTR_NULL(engine);
        while (open_fds() != before) /* the other side closes its end when it sees this one's closed */
            sched_yield();
        fake_connect(&fake, &client, NULL, 0);
        fake_register(&client);
        expect_restores(&fake, &client);
        fake_close_all(&fake, &client);
    }
    end();
}

static void a_registration_that_fails_takes_nothing(void)
{
    static const struct failure failures[] = {
        {"engine_worker_start_before", 1, EAGAIN, HL_E_SYSTEM},
        {"channel_extent_take_before", 1, ENOMEM, HL_E_BUDGET},
        {"engine_arena_import_before", 1, ENOMEM, HL_E_NOMEM},
        {"engine_arena_import_before", 2, ENOMEM, HL_E_NOMEM},
        {"engine_arena_register_before", 1, ENOMEM, HL_E_NOMEM},
        {"engine_arena_register_before", 2, ENOMEM, HL_E_NOMEM},
        {"device_host_register_before", 1, EIO, HL_E_DEVICE},
        {"device_host_pointer_before", 2, EIO, HL_E_DEVICE},
        {"engine_transfer_open_before", 1, ENOMEM, HL_E_NOMEM},
        {"device_stream_create_before", 1, EIO, HL_E_DEVICE},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct fake fake;
        struct fake_client client;
        fake_open(&fake);
        fake_connect(&fake, &client, NULL, 0);
        hl_context_batch batch = fake_batch(&fake);
        const unsigned before = open_fds();
        const unsigned rule = arm(&failures[i]);
        HL_EXPECT_STATUS(hl_engine_register(client.engine, &batch, &client.binding, &client.err),
                         failures[i].status, client.err);
        expect_fired(&failures[i], rule);
        CU_ASSERT_EQUAL(open_fds(), before);
        HL_EXPECT_OK(hl_engine_health(client.engine, &client.err), client.err);
        fake_register(&client);
        expect_restores(&fake, &client);
        fake_close_all(&fake, &client);
    }
    end();
}

static void a_start_that_fails_leaves_the_lease_usable(void)
{
    static const struct failure failures[] = {
        {"channel_extent_take_before", 1, ENOMEM, HL_E_BUDGET},
        {"engine_record_take_before", 1, ENOSPC, HL_E_BUDGET},
        {"device_event_query_before", 1, EIO, HL_E_DEVICE},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct fake fake;
        struct fake_client client;
        uint32_t pages[4] = {0, 1, 2, 3};
        hl_restore *restore = NULL;
        hl_restore_request request;
        fake_open_all(&fake, &client);
        hl_restore_source source = {.lease = fake_query(&client, 5, 4), .pages = pages, .count = 4};
        hl_restore_request_init(&request);
        request.sources = &source;
        request.source_count = 1;
        request.layer_events = (void *const *)fake.events;
        const unsigned rule = arm(&failures[i]);
        HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err),
                         failures[i].status, client.err);
        expect_fired(&failures[i], rule);
        CU_ASSERT_PTR_NULL(restore);
        for (uint32_t page = 0; page < 4; page++)
            fake_expect(&fake, 5 + page, page);
        HL_REQUIRE_OK(hl_restore_start(client.binding, &request, &restore, &client.err), client.err);
        fake_await_and_reap(&fake, fake_grant_next(&fake));
        fake_expect_outcome(restore, HL_OK, false);
        CU_ASSERT_TRUE(fake_tensors_match(&fake));
        hl_lease_release(source.lease);
        fake_close_all(&fake, &client);
    }
    end();
}

/* After the claim a failure ends the operation (I10), says whether pages were touched, and drains first (I9).
 */
static void a_claimed_operation_that_fails_is_drained_and_the_next_one_works(void)
{
    static const struct {
        struct failure failure;
        bool untouched;
    } failures[] = {
        {{"engine_operation_start_before", 1, ENOMEM, HL_E_NOMEM}, true},
        {{"device_event_create_before", 1, EIO, HL_E_DEVICE}, true},
        {{"engine_part_submit_before", 1, EIO, HL_E_DEVICE}, true},
        {{"engine_part_submit_after", 1, EIO, HL_E_DEVICE}, false},
        {{"device_event_record_after", 1, EIO, HL_E_DEVICE}, false},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct fake fake;
        struct fake_client client;
        fake_open_all(&fake, &client);
        hl_restore *restore = fake_restore(&client, 3, 8);
        const uint32_t record = fake_await_submission(&fake);
        fake_prepare(&fake, record);
        const unsigned rule = arm(&failures[i].failure);
        fake_grant(&fake, record, 0);
        fake_await_state(&fake, record, HL_GRANT_DRAINED);
        if (hl_fault_fired(board, rule) > 0) {
            CU_ASSERT_EQUAL(hl_grant_record_at(fake.grants, record)->status, failures[i].failure.status);
            fake_reap(&fake, record);
            fake_expect_outcome(restore, failures[i].failure.status, failures[i].untouched);
        } else {
            fprintf(stderr, "%s was not reached\n", failures[i].failure.point);
            CU_FAIL("a fault did not fire");
            fake_reap(&fake, record);
            hl_restore_close(restore);
        }
        hl_fault_disarm(board, rule);
        fake_await_retired(&fake, record, 1);
        HL_EXPECT_OK(hl_engine_health(client.engine, &client.err), client.err);
        expect_restores(&fake, &client);
        fake_close_all(&fake, &client);
        CU_ASSERT_EQUAL(fake.received[HL_MESSAGE_RELEASE], 0); /* consumed */
    }
    end();
}

static hl_publish_request make_publish(void)
{
    static const hl_block_key keys[2] = {{{1}}, {{2}}};
    static const uint32_t pages[2] = {7, 0};
    hl_publish_request request;
    hl_publish_request_init(&request);
    request.keys = keys;
    request.pages = pages;
    request.count = 2;
    return request;
}

static void a_publish_that_fails_to_start_leaves_its_slot(void)
{
    static const struct failure failures[] = {
        {"channel_extent_take_before", 1, ENOMEM, HL_E_BUDGET},
        {"engine_publish_admit_before", 1, ENOSPC, HL_E_BUDGET},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct fake fake;
        struct fake_client client;
        hl_publish *publish = NULL;
        fake_open_all(&fake, &client);
        hl_publish_request request = make_publish();
        const unsigned rule = arm(&failures[i]);
        HL_EXPECT_STATUS(hl_publish_start(client.binding, &request, &publish, &client.err),
                         failures[i].status, client.err);
        expect_fired(&failures[i], rule);
        CU_ASSERT_PTR_NULL(publish);
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
        fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
        fake_finish_publish(&fake, fake.publish.slot, HL_OK, 2, 0);
        HL_EXPECT_OK(hl_publish_wait(publish, -1, NULL, &client.err), client.err);
        hl_publish_close(publish);
        fake_close_all(&fake, &client);
    }
    end();
}

/* What the channel cannot carry loses the session, once and for a reason; operations that were granted end
 * with their own outcome (I8). */
static void a_request_that_cannot_be_sent_loses_the_session(void)
{
    struct fake fake;
    struct fake_client client;
    hl_block_key key = {{3}};
    hl_lease *lease = NULL;
    begin();
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 3, 8);
    const uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    const struct failure failure = {"channel_send_before", 1, EPIPE, HL_E_PEER};
    const unsigned rule = arm(&failure);
    HL_EXPECT_STATUS(hl_query(client.binding, &key, 1, NULL, &lease, &client.err), HL_E_PEER, client.err);
    expect_fired(&failure, rule);
    HL_EXPECT_STATUS(hl_engine_health(client.engine, &client.err), HL_E_PEER, client.err);
    fake_grant(&fake, record, 0);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
    end();
}

HL_TESTS(engine_steps, HL_CASE(a_connection_that_fails_leaves_nothing_open),
         HL_CASE(a_registration_that_fails_takes_nothing),
         HL_CASE(a_start_that_fails_leaves_the_lease_usable),
         HL_CASE(a_claimed_operation_that_fails_is_drained_and_the_next_one_works),
         HL_CASE(a_publish_that_fails_to_start_leaves_its_slot),
         HL_CASE(a_request_that_cannot_be_sent_loses_the_session));
