/* Each race of the restore, forced both ways. Who comes first is decided by standing at the gates of the
 * engine's worker (client_gate_*), by stopping the Manager's process, by holding the copy stream, or by
 * letting a lease's time be up; never by timing.
 *
 *     race                          first wins here                                  also, within one side
 *     claim / revoke                both, and by the Manager's stop                   engine_race_test,
 * grants_test cancel / claim                before, during and after preparation engine_race_test,
 * grants_test unregister / start            both engine_race_test close / everything            restore,
 * publish, query, register, unregister    engine_thread_test expiry / consumption          both
 * lease_property_test part acknowledgement / loss   both, with the engine killed loss_test */
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* --- the claim against the revocation --- */

static void a_revocation_before_the_claim_leaves_the_pages_alone(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_BEFORE_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    uint32_t record = client_gate_reached(&scene.client);
    client_ask_cancel(&scene.client, record);
    client_await_state(&scene.client, record, HL_GRANT_REAPED);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.revoked, 1);
    CU_ASSERT_EQUAL(now.operations + now.reserved_bytes, 0);
    client_gate_open(&scene.client);
    CU_ASSERT_TRUE(client_outcome(&scene.client, restore, HL_E_CANCELLED).untouched);
    scene_close(&scene);
}

static void a_revocation_after_the_claim_is_refused(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    uint32_t record = client_gate_reached(&scene.client);
    client_ask_cancel(&scene.client, record);
    hl_lease_release(client_query(&scene.client, 0, 1)); /* the Manager has been awake since */
    CU_ASSERT_EQUAL(client_word(&scene.client, record).state, HL_GRANT_ACTIVE);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).operations, 1);
    client_gate_open(&scene.client);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).revoked, 0);
    scene_close(&scene);
}

static void a_managers_stop_revokes_what_is_not_claimed(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_BEFORE_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    client_gate_reached(&scene.client);
    CU_ASSERT_EQUAL(manager_stop(&scene.manager), 0);
    client_gate_open(&scene.client);
    CU_ASSERT_TRUE(hl_restore_wait(restore, PATIENCE_NS, NULL, &scene.client.err) < 0);
    hl_restore_result result;
    hl_restore_poll(restore, &result, NULL);
    CU_ASSERT_TRUE(result.untouched);
    hl_restore_close(restore);
    process_end(&scene.manager);
    scene_close_orphan(&scene);
}

static void a_managers_stop_waits_for_what_is_claimed(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    uint32_t record = client_gate_reached(&scene.client);
    manager_stop_begin(&scene.manager);
    const int64_t until = hl_clock_ns() + PATIENCE_NS; /* it has closed the channel */
    while (hl_engine_health(scene.client.engine, NULL) == HL_OK)
        MUST(hl_clock_ns() < until && sched_yield() == 0);
    CU_ASSERT_EQUAL(client_word(&scene.client, record).state, HL_GRANT_ACTIVE);
    client_gate_open(&scene.client);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    CU_ASSERT_EQUAL(manager_stop_finish(&scene.manager), 0);
    process_end(&scene.manager);
    scene_close_orphan(&scene);
}

/* --- cancelling against the Manager's claim of the descriptor --- */

static void a_cancellation_before_the_manager_takes_it_up_gives_the_lease_back(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *lease = client_query(&scene.client, 0, 4);
    const uint32_t pages[4] = {24, 25, 26, 27};
    process_stop(&scene.manager);
    hl_restore *restore = client_start_to(&scene.client, lease, pages, 4);
    hl_restore_cancel(restore);
    CU_ASSERT_TRUE(client_outcome(&scene.client, restore, HL_E_CANCELLED).untouched);
    process_continue(&scene.manager);
    MANAGER_AWAIT(&scene.manager, leases, 0); /* its user had released it */
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.rejected + now.restored + now.revoked, 0);
    scene_close(&scene);
}

/* The request to cancel is there before the Manager looks: it claims, and rejects before it consumes. */
static void a_cancellation_seen_with_the_descriptor_consumes_nothing(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *lease = client_query(&scene.client, 0, 4), *other = client_query(&scene.client, 4, 4);
    const uint32_t pages[4] = {24, 25, 26, 27}, others[4] = {34, 35, 36, 37};
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *first = client_start_to(&scene.client, other, others, 4);
    client_gate_reached(&scene.client); /* the worker, which would take it back, stands still */
    process_stop(&scene.manager);
    hl_restore_request request;
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 4};
    hl_restore *restore;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    HL_REQUIRE_OK(hl_restore_start(scene.client.binding, &request, &restore, &scene.client.err),
                  scene.client.err);
    client_ask_cancel(&scene.client, restore->record);
    process_continue(&scene.manager);
    client_await_state(&scene.client, restore->record, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).leases, 1);
    client_gate_open(&scene.client);
    CU_ASSERT_TRUE(client_outcome(&scene.client, restore, HL_E_CANCELLED).untouched);
    client_outcome(&scene.client, first, HL_OK);
    client_expect(&scene.client, 4, 4, 34);
    client_outcome(&scene.client, client_start_to(&scene.client, lease, pages, 4), HL_OK);
    client_expect(&scene.client, 0, 4, 24);
    scene_close(&scene);
}

static void a_cancellation_after_the_grant_changes_nothing(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    hl_restore_cancel(restore);
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    scene_close(&scene);
}

/* --- unregistering against starting --- */

static hl_status try_to_start(struct client *client, hl_lease *lease, hl_restore **restore)
{
    const uint32_t page = 40;
    hl_restore_request request;
    hl_restore_source source = {.lease = lease, .pages = &page, .count = 1};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    return hl_restore_start(client->binding, &request, restore, &client->err);
}

/* Started first: unregister waits for it. Unregistered first: a start is refused, and consumes nothing. */
static void unregister_and_start_each_win_when_first(void)
{
    struct scene scene;
    struct scene_call call;
    hl_restore *refused = NULL;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *lease = client_query(&scene.client, 0, 1);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    scene_unregister_begin(&call, &scene);
    HL_EXPECT_STATUS(try_to_start(&scene.client, lease, &refused), HL_E_STATE, scene.client.err);
    CU_ASSERT_PTR_NULL(refused);
    CU_ASSERT_FALSE(call.returned);
    world_let_go(&scene.world);
    scene_call_finish(&call);
    HL_EXPECT_OK(call.status, call.err);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    client_register(&scene.client, "engine");
    HL_EXPECT_STATUS(try_to_start(&scene.client, lease, &refused), HL_E_STATE, scene.client.err);
    hl_lease_release(lease);
    MANAGER_AWAIT(&scene.manager, leases, 0);
    scene_close(&scene);
}

/* --- closing against everything --- */

static void close_engine(struct scene_call *call)
{
    hl_engine_close(call->scene->client.engine);
}

/* Close comes second: a restore and a publish under way are waited for. Then it is first: whatever is tried
 * while it waits is refused. */
static void close_waits_for_what_came_first_and_refuses_what_comes_later(void)
{
    struct scene scene;
    struct scene_call call;
    struct client *client = &scene.client;
    hl_context_batch batch;
    hl_binding *binding = NULL;
    hl_restore *none = NULL;
    hl_publish *publish, *late = NULL;
    hl_publish_request request;
    hl_publish_result published;
    hl_block_key keys[1] = {{.hash = "a block"}};
    const uint32_t page = 3;
    scene_open(&scene);
    client_publish(client, 0, 16);
    hl_lease *lease = client_query(client, 0, 1), *found = NULL;
    hl_stream producer = world_stream_new(&scene.world);
    world_hold(&scene.world, client_copy_stream(client));
    hl_restore *restore = client_start(client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &client->err), client->err);
    scene.world.holds--; /* the same word lets both streams go */
    world_hold(&scene.world, producer);
    hl_publish_request_init(&request);
    request.keys = keys;
    request.pages = &page;
    request.count = 1;
    request.producer_stream = producer;
    request.has_producer_stream = true;
    HL_REQUIRE_OK(hl_publish_start(client->binding, &request, &publish, &client->err), client->err);
    client_batch(client, "late", &batch);
    scene_call_begin(&call, &scene, close_engine);
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    for (bool closing = false; !closing;) { /* it has begun to end the one binding that there is */
        MUST(hl_clock_ns() < until && sched_yield() == 0);
        pthread_mutex_lock(&client->engine->lock);
        closing = client->engine->closing && client->binding->closing;
        pthread_mutex_unlock(&client->engine->lock);
    }
    HL_EXPECT_STATUS(try_to_start(client, lease, &none), HL_E_STATE, client->err);
    HL_EXPECT_STATUS(hl_publish_start(client->binding, &request, &late, &client->err), HL_E_STATE,
                     client->err);
    HL_EXPECT_STATUS(hl_query(client->binding, keys, 1, NULL, &found, &client->err), HL_E_STATE, client->err);
    HL_EXPECT_STATUS(hl_engine_register(client->engine, &batch, &binding, &client->err), HL_E_STATE,
                     client->err);
    HL_EXPECT_STATUS(hl_engine_unregister(client->binding, &client->err), HL_E_STATE, client->err);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    CU_ASSERT_EQUAL(hl_publish_poll(publish, NULL, NULL), HL_PENDING);
    CU_ASSERT_FALSE(call.returned);
    CU_ASSERT_EQUAL(client->releases, 0);
    world_let_go(&scene.world);
    scene_call_finish(&call);
    CU_ASSERT_EQUAL(client->releases, scene.world.layout->tensor_count);
    client_outcome(client, restore, HL_OK); /* handles outlive the engine */
    HL_EXPECT_OK(hl_publish_poll(publish, &published, &client->err), client->err);
    CU_ASSERT_EQUAL(published.stored, 1);
    hl_publish_close(publish);
    hl_lease_release(lease);
    client_expect(client, 0, 16, 24);
    world_stream_end(&scene.world, producer);
    MANAGER_AWAIT(&scene.manager, sessions, 0);
    client_open(client, &scene.world, "engine"); /* the world's next engine, with what the last one stored */
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).blocks, 17);
    scene_close(&scene);
}

/* --- a lease's expiry against its consumption --- */

static void an_expiry_before_the_consumption_rejects_the_restore(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *lease = client_query(&scene.client, 0, 4);
    const uint32_t pages[4] = {24, 25, 26, 27};
    manager_expire(&scene.manager);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).reserved_bytes, 0);
    hl_restore *restore = client_start_to(&scene.client, lease, pages, 4);
    CU_ASSERT_TRUE(hl_restore_wait(restore, PATIENCE_NS, NULL, &scene.client.err) < 0);
    hl_restore_result result;
    hl_status status = hl_restore_poll(restore, &result, &scene.client.err);
    CU_ASSERT_TRUE(status == HL_E_EXPIRED || status == HL_E_NOT_FOUND);
    CU_ASSERT_TRUE(result.untouched);
    hl_restore_close(restore);
    scene_close(&scene);
}

static void an_expiry_after_the_consumption_frees_nothing(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    manager_expire(&scene.manager);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).reserved_bytes, 16 * 1024);
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    scene_close(&scene);
}

/* --- a part's acknowledgement against the session's loss --- */

/* An engine of another process with a restore in parts that has claimed part 0 and stands there. */
static void begin_parts(struct scene *scene, struct process *engine, enum engine_point point, uint32_t passes)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.part_bytes = 512;
    scene_open_with(scene, &settings, &WORLD_DEFAULTS);
    engine_start(engine, "doomed");
    engine_publish_blocks(engine, 0, 48);
    engine_gate(engine, point, passes);
    engine_begin(engine, 0, 48, 8);
    engine_gate_reached(engine);
}

static void expect_revoked(struct scene *scene)
{
    MANAGER_AWAIT(&scene->manager, sessions, 1);
    hl_manager_snapshot now = manager_stats(&scene->manager);
    CU_ASSERT_EQUAL(now.revoked, 1);
    CU_ASSERT_EQUAL(now.quarantined + now.unresolved + now.operations, 0);
    scene_close(scene);
}

/* The Manager stands still while the part drains, and finds the drained part and the death together. */
static void a_part_that_drained_before_the_loss_needs_no_quarantine(void)
{
    struct scene scene;
    struct process engine;
    begin_parts(&scene, &engine, ENGINE_AFTER_CLAIM, 0);
    process_stop(&scene.manager);
    engine_gate_opened(&engine);
    engine_await_state(&engine, HL_GRANT_PART_DRAINED);
    process_kill(&engine);
    process_continue(&scene.manager);
    expect_revoked(&scene);
}

/* Part 0 has been acknowledged and part 1 granted when the engine dies, which has not claimed it. */
static void an_acknowledged_part_whose_successor_is_unclaimed_needs_no_quarantine(void)
{
    struct scene scene;
    struct process engine;
    begin_parts(&scene, &engine, ENGINE_BEFORE_CLAIM, 1);
    process_kill(&engine);
    expect_revoked(&scene);
}

/* And part 1 claimed: nobody knows what the device does. */
static void an_acknowledged_part_whose_successor_is_claimed_is_quarantined(void)
{
    struct scene scene;
    struct process engine;
    uint64_t operations[1][3];
    begin_parts(&scene, &engine, ENGINE_AFTER_CLAIM, 1);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, quarantined, 1);
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 1), 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    scene_close(&scene);
}

HL_TESTS(races, HL_CASE(a_revocation_before_the_claim_leaves_the_pages_alone),
         HL_CASE(a_revocation_after_the_claim_is_refused),
         HL_CASE(a_managers_stop_revokes_what_is_not_claimed),
         HL_CASE(a_managers_stop_waits_for_what_is_claimed),
         HL_CASE(a_cancellation_before_the_manager_takes_it_up_gives_the_lease_back),
         HL_CASE(a_cancellation_seen_with_the_descriptor_consumes_nothing),
         HL_CASE(a_cancellation_after_the_grant_changes_nothing),
         HL_CASE(unregister_and_start_each_win_when_first),
         HL_CASE(close_waits_for_what_came_first_and_refuses_what_comes_later),
         HL_CASE(an_expiry_before_the_consumption_rejects_the_restore),
         HL_CASE(an_expiry_after_the_consumption_frees_nothing),
         HL_CASE(a_part_that_drained_before_the_loss_needs_no_quarantine),
         HL_CASE(an_acknowledged_part_whose_successor_is_unclaimed_needs_no_quarantine),
         HL_CASE(an_acknowledged_part_whose_successor_is_claimed_is_quarantined));
