/* F5 and F11: the device refuses the n-th copy of a restore, or the n-th registration of host memory, for
 * every n that there is. */
#include "qualification/scenarios/gated.h"

const struct process_role process_roles[] = {MANAGER_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* A restore whose n-th copy was refused while the copies before it stood still. Whether the device has got
 * that one nobody can know from a refusal, so that the first is no proof of untouched pages either. */
static void refuse_copy(struct scene *scene, uint32_t n, bool taken)
{
    hl_restore_result result;
    world_poison(&scene->world);
    gated_arm(scene, &(struct gated_plan){.refuse = n, .taken = taken});
    world_hold(&scene->world, client_copy_stream(&scene->client));
    hl_restore *restore = client_start(&scene->client, 0, 48, 8);
    gated_await();
    HL_EXPECT_STATUS(hl_restore_wait(restore, 0, &result, &scene->client.err), HL_E_TIMEOUT,
                     scene->client.err);
    CU_ASSERT_EQUAL(client_word(&scene->client, restore->record).state, HL_GRANT_ACTIVE);
    CU_ASSERT_EQUAL(manager_stats(&scene->manager).reserved_bytes, 48 * 2048); /* sources are kept */
    world_let_go(&scene->world);
    result = client_outcome(&scene->client, restore, HL_E_DEVICE);
    CU_ASSERT_FALSE(result.untouched);
    world_poison(&scene->world); /* the pages serve something else, and nothing comes late */
    CU_ASSERT_TRUE(world_matches(&scene->world));
    MANAGER_AWAIT(&scene->manager, operations, 0);
}

/* F5, I3, I10 */
static void a_refused_copy_is_told_after_the_accepted_ones_have_drained(void)
{
    struct scene scene;
    const struct world_options world = {.layers = 4, .pages = 64, .page_tokens = 4, .head_dim = 32};
    gated_open(&scene, &MANAGER_DEFAULTS, &world);
    client_publish(&scene.client, 0, 48);
    gated_arm(&scene, &(struct gated_plan){0});
    client_restore(&scene.client, 0, 48, 8);
    const uint32_t copies = gated_count();
    CU_ASSERT_TRUE_FATAL(copies >= 4);
    for (uint32_t n = 1; n <= copies; n++) {
        refuse_copy(&scene, n, false);
        refuse_copy(&scene, n, true);
    }
    hl_manager_snapshot now = manager_stats(&scene.manager);
    CU_ASSERT_EQUAL(now.restored, 1); /* a failed one is not tried again by anybody */
    CU_ASSERT_EQUAL(now.rejected + now.revoked, 0);
    gated_arm(&scene, &(struct gated_plan){.refuse = copies + 1}); /* one more than there are: none */
    client_restore(&scene.client, 0, 48, 8);
    CU_ASSERT_EQUAL(gated_count(), copies);
    scene_close(&scene);
}

/* F11: neither side keeps anything of a registration that failed half-way, and the next one works. */
static void a_refused_registration_rolls_back_on_both_sides(void)
{
    struct scene scene;
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.arena_count = 3;
    uint32_t n = 1;
    gated_connect(&scene, &settings, &WORLD_DEFAULTS);
    for (;; n++) {
        gated_refuse_registration(n);
        hl_status status = gated_register(&scene);
        if (status == HL_OK)
            break;
        CU_ASSERT_EQUAL(status, HL_E_NOMEM);
        CU_ASSERT_EQUAL(gated_registrations(), n);
        CU_ASSERT_EQUAL(scene.client.releases, 0); /* the tensors were never the engine's */
        CU_ASSERT_PTR_NULL(scene.client.engine->gpus);
        CU_ASSERT_EQUAL(manager_stats(&scene.manager).bindings, 0);
        CU_ASSERT_FATAL(n < 64);
    }
    CU_ASSERT_TRUE(n > 3); /* each arena has been refused */
    gated_refuse_registration(0);
    client_publish(&scene.client, 0, 16);
    client_restore(&scene.client, 0, 16, 24);
    CU_ASSERT_EQUAL(scene.client.releases, 0);
    scene_close(&scene);
    CU_ASSERT_EQUAL(scene.client.releases, 4);
}

HL_TESTS(failed, HL_CASE(a_refused_copy_is_told_after_the_accepted_ones_have_drained),
         HL_CASE(a_refused_registration_rolls_back_on_both_sides));
