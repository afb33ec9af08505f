/* F6 and F10: answers, results and owners that come late. */
#include <sys/socket.h>

#include "core/base/random.h"
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* F6: the channel closes before the Manager has looked at the descriptor. The record is still the engine's,
 * so that nothing can have been granted: it takes it back and says so. */
static void a_restore_that_nobody_took_up_ends_untouched_with_its_channel(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *lease = client_query(&scene.client, 0, 4);
    const uint32_t pages[4] = {24, 25, 26, 27};
    process_stop(&scene.manager);
    hl_restore *restore = client_start_to(&scene.client, lease, pages, 4);
    shutdown(scene.client.engine->socket, SHUT_RDWR);
    CU_ASSERT_TRUE(client_outcome(&scene.client, restore, HL_E_PEER).untouched);
    process_continue(&scene.manager); /* it finds the descriptor in its queue, and no reservation */
    manager_await_log(&scene.manager, "channel was closed");
    manager_expire(&scene.manager);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.operations + now.restored + now.revoked + now.quarantined, 0);
    scene_close(&scene);
}

/* F6: the channel closes after the Manager has claimed the descriptor and before it has answered anything:
 * the operation waits, prepared, for room in the bank. The request is not sent again and its handle not given
 * up: the record brings the outcome. */
static void a_restore_whose_channel_closes_before_an_answer_keeps_its_handle(void)
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
    hl_random_seed(&random, 5);
    hl_random_permutation(&random, order, options.pages); /* so that nothing merges */
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *first = client_start_to(&scene.client, client_query(&scene.client, 0, BLOCKS), order, BLOCKS);
    client_gate_reached(&scene.client);
    hl_restore *second =
        client_start_to(&scene.client, client_query(&scene.client, BLOCKS, BLOCKS), order + BLOCKS, BLOCKS);
    MANAGER_AWAIT(&scene.manager, operations, 2);
    CU_ASSERT_EQUAL(client_word(&scene.client, second->record).state, HL_GRANT_PREPARING);
    shutdown(scene.client.engine->socket, SHUT_RDWR);
    manager_await_log(&scene.manager, "channel was closed");
    client_gate_open(&scene.client);
    client_outcome(&scene.client, first, HL_OK);
    client_outcome(&scene.client, second, HL_OK);
    for (uint32_t i = 0; i < 2 * BLOCKS; i++)
        world_expect(&scene.world, 0, i, order[i]);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    MANAGER_AWAIT(&scene.manager, operations, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).restored, 2); /* each once */
    free(order);
    scene_close(&scene);
}

/* F6: the copies have drained, but the engine has not said so. Nothing frees the sources in its stead: no
 * time that is up, and no need of others. */
static void a_result_that_comes_late_frees_nothing_before_it_comes(void)
{
    struct scene scene;
    struct process other;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.arena_bytes = 128 << 10;
    settings.arena_count = 1;
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    client_publish(&scene.client, 0, 32);
    world_poison(&scene.world);
    client_gate_arm(&scene.client, ENGINE_BEFORE_DRAINED, 0);
    hl_restore *restore = client_start(&scene.client, 0, 32, 16);
    const uint32_t record = client_gate_reached(&scene.client);
    client_expect(&scene.client, 0, 32, 16);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    manager_expire(&scene.manager);
    engine_start(&other, "other");
    engine_publish_blocks(&other, 1000, 512);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(client_word(&scene.client, record).state, HL_GRANT_ACTIVE);
    CU_ASSERT_EQUAL(now.operations, 1);
    CU_ASSERT_EQUAL(now.reserved_bytes, 32 * 1024);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    engine_restore_blocks(&other, 0, 32, 0); /* still the same bytes */
    client_gate_open(&scene.client);
    client_outcome(&scene.client, restore, HL_OK);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    engine_end(&other);
    scene_close(&scene);
}

/* F10: an engine is stopped with copies on the device. However long that takes, it is no death: nothing is
 * freed, nothing is put into quarantine, and it goes on where it was. */
static void an_engine_stopped_under_a_copy_keeps_its_sources(void)
{
    struct scene scene;
    struct process engine;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.arena_bytes = 128 << 10;
    settings.arena_count = 1;
    settings.tick_ns = 1000000; /* maintenance looks often */
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    engine_start(&engine, "stopped");
    engine_publish_blocks(&engine, 0, 32);
    engine_hold_copies(&engine);
    engine_begin(&engine, 0, 32, 16);
    engine_enqueued(&engine);
    process_stop(&engine);
    manager_expire(&scene.manager);
    client_publish(&scene.client, 1000, 512);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.operations, 1);
    CU_ASSERT_EQUAL(now.quarantined + now.unresolved + now.revoked, 0);
    CU_ASSERT_EQUAL(now.reserved_bytes, 32 * 1024);
    process_continue(&engine);
    engine_let_copies_go(&engine);
    CU_ASSERT_EQUAL(engine_finish(&engine), HL_OK);
    client_restore(&scene.client, 1500, 12, 4);
    engine_end(&engine);
    scene_close(&scene);
}

/* F10: an engine is stopped between seeing its grant and claiming it; when it wakes, the grant has been taken
 * back and another Manager is behind the address. It claims nothing and has touched no page. */
static void an_engine_that_wakes_after_the_revocation_claims_nothing(void)
{
    struct scene scene;
    struct process engine;
    scene_open(&scene);
    engine_start(&engine, "stopped");
    engine_publish_blocks(&engine, 0, 32);
    engine_gate(&engine, ENGINE_BEFORE_CLAIM, 0);
    engine_begin(&engine, 0, 32, 16);
    engine_gate_reached(&engine);
    process_stop(&engine);
    CU_ASSERT_EQUAL(manager_stop(&scene.manager), 0); /* it had not to wait for anybody */
    process_end(&scene.manager);
    client_close(&scene.client);
    manager_start(&scene.manager, &MANAGER_DEFAULTS);
    client_open(&scene.client, &scene.world, "engine");
    client_publish(&scene.client, 0, 16);
    process_continue(&engine);
    engine_gate_opened(&engine);
    CU_ASSERT_TRUE(engine_finish(&engine) < 0); /* the role expects untouched pages */
    client_restore(&scene.client, 0, 16, 24);
    engine_end(&engine);
    MANAGER_AWAIT(&scene.manager, sessions, 1);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).restored, 1);
    scene_close(&scene);
}

/* Starts restores and cancels each, which gives its record back, until `record` comes again. */
static hl_restore *start_on_record(struct scene *scene, uint32_t record, hl_lease *lease,
                                   const uint32_t *pages, uint32_t count)
{
    hl_restore_source source = {.lease = lease, .pages = pages, .count = count};
    hl_restore_request request;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    for (unsigned i = 0;; i++) {
        hl_restore *restore = NULL;
        HL_REQUIRE_OK(hl_restore_start(scene->client.binding, &request, &restore, &scene->client.err),
                      scene->client.err);
        if (restore->record == record)
            return restore;
        CU_ASSERT_FATAL(i < 2 * HL_GRANT_RECORDS);
        hl_restore_cancel(restore);
        CU_ASSERT_TRUE(client_outcome(&scene->client, restore, HL_E_CANCELLED).untouched);
    }
}

/* F10, I4: the Manager is stopped with a descriptor in its queue. Its record is taken back and serves another
 * restore before the Manager wakes: the descriptor of the generation that has gone does nothing, the one of
 * the present generation is served. */
static void a_manager_that_wakes_late_refuses_a_generation_that_has_gone(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *first = client_query(&scene.client, 0, 4), *second = client_query(&scene.client, 8, 4);
    const uint32_t pages[4] = {24, 25, 26, 27}, others[4] = {34, 35, 36, 37};
    process_stop(&scene.manager);
    hl_restore *gone = client_start_to(&scene.client, first, pages, 4);
    const uint32_t record = gone->record, generation = gone->generation;
    hl_restore_cancel(gone);
    CU_ASSERT_TRUE(client_outcome(&scene.client, gone, HL_E_CANCELLED).untouched);
    hl_restore *restore = start_on_record(&scene, record, second, others, 4);
    CU_ASSERT_EQUAL(restore->generation, generation + 1);
    process_continue(&scene.manager);
    client_outcome(&scene.client, restore, HL_OK);
    hl_lease_release(second);
    client_expect(&scene.client, 8, 4, 34);
    CU_ASSERT_TRUE(world_matches(&scene.world)); /* pages 24 … 27 are as they were */
    MANAGER_AWAIT(&scene.manager, leases, 0);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.restored, 1);
    CU_ASSERT_EQUAL(now.sessions, 1);
    scene_close(&scene);
}

HL_TESTS(late, HL_CASE(a_restore_that_nobody_took_up_ends_untouched_with_its_channel),
         HL_CASE(a_restore_whose_channel_closes_before_an_answer_keeps_its_handle),
         HL_CASE(a_result_that_comes_late_frees_nothing_before_it_comes),
         HL_CASE(an_engine_stopped_under_a_copy_keeps_its_sources),
         HL_CASE(an_engine_that_wakes_after_the_revocation_claims_nothing),
         HL_CASE(a_manager_that_wakes_late_refuses_a_generation_that_has_gone));
