/* F3 and F4: a process is killed at a named place of a restore. With copies proven to be in flight on
 * hardware: qualification/inflight. Before the claim: grant_requirements_test. */
#include "qualification/scenarios/gated.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* A call a layer at least. */
#define FOUR_LAYERS ((struct world_options){.layers = 4, .pages = 64, .page_tokens = 4, .head_dim = 32})

/* A Manager behind the same address, and an engine that nobody knew before. */
static void expect_fresh_client(void)
{
    struct process manager, engine;
    manager_start(&manager, &MANAGER_DEFAULTS);
    engine_start(&engine, "fresh");
    engine_publish_blocks(&engine, 500, 8);
    engine_restore_blocks(&engine, 500, 8, 20);
    engine_end(&engine);
    MANAGER_AWAIT(&manager, sessions, 0);
    manager_check(&manager, true);
    manager_end(&manager);
}

/* What the killed Manager had granted ends well, with every byte, and then the next one serves. */
static void expect_exact_end(struct scene *scene, hl_restore *restore)
{
    client_outcome(&scene->client, restore, HL_OK);
    client_expect(&scene->client, 0, 48, 8);
    CU_ASSERT_TRUE(world_matches(&scene->world));
    expect_fresh_client();
    scene_close_orphan(scene); /* the pages are as they were */
}

static void open_published(struct scene *scene, const struct world_options *world)
{
    gated_open(scene, &MANAGER_DEFAULTS, world);
    client_publish(&scene->client, 0, 48);
    world_poison(&scene->world);
}

/* F3: nothing has been handed to the device. */
static void a_manager_killed_after_the_claim_leaves_an_exact_restore(void)
{
    struct scene scene;
    open_published(&scene, &FOUR_LAYERS);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 48, 8);
    client_gate_reached(&scene.client);
    process_kill(&scene.manager);
    client_gate_open(&scene.client);
    expect_exact_end(&scene, restore);
}

/* F3: the device has one copy, the executor stands before the next. */
static void a_manager_killed_after_the_first_enqueue_leaves_an_exact_restore(void)
{
    struct scene scene;
    open_published(&scene, &FOUR_LAYERS);
    gated_arm(&scene, &(struct gated_plan){.stop_after = 1});
    hl_restore *restore = client_start(&scene.client, 0, 48, 8);
    gated_await();
    CU_ASSERT_EQUAL(gated_count(), 1);
    process_kill(&scene.manager);
    gated_go();
    expect_exact_end(&scene, restore);
    CU_ASSERT_TRUE(gated_count() >= 4);
}

static hl_restore *start_with_events(struct scene *scene)
{
    uint32_t pages[48];
    hl_lease *lease = client_query(&scene->client, 0, 48);
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 48};
    hl_restore_request request;
    hl_restore *restore = NULL;
    for (uint32_t i = 0; i < 48; i++)
        pages[i] = 8 + i;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.layer_events = (void *const *)scene->world.events;
    HL_REQUIRE_OK(hl_restore_start(scene->client.binding, &request, &restore, &scene->client.err),
                  scene->client.err);
    hl_lease_release(lease);
    return restore;
}

/* HL_OK: the layer has arrived. */
static hl_status query_layer(struct scene *scene, uint32_t layer, bool wait)
{
    struct world *world = &scene->world;
    const struct hl_device_ops *ops = world->dev->ops;
    HL_REQUIRE_OK(hl_device_enter(world->dev, &world->err), world->err);
    hl_status status = wait ? ops->event_synchronize(world->dev, world->events[layer], &world->err)
                            : ops->event_query(world->dev, world->events[layer], &world->err);
    hl_device_leave(world->dev);
    return status;
}

/* F3: the device has copied the first layer and not begun the last when the Manager dies. */
static void a_manager_killed_between_two_layers_leaves_an_exact_restore(void)
{
    struct scene scene;
    open_published(&scene, &FOUR_LAYERS);
    gated_arm(&scene, &(struct gated_plan){0});
    client_outcome(&scene.client, client_start(&scene.client, 0, 48, 8), HL_OK);
    const uint32_t last = gated_count(); /* of its copies belongs to the last layer */
    world_poison(&scene.world);
    gated_arm(&scene, &(struct gated_plan){.hold_before = last});
    hl_restore *restore = start_with_events(&scene);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    CU_ASSERT_EQUAL(query_layer(&scene, 0, true), HL_OK);
    CU_ASSERT_EQUAL(query_layer(&scene, 3, false), HL_PENDING);
    process_kill(&scene.manager);
    CU_ASSERT_EQUAL(query_layer(&scene, 3, false), HL_PENDING);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    world_let_go(&scene.world);
    expect_exact_end(&scene, restore);
}

/* F3: parts that were not granted never come. The failure is told only after the copies of the one that was
 * have drained: from then on the pages may be used for something else, and stay so. */
static void a_manager_killed_between_two_parts_ends_the_restore_after_the_drain(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    hl_restore_result result;
    settings.part_bytes = 512;
    gated_open(&scene, &settings, &FOUR_LAYERS);
    client_publish(&scene.client, 0, 48);
    world_poison(&scene.world);
    gated_arm(&scene, &(struct gated_plan){.hold_before = 1});
    hl_restore *restore = client_start(&scene.client, 0, 48, 8);
    client_await_state(&scene.client, restore->record, HL_GRANT_ACTIVE);
    process_kill(&scene.manager);
    HL_EXPECT_STATUS(hl_restore_wait(restore, 0, &result, &scene.client.err), HL_E_TIMEOUT, scene.client.err);
    world_let_go(&scene.world);
    result = client_outcome(&scene.client, restore, HL_E_PEER);
    CU_ASSERT_FALSE(result.untouched);
    world_poison(&scene.world);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    expect_fresh_client();
    scene_close_orphan(&scene);
}

/* Blocks 0 … 31 stay where they are, whatever is published, until an operator says that they need not. */
static void expect_quarantine(struct scene *scene)
{
    uint64_t operations[2][3];
    MANAGER_AWAIT(&scene->manager, quarantined, 1);
    hl_manager_snapshot now = manager_stats(&scene->manager);
    CU_ASSERT_EQUAL(now.unresolved, 1);
    CU_ASSERT_EQUAL(now.operations, 1);
    CU_ASSERT_EQUAL(now.reserved_bytes, 32 * 1024);
    client_publish(&scene->client, 1000, 256);
    CU_ASSERT_TRUE(manager_stats(&scene->manager).evicted_blocks > 0);
    client_restore(&scene->client, 0, 32, 0);
    manager_check(&scene->manager, false);
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 2), 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    client_restore(&scene->client, 1250, 6, 40);
    scene_close(scene);
}

/* Room for 128 blocks. */
static void open_small(struct scene *scene)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.arena_bytes = 128 << 10;
    settings.arena_count = 1;
    scene_open_with(scene, &settings, &WORLD_DEFAULTS);
}

/* F4: ACTIVE is all that the Manager can see; that nothing was submitted nobody can tell it. */
static void an_engine_killed_after_the_claim_is_quarantined(void)
{
    struct scene scene;
    struct process engine;
    open_small(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_gate(&engine, ENGINE_AFTER_CLAIM, 0);
    engine_begin(&engine, 0, 32, 16);
    engine_gate_reached(&engine);
    process_kill(&engine);
    expect_quarantine(&scene);
}

/* F4: the copies stand before the device. */
static void an_engine_killed_with_copies_enqueued_is_quarantined(void)
{
    struct scene scene;
    struct process engine;
    open_small(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_hold_copies(&engine);
    engine_begin(&engine, 0, 32, 16);
    engine_enqueued(&engine);
    process_kill(&engine);
    expect_quarantine(&scene);
}

/* F4: the copies have drained and the outcome is written, but DRAINED, the only proof, is not. */
static void an_engine_killed_before_it_says_drained_is_quarantined(void)
{
    struct scene scene;
    struct process engine;
    open_small(&scene);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_gate(&engine, ENGINE_BEFORE_DRAINED, 0);
    engine_begin(&engine, 0, 32, 16);
    engine_gate_reached(&engine);
    process_kill(&engine);
    expect_quarantine(&scene);
}

HL_TESTS(killed, HL_CASE(a_manager_killed_after_the_claim_leaves_an_exact_restore),
         HL_CASE(a_manager_killed_after_the_first_enqueue_leaves_an_exact_restore),
         HL_CASE(a_manager_killed_between_two_layers_leaves_an_exact_restore),
         HL_CASE(a_manager_killed_between_two_parts_ends_the_restore_after_the_drain),
         HL_CASE(an_engine_killed_after_the_claim_is_quarantined),
         HL_CASE(an_engine_killed_with_copies_enqueued_is_quarantined),
         HL_CASE(an_engine_killed_before_it_says_drained_is_quarantined));
