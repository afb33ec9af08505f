/* Manager and engines in one process, as tests and small tools embed them: here the thread sanitizer sees
 * both sides of the shared memory. No process can map its own device allocations again, so a process of its
 * own publishes. */
#include "hostlane/manager.h"
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

enum { BLOCKS = 64, ENGINES = 2, ROUNDS = 40, STARTED = 4 };

static hl_manager *start_manager(void)
{
    hl_manager *manager;
    hl_manager_options options;
    hl_error err;
    hl_manager_options_init(&options);
    options.socket_path = MANAGER_SOCKET;
    options.arena_bytes = 16 << 20;
    options.index_blocks = 4096;
    options.touch_threads = 1;
    options.numa_node = -2;
    options.spin_us = 50;
    options.software = !world_wants_cuda();
    HL_REQUIRE_OK(hl_manager_start(&options, &manager, &err), err);
    return manager;
}

static void publish_from_another_process(void)
{
    struct process publisher;
    engine_start(&publisher, "publisher");
    engine_publish_blocks(&publisher, 0, BLOCKS);
    engine_end(&publisher);
}

/* Both engines' workers, the retirement threads, the dispatcher and this thread are at work at once. */
static void restore_by_turns(struct client clients[ENGINES], struct world worlds[ENGINES])
{
    const uint32_t each = BLOCKS / STARTED;
    for (unsigned round = 0; round < ROUNDS; round++) {
        hl_restore *restores[ENGINES][STARTED];
        for (unsigned e = 0; e < ENGINES; e++)
            world_poison(&worlds[e]);
        for (unsigned i = 0; i < STARTED; i++)
            for (unsigned e = 0; e < ENGINES; e++)
                restores[e][i] = client_start(&clients[e], i * each, each, (i + round) % STARTED * each);
        for (unsigned i = 0; i < STARTED; i++)
            for (unsigned e = 0; e < ENGINES; e++) {
                client_outcome(&clients[e], restores[e][i], HL_OK);
                client_expect(&clients[e], i * each, each, (i + round) % STARTED * each);
            }
        for (unsigned e = 0; e < ENGINES; e++)
            CU_ASSERT_TRUE(world_matches(&worlds[e]));
    }
}

/* A result does not wait for the Manager, which reaps in its own time. */
static void await_reaping(hl_manager *manager, hl_manager_snapshot *stats)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    hl_error err;
    do
        HL_REQUIRE_OK(hl_manager_stats(manager, stats, &err), err);
    while (stats->operations > 0 && hl_clock_ns() < until && sched_yield() == 0);
    CU_ASSERT_EQUAL_FATAL(stats->operations, 0);
}

static void a_manager_and_engines_share_a_process(void)
{
    struct world worlds[ENGINES];
    struct client clients[ENGINES];
    hl_manager_snapshot stats;
    hl_error err;
    folder_enter();
    hl_manager *manager = start_manager();
    publish_from_another_process();
    for (unsigned e = 0; e < ENGINES; e++) {
        world_open(&worlds[e], &WORLD_DEFAULTS);
        client_open(&clients[e], &worlds[e], e ? "second" : "first");
    }
    restore_by_turns(clients, worlds);
    await_reaping(manager, &stats);
    CU_ASSERT_EQUAL(stats.restored, ENGINES * STARTED * ROUNDS);
    for (unsigned e = 0; e < ENGINES; e++) {
        client_close(&clients[e]);
        world_close(&worlds[e]);
    }
    HL_EXPECT_OK(hl_manager_check(manager, &err), err);
    HL_REQUIRE_OK(hl_manager_stats(manager, &stats, &err), err);
    CU_ASSERT_EQUAL(stats.reserved_bytes, 0);
    CU_ASSERT_EQUAL(hl_manager_stop(manager), 0);
    folder_leave();
}

/* What cannot be mapped is restored to, and not published from. */
static void publishing_within_the_managers_process_is_refused(void)
{
    struct world world;
    struct client client;
    hl_publish_result result;
    folder_enter();
    hl_manager *manager = start_manager();
    world_open(&world, &WORLD_DEFAULTS);
    client_open(&client, &world, "engine");
    CU_ASSERT_NOT_EQUAL(client_publish_some(&client, 0, 0, 4, &result), HL_OK);
    client_close(&client);
    world_close(&world);
    CU_ASSERT_EQUAL(hl_manager_stop(manager), 0);
    folder_leave();
}

HL_TESTS(pairing, HL_CASE(a_manager_and_engines_share_a_process),
         HL_CASE(publishing_within_the_managers_process_is_refused));
