/* The restore's requirements R1 to R12, each with real processes where it is about processes: the Manager
 * always is one of its own. G1 to G9 are in grant_requirements_test.c. */
#include <fcntl.h>

#include "core/base/random.h"
#include "core/device/software.h"
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* R1 */
static void a_restore_is_byte_exact_across_processes(void)
{
    struct scene scene;
    struct process publisher, reader;
    scene_open(&scene);
    engine_start(&publisher, "publisher");
    engine_publish_blocks(&publisher, 100, 48);
    engine_start(&reader, "reader");
    engine_restore_blocks(&reader, 100, 48, 7);
    client_restore(&scene.client, 100, 48, 3);
    engine_end(&publisher);
    engine_end(&reader);
    scene_close(&scene);
}

/* R1 */
static void a_new_engine_restores_what_a_killed_one_published(void)
{
    struct scene scene;
    struct process first, second;
    scene_open(&scene);
    engine_start(&first, "same name");
    engine_publish_blocks(&first, 0, 64);
    process_kill(&first);
    engine_start(&second, "same name");
    engine_restore_blocks(&second, 0, 64, 0);
    engine_end(&second);
    manager_await_log(&scene.manager, "has ended");
    scene_close(&scene);
}

/* Whether the plan bank has a word that is an address inside [base, base + bytes). */
static bool bank_points_into(struct client *client, uint64_t base, uint64_t bytes)
{
    const unsigned char *bank = hl_grant_bank(client->engine->grants);
    bool found = false;
    for (size_t at = 0; at + 8 <= HL_PLAN_PART_BYTES; at += 4) {
        uint64_t word;
        memcpy(&word, bank + at, sizeof word);
        found = found || word - base < bytes;
    }
    return found;
}

/* R2 */
static void a_plan_has_no_pointers(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 40);
    client_restore(&scene.client, 0, 40, 10);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t bytes, base = manager_arena(&scene.manager, i, &bytes);
        const struct engine_arena *mine = scene.client.binding->arenas[i];
        CU_ASSERT_FALSE(bank_points_into(&scene.client, base, bytes));
        CU_ASSERT_FALSE(bank_points_into(&scene.client, (uintptr_t)hl_arena_base(mine->arena), mine->bytes));
    }
    CU_ASSERT_FALSE(bank_points_into(&scene.client, scene.world.memory, scene.world.bytes));
    scene_close(&scene);
}

/* R2, I1: eight times the arenas' room is published while the copy stands still. */
static void sources_and_reserved_bytes_are_kept_until_the_reap(void)
{
    struct scene scene;
    struct process other;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.arena_bytes = 128 << 10;
    settings.arena_count = 1;
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    client_publish(&scene.client, 0, 32);
    world_poison(&scene.world);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 32, 16);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    engine_start(&other, "other");
    engine_publish_blocks(&other, 1000, 1024);
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.operations, 1);
    CU_ASSERT_EQUAL(now.reserved_bytes, 32 * 1024);
    CU_ASSERT_TRUE(now.plan_bytes > 0 && now.evicted_blocks > 512);
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 32, 16);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).reserved_bytes, 0);
    engine_end(&other);
    scene_close(&scene);
}

static bool is_sealed(int fd)
{
    const int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    return (fcntl(fd, F_GET_SEALS) & size_seals) == size_seals;
}

/* R3: another user's connection is refused in //core/channel:socket_users_test. */
static void arenas_are_mapped_and_registered_once_for_each_gpu(void)
{
    struct scene scene;
    struct client *client = &scene.client;
    hl_context_batch batch;
    hl_binding *second;
    scene_open(&scene);
    CU_ASSERT_EQUAL(client->binding->arena_count, 2);
    client_batch(client, "second", &batch);
    HL_REQUIRE_OK(hl_engine_register(client->engine, &batch, &second, &client->err), client->err);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t bytes, theirs = manager_arena(&scene.manager, i, &bytes);
        struct engine_arena *mine = client->binding->arenas[i];
        CU_ASSERT_PTR_EQUAL(mine, second->arenas[i]);
        CU_ASSERT_EQUAL(mine->references, 2);
        CU_ASSERT_EQUAL(mine->bytes, bytes);
        CU_ASSERT_NOT_EQUAL((uintptr_t)hl_arena_base(mine->arena), theirs);
        CU_ASSERT_TRUE(is_sealed(hl_arena_fd(mine->arena)));
    }
    uint32_t mapped = 0;
    for (const struct engine_arena *arena = client->binding->gpu->arenas; arena; arena = arena->next)
        mapped++;
    CU_ASSERT_EQUAL(mapped, 2);
    HL_EXPECT_OK(hl_engine_unregister(second, &client->err), client->err);
    scene_close(&scene);
}

/* R4: by the engine itself, and by the Manager for another process. */
static void a_second_registration_of_a_live_instance_is_refused(void)
{
    struct scene scene;
    struct client other;
    struct world world;
    hl_context_batch batch;
    hl_binding *binding;
    scene_open(&scene);
    client_batch(&scene.client, "engine", &batch);
    HL_EXPECT_STATUS(hl_engine_register(scene.client.engine, &batch, &binding, &scene.client.err), HL_E_BUSY,
                     scene.client.err);
    world_open(&world, &WORLD_DEFAULTS);
    client_connect(&other, &world, 0);
    client_batch(&other, "engine", &batch);
    HL_EXPECT_STATUS(hl_engine_register(other.engine, &batch, &binding, &other.err), HL_E_BUSY, other.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(other.err.text, "engine"));
    batch.rank = 1;
    HL_REQUIRE_OK(hl_engine_register(other.engine, &batch, &binding, &other.err), other.err);
    client_close(&other);
    CU_ASSERT_EQUAL(other.releases, world.layout->tensor_count); /* of the one that succeeded */
    world_close(&world);
    scene_close(&scene);
}

/* R4 */
static void a_geometry_outside_its_tensors_is_refused(void)
{
    struct scene scene;
    hl_context_batch batch;
    hl_binding *binding;
    scene_open(&scene);
    client_batch(&scene.client, "too short", &batch);
    scene.world.tensors[1].bytes -= 1;
    HL_EXPECT_STATUS(hl_engine_register(scene.client.engine, &batch, &binding, &scene.client.err), HL_E_RANGE,
                     scene.client.err);
    scene.world.tensors[1].bytes += 1;
    CU_ASSERT_EQUAL(scene.client.releases, 0);
    scene_close(&scene);
}

static hl_restore *start_ready(struct scene *scene, hl_stream ready, hl_status expected)
{
    const uint32_t pages[4] = {8, 9, 10, 11};
    hl_restore_request request;
    hl_lease *lease = client_query(&scene->client, 0, 4);
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 4};
    hl_restore *restore = NULL;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.ready_stream = ready;
    request.has_ready_stream = true;
    HL_EXPECT_STATUS(hl_restore_start(scene->client.binding, &request, &restore, &scene->client.err),
                     expected, scene->client.err);
    hl_lease_release(lease);
    return restore;
}

/* R5, F9: what the stream still has to do to the pages comes before the restored bytes, not after. */
static void a_busy_ready_stream_is_waited_for(void)
{
    struct scene scene;
    hl_restore_result result;
    scene_open(&scene);
    client_publish(&scene.client, 0, 4);
    hl_stream ready = world_stream_new(&scene.world);
    world_hold(&scene.world, ready);
    HL_REQUIRE_OK(hl_device_enter(scene.world.dev, &scene.world.err), scene.world.err);
    HL_EXPECT_OK(scene.world.dev->ops->fill(scene.world.dev, scene.world.memory, WORLD_POISON,
                                            scene.world.bytes, ready, &scene.world.err),
                 scene.world.err);
    hl_device_leave(scene.world.dev);
    hl_restore *restore = start_ready(&scene, ready, HL_OK);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    HL_EXPECT_STATUS(hl_restore_wait(restore, 0, &result, &scene.client.err), HL_E_TIMEOUT, scene.client.err);
    world_let_go(&scene.world);
    client_outcome(&scene.client, restore, HL_OK);
    memset(scene.world.expected, WORLD_POISON, scene.world.bytes);
    client_expect(&scene.client, 0, 4, 8);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    client_outcome(&scene.client, start_ready(&scene, ready, HL_OK), HL_OK); /* idle: proof enough */
    world_stream_end(&scene.world, ready);
    scene_close(&scene);
}

/* R5: a stream with a failure behind it proves nothing. A GPU's failure would end its context. */
static void a_failed_ready_stream_rejects(void)
{
    struct scene scene;
    scene_open(&scene);
    if (scene.world.cuda) {
        CU_PASS("the software device only");
        scene_close(&scene);
        return;
    }
    client_publish(&scene.client, 0, 4);
    hl_stream ready = world_stream_new(&scene.world);
    const struct hl_device_ops *ops = scene.world.dev->ops;
    HL_REQUIRE_OK(hl_device_enter(scene.world.dev, &scene.world.err), scene.world.err);
    hl_software_fail_execution(scene.world.dev, 1, 700);
    HL_EXPECT_OK(ops->fill(scene.world.dev, scene.world.memory, 1, 8, ready, &scene.world.err),
                 scene.world.err);
    CU_ASSERT_EQUAL(ops->stream_synchronize(scene.world.dev, ready, NULL), HL_E_DEVICE);
    hl_restore *restore = start_ready(&scene, ready, HL_E_DEVICE);
    CU_ASSERT_PTR_NULL(restore);
    ops->stream_destroy(scene.world.dev, ready, NULL);
    hl_device_leave(scene.world.dev);
    scene_close(&scene);
}

/* R5 */
static void the_callers_context_is_preserved(void)
{
    struct scene scene;
    scene_open(&scene);
    for (int entered = 0; entered <= 1; entered++) {
        struct world *world = &scene.world;
        if (entered)
            HL_REQUIRE_OK(hl_device_enter(world->dev, &world->err), world->err);
        CU_ASSERT_EQUAL(world_is_entered(world), entered);
        client_publish(&scene.client, 0, 4);
        CU_ASSERT_EQUAL(world_is_entered(world), entered);
        client_outcome(&scene.client, start_ready(&scene, world->stream, HL_OK), HL_OK);
        client_expect(&scene.client, 0, 4, 8);
        CU_ASSERT_EQUAL(world_is_entered(world), entered);
        hl_lease *lease = client_query(&scene.client, 0, 2);
        const uint32_t outside[2] = {0, 64};
        hl_restore_source source = {.lease = lease, .pages = outside, .count = 2};
        hl_restore_request request;
        hl_restore *restore;
        hl_restore_request_init(&request);
        request.sources = &source;
        request.source_count = 1;
        HL_EXPECT_STATUS(hl_restore_start(scene.client.binding, &request, &restore, &scene.client.err),
                         HL_E_RANGE, scene.client.err);
        hl_lease_release(lease);
        CU_ASSERT_EQUAL(world_is_entered(world), entered);
        if (entered)
            hl_device_leave(world->dev);
    }
    CU_ASSERT_FALSE(world_is_entered(&scene.world));
    scene_close(&scene);
}

/* Blocks 0 … 1 and 10 … 11, whose pages may collide. */
static hl_restore *start_two(struct scene *scene, hl_lease *const leases[2], uint32_t second_page)
{
    const uint32_t first[2] = {20, 21}, second[2] = {second_page, second_page + 1};
    hl_restore_source sources[2] = {{leases[0], first, 2}, {leases[1], second, 2}};
    hl_restore_request request;
    hl_restore *restore = NULL;
    hl_restore_request_init(&request);
    request.sources = sources;
    request.source_count = 2;
    HL_REQUIRE_OK(hl_restore_start(scene->client.binding, &request, &restore, &scene->client.err),
                  scene->client.err);
    return restore;
}

/* R6, R7: overlapping destinations are refused before a lease is consumed, so the same leases serve again. */
static void overlapping_destinations_are_refused_before_a_lease_is_consumed(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    hl_lease *leases[2] = {client_query(&scene.client, 0, 2), client_query(&scene.client, 10, 2)};
    hl_restore_result result = client_outcome(&scene.client, start_two(&scene, leases, 21), HL_E_OVERLAP);
    CU_ASSERT_TRUE(result.untouched);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).leases, 2);
    client_outcome(&scene.client, start_two(&scene, leases, 30), HL_OK);
    client_expect(&scene.client, 0, 2, 20);
    client_expect(&scene.client, 10, 2, 30);
    hl_lease_release(leases[0]);
    hl_lease_release(leases[1]);
    scene_close(&scene);
}

/* R6: the identity stands before the Manager knows of the request, which it reads only once it has claimed.
 */
static void the_identity_is_reserved_before_the_manager_acts(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 8);
    hl_lease *lease = client_query(&scene.client, 0, 8);
    const uint32_t pages[8] = {8, 9, 10, 11, 12, 13, 14, 15};
    process_stop(&scene.manager);
    hl_restore *restore = client_start_to(&scene.client, lease, pages, 8);
    struct hl_grant_word word = client_word(&scene.client, restore->record);
    CU_ASSERT_EQUAL(word.state, HL_GRANT_RESERVED);
    CU_ASSERT_EQUAL(word.generation, restore->generation);
    process_continue(&scene.manager);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 8, 8);
    scene_close(&scene);
}

/* R7: neighbours in both memories, in one only, and in none. */
static void merged_and_scattered_ranges_carry_the_same_bytes(void)
{
    struct scene scene;
    hl_random random;
    uint32_t order[64];
    scene_open(&scene);
    client_publish(&scene.client, 0, 64);
    client_restore(&scene.client, 0, 64, 0);
    hl_random_seed(&random, 7);
    for (unsigned round = 0; round < 4; round++) {
        hl_random_permutation(&random, order, 64);
        world_poison(&scene.world);
        client_outcome(&scene.client,
                       client_start_to(&scene.client, client_query(&scene.client, 0, 64), order, 48), HL_OK);
        for (uint32_t i = 0; i < 48; i++)
            world_expect(&scene.world, 0, i, order[i]);
        CU_ASSERT_TRUE(world_matches(&scene.world));
    }
    scene_close(&scene);
}

/* R8: the bounds themselves are in budgets_test.c. */
static void parts_of_several_operations_take_turns(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.part_bytes = 512;
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    struct client_gate *gate = &scene.client.gate;
    client_publish(&scene.client, 0, 64);
    world_poison(&scene.world);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *first = client_start(&scene.client, 0, 32, 0);
    hl_restore *second = client_start(&scene.client, 32, 32, 32);
    uint32_t records[2] = {first->record, second->record}, firsts[2], lasts[2];
    MANAGER_AWAIT(&scene.manager, operations, 2);
    world_let_go(&scene.world);
    client_outcome(&scene.client, first, HL_OK);
    client_outcome(&scene.client, second, HL_OK);
    client_expect(&scene.client, 0, 64, 0);
    CU_ASSERT_TRUE(gate->claim_count > 8);
    for (unsigned i = 0; i < 2; i++) {
        firsts[i] = UINT32_MAX;
        for (uint32_t at = 0; at < gate->claim_count; at++)
            if (gate->claims[at] == records[i]) {
                firsts[i] = firsts[i] == UINT32_MAX ? at : firsts[i];
                lasts[i] = at;
            }
    }
    CU_ASSERT_TRUE(firsts[0] < lasts[1] && firsts[1] < lasts[0]);
    scene_close(&scene);
}

static hl_restore *start_with_events(struct scene *scene, hl_lease *lease, hl_status expected)
{
    const uint32_t pages[6] = {10, 3, 12, 5, 14, 7};
    hl_restore_source source = {.lease = lease, .pages = pages, .count = 6};
    hl_restore_request request;
    hl_restore *restore = NULL;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.layer_events = (void *const *)scene->world.events;
    HL_EXPECT_STATUS(hl_restore_start(scene->client.binding, &request, &restore, &scene->client.err),
                     expected, scene->client.err);
    for (uint32_t i = 0; restore && i < 6; i++)
        world_expect(&scene->world, 0, i, pages[i]);
    return restore;
}

/* Whether a consumer that waits for layer's event only finds the layer's tensors complete. */
static bool layer_is_complete(struct scene *scene, uint32_t layer, hl_stream consumer)
{
    struct world *world = &scene->world;
    bool complete = true;
    HL_REQUIRE_OK(hl_device_enter(world->dev, &world->err), world->err);
    HL_EXPECT_OK(world->dev->ops->stream_wait_event(world->dev, consumer, world->events[layer], &world->err),
                 world->err);
    hl_device_leave(world->dev);
    for (uint32_t i = 0; i < world->layout->component_count; i++) {
        const struct hl_layout_component *c = &world->layout->components[i];
        const uint64_t offset = world->tensors[c->tensor].device_ptr - world->memory;
        const uint64_t bytes = world->tensors[c->tensor].bytes;
        unsigned char *now = malloc(bytes);
        if (c->layer == layer) {
            world_read_on(world, consumer, offset, now, bytes);
            complete = complete && memcmp(now, world->expected + offset, bytes) == 0;
        }
        free(now);
    }
    return complete;
}

/* R9: also over several parts, and for layers of a group that nothing is restored of. */
static void each_layers_event_follows_its_last_range(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    struct world_options options = WORLD_DEFAULTS;
    settings.part_bytes = 512;
    options.layers = 4;
    options.sliding = true;
    scene_open_with(&scene, &settings, &options);
    hl_publish_result published;
    HL_EXPECT_OK(client_publish_some(&scene.client, 0, 0, 6, &published), scene.client.err);
    world_poison(&scene.world);
    hl_stream consumer = world_stream_new(&scene.world);
    hl_lease *lease = client_query(&scene.client, 0, 6);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = start_with_events(&scene, lease, HL_OK);
    hl_lease_release(lease);
    world_let_go(&scene.world);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    for (uint32_t layer = 0; layer < 4; layer++)
        CU_ASSERT_TRUE(layer_is_complete(&scene, layer, consumer));
    client_outcome(&scene.client, restore, HL_OK);
    world_stream_end(&scene.world, consumer);
    scene_close(&scene);
}

/* R9 */
static void events_that_are_not_live_and_distinct_are_refused_before_consumption(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 6);
    hl_lease *lease = client_query(&scene.client, 0, 6);
    hl_event kept = scene.world.events[1];
    scene.world.events[1] = scene.world.events[0];
    CU_ASSERT_PTR_NULL(start_with_events(&scene, lease, HL_E_INVALID));
    scene.world.events[1] = NULL;
    CU_ASSERT_PTR_NULL(start_with_events(&scene, lease, HL_E_INVALID));
    scene.world.events[1] = kept;
    client_outcome(&scene.client, start_with_events(&scene, lease, HL_OK), HL_OK);
    hl_lease_release(lease);
    scene_close(&scene);
}

/* R10 */
static void a_timeout_or_a_dropped_handle_frees_nothing(void)
{
    struct scene scene;
    hl_restore_result result;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, &result, &scene.client.err), HL_PENDING);
    HL_EXPECT_STATUS(hl_restore_wait(restore, 1000, &result, &scene.client.err), HL_E_TIMEOUT,
                     scene.client.err);
    hl_restore_close(restore);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).operations, 1);
    world_let_go(&scene.world);
    MANAGER_AWAIT(&scene.manager, operations, 0);
    client_expect(&scene.client, 0, 16, 24);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).restored, 1);
    scene_close(&scene);
}

/* R11: the Manager stands still from the claim on; result and readiness do not notice. */
static void neither_readiness_nor_result_waits_for_the_reap(void)
{
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    client_gate_arm(&scene.client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    uint32_t record = client_gate_reached(&scene.client), generation = restore->generation;
    process_stop(&scene.manager);
    client_gate_open(&scene.client);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    client_outcome(&scene.client, restore, HL_OK);
    client_expect(&scene.client, 0, 16, 24);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    struct hl_grant_word word = client_word(&scene.client, record);
    CU_ASSERT_EQUAL(word.state, HL_GRANT_DRAINED);
    CU_ASSERT_EQUAL(word.generation, generation);
    process_continue(&scene.manager);
    client_await_state(&scene.client, record, HL_GRANT_FREE);
    CU_ASSERT_EQUAL(client_word(&scene.client, record).generation, generation + 1);
    for (unsigned i = 0; client_word(&scene.client, record).generation == generation + 1; i++) {
        CU_ASSERT_FATAL(i < 4 * HL_GRANT_RECORDS);
        client_restore(&scene.client, 0, 4, 4);
    }
    scene_close(&scene);
}

/* R12, F8: the owners of the tensors stay while a copy may touch them, whatever the caller has let go of. */
static void unregister_waits_and_keeps_the_tensors_until_the_drain(void)
{
    struct scene scene;
    struct scene_call call;
    scene_open(&scene);
    client_publish(&scene.client, 0, 16);
    world_hold(&scene.world, client_copy_stream(&scene.client));
    hl_restore *restore = client_start(&scene.client, 0, 16, 24);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, PATIENCE_NS, &scene.client.err), scene.client.err);
    hl_restore_close(restore);
    scene_unregister_begin(&call, &scene);
    CU_ASSERT_FALSE(call.returned);
    CU_ASSERT_EQUAL(scene.client.releases, 0);
    world_let_go(&scene.world);
    scene_call_finish(&call);
    HL_EXPECT_OK(call.status, call.err);
    CU_ASSERT_EQUAL(scene.client.releases, scene.world.layout->tensor_count);
    client_expect(&scene.client, 0, 16, 24);
    CU_ASSERT_TRUE(world_matches(&scene.world));
    client_register(&scene.client, "engine"); /* the same name, fresh owners */
    client_restore(&scene.client, 0, 16, 40);
    CU_ASSERT_EQUAL(scene.client.releases, scene.world.layout->tensor_count);
    scene_close(&scene);
    CU_ASSERT_EQUAL(scene.client.releases, 2 * 4);
}

HL_TESTS(requirements, HL_CASE(a_restore_is_byte_exact_across_processes),
         HL_CASE(a_new_engine_restores_what_a_killed_one_published), HL_CASE(a_plan_has_no_pointers),
         HL_CASE(sources_and_reserved_bytes_are_kept_until_the_reap),
         HL_CASE(arenas_are_mapped_and_registered_once_for_each_gpu),
         HL_CASE(a_second_registration_of_a_live_instance_is_refused),
         HL_CASE(a_geometry_outside_its_tensors_is_refused), HL_CASE(a_busy_ready_stream_is_waited_for),
         HL_CASE(a_failed_ready_stream_rejects), HL_CASE(the_callers_context_is_preserved),
         HL_CASE(overlapping_destinations_are_refused_before_a_lease_is_consumed),
         HL_CASE(the_identity_is_reserved_before_the_manager_acts),
         HL_CASE(merged_and_scattered_ranges_carry_the_same_bytes),
         HL_CASE(parts_of_several_operations_take_turns), HL_CASE(each_layers_event_follows_its_last_range),
         HL_CASE(events_that_are_not_live_and_distinct_are_refused_before_consumption),
         HL_CASE(a_timeout_or_a_dropped_handle_frees_nothing),
         HL_CASE(neither_readiness_nor_result_waits_for_the_reap),
         HL_CASE(unregister_waits_and_keeps_the_tensors_until_the_drain));
