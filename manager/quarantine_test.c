/* Quarantine: what it holds, for how long, and who ends it. */
#include "manager/manager_testing.h"

static uint64_t token8(struct world *world, uint32_t session)
{
    uint64_t first;
    memcpy(&first, world_session(world, session)->token, sizeof first);
    return first;
}

static hl_status release(struct world *world, uint64_t epoch, uint32_t record, uint32_t generation,
                         uint64_t token, const char *name)
{
    const uint64_t operation[3] = {epoch, (uint64_t)record << 32 | generation, token};
    pthread_mutex_lock(&world->manager->lock);
    hl_status status = manager_quarantine_release(world->manager, operation, name, &world->err);
    pthread_mutex_unlock(&world->manager->lock);
    return status;
}

/* An operation of session 0 that is active when its engine dies. */
static void lose_active(struct world *world, uint32_t record, uint64_t first, uint32_t count)
{
    engine_start(world, 0, record, first, count, 0);
    world_look(world, 0, record);
    CU_ASSERT_TRUE(engine_move(world, 0, record, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    world_engine_dies(world, 0);
    CU_ASSERT_EQUAL(world_session(world, 0)->quarantined, 1);
}

static void sources_are_kept_against_everything_but_an_operator(void)
{
    /* 128 blocks of 512 bytes. */
    struct world world;
    world_open(&world, &(struct world_options){.arena_bytes = 64 * HL_KIB});
    lose_active(&world, 5, 0, 30);
    struct manager_session *session = world_session(&world, 0);
    struct manager_operation *operation = session->operations[5];
    CU_ASSERT_PTR_NOT_NULL_FATAL(operation);
    for (uint32_t round = 0; round < 3; round++) { /* no sweep, no second death, no expiry, no late drain */
        world_sweep(&world, 0);
        world_engine_dies(&world, 0);
        pthread_mutex_lock(&world.manager->lock);
        hl_lease_expire_due(world.manager->leases, INT64_MAX);
        manager_grants_lose(world.manager, session, true);
        manager_session_settle(world.manager, session);
        pthread_mutex_unlock(&world.manager->lock);
        engine_scribble(&world, 0, 5, 1, round == 0 ? HL_GRANT_DRAINED : round == 1 ? HL_GRANT_REAPED : 99);
        world_look(&world, 0, 5);
        CU_ASSERT_PTR_EQUAL(session->operations[5], operation);
    }
    CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_UNRESOLVED);
    CU_ASSERT_EQUAL(session->quarantined, 1);
    CU_ASSERT_EQUAL(hl_budget_used(&session->bytes), 30 * 512);
    CU_ASSERT_EQUAL(hl_budget_used(&session->plan_bytes), operation->plan_bytes);
    CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 1);
    CU_ASSERT_EQUAL(session->bindings[0].operations, 1);
    for (uint64_t key = 1000; key < 1300; key++)
        world_store(&world, 0, key); /* goes round in the 98 blocks that are left */
    for (uint64_t key = 0; key < 30; key++) {
        const unsigned char *stored;
        unsigned char expected[512];
        world_block_bytes(&world, 0, key, expected);
        CU_ASSERT_TRUE_FATAL(world_stored(&world, 0, key, &stored));
        CU_ASSERT_EQUAL(memcmp(stored, expected, sizeof expected), 0);
    }
    world_check(&world);
    HL_EXPECT_OK(release(&world, world.manager->epoch, 5, 1, token8(&world, 0), "ada"), world.err);
    CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_EMPTY);
    world_expect_idle(&world);
    for (uint64_t key = 2000; key < 2128; key++)
        world_store(&world, 0, key); /* the space is everybody's again */
    world_close(&world);
}

static void release_means_exactly_one_operation_and_is_signed(void)
{
    struct world world;
    world_open(&world, &(struct world_options){0});
    engine_start(&world, 1, 5, 50, 1, 0); /* active, but not in quarantine */
    world_look(&world, 1, 5);
    CU_ASSERT_TRUE(engine_move(&world, 1, 5, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    uint64_t epoch = world.manager->epoch, token = token8(&world, 0);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    lose_active(&world, 5, 0, 2);
    HL_EXPECT_STATUS(release(&world, epoch + 1, 5, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 6, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, HL_GRANT_RECORDS, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, UINT32_MAX, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 0, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 2, token, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token ^ 1, "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token8(&world, 1), "ada"), HL_E_NOT_FOUND, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token, ""), HL_E_INVALID, world.err);
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token, NULL), HL_E_INVALID, world.err);
    CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, 1);
    CU_ASSERT_PTR_NULL(strstr(world.log, "released"));
    HL_EXPECT_OK(release(&world, epoch, 5, 1, token, "ada"), world.err);
    const char *line = strstr(world.log, "quarantine: ada released session 0");
    CU_ASSERT_PTR_NOT_NULL_FATAL(line);
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "record 5 generation 1"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "Z: 1024 bytes of sources")); /* when, and what */
    HL_EXPECT_STATUS(release(&world, epoch, 5, 1, token, "ada"), HL_E_NOT_FOUND, world.err);
    engine_drain(&world, 1, 5, HL_OK);
    world_look(&world, 1, 5);
    WORLD_EXPECT_STATE(&world, 1, 5, HL_GRANT_REAPED); /* the other session never noticed */
    world_close(&world);
}

/* Quarantine uses admission up, where it can be seen, and an operator's release recovers it. */
static void quarantine_exhausts_admission_until_it_is_released(void)
{
    struct world world;
    world_open(&world, &(struct world_options){0});
    for (uint32_t i = 0; i < HL_GPU_RESTORES; i++) {
        engine_start(&world, 0, i, i, 1, i % 64);
        world_look(&world, 0, i);
        CU_ASSERT_TRUE(engine_move(&world, 0, i, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    }
    uint64_t token = token8(&world, 0);
    world_engine_dies(&world, 0);
    CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, HL_GPU_RESTORES);
    engine_start(&world, 1, 0, 500, 1, 0);
    world_look(&world, 1, 0);
    CU_ASSERT_EQUAL(engine_record(&world, 1, 0)->status, HL_E_BUDGET);
    engine_retire(&world, 1, 0);
    HL_EXPECT_OK(release(&world, world.manager->epoch, 77, 1, token, "ada"), world.err);
    engine_start(&world, 1, 0, 500, 1, 0);
    world_look(&world, 1, 0);
    WORLD_EXPECT_STATE(&world, 1, 0, HL_GRANT_GRANTED);
    engine_run_part(&world, 1, 0);
    world_look(&world, 1, 0);
    CU_ASSERT_TRUE(world_page_holds(&world, 1, 0, 0, 500));
    for (uint32_t i = 0; i < HL_GPU_RESTORES; i++)
        if (i != 77)
            HL_EXPECT_OK(release(&world, world.manager->epoch, i, 1, token, "ada"), world.err);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 0);
    world_check(&world);
    world_close(&world);
}

/* An operation that a scribbled record put there, of an engine that lives on. */
static void released_operation_of_a_living_engine_leaves_its_record(void)
{
    struct world world;
    world_open(&world, &(struct world_options){0});
    uint64_t token = token8(&world, 0);
    engine_start(&world, 0, 3, 0, 2, 0);
    engine_start(&world, 0, 4, 10, 1, 10);
    world_look(&world, 0, 3);
    world_look(&world, 0, 4);
    CU_ASSERT_TRUE(engine_move(&world, 0, 4, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_scribble(&world, 0, 3, 1, HL_GRANT_MANAGED);
    world_look(&world, 0, 3);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_DETACHED);
    CU_ASSERT_PTR_NOT_NULL(strstr(world_session(&world, 0)->operations[3]->quarantine_reason, "MANAGED"));
    HL_EXPECT_OK(release(&world, world.manager->epoch, 3, 1, token, "ada"), world.err);
    world_look(&world, 0, 3); /* says nothing to anybody any more */
    WORLD_EXPECT_STATE(&world, 0, 3, HL_GRANT_MANAGED);
    engine_drain(&world, 0, 4, HL_OK);
    world_look(&world, 0, 4);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

HL_TESTS(quarantine, HL_CASE(sources_are_kept_against_everything_but_an_operator),
         HL_CASE(release_means_exactly_one_operation_and_is_signed),
         HL_CASE(quarantine_exhausts_admission_until_it_is_released),
         HL_CASE(released_operation_of_a_living_engine_leaves_its_record));
