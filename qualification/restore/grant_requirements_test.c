/* The grant protocol's requirements G1 to G9, between processes. Its bounds (G3) are in budgets_test.c, lost
 * notifications in lost_notifications_test.c. */
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/plan/plan.h"
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

static bool is_eventfd(int fd)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strstr(target, "[eventfd]");
}

static off_t size_of(int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 ? file.st_size : -1;
}

/* G1 */
static void an_engine_is_welcomed_with_five_descriptors(void)
{
    struct scene scene;
    struct hl_packet packet;
    scene_open(&scene);
    int fd = raw_hello(HL_PEER_ENGINE, &packet);
    CU_ASSERT_EQUAL_FATAL(packet.fd_count, HL_BOOTSTRAP_FDS);
    CU_ASSERT_EQUAL(size_of(packet.fds[HL_FD_DESCRIPTORS]), (off_t)HL_DESCRIPTOR_BYTES);
    CU_ASSERT_EQUAL(size_of(packet.fds[HL_FD_GRANTS]), (off_t)HL_GRANT_MEMORY_BYTES);
    CU_ASSERT_TRUE(is_eventfd(packet.fds[HL_FD_RESTORE]));
    CU_ASSERT_TRUE(is_eventfd(packet.fds[HL_FD_RETIREMENT]));
    CU_ASSERT_TRUE(is_eventfd(packet.fds[HL_FD_PUBLISH]));
    hl_packet_close_fds(&packet);
    close(fd);
    scene_close(&scene);
}

/* G1 */
static void the_completion_descriptor_tells_of_finished_work(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 4);
    struct pollfd ready = {.fd = hl_engine_completion_fd(scene.client.engine), .events = POLLIN};
    CU_ASSERT_EQUAL(poll(&ready, 1, 0), 1); /* the publish */
    hl_engine_completion_clear(scene.client.engine);
    CU_ASSERT_EQUAL(poll(&ready, 1, 0), 0);
    hl_restore *restore = client_start(&scene.client, 0, 4, 8);
    CU_ASSERT_EQUAL(poll(&ready, 1, (int)(PATIENCE_NS / 1000000)), 1);
    CU_ASSERT_NOT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 4, 8);
    scene_close(&scene);
}

/* G2: the text has both numbers. */
static void every_other_version_is_refused_with_both_numbers(void)
{
    static const struct {
        size_t field;
        uint32_t ours;
    } versions[] = {
        {offsetof(struct hl_hello, bootstrap_version), 7}, {offsetof(struct hl_hello, channel_abi), 11},
        {offsetof(struct hl_hello, lifecycle), 4},         {offsetof(struct hl_hello, plan_version), 2},
        {offsetof(struct hl_hello, cache_schema), 9},      {offsetof(struct hl_hello, grant_schema), 5}};
    struct scene scene;
    scene_open(&scene);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        struct hl_hello hello;
        struct hl_packet packet;
        hl_error err = {0};
        char ours[16], theirs[16];
        uint32_t other = versions[i].ours + 100;
        hl_hello_fill(&hello, HL_PEER_ENGINE, "old");
        CU_ASSERT_EQUAL(*(uint32_t *)(void *)((char *)&hello + versions[i].field), versions[i].ours);
        memcpy((char *)&hello + versions[i].field, &other, sizeof other);
        int fd = raw_connect();
        CU_ASSERT_TRUE_FATAL(raw_request(fd, &hello, NULL, 0, &packet));
        CU_ASSERT_EQUAL(hl_error_message_read((const struct hl_error_message *)packet.bytes, &err),
                        HL_E_VERSION);
        snprintf(ours, sizeof ours, "%u", versions[i].ours);
        snprintf(theirs, sizeof theirs, "%u", other);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, ours));
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, theirs));
        raw_await_close(fd);
    }
    scene_close(&scene);
}

/* G4: see races_test.c for the claim against the revocation. Here: once ACTIVE is visible, neither a closed
 * channel nor the engine's death releases a source, only DRAINED or an operator. */
static void a_killed_engines_claimed_operation_goes_to_quarantine(void)
{
    struct scene scene;
    struct process engine;
    uint64_t operations[4][3];
    scene_open(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_hold_copies(&engine);
    engine_begin(&engine, 0, 32, 16);
    engine_enqueued(&engine);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, quarantined, 1);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.unresolved, 1);
    CU_ASSERT_EQUAL(now.operations, 1);
    CU_ASSERT_EQUAL(now.reserved_bytes, 32 * 1024);
    manager_check(&scene.manager, false);
    client_restore(&scene.client, 0, 8, 0); /* others go on, from the same sources */
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 4), 1);
    CU_ASSERT_EQUAL(operations[0][0], now.epoch);
    uint64_t another[3] = {operations[0][0], operations[0][1] + 1, operations[0][2]};
    CU_ASSERT_EQUAL(tool_release(another, 1), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(tool_release(operations[0], 0), HL_E_INVALID); /* not confirmed */
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).quarantined, 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_E_NOT_FOUND);
    manager_await_log(&scene.manager, "operator of the test released");
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).unresolved, 0);
    scene_close(&scene);
}

/* G4, I7: killed before the claim, nothing can be on the device: no quarantine. */
static void a_killed_engines_unclaimed_grant_is_revoked(void)
{
    struct scene scene;
    struct process engine;
    scene_open(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_gate(&engine, ENGINE_BEFORE_CLAIM, 0);
    engine_begin(&engine, 0, 32, 16);
    engine_gate_reached(&engine);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, revoked, 1);
    MANAGER_AWAIT(&scene.manager, sessions, 1);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.quarantined + now.unresolved + now.operations, 0);
    scene_close(&scene);
}

/* I8: the Manager is killed while a claimed operation's copies stand before the device. */
static void a_killed_managers_claimed_operation_drains_with_exact_bytes(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 48);
    world_poison(&scene.world);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 48, 8);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    process_kill(&scene.manager);
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 48, 8);
    scene_close_orphan(&scene);
}

/* I8: what was not granted ends, untouched, and says why. */
static void a_killed_managers_unclaimed_requests_end_untouched(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 48);
    hl_lease *lease = client_query(&scene.client, 0, 8);
    const uint32_t pages[8] = {8, 9, 10, 11, 12, 13, 14, 15};
    process_stop(&scene.manager);
    hl_restore *restore = client_start_to(&scene.client, lease, pages, 8);
    process_kill(&scene.manager);
    hl_restore_result result = client_outcome(&scene.client, restore, HL_E_PEER);
    CU_ASSERT_TRUE(result.untouched);
    scene_close_orphan(&scene);
}

/* G5: the channel goes after the claim: the operation ends well, its result stays readable, and no other
 * client's binding takes what this one has. */
static void results_outlive_the_channel_and_keep_their_issuer(void)
{
    struct scene scene;
    struct client other;
    struct world world;
    hl_restore_result result;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_lease *lease = client_query(&scene.client, 4, 2);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    client_gate_reached(&scene.client);
    shutdown(scene.client.engine->socket, SHUT_RDWR);
    client_gate_open(&scene.client);
    HL_EXPECT_OK(hl_restore_wait(restore, PATIENCE_NS, &result, &scene.client.err), scene.client.err);
    client_expect(&scene.client, 0, 16, 24);
    world_open(&world, &WORLD_DEFAULTS);
    client_open(&other, &world, "engine"); /* the same name: that one has no channel any more */
    hl_restore_request request;
    const uint32_t pages[2] = {0, 1};
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 2};
    hl_restore *none = NULL;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_restore_start(other.binding, &request, &none, &other.err), HL_E_STATE, other.err);
    CU_ASSERT_PTR_NULL(none);
    client_close(&other);
    world_close(&world);
    HL_EXPECT_OK(hl_restore_poll(restore, &result, &scene.client.err), scene.client.err);
    CU_ASSERT_EQUAL(result.bytes, 16 * 1024);
    hl_restore_close(restore);
    hl_lease_release(lease); /* nobody can tell the Manager: it waits for the lease's time to be up */
    manager_expire(&scene.manager);
    scene_close(&scene);
}

/* G6: grants wait for room in the bank; when a part has been copied out of it, its sources still being held,
 * the next one is granted. */
static void a_full_plan_bank_defers_a_grant_that_runs_later(void)
{
    enum { COUNT = 6, BLOCKS = 2000, SPARE = 400 };
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    struct world_options options = WORLD_DEFAULTS;
    hl_restore *restores[COUNT];
    hl_random random;
    unsigned prepared = 0, granted = 0;
    settings.arena_bytes = 64 << 20;
    options.pages = COUNT * BLOCKS + SPARE;
    scene_open_with(&scene, &settings, &options);
    client_publish(&scene.client, 0, COUNT * BLOCKS);
    world_poison(&scene.world);
    uint32_t *order = calloc(options.pages, sizeof *order);
    hl_random_seed(&random, 3);
    hl_random_permutation(&random, order, options.pages); /* so that nothing merges */
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    for (unsigned i = 0; i < COUNT; i++)
        restores[i] = client_start_to(&scene.client, client_query(&scene.client, i * BLOCKS, BLOCKS),
                                      order + i * BLOCKS, BLOCKS);
    client_gate_reached(&scene.client);
    MANAGER_AWAIT(&scene.manager, operations, COUNT);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_TRUE(now.plan_bytes > HL_PLAN_PART_BYTES); /* more than the bank has room for */
    for (unsigned i = 0; i < COUNT; i++) {
        prepared += client_word(&scene.client, restores[i]->record).state == HL_GRANT_PREPARING;
        granted += client_word(&scene.client, restores[i]->record).state == HL_GRANT_GRANTED;
    }
    CU_ASSERT_TRUE(prepared > 0);
    CU_ASSERT_EQUAL(prepared + granted, COUNT - 1);
    manager_check(&scene.manager, false);
    client_gate_open(&scene.client);
    for (unsigned i = 0; i < COUNT; i++) {
        client_outcome(&scene.client, restores[i], HL_OK);
        for (uint32_t j = 0; j < BLOCKS; j++)
            world_expect(&scene.world, 0, i * BLOCKS + j, order[i * BLOCKS + j]);
    }
    free(order);
    scene_close(&scene);
}

/* G7: all 1024 records are marked while nobody takes the marks; each is served. */
static void a_full_dirty_bitset_loses_no_record(void)
{
    struct scene scene;
    hl_lease *leases[HL_GRANT_RECORDS];
    hl_restore *restores[HL_GRANT_RECORDS];
    unsigned restored = 0;
    scene_open(&scene);
    client_publish(&scene.client, 0, 32);
    for (unsigned i = 0; i < HL_GRANT_RECORDS; i++)
        leases[i] = client_query(&scene.client, i % 32, 1);
    world_poison(&scene.world);
    process_stop(&scene.manager);
    for (unsigned i = 0; i < HL_GRANT_RECORDS; i++) {
        const uint32_t page = i % 32;
        restores[i] = client_start_to(&scene.client, leases[i], &page, 1);
    }
    process_continue(&scene.manager);
    for (unsigned i = 0; i < HL_GRANT_RECORDS; i++) {
        hl_restore_result result;
        hl_status status = hl_restore_wait(restores[i], PATIENCE_NS, &result, &scene.client.err);
        if (status == HL_OK)
            world_expect(&scene.world, 0, i % 32, i % 32);
        else /* more than a GPU admits at once */
            CU_ASSERT_EQUAL(status, HL_E_BUDGET);
        restored += status == HL_OK;
        hl_restore_close(restores[i]);
    }
    CU_ASSERT_TRUE(restored >= HL_GPU_RESTORES);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).restored, restored);
    scene_close(&scene);
}

/* G8 */
static void a_new_manager_behind_the_address_refuses_what_the_old_one_gave(void)
{
    struct scene scene;
    struct client fresh;
    hl_restore_request request;
    hl_restore_result result;
    hl_restore *none = NULL;
    const uint32_t pages[4] = {0, 1, 2, 3};
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_restore *finished = client_start(&scene.client, 0, 16, 16);
    hl_lease *lease = client_query(&scene.client, 0, 4);
    HL_EXPECT_OK(hl_restore_wait(finished, PATIENCE_NS, &result, &scene.client.err), scene.client.err);
    client_expect(&scene.client, 0, 16, 16);
    const uint64_t epoch = scene.client.engine->epoch;
    process_kill(&scene.manager);
    manager_start(&scene.manager, &MANAGER_DEFAULTS);
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    while (hl_engine_health(scene.client.engine, &scene.client.err) == HL_OK)
        MUST(hl_clock_ns() < until && sched_yield() == 0);
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 4};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_restore_start(scene.client.binding, &request, &none, &scene.client.err), HL_E_PEER,
                     scene.client.err);
    client_connect(&fresh, &scene.world, 0);
    client_register(&fresh, "engine");
    CU_ASSERT_NOT_EQUAL(fresh.engine->epoch, epoch);
    HL_EXPECT_STATUS(hl_restore_start(fresh.binding, &request, &none, &fresh.err), HL_E_STATE, fresh.err);
    hl_lease *empty = client_query_group(&fresh, 0, 0, 4);
    CU_ASSERT_EQUAL(hl_lease_hits(empty), 0); /* a surviving mapping is not the new one's memory */
    hl_lease_release(empty);
    client_publish(&fresh, 0, 16);
    client_restore(&fresh, 0, 16, 32);
    HL_EXPECT_OK(hl_restore_poll(finished, &result, &scene.client.err), scene.client.err);
    CU_ASSERT_EQUAL(result.bytes, 16 * 1024);
    hl_restore_close(finished);
    hl_lease_release(lease);
    client_close(&scene.client);
    scene.client = fresh;
    scene.client.gate.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    scene_close(&scene);
}

/* G9: the operation waits for bank space, prepared, when it is cancelled: its sources are released before its
 * end is visible, and its pages are as they were. */
static void cancelling_a_preparation_ends_after_its_sources_are_released(void)
{
    enum { BLOCKS = 9000 };
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    struct world_options options = WORLD_DEFAULTS;
    hl_random random;
    settings.arena_bytes = 64 << 20;
    options.pages = 2 * BLOCKS;
    scene_open_with(&scene, &settings, &options);
    client_publish(&scene.client, 0, 2 * BLOCKS);
    world_poison(&scene.world);
    uint32_t *order = calloc(options.pages, sizeof *order);
    hl_random_seed(&random, 4);
    hl_random_permutation(&random, order, options.pages);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *first = client_start_to(&scene.client, client_query(&scene.client, 0, BLOCKS), order, BLOCKS);
    client_gate_reached(&scene.client);
    hl_restore *second =
        client_start_to(&scene.client, client_query(&scene.client, BLOCKS, BLOCKS), order + BLOCKS, BLOCKS);
    MANAGER_AWAIT(&scene.manager, operations, 2);
    CU_ASSERT_EQUAL(client_word(&scene.client, second->record).state, HL_GRANT_PREPARING);
    client_ask_cancel(&scene.client, second->record); /* the worker, which would, stands at the gate */
    MANAGER_AWAIT(&scene.manager, operations, 1);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).reserved_bytes, BLOCKS * 1024);
    client_gate_open(&scene.client);
    hl_restore_result result = client_outcome(&scene.client, second, HL_E_CANCELLED);
    CU_ASSERT_TRUE(result.untouched);
    client_outcome(&scene.client, first, HL_OK);
    for (uint32_t i = 0; i < BLOCKS; i++)
        world_expect(&scene.world, 0, i, order[i]);
    free(order);
    scene_close(&scene);
}

HL_TESTS(grant_requirements, HL_CASE(an_engine_is_welcomed_with_five_descriptors),
         HL_CASE(the_completion_descriptor_tells_of_finished_work),
         HL_CASE(every_other_version_is_refused_with_both_numbers),
         HL_CASE(a_killed_engines_claimed_operation_goes_to_quarantine),
         HL_CASE(a_killed_engines_unclaimed_grant_is_revoked),
         HL_CASE(a_killed_managers_claimed_operation_drains_with_exact_bytes),
         HL_CASE(a_killed_managers_unclaimed_requests_end_untouched),
         HL_CASE(results_outlive_the_channel_and_keep_their_issuer),
         HL_CASE(a_full_plan_bank_defers_a_grant_that_runs_later),
         HL_CASE(a_full_dirty_bitset_loses_no_record),
         HL_CASE(a_new_manager_behind_the_address_refuses_what_the_old_one_gave),
         HL_CASE(cancelling_a_preparation_ends_after_its_sources_are_released));
