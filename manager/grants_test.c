/* The Manager's half of the grant record, one record at a time and several at once. The engine is played by
 * the test, step by step. */
#include "manager/manager_testing.h"
#include <unistd.h>

/* One part at a time fits the bank, and every operation has several parts. */
static const struct world_options small_bank = {.bank_bytes = 320, .part_bytes = 320};
static const struct world_options plain = {0};

static struct manager_operation *owner(struct world *world, uint32_t record)
{
    return world_session(world, 0)->operations[record];
}

static uint64_t pins(struct world *world)
{
    struct hl_index_stats stats;
    hl_index_get_stats(world->manager->index, &stats);
    return stats.pins;
}

static unsigned notified(struct world *world)
{
    uint64_t count;
    return read(world_session(world, 0)->restore_fd, &count, sizeof count) == sizeof count ? (unsigned)count
                                                                                           : 0;
}

/* Runs granted parts until the record is reaped. */
static void finish(struct world *world, uint32_t record)
{
    while (world_state(world, 0, record) == HL_GRANT_GRANTED) {
        engine_run_part(world, 0, record);
        world_look(world, 0, record);
    }
    WORLD_EXPECT_STATE(world, 0, record, HL_GRANT_REAPED);
    engine_retire(world, 0, record);
}

/* --- the life of an operation --- */

static void restore_passes_through_its_states(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 7, 100, 3, 10);
    world_look(&world, 0, 7);
    WORLD_EXPECT_STATE(&world, 0, 7, HL_GRANT_GRANTED);
    CU_ASSERT_PTR_NOT_NULL_FATAL(owner(&world, 7)); /* I5 */
    CU_ASSERT_EQUAL(notified(&world), 1);
    CU_ASSERT_EQUAL(pins(&world), 3);
    CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 1);
    CU_ASSERT_EQUAL(hl_budget_used(&world_session(&world, 0)->plan_bytes), owner(&world, 7)->plan_bytes);
    CU_ASSERT_TRUE(engine_move(&world, 0, 7, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_copy_part(&world, 0, 7);
    world_look(&world, 0, 7);
    CU_ASSERT_EQUAL(hl_bank_used(world_session(&world, 0)->bank), 0); /* consumed: sources stay (G6) */
    CU_ASSERT_EQUAL(pins(&world), 3);
    engine_drain(&world, 0, 7, HL_OK);
    world_look(&world, 0, 7);
    WORLD_EXPECT_STATE(&world, 0, 7, HL_GRANT_REAPED);
    CU_ASSERT_PTR_NULL(owner(&world, 7));
    world_expect_idle(&world);
    engine_retire(&world, 0, 7);
    for (uint32_t i = 0; i < 3; i++)
        CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 10 + 2 * i, 100 + i));
    CU_ASSERT_EQUAL(world.manager->counters.restored, 1);
    CU_ASSERT_EQUAL(world.manager->counters.restored_bytes, 3 * world.layout->groups[0].block_bytes);
    CU_ASSERT_EQUAL(hl_grant_load(world_session(&world, 0)->grants, 7).generation, 2);
    world_close(&world);
}

static void failed_restore_is_reaped_and_not_counted(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 0, 1, 1, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_drain(&world, 0, 0, HL_E_DEVICE); /* also without having consumed the part */
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(world.manager->counters.restored, 0);
    world_expect_idle(&world);
    world_close(&world);
}

static void unsubmitted_record_is_left_alone(void)
{
    struct world world;
    world_open(&world, &plain);
    uint32_t generation = engine_reserve(&world, 0, 3);
    struct hl_grant_record *record = engine_record(&world, 0, 3);
    const uint32_t others[] = {0, generation - 1, generation + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        atomic_store(&record->submitted, others[i]);
        world_look(&world, 0, 3);
        WORLD_EXPECT_STATE(&world, 0, 3, HL_GRANT_RESERVED);
    }
    CU_ASSERT_TRUE(engine_move(&world, 0, 3, HL_GRANT_RESERVED, HL_GRANT_FREE)); /* given up */
    world_look(&world, 0, 3);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_LIVE);
    world_close(&world);
}

static void duplicate_marks_change_nothing(void)
{
    struct world world;
    world_open(&world, &small_bank);
    world_look(&world, 0, 5);
    engine_start(&world, 0, 5, 1, 2, 0);
    for (unsigned round = 0; world_state(&world, 0, 5) != HL_GRANT_REAPED; round++) {
        world_look(&world, 0, 5);
        struct manager_operation before = *owner(&world, 5);
        for (int i = 0; i < 3; i++)
            world_look(&world, 0, 5);
        CU_ASSERT_EQUAL(owner(&world, 5)->part, before.part);
        CU_ASSERT_EQUAL(owner(&world, 5)->bank_offset, before.bank_offset);
        CU_ASSERT_EQUAL(owner(&world, 5)->part, round);
        WORLD_EXPECT_STATE(&world, 0, 5, HL_GRANT_GRANTED);
        engine_run_part(&world, 0, 5);
        if (world_state(&world, 0, 5) == HL_GRANT_DRAINED)
            world_look(&world, 0, 5);
    }
    world_look(&world, 0, 5);
    world_look(&world, 0, 5);
    CU_ASSERT_EQUAL(world.manager->counters.restored, 1);
    world_close(&world);
}

static void replayed_generation_ends_the_session_and_consumes_nothing(void)
{
    struct world world;
    world_open(&world, &plain);
    uint32_t generation = engine_start(&world, 0, 0, 1, 1, 0);
    world_look(&world, 0, 0);
    finish(&world, 0);
    engine_start(&world, 0, 1, 50, 1, 20); /* keeps the session */
    world_look(&world, 0, 1);
    CU_ASSERT_TRUE(engine_move(&world, 0, 1, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_scribble(&world, 0, 0, generation, HL_GRANT_RESERVED); /* submitted still says so */
    uint64_t before = pins(&world);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(world_state(&world, 0, 0), HL_GRANT_RESERVED);
    CU_ASSERT_EQUAL(pins(&world), before);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_DETACHED);
    CU_ASSERT_PTR_NOT_NULL(strstr(world.log, "E_PROTOCOL: record 0 says RESERVED of generation 1"));
    world_look(&world, 0, 0);       /* once */
    engine_copy_part(&world, 0, 1); /* what was granted goes on */
    engine_drain(&world, 0, 1, HL_OK);
    world_look(&world, 0, 1);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

static void sweep_finds_what_nobody_marked(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 0, 1, 1, 0);
    engine_start(&world, 0, 1023, 2, 1, 2);
    world_sweep(&world, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
    WORLD_EXPECT_STATE(&world, 0, 1023, HL_GRANT_GRANTED);
    engine_run_part(&world, 0, 0);
    engine_run_part(&world, 0, 1023);
    world_sweep(&world, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    WORLD_EXPECT_STATE(&world, 0, 1023, HL_GRANT_REAPED);
    world_expect_idle(&world);
    world_close(&world);
}

/* --- cancelling --- */

static void cancel_before_the_claim_leaves_lease_and_destination(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 0, 1, 2, 0);
    engine_cancel(&world, 0, 0);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->status, HL_E_CANCELLED);
    CU_ASSERT_PTR_NULL(owner(&world, 0));
    struct hl_leases_stats leases;
    hl_leases_get_stats(world.manager->leases, &leases);
    CU_ASSERT_EQUAL(leases.live, 1);
    CU_ASSERT_EQUAL(leases.consumed, 0);
    CU_ASSERT_EQUAL(world.manager->counters.rejected, 1);
    world_close(&world);
}

static void cancel_of_another_generation_is_not_meant(void)
{
    struct world world;
    world_open(&world, &plain);
    uint32_t generation = engine_start(&world, 0, 0, 1, 1, 0);
    atomic_store(&engine_record(&world, 0, 0)->cancel, generation + 1);
    world_look(&world, 0, 0);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
    finish(&world, 0);
    world_close(&world);
}

static void revocation_wins_over_a_later_claim(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 0, 1, 1, 0);
    world_look(&world, 0, 0);
    engine_cancel(&world, 0, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_FALSE(engine_move(&world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->status, HL_E_CANCELLED);
    CU_ASSERT_EQUAL(world.manager->counters.revoked, 1);
    world_expect_idle(&world);
    world_close(&world);
}

static void claim_wins_over_a_later_revocation(void)
{
    struct world world;
    world_open(&world, &plain);
    engine_start(&world, 0, 0, 1, 1, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_cancel(&world, 0, 0);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_ACTIVE);
    CU_ASSERT_PTR_NOT_NULL_FATAL(owner(&world, 0));
    CU_ASSERT_EQUAL(pins(&world), 1);
    engine_copy_part(&world, 0, 0);
    engine_drain(&world, 0, 0, HL_OK);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(world.manager->counters.restored, 1);
    CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 0, 1));
    world_close(&world);
}

static void cancel_between_parts_revokes_the_rest(void)
{
    struct world world;
    world_open(&world, &small_bank);
    engine_start(&world, 0, 0, 1, 2, 0);
    world_look(&world, 0, 0);
    engine_run_part(&world, 0, 0);
    engine_cancel(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_PART_DRAINED);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->status, HL_E_CANCELLED);
    world_expect_idle(&world);
    world_close(&world);
}

static void cancel_of_a_deferred_grant_frees_its_sources_first(void)
{
    struct world world;
    world_open(&world, &small_bank);
    engine_start(&world, 0, 0, 1, 1, 0);
    engine_start(&world, 0, 1, 10, 1, 10);
    engine_start(&world, 0, 2, 20, 1, 20);
    for (uint32_t i = 0; i < 3; i++)
        world_look(&world, 0, i);
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_PREPARING);
    CU_ASSERT_EQUAL(pins(&world), 3);
    engine_cancel(&world, 0, 1);
    world_look(&world, 0, 1);
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 1)->status, HL_E_CANCELLED);
    CU_ASSERT_EQUAL(pins(&world), 2);
    CU_ASSERT_PTR_EQUAL(world_session(&world, 0)->deferred_first, owner(&world, 2));
    CU_ASSERT_PTR_EQUAL(world_session(&world, 0)->deferred_last, owner(&world, 2));
    world_check(&world);
    while (world_state(&world, 0, 0) != HL_GRANT_REAPED || world_state(&world, 0, 2) != HL_GRANT_REAPED)
        for (uint32_t i = 0; i < 3; i += 2)
            if (world_state(&world, 0, i) == HL_GRANT_GRANTED) {
                engine_run_part(&world, 0, i);
                world_look(&world, 0, i);
            }
    world_expect_idle(&world);
    world_close(&world);
}

/* --- the bank --- */

static void parts_follow_one_another_and_the_bytes_are_right(void)
{
    struct world world;
    world_open(&world, &small_bank);
    engine_start(&world, 0, 0, 1, 5, 0);
    world_look(&world, 0, 0);
    uint32_t parts = owner(&world, 0)->part_count;
    CU_ASSERT_TRUE(parts >= 3);
    for (uint32_t part = 0; part < parts; part++) {
        WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
        CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->part_index, part);
        CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->part_count, parts);
        CU_ASSERT_EQUAL(pins(&world), 5); /* sources stay until the last part has drained */
        engine_run_part(&world, 0, 0);
        world_look(&world, 0, 0);
    }
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    for (uint32_t i = 0; i < 5; i++)
        CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 2 * i, 1 + i));
    world_expect_idle(&world);
    world_close(&world);
}

static void full_bank_defers_and_consumption_resumes(void)
{
    struct world world;
    world_open(&world, &small_bank);
    engine_start(&world, 0, 0, 1, 1, 0);
    engine_start(&world, 0, 1, 2, 1, 2);
    world_look(&world, 0, 0);
    world_look(&world, 0, 1);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_PREPARING);
    CU_ASSERT_TRUE(owner(&world, 1)->deferred);
    CU_ASSERT_EQUAL(pins(&world), 2);
    CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 2);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    world_look(&world, 0, 0); /* claimed, and the part is still in the bank */
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_PREPARING);
    engine_copy_part(&world, 0, 0);
    world_look(&world, 0, 0); /* plan_consumed frees the bank independently of the sources (G6) */
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_ACTIVE);
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_GRANTED);
    world_check(&world);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
    world_look(&world, 0, 0); /* the bank is the other's now */
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_PART_DRAINED);
    world_look(&world, 0, 0); /* acknowledged once */
    CU_ASSERT_EQUAL(owner(&world, 0)->part, 1);
    while (world_state(&world, 0, 0) != HL_GRANT_REAPED || world_state(&world, 0, 1) != HL_GRANT_REAPED)
        for (uint32_t i = 0; i < 2; i++)
            if (world_state(&world, 0, i) == HL_GRANT_GRANTED) {
                engine_run_part(&world, 0, i);
                world_look(&world, 0, i);
            }
    CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 0, 1) && world_page_holds(&world, 0, 0, 2, 2));
    world_expect_idle(&world);
    world_close(&world);
}

static void parts_of_several_operations_take_turns(void)
{
    struct world world;
    uint32_t order[64], count = 0;
    world_open(&world, &small_bank);
    for (uint32_t i = 0; i < 3; i++) {
        engine_start(&world, 0, i, 10 * i, 4, i);
        world_look(&world, 0, i);
    }
    for (uint32_t done = 0; done < 3;) {
        uint32_t granted = 3;
        for (uint32_t i = 0; i < 3; i++)
            if (world_state(&world, 0, i) == HL_GRANT_GRANTED) {
                CU_ASSERT_EQUAL(granted, 3); /* the bank holds one part */
                granted = i;
            }
        CU_ASSERT_TRUE_FATAL(granted < 3 && count < 64);
        order[count++] = granted;
        engine_run_part(&world, 0, granted);
        world_look(&world, 0, granted);
        done += world_state(&world, 0, granted) == HL_GRANT_REAPED;
        world_check(&world);
    }
    CU_ASSERT_TRUE(count >= 9 && count % 3 == 0);
    for (uint32_t i = 0; i < count; i++)
        CU_ASSERT_EQUAL(order[i], i % 3);
    world_expect_idle(&world);
    world_close(&world);
}

static void all_records_of_a_session_are_served(void)
{
    const struct world_options options = {.arena_bytes = 4 * HL_MIB,
                                          .layout = world_layout(HL_LAYOUT_SPLIT, 0, 2048)};
    struct world world;
    world_open(&world, &options);
    hl_budget_init(&world.manager->gpus[0].permits, HL_GRANT_RECORDS);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        engine_start(&world, 0, i, i, 1, i);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        world_look(&world, 0, i);
    CU_ASSERT_EQUAL(world_session(&world, 0)->operation_count, HL_GRANT_RECORDS);
    CU_ASSERT_EQUAL(pins(&world), HL_GRANT_RECORDS);
    world_check(&world);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++) {
        WORLD_EXPECT_STATE(&world, 0, i, HL_GRANT_GRANTED);
        engine_run_part(&world, 0, i);
        world_look(&world, 0, i);
        engine_retire(&world, 0, i);
        CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, i, i));
    }
    world_expect_idle(&world);
    world_close(&world);
}

/* --- bindings --- */

static void binding_waits_for_its_operations(void)
{
    struct world world;
    world_open(&world, &plain);
    struct manager_binding *binding = &world_session(&world, 0)->bindings[0];
    engine_start(&world, 0, 0, 1, 1, 0);
    engine_start(&world, 0, 1, 2, 1, 2);
    world_look(&world, 0, 0);
    binding->closing = true; /* as UNREGISTER does: admission ends, what was accepted goes on (R12) */
    pthread_mutex_lock(&world.manager->lock);
    manager_binding_settle(world.manager, world_session(&world, 0), binding);
    pthread_mutex_unlock(&world.manager->lock);
    CU_ASSERT_TRUE(binding->live);
    world_look(&world, 0, 1);
    WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_REAPED);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 1)->status, HL_E_STATE);
    engine_run_part(&world, 0, 0);
    CU_ASSERT_TRUE(binding->live);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
    CU_ASSERT_FALSE(binding->live);
    world_close(&world);
}

HL_TESTS(grants, HL_CASE(restore_passes_through_its_states),
         HL_CASE(failed_restore_is_reaped_and_not_counted), HL_CASE(unsubmitted_record_is_left_alone),
         HL_CASE(duplicate_marks_change_nothing),
         HL_CASE(replayed_generation_ends_the_session_and_consumes_nothing),
         HL_CASE(sweep_finds_what_nobody_marked),
         HL_CASE(cancel_before_the_claim_leaves_lease_and_destination),
         HL_CASE(cancel_of_another_generation_is_not_meant), HL_CASE(revocation_wins_over_a_later_claim),
         HL_CASE(claim_wins_over_a_later_revocation), HL_CASE(cancel_between_parts_revokes_the_rest),
         HL_CASE(cancel_of_a_deferred_grant_frees_its_sources_first),
         HL_CASE(parts_follow_one_another_and_the_bytes_are_right),
         HL_CASE(full_bank_defers_and_consumption_resumes), HL_CASE(parts_of_several_operations_take_turns),
         HL_CASE(all_records_of_a_session_are_served), HL_CASE(binding_waits_for_its_operations));
