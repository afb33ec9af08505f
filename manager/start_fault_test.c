/* What a Manager takes to start, to welcome an engine and to answer it, refused one thing at a time: a typed
 * error, everything given back, and the next one works. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "faults/testing.h"
#include "manager/client_testing.h"

struct failure {
    const char *point;
    uint32_t nth;
    int error;
    hl_status status; /* HL_OK: the connection is closed without a word */
};

static hl_fault_board *board;

static void begin(void)
{
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

/* After the Manager has stopped: no thread is at a point. */
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

static unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *list = opendir("/proc/self/fd");
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

/* --- the start --- */

static void give_software(hl_manager_options *options)
{
    hl_manager_options_init(options);
    options->socket_path = "m/s";
    options->arena_bytes = STAND_ARENA_BYTES;
    options->arena_count = 2;
    options->index_blocks = 1024;
    options->spin_us = 0;
    options->software = true;
}

static void a_start_that_fails_gives_everything_back(void)
{
    static const struct failure failures[] = {
        {"channel_bind_before", 1, EACCES, HL_E_SYSTEM},
        {"channel_listen_before", 1, EADDRINUSE, HL_E_SYSTEM},
        {"device_open_before", 1, ENOMEM, HL_E_NOMEM},
        {"manager_arena_create_before", 1, ENOMEM, HL_E_NOMEM},
        {"manager_arena_create_before", 2, ENOMEM, HL_E_NOMEM},
        {"manager_dispatch_open_before", 1, EMFILE, HL_E_SYSTEM},
        {"manager_watch_before", 1, ENOSPC, HL_E_SYSTEM},
        {"manager_watch_before", 2, ENOSPC, HL_E_SYSTEM},
        {"manager_watch_before", 3, ENOSPC, HL_E_SYSTEM},
        {"manager_arena_register_before", 1, ENOMEM, HL_E_NOMEM},
        {"manager_arena_register_before", 2, ENOMEM, HL_E_NOMEM},
        {"device_enter_before", 1, EIO, HL_E_DEVICE},
        {"device_host_register_before", 1, EIO, HL_E_DEVICE},
        {"device_host_register_before", 2, EIO, HL_E_DEVICE},
        {"device_host_pointer_before", 1, EIO, HL_E_DEVICE},
        {"device_stream_create_before", 1, EIO, HL_E_DEVICE},
        {"device_event_create_before", 1, EIO, HL_E_DEVICE},
        {"manager_publisher_start_before", 1, EAGAIN, HL_E_SYSTEM},
        {"manager_dispatch_start_before", 1, EAGAIN, HL_E_SYSTEM},
    };
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        hl_manager_options options;
        hl_manager *manager = NULL;
        hl_error err = {0};
        char folder[PATH_MAX];
        stand_enter_folder(folder, sizeof folder);
        give_software(&options);
        const unsigned before = open_fds();
        const unsigned rule = arm(&failures[i]);
        HL_EXPECT_STATUS(hl_manager_start(&options, &manager, &err), failures[i].status, err);
        expect_fired(&failures[i], rule);
        CU_ASSERT_PTR_NULL(manager);
        CU_ASSERT_EQUAL(open_fds(), before);
        CU_ASSERT_NOT_EQUAL(access("m/s", F_OK), 0);
        HL_REQUIRE_OK(hl_manager_start(&options, &manager, &err), err);
        CU_ASSERT_EQUAL(hl_manager_stop(manager), 0);
        CU_ASSERT_EQUAL(open_fds(), before);
        unlink("m/s.lock");
        rmdir("m");
        CU_ASSERT_EQUAL(chdir("/"), 0);
        rmdir(folder);
    }
    end();
}

/* --- sessions --- */

static void await_fds(unsigned expected)
{
    while (open_fds() != expected)
        sched_yield();
}

static void expect_works(struct stand *stand)
{
    struct client client;
    struct hl_release release = {.lease = 12345};
    client_open(&client, HL_PEER_ENGINE);
    client_request(&client, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&client, HL_E_NOT_FOUND, "");
    CU_ASSERT_EQUAL(stand_stats(stand).sessions, 1);
    client_bye(&client);
    stand_sync(stand);
    CU_ASSERT_EQUAL(stand_stats(stand).sessions, 0);
    stand_check(stand);
}

static void a_welcome_that_fails_takes_no_place(void)
{
    static const struct failure failures[] = {
        {"manager_watch_before", 1, ENOSPC, HL_OK},
        {"manager_session_place_before", 1, ENOSPC, HL_E_BUDGET},
        {"manager_session_process_before", 1, ESRCH, HL_E_SYSTEM},
        {"grant_memory_create_before", 1, ENFILE, HL_E_SYSTEM},
        {"channel_descriptors_create_before", 1, ENFILE, HL_E_SYSTEM},
        {"manager_session_eventfd_before", 1, EMFILE, HL_E_SYSTEM},
        {"manager_session_eventfd_before", 2, EMFILE, HL_E_SYSTEM},
        {"manager_session_eventfd_before", 3, EMFILE, HL_E_SYSTEM},
        {"manager_watch_before", 2, ENOSPC, HL_E_SYSTEM},
        {"manager_watch_before", 3, ENOSPC, HL_E_SYSTEM},
        {"manager_watch_before", 4, ENOSPC, HL_E_SYSTEM},
        {"channel_fds_send", 1, ETOOMANYREFS, HL_E_SYSTEM},
        {"channel_send_before", 1, EPIPE, HL_OK},
    };
    static struct stand stand;
    stand_open(&stand, NULL);
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct client client;
        struct hl_hello hello;
        const unsigned before = open_fds();
        const unsigned rule = arm(&failures[i]);
        client_connect(&client);
        hl_hello_fill(&hello, HL_PEER_ENGINE, "test");
        client_request(&client, &hello, HL_MESSAGE_HELLO);
        if (failures[i].status != HL_OK)
            client_expect_error(&client, failures[i].status, "");
        else
            client_expect_closed(&client);
        expect_fired(&failures[i], rule);
        client_close(&client);
        await_fds(before);
        expect_works(&stand);
        await_fds(before);
    }
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    end();
}

/* The connection still waits, and maintenance listens again. */
static void a_connection_that_could_not_be_accepted_is_accepted_later(void)
{
    static struct stand stand;
    const struct failure failure = {"channel_accept_before", 1, EMFILE, HL_OK};
    struct client client;
    stand_open(&stand, NULL);
    begin();
    const unsigned rule = arm(&failure);
    client_open(&client, HL_PEER_ENGINE);
    expect_fired(&failure, rule);
    client_bye(&client);
    expect_works(&stand);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    end();
}

/* --- requests --- */

static void a_registration_that_fails_takes_nothing(void)
{
    static const struct failure failures[] = {
        {"channel_extent_copy_before", 1, ENOMEM, HL_E_NOMEM},
        {"manager_namespace_take_before", 1, ENOSPC, HL_E_LIMIT},
        {"device_enter_before", 1, EIO, HL_E_DEVICE},
        {"device_ipc_import_before", 1, EIO, HL_E_DEVICE},
    };
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        struct test_binding binding;
        struct hl_packet packet;
        test_binding_fill(&binding, "engine", (uint32_t)i);
        if (!strcmp(failures[i].point, "device_ipc_import_before"))
            binding.tensors[0].export =
                (struct hl_ipc_export){.handle = {1}, .allocation_bytes = binding.tensors[0].tensor.bytes};
        const unsigned rule = arm(&failures[i]);
        struct hl_extent extent = client_send_register(&client, &binding);
        client_expect_error(&client, failures[i].status, "");
        expect_fired(&failures[i], rule);
        hl_descriptors_give(client.descriptors, extent);
        CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 0);
        struct hl_unregister unregister = {.binding = client_register(&client, "engine", (uint32_t)i)};
        client_request(&client, &unregister, HL_MESSAGE_UNREGISTER);
        client_expect(&client, HL_MESSAGE_DONE, &packet);
        stand_check(&stand);
    }
    client_bye(&client);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    end();
}

static void a_query_that_fails_pins_nothing(void)
{
    static const struct failure failures[] = {
        {"channel_extent_copy_before", 1, ENOMEM, HL_E_NOMEM},
        {"manager_lease_create_before", 1, ENOMEM, HL_E_NOMEM},
    };
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    const uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 4);
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        const unsigned rule = arm(&failures[i]);
        struct hl_extent extent = client_send_query(&client, binding, 0, 4);
        client_expect_error(&client, failures[i].status, "");
        expect_fired(&failures[i], rule);
        hl_descriptors_give(client.descriptors, extent);
        CU_ASSERT_EQUAL(stand_stats(&stand).leases, 0);
        stand_check(&stand);
        const struct hl_lease_message lease = client_query(&client, binding, 0, 4);
        CU_ASSERT_EQUAL(lease.hits, 4);
        struct hl_release release = {.lease = lease.lease};
        struct hl_packet packet;
        client_request(&client, &release, HL_MESSAGE_RELEASE);
        client_expect(&client, HL_MESSAGE_DONE, &packet);
    }
    client_bye(&client);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    end();
}

/* I6: whichever notification of a restore is lost, it is granted and reaped all the same. */
static void a_lost_notification_only_delays(void)
{
    static const char *const points[] = {"grant_mark_before", "channel_signal_restore_before"};
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    const uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 4);
    begin();
    for (uint32_t i = 0; i < 2; i++) {
        const struct hl_lease_message lease = client_query(&client, binding, 0, 4);
        const unsigned rule = hl_fault_arm_spec(
            board,
            &(hl_fault_rule_spec){.point = points[i], .nth = 1, .action = HL_FAULT_DROP, .persistent = true});
        const uint32_t generation = client_submit(&client, i, binding, &lease);
        client_await(&client, i, HL_GRANT_GRANTED);
        client_drain(&client, i, generation);
        client_notify(&client, i);
        client_await(&client, i, HL_GRANT_REAPED);
        CU_ASSERT_TRUE(hl_fault_fired(board, rule) > 0);
        hl_fault_disarm(board, rule);
        stand_check(&stand);
    }
    client_bye(&client);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    end();
}

HL_TESTS(manager_start_faults, HL_CASE(a_start_that_fails_gives_everything_back),
         HL_CASE(a_welcome_that_fails_takes_no_place),
         HL_CASE(a_connection_that_could_not_be_accepted_is_accepted_later),
         HL_CASE(a_registration_that_fails_takes_nothing), HL_CASE(a_query_that_fails_pins_nothing),
         HL_CASE(a_lost_notification_only_delays));
