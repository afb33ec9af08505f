/* F12: a quarantine takes what is in it out of circulation, visibly, until an operator gives it back. */
#include "qualification/restore/scene.h"

const struct process_role process_roles[] = {MANAGER_ROLE, ENGINE_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* An engine dies with `count` claimed restores of one block each, blocks 0 … 15 over and over. */
static void die_with(uint32_t count)
{
    struct process engine;
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 16);
    engine_hold_copies(&engine);
    for (uint32_t i = 0; i < count; i++) {
        engine_begin(&engine, i % 16, 1, 16 + i % 48);
        engine_enqueued(&engine);
    }
    process_kill(&engine);
}

static void expect_refusal(struct scene *scene)
{
    hl_restore *restore = client_start(&scene->client, 0, 4, 8);
    CU_ASSERT_TRUE(client_outcome(&scene->client, restore, HL_E_BUDGET).untouched);
    CU_ASSERT_PTR_NOT_NULL(strstr(scene->client.err.text, "128"));
    CU_ASSERT_TRUE(world_matches(&scene->world));
}

/* A GPU's restores: none is left, and the refusal and the status say so. */
static void restores_in_quarantine_exhaust_a_gpu_until_an_operator_releases_them(void)
{
    struct scene scene;
    uint64_t operations[HL_GPU_RESTORES][3];
    scene_open(&scene);
    die_with(HL_GPU_RESTORES);
    MANAGER_AWAIT(&scene.manager, quarantined, HL_GPU_RESTORES);
    expect_refusal(&scene);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).rejected, 1);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).unresolved, 1);
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, HL_GPU_RESTORES), HL_GPU_RESTORES);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    client_restore(&scene.client, 0, 4, 8); /* there is one again */
    client_restore(&scene.client, 4, 4, 20);
    for (uint32_t i = 1; i < HL_GPU_RESTORES; i++)
        CU_ASSERT_EQUAL(tool_release(operations[i], 1), HL_OK);
    MANAGER_AWAIT(&scene.manager, unresolved, 0);
    client_restore(&scene.client, 0, 16, 40);
    scene_close(&scene);
}

/* An arena: nothing else fits, and publishing says so; others' restores of the very blocks go on. */
static void sources_in_quarantine_fill_an_arena_until_an_operator_releases_them(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    hl_publish_result result;
    uint64_t operations[1][3];
    struct process engine;
    settings.arena_bytes = 32 << 10;
    settings.arena_count = 1;
    scene_open_with(&scene, &settings, &WORLD_DEFAULTS);
    engine_start(&engine, "doomed");
    engine_publish_blocks(&engine, 0, 32);
    engine_hold_copies(&engine);
    engine_begin(&engine, 0, 32, 16);
    engine_enqueued(&engine);
    process_kill(&engine);
    MANAGER_AWAIT(&scene.manager, quarantined, 1);
    HL_EXPECT_STATUS(client_publish_some(&scene.client, 0, 100, 4, &result), HL_E_NOSPACE, scene.client.err);
    CU_ASSERT_EQUAL(result.stored, 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).evicted_blocks, 0);
    client_restore(&scene.client, 0, 32, 8);
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 1), 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    HL_EXPECT_OK(client_publish_some(&scene.client, 0, 100, 4, &result), scene.client.err);
    CU_ASSERT_EQUAL(result.stored, 4);
    client_restore(&scene.client, 100, 4, 50);
    scene_close(&scene);
}

HL_TESTS(exhausted, HL_CASE(restores_in_quarantine_exhaust_a_gpu_until_an_operator_releases_them),
         HL_CASE(sources_in_quarantine_fill_an_arena_until_an_operator_releases_them));
