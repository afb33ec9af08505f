/* Every bound at its edge: the last that fits and the first that does not. After each, the Manager itself
 * says that every credit has one owner (I2), and scene_close() that all of them are back. */
#include "core/base/random.h"
#include "core/plan/plan.h"
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

static hl_status try_to_start(struct client *client, hl_lease *lease, uint32_t page, hl_restore **restore)
{
    hl_restore_request request;
    hl_restore_source source = {.lease = lease, .pages = &page, .count = 1};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    return hl_restore_start(client->binding, &request, restore, &client->err);
}

static void expect_balanced(struct scene *scene)
{
    MANAGER_AWAIT(&scene->manager, operations, 0);
    MANAGER_AWAIT(&scene->manager, leases, 0);
    manager_check(&scene->manager, true);
}

/* 1024 pending operations, and one more. The Manager stands still, so that none of them ends; afterwards each
 * ends well or finds its GPU full. */
static void record_1025_is_refused_and_a_retired_one_serves_again(void)
{
    struct scene scene;
    hl_lease *leases[HL_GRANT_RECORDS + 1];
    hl_restore *restores[HL_GRANT_RECORDS], *none = NULL;
    scene_open(&scene);
    client_publish(&scene.client, 0, 1);
    for (unsigned i = 0; i <= HL_GRANT_RECORDS; i++)
        leases[i] = client_query(&scene.client, 0, 1);
    world_poison(&scene.world);
    process_stop(&scene.manager);
    for (unsigned i = 0; i < HL_GRANT_RECORDS; i++)
        HL_REQUIRE_OK(try_to_start(&scene.client, leases[i], i % 64, &restores[i]), scene.client.err);
    HL_EXPECT_STATUS(try_to_start(&scene.client, leases[HL_GRANT_RECORDS], 0, &none), HL_E_BUDGET,
                     scene.client.err);
    CU_ASSERT_PTR_NULL(none);
    process_continue(&scene.manager);
    for (unsigned i = 0; i < HL_GRANT_RECORDS; i++) {
        hl_status status = hl_restore_wait(restores[i], PATIENCE_NS, NULL, &scene.client.err);
        CU_ASSERT_TRUE(status == HL_OK || status == HL_E_BUDGET);
        if (status == HL_OK)
            world_expect(&scene.world, 0, 0, i % 64);
        hl_restore_close(restores[i]);
        hl_lease_release(leases[i]);
    }
    hl_status status;
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    while ((status = try_to_start(&scene.client, leases[HL_GRANT_RECORDS], 0, &none)) == HL_E_BUDGET)
        MUST(hl_clock_ns() < until && sched_yield() == 0);
    HL_REQUIRE_OK(status, scene.client.err);
    client_outcome(&scene.client, none, HL_OK);
    world_expect(&scene.world, 0, 0, 0);
    hl_lease_release(leases[HL_GRANT_RECORDS]);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* 128 operations stand before the device; the 129th is refused and keeps its lease, which serves afterwards.
 */
static void operation_129_of_a_gpu_is_refused_until_one_is_reaped(void)
{
    struct scene scene;
    hl_restore *restores[HL_GPU_RESTORES], *more = NULL;
    scene_open(&scene);
    client_publish(&scene.client, 0, 1);
    world_poison(&scene.world);
    hl_lease *last = client_query(&scene.client, 0, 1);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    for (uint32_t i = 0; i < HL_GPU_RESTORES; i++)
        restores[i] = client_start(&scene.client, 0, 1, i % 64);
    MANAGER_AWAIT(&scene.manager, operations, HL_GPU_RESTORES);
    manager_check(&scene.manager, false);
    HL_REQUIRE_OK(try_to_start(&scene.client, last, 5, &more), scene.client.err);
    MANAGER_AWAIT(&scene.manager, rejected, 1);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).leases, 1);
    world_let_go(&scene.world);
    for (uint32_t i = 0; i < HL_GPU_RESTORES; i++)
        client_outcome(&scene.client, restores[i], HL_OK);
    for (uint32_t i = 0; i < 64; i++)
        world_expect(&scene.world, 0, 0, i);
    CU_ASSERT_TRUE(client_outcome(&scene.client, more, HL_E_BUDGET).untouched);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    HL_REQUIRE_OK(try_to_start(&scene.client, last, 5, &more), scene.client.err);
    client_outcome(&scene.client, more, HL_OK);
    hl_lease_release(last);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* A permit is held through quarantine, and unregistering gives none back: only the operator does. */
static void permits_are_held_through_quarantine(void)
{
    enum { REST = HL_GPU_RESTORES - 1 }; /* beside the one in quarantine */
    struct scene scene;
    struct process engine;
    uint64_t operations[1][3];
    hl_restore *restores[REST + 1];
    scene_open(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 1);
    engine_hold_copies(&engine);
    engine_begin(&engine, 0, 1, 5);
    engine_enqueued(&engine);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, quarantined, 1);
    for (unsigned round = 0; round < 2; round++) {
        world_hold(&scene.world, client_copy_stream(&scene.client));
        for (uint32_t i = 0; i <= REST; i++)
            restores[i] = client_start(&scene.client, 0, 1, i % 64);
        MANAGER_AWAIT(&scene.manager, operations, HL_GPU_RESTORES);
        if (round == 0)
            MANAGER_AWAIT(&scene.manager, rejected, 1);
        world_let_go(&scene.world);
        for (uint32_t i = 0; i <= REST; i++)
            client_outcome(&scene.client, restores[i], round == 0 && i == REST ? HL_E_BUDGET : HL_OK);
        MANAGER_AWAIT(&scene.manager, operations, round == 0);
        if (round == 0) {
            CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 1), 1);
            CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
        }
    }
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).rejected, 1);
    for (uint32_t i = 0; i < 64; i++)
        world_expect(&scene.world, 0, 0, i);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* The test's own engine is the 64th. Tools get in beside them. */
static void session_65_is_refused_until_one_ends(void)
{
    struct scene scene;
    struct client others[HL_SESSIONS];
    hl_status status;
    scene_open(&scene);
    for (unsigned i = 0; i + 1 < HL_SESSIONS; i++)
        client_connect(&others[i], &scene.world, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).sessions, HL_SESSIONS);
    client_connect_refused(&others[HL_SESSIONS - 1], &scene.world, HL_E_BUDGET);
    CU_ASSERT_PTR_NOT_NULL(strstr(others[HL_SESSIONS - 1].err.text, "64"));
    json_t *answer = tool_ask(HL_ADMIN_CHECK, NULL, 0, &status);
    CU_ASSERT_TRUE(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
    client_close(&others[0]);
    MANAGER_AWAIT(&scene.manager, sessions, HL_SESSIONS - 1);
    client_connect(&others[0], &scene.world, 0);
    for (unsigned i = 0; i + 1 < HL_SESSIONS; i++)
        client_close(&others[i]);
    MANAGER_AWAIT(&scene.manager, sessions, 1);
    client_publish(&scene.client, 0, 8);
    client_restore(&scene.client, 0, 8, 8);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* Sessions of dead engines count while an operation of theirs is in quarantine. */
static void unresolved_sessions_count(void)
{
    struct scene scene;
    struct process engine;
    struct client others[HL_SESSIONS];
    uint64_t operations[1][3];
    scene_open(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 1);
    engine_gate(&engine, ENGINE_AFTER_CLAIM, 0);
    engine_begin(&engine, 0, 1, 5);
    engine_gate_reached(&engine);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, unresolved, 1);
    for (unsigned i = 0; i + 2 < HL_SESSIONS; i++)
        client_connect(&others[i], &scene.world, 0);
    client_connect_refused(&others[HL_SESSIONS - 2], &scene.world, HL_E_BUDGET);
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 1), 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    client_connect(&others[HL_SESSIONS - 2], &scene.world, 0);
    for (unsigned i = 0; i + 1 < HL_SESSIONS; i++)
        client_close(&others[i]);
    MANAGER_AWAIT(&scene.manager, sessions, 1);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* 64 arenas come in one message; no Manager has 65. */
static void arena_64_is_imported_and_a_65th_cannot_be(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    hl_manager_options options;
    hl_manager *none = NULL;
    hl_error err = {0};
    settings.arena_count = HL_ARENA_IMPORTS;
    settings.arena_bytes = 64 << 10;
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    CU_ASSERT_EQUAL(scene.client.binding->arena_count, HL_ARENA_IMPORTS);
    client_publish(&scene.client, 0, 1024);
    for (uint32_t first = 0; first < 1024; first += 64)
        client_restore(&scene.client, first, 64, 0);
    hl_manager_options_init(&options);
    options.socket_path = "other/s";
    options.arena_count = HL_ARENA_IMPORTS + 1;
    HL_EXPECT_STATUS(hl_manager_start(&options, &none, &err), HL_E_LIMIT, err);
    CU_ASSERT_PTR_NULL(none);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* --- plans --- */

/* A restore of `count` blocks in an order in which nothing merges. */
static hl_restore *start_scattered(struct scene *scene, const uint32_t *order, uint32_t first, uint32_t count)
{
    return client_start_to(&scene->client, client_query(&scene->client, first, count), order + first, count);
}

static void expect_scattered(struct scene *scene, const uint32_t *order, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        world_expect(&scene->world, 0, first + i, order[first + i]);
}

static uint32_t *scatter(uint32_t pages)
{
    hl_random random;
    uint32_t *order = calloc(pages, sizeof *order);
    MUST(order != NULL);
    hl_random_seed(&random, 5);
    hl_random_permutation(&random, order, pages);
    return order;
}

/* One operation's bound, moved to exactly what a plan takes, and to one byte less. The refusal comes before
 * the lease is consumed. */
static void an_operations_metadata_fits_to_the_byte(void)
{
    struct scene scene;
    scene_open(&scene);
    uint32_t *order = scatter(64);
    client_publish(&scene.client, 0, 64);
    world_poison(&scene.world);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = start_scattered(&scene, order, 0, 40);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    const uint64_t takes = manager_stats(&scene.manager).plan_bytes;
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    manager_bound(&scene.manager, takes, 0);
    client_outcome(&scene.client, start_scattered(&scene, order, 0, 40), HL_OK);
    manager_bound(&scene.manager, takes - 1, 0);
    hl_lease *lease = client_query(&scene.client, 0, 40);
    hl_restore_request request;
    hl_restore_source source = {.lease = lease, .pages = order, .count = 40};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    HL_REQUIRE_OK(hl_restore_start(scene.client.binding, &request, &restore, &scene.client.err),
                  scene.client.err);
    CU_ASSERT_TRUE(client_outcome(&scene.client, restore, HL_E_LIMIT).untouched);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).leases, 1);
    client_outcome(&scene.client, client_start_to(&scene.client, lease, order, 39), HL_OK);
    expect_scattered(&scene, order, 0, 40);
    free(order);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* The session's bound likewise, with two operations. This refusal consumes the lease and releases its
 * sources, without any copy (R8). */
static void a_sessions_prepared_plans_fit_to_the_byte(void)
{
    struct scene scene;
    uint64_t takes = 0;
    scene_open(&scene);
    uint32_t *order = scatter(64);
    client_publish(&scene.client, 0, 64);
    world_poison(&scene.world);
    for (unsigned round = 0; round < 3; round++) { /* how much; as much; one byte less */
        world_hold(&scene.world, client_copy_stream(&scene.client));
        if (round > 0)
            manager_bound(&scene.manager, 0, takes - (round == 2));
        hl_restore *first = start_scattered(&scene, order, 0, 20);
        HL_EXPECT_OK(hl_restore_wait_enqueued(first, PATIENCE_NS, &scene.client.err), scene.client.err);
        hl_restore *second = start_scattered(&scene, order, 20, 20);
        hl_status status = hl_restore_wait_enqueued(second, PATIENCE_NS, &scene.client.err);
        hl_manager_snapshot now = manager_stats(&scene.manager);
        CU_ASSERT_EQUAL(now.leases, 0);
        CU_ASSERT_EQUAL(now.operations, round == 2 ? 1 : 2);
        CU_ASSERT_EQUAL(now.reserved_bytes, round == 2 ? 20 * 1024 : 40 * 1024);
        if (round == 0)
            takes = now.plan_bytes;
        CU_ASSERT_EQUAL(status, round == 2 ? HL_E_BUDGET : HL_OK);
        manager_check(&scene.manager, false);
        world_let_go(&scene.world);
        client_outcome(&scene.client, first, HL_OK);
        CU_ASSERT_EQUAL(client_outcome(&scene.client, second, status).untouched, round == 2);
    }
    expect_scattered(&scene, order, 0, 40);
    free(order);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* The bounds themselves. A thin layout: 2048 ranges a block, of 16 bytes each. */
enum { THIN_LAYERS = 1024, THIN_PAGES = 1400, THIN_MOST = 700 };

static void open_thin(struct scene *scene)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    const struct world_options thin = {
        .layers = THIN_LAYERS, .pages = THIN_PAGES, .page_tokens = 1, .head_dim = 8};
    settings.arena_bytes = 64 << 20;
    settings.arena_count = 1;
    scene_open_with(scene, &settings, &thin);
    client_publish(&scene->client, 0, THIN_PAGES);
    world_poison(&scene->world);
}

static void one_operation_takes_32_mib_and_not_more(void)
{
    struct scene scene;
    uint64_t most = 0;
    uint32_t fits = 0;
    open_thin(&scene);
    uint32_t *order = scatter(THIN_PAGES);
    hl_status status = HL_OK;
    for (uint32_t count = 664; status == HL_OK; count++) {
        CU_ASSERT_TRUE_FATAL(count < THIN_MOST);
        world_hold(&scene.world, client_copy_stream(&scene.client));
        hl_restore *restore = start_scattered(&scene, order, 0, count);
        MANAGER_AWAIT(&scene.manager, leases, 0); /* consumed, or given back after the refusal */
        hl_manager_snapshot now = manager_stats(&scene.manager);
        world_let_go(&scene.world);
        status = hl_restore_wait(restore, PATIENCE_NS, NULL, &scene.client.err);
        hl_restore_close(restore);
        if (status != HL_OK)
            break;
        most = now.plan_bytes;
        fits = count;
    }
    expect_scattered(&scene, order, 0, fits);
    HL_EXPECT_STATUS(status, HL_E_LIMIT, scene.client.err);
    CU_ASSERT_TRUE(most <= HL_PLAN_OPERATION_BYTES && most > HL_PLAN_OPERATION_BYTES - 100 * HL_KIB);
    free(order);
    expect_balanced(&scene);
    scene_close(&scene);
}

/* Two of just under 32 MiB each and a small one that fits beside them, then one that does not. */
static void one_session_prepares_64_mib_and_not_more(void)
{
    enum { LARGE = 640, SMALL = 40 };
    struct scene scene;
    hl_restore *large[2], *small[2];
    open_thin(&scene);
    uint32_t *order = scatter(THIN_PAGES);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    for (unsigned i = 0; i < 2; i++)
        large[i] = start_scattered(&scene, order, i * LARGE, LARGE);
    small[0] = start_scattered(&scene, order, 2 * LARGE, SMALL);
    MANAGER_AWAIT(&scene.manager, operations, 3);
    CU_ASSERT_TRUE(manager_stats(&scene.manager).plan_bytes > HL_PLAN_SESSION_BYTES - HL_MIB);
    CU_ASSERT_TRUE(manager_stats(&scene.manager).plan_bytes <= HL_PLAN_SESSION_BYTES);
    small[1] = start_scattered(&scene, order, 2 * LARGE + SMALL, SMALL);
    MANAGER_AWAIT(&scene.manager, rejected, 1);
    manager_check(&scene.manager, false);
    world_let_go(&scene.world); /* the worker may be waiting for the device to make room */
    CU_ASSERT_TRUE(client_outcome(&scene.client, small[1], HL_E_BUDGET).untouched);
    client_outcome(&scene.client, small[0], HL_OK);
    for (unsigned i = 0; i < 2; i++)
        client_outcome(&scene.client, large[i], HL_OK);
    expect_scattered(&scene, order, 0, 2 * LARGE + SMALL);
    free(order);
    expect_balanced(&scene);
    scene_close(&scene);
}

HL_TESTS(budgets, HL_CASE(record_1025_is_refused_and_a_retired_one_serves_again),
         HL_CASE(operation_129_of_a_gpu_is_refused_until_one_is_reaped),
         HL_CASE(permits_are_held_through_quarantine), HL_CASE(session_65_is_refused_until_one_ends),
         HL_CASE(unresolved_sessions_count), HL_CASE(arena_64_is_imported_and_a_65th_cannot_be),
         HL_CASE(an_operations_metadata_fits_to_the_byte), HL_CASE(a_sessions_prepared_plans_fit_to_the_byte),
         HL_CASE(one_operation_takes_32_mib_and_not_more), HL_CASE(one_session_prepares_64_mib_and_not_more));
