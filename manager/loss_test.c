/* What a session's end and a scribbled record do to grants: revoked, released, left to a living engine, or
 * kept in quarantine. */
#include "manager/manager_testing.h"

#include <pthread.h>

static const struct world_options small_bank = {.bank_bytes = 320, .part_bytes = 320};

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

/* The places in an operation's life at which its session can be lost. */
enum moment {
    SUBMITTED,
    DEFERRED, /* prepared, never granted */
    GRANTED,
    ACTIVE,
    CONSUMED,     /* active, the bank given back */
    PART_DRAINED, /* not yet seen by the Manager */
    BETWEEN,      /* acknowledged, waiting for the bank */
    LAST_ACTIVE,  /* the last part */
    DRAINED,
    MOMENTS
};

/* Takes record 0 to the moment. Record 1 keeps the bank full where that is needed. */
static void stage(struct world *world, enum moment moment)
{
    bool full = moment == DEFERRED || moment == BETWEEN;
    if (moment == DEFERRED) {
        engine_start(world, 0, 1, 500, 1, 40);
        world_look(world, 0, 1);
    }
    engine_start(world, 0, 0, 1, 2, 0);
    if (moment == SUBMITTED)
        return;
    world_look(world, 0, 0);
    if (moment == BETWEEN) {
        engine_start(world, 0, 1, 500, 1, 40);
        world_look(world, 0, 1);
    }
    if (moment == DEFERRED || moment == GRANTED)
        return;
    if (moment >= LAST_ACTIVE)
        while (owner(world, 0)->part + 1 < owner(world, 0)->part_count) {
            engine_run_part(world, 0, 0);
            world_look(world, 0, 0);
        }
    CU_ASSERT_TRUE(engine_move(world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    if (moment == ACTIVE || moment == LAST_ACTIVE)
        return;
    engine_copy_part(world, 0, 0);
    if (moment == CONSUMED)
        world_look(world, 0, 0);
    if (moment == DRAINED)
        engine_drain(world, 0, 0, HL_OK);
    if (moment == PART_DRAINED || moment == BETWEEN)
        CU_ASSERT_TRUE(engine_move(world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
    if (moment == BETWEEN)
        world_look(world, 0, 0);
    CU_ASSERT_EQUAL(owner(world, 0)->deferred, full);
}

static bool is_active(enum moment moment)
{
    return moment == ACTIVE || moment == CONSUMED || moment == LAST_ACTIVE;
}

/* Death after the claim without evidence of drain ends in quarantine, and only that (I7). */
static void dead_engine_leaves_only_active_operations_in_quarantine(void)
{
    for (enum moment moment = 0; moment < MOMENTS; moment++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, moment);
        struct manager_session *session = world_session(&world, 0);
        world_engine_dies(&world, 0);
        if (is_active(moment)) {
            CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_UNRESOLVED);
            CU_ASSERT_EQUAL(session->quarantined, 1);
            CU_ASSERT_EQUAL(pins(&world), 2);
            CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 1);
            CU_ASSERT_PTR_NOT_NULL_FATAL(owner(&world, 0));
            CU_ASSERT_EQUAL(hl_budget_used(&session->plan_bytes), owner(&world, 0)->plan_bytes);
            world_check(&world);
            uint64_t token8;
            memcpy(&token8, session->token, sizeof token8);
            const uint64_t operation[3] = {world.manager->epoch, 1, token8};
            pthread_mutex_lock(&world.manager->lock);
            HL_EXPECT_OK(manager_quarantine_release(world.manager, operation, "the test", &world.err),
                         world.err);
            pthread_mutex_unlock(&world.manager->lock);
        }
        CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_EMPTY);
        CU_ASSERT_EQUAL(pins(&world), 0);
        CU_ASSERT_EQUAL(hl_budget_used(&world.manager->gpus[0].permits), 0);
        CU_ASSERT_EQUAL(world.manager->counters.restored, moment == DRAINED ? 1 : 0);
        world_close(&world);
    }
}

/* An engine that lives on finishes what it has claimed; everything else ends and is said so. */
static void ended_session_of_a_living_engine_keeps_active_operations(void)
{
    for (enum moment moment = 0; moment < MOMENTS; moment++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, moment);
        struct manager_session *session = world_session(&world, 0);
        engine_start(&world, 0, 9, 900, 1, 60); /* keeps the session, so that records can be looked at */
        if (is_active(moment)) {
            world_detach(&world, 0, true);
            WORLD_EXPECT_STATE(&world, 0, 9, HL_GRANT_REAPED);
            CU_ASSERT_EQUAL(engine_record(&world, 0, 9)->status, HL_E_PEER);
            CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_DETACHED);
            CU_ASSERT_EQUAL(session->quarantined, 0);
            CU_ASSERT_EQUAL(pins(&world), 2);
            if (moment != CONSUMED)
                engine_copy_part(&world, 0, 0);
            if (moment == LAST_ACTIVE) {
                engine_drain(&world, 0, 0, HL_OK);
            } else {
                CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
            }
            world_look(&world, 0, 0); /* the last part is accepted, another is not granted */
        } else {
            world_detach(&world, 0, true);
        }
        CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_EMPTY);
        CU_ASSERT_EQUAL(world.manager->counters.restored, moment == DRAINED || moment == LAST_ACTIVE ? 1 : 0);
        CU_ASSERT_EQUAL(pins(&world), 0);
        world_close(&world);
    }
}

static void session_without_a_channel_is_still_served(void)
{
    struct world world;
    world_open(&world, &small_bank);
    stage(&world, ACTIVE);
    engine_start(&world, 0, 9, 900, 1, 60);
    world_detach(&world, 0, false);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_DETACHED);
    world_look(&world, 0, 9); /* submitted before: the lease was given */
    engine_copy_part(&world, 0, 0);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
    world_look(&world, 0, 0);
    while (world_session(&world, 0)->state != MANAGER_SESSION_EMPTY)
        for (uint32_t i = 0; i < 10 && world_session(&world, 0)->grants; i += 9)
            if (world_state(&world, 0, i) == HL_GRANT_GRANTED) {
                engine_run_part(&world, 0, i);
                world_look(&world, 0, i);
            }
    CU_ASSERT_EQUAL(world.manager->counters.restored, 2);
    world_close(&world);
}

static void session_loss_says_why_to_those_who_wait(void)
{
    struct world world;
    world_open(&world, &small_bank);
    stage(&world, DEFERRED);
    engine_start(&world, 0, 2, 600, 1, 50);                                       /* submitted, not claimed */
    CU_ASSERT_TRUE(engine_move(&world, 0, 1, HL_GRANT_GRANTED, HL_GRANT_ACTIVE)); /* keeps the session */
    world_detach(&world, 0, true);
    for (uint32_t i = 0; i < 3; i += 2) {
        WORLD_EXPECT_STATE(&world, 0, i, HL_GRANT_REAPED);
        CU_ASSERT_EQUAL(engine_record(&world, 0, i)->status, HL_E_PEER);
    }
    CU_ASSERT_PTR_NULL(world_session(&world, 0)->deferred_first);
    CU_ASSERT_EQUAL(pins(&world), 1);
    engine_start(&world, 0, 3, 700, 1, 54);
    world_look(&world, 0, 3); /* nothing more is admitted */
    CU_ASSERT_EQUAL(engine_record(&world, 0, 3)->status, HL_E_PEER);
    engine_drain(&world, 0, 1, HL_E_DEVICE);
    world_look(&world, 0, 1);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

/* --- scribbled records --- */

/* What the Manager has nothing to say against: the state itself, and what the engine may have made of it. */
static bool is_possible(enum moment moment, uint32_t state)
{
    switch (moment) {
    case DEFERRED:
        return state == HL_GRANT_PREPARING;
    case BETWEEN:
        return state == HL_GRANT_PART_DRAINED;
    default: /* a part is granted, and it is not the last one */
        return state == HL_GRANT_GRANTED || state == HL_GRANT_ACTIVE || state == HL_GRANT_PART_DRAINED ||
               state == HL_GRANT_DRAINED;
    }
}

/* Every word that contradicts the private owner: its sources are kept, for ever as far as the Manager goes.
 */
static void contradicting_words_end_the_session_and_keep_the_sources(void)
{
    static const enum moment moments[] = {DEFERRED, GRANTED, ACTIVE, BETWEEN};
    static const uint32_t states[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 255, 0x100, 0x80000005};
    for (size_t m = 0; m < sizeof moments / sizeof moments[0]; m++)
        for (size_t s = 0; s < sizeof states / sizeof states[0]; s++)
            for (uint32_t generation = 0; generation < 4; generation++) {
                if (generation == 1 && is_possible(moments[m], states[s]))
                    continue;
                struct world world;
                world_open(&world, &small_bank);
                stage(&world, moments[m]);
                engine_scribble(&world, 0, 0, generation, states[s]);
                world_look(&world, 0, 0);
                struct manager_session *session = world_session(&world, 0);
                CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_DETACHED);
                CU_ASSERT_EQUAL(session->quarantined, 1);
                CU_ASSERT_EQUAL_FATAL(owner(&world, 0)->phase, MANAGER_QUARANTINED);
                CU_ASSERT_EQUAL(pins(&world), 2); /* and those of record 1, which was unclaimed, are gone */
                CU_ASSERT_PTR_NOT_NULL(strstr(world.log, "E_PROTOCOL: record 0 says"));
                /* Whatever the record says later is no evidence. */
                engine_scribble(&world, 0, 0, 1, HL_GRANT_DRAINED);
                world_look(&world, 0, 0);
                world_engine_dies(&world, 0);
                CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_UNRESOLVED);
                CU_ASSERT_EQUAL(pins(&world), 2);
                world_check(&world);
                pthread_mutex_lock(&world.manager->lock);
                manager_operation_release(world.manager, owner(&world, 0));
                manager_session_settle(world.manager, session);
                pthread_mutex_unlock(&world.manager->lock);
                world_close(&world);
            }
}

/* Of a record without an owner nothing can be kept, and nothing is read from it. */
static void words_of_unowned_records_end_the_session(void)
{
    static const uint32_t states[] = {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 255, 0x10000001};
    for (size_t s = 0; s < sizeof states / sizeof states[0]; s++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, ACTIVE);
        engine_scribble(&world, 0, 77, 1, states[s]);
        world_look(&world, 0, 77);
        CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_DETACHED);
        CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, 0);
        CU_ASSERT_EQUAL(pins(&world), 2); /* the active one goes on */
        engine_copy_part(&world, 0, 0);
        CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
        world_look(&world, 0, 0);
        CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
        world_close(&world);
    }
}

/* The Manager comes to a deferred record because of another one, and finds it scribbled over. */
static void scribbled_deferred_record_is_found_when_its_turn_comes(void)
{
    struct world world;
    world_open(&world, &small_bank);
    stage(&world, DEFERRED); /* record 1 has the bank */
    engine_start(&world, 0, 2, 600, 1, 50);
    world_look(&world, 0, 2);
    engine_scribble(&world, 0, 0, 1, HL_GRANT_ACTIVE);
    CU_ASSERT_TRUE(engine_move(&world, 0, 1, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_copy_part(&world, 0, 1);
    world_look(&world, 0, 1);
    CU_ASSERT_EQUAL_FATAL(owner(&world, 0)->phase, MANAGER_QUARANTINED);
    CU_ASSERT_FALSE(owner(&world, 0)->bank_held);
    CU_ASSERT_EQUAL(hl_bank_used(world_session(&world, 0)->bank), 0);
    CU_ASSERT_EQUAL(owner(&world, 1)->phase, MANAGER_GRANTED); /* active: a living engine's to finish */
    CU_ASSERT_PTR_NULL(owner(&world, 2));
    CU_ASSERT_EQUAL(engine_record(&world, 0, 2)->status, HL_E_PEER);
    world_check(&world);
    engine_drain(&world, 0, 1, HL_E_DEVICE);
    pthread_mutex_lock(&world.manager->lock);
    manager_operation_release(world.manager, owner(&world, 0));
    pthread_mutex_unlock(&world.manager->lock);
    world_sweep(&world, 0);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

static void session_without_a_channel_is_ended_by_a_scribble_too(void)
{
    struct world world;
    world_open(&world, &small_bank);
    stage(&world, ACTIVE);
    world_detach(&world, 0, false);
    engine_scribble(&world, 0, 8, 1, HL_GRANT_GRANTED);
    world_look(&world, 0, 8);
    CU_ASSERT_TRUE(world_session(&world, 0)->ended);
    CU_ASSERT_EQUAL(pins(&world), 2);
    engine_copy_part(&world, 0, 0);
    CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
    world_look(&world, 0, 0); /* no other part is granted */
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

static void record_of_generation_zero_is_never_claimed(void)
{
    struct world world;
    world_open(&world, &small_bank);
    engine_scribble(&world, 0, 0, 0, HL_GRANT_RESERVED);
    atomic_store(&engine_record(&world, 0, 0)->submitted, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY); /* nothing was outstanding */
    world_close(&world);
}

/* A completion is a proof only when it is well-formed; then the copies that it tells of have ended. */
static void malformed_completion_is_no_evidence(void)
{
    for (int kind = 0; kind < 5; kind++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, kind == 4 ? ACTIVE : LAST_ACTIVE);
        struct hl_grant_record *record = engine_record(&world, 0, 0);
        engine_copy_part(&world, 0, 0);
        engine_drain(&world, 0, 0, HL_OK); /* kind 4: success, with parts that were never granted */
        if (kind == 0)
            record->status = 1;
        if (kind == 1)
            record->status = -99999;
        if (kind == 2)
            memset(record->text, 'x', sizeof record->text);
        if (kind == 3)
            engine_scribble(&world, 0, 0, 1, 0x100 | HL_GRANT_DRAINED);
        world_look(&world, 0, 0);
        CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, 1);
        CU_ASSERT_EQUAL(pins(&world), 2);
        CU_ASSERT_EQUAL(world.manager->counters.restored, 0);
        pthread_mutex_lock(&world.manager->lock);
        manager_operation_release(world.manager, owner(&world, 0));
        pthread_mutex_unlock(&world.manager->lock);
        world_close(&world);
    }
}

/* PART_DRAINED promises another part, and there is none. */
static void last_part_cannot_be_drained_as_another(void)
{
    for (int dead = 0; dead < 2; dead++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, LAST_ACTIVE);
        CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
        if (dead)
            world_engine_dies(&world, 0);
        else
            world_look(&world, 0, 0);
        CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, 1);
        CU_ASSERT_EQUAL(pins(&world), 2);
        pthread_mutex_lock(&world.manager->lock);
        manager_operation_release(world.manager, owner(&world, 0));
        manager_session_settle(world.manager, world_session(&world, 0));
        pthread_mutex_unlock(&world.manager->lock);
        world_close(&world);
    }
}

static void consuming_parts_that_were_not_granted_is_no_consumption(void)
{
    static const uint32_t claims[] = {2, 3, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        struct world world;
        world_open(&world, &small_bank);
        stage(&world, ACTIVE);
        atomic_store(&engine_record(&world, 0, 0)->consumed, claims[i]);
        world_look(&world, 0, 0);
        CU_ASSERT_EQUAL(world_session(&world, 0)->quarantined, 1);
        CU_ASSERT_TRUE(hl_bank_used(world_session(&world, 0)->bank) > 0);
        pthread_mutex_lock(&world.manager->lock);
        manager_operation_release(world.manager, owner(&world, 0));
        pthread_mutex_unlock(&world.manager->lock);
        world_close(&world);
    }
}

/* Random words and random fields over all records, with marks: whatever happens, no source of an operation
 * that was claimed is given away without evidence, and in the end every credit has come back. */
static void random_scribbling_loses_no_credit(void)
{
    hl_random random;
    hl_random_seed(&random, 20);
    for (unsigned round = 0; round < 60; round++) {
        struct world world;
        world_open(&world, &small_bank);
        for (uint32_t i = 0; i < 8; i++) {
            engine_start(&world, 0, i, 10 * i, 1 + (uint32_t)hl_random_below(&random, 3), i);
            world_look(&world, 0, i);
        }
        for (unsigned step = 0; step < 40 && world_session(&world, 0)->grants; step++) {
            uint32_t record = (uint32_t)hl_random_below(&random, 10);
            struct hl_grant_record *shared = engine_record(&world, 0, record);
            uint32_t word = (uint32_t)hl_random_below(&random, sizeof *shared / 4);
            if (step % 4 == 0)
                engine_scribble(&world, 0, record, (uint32_t)hl_random_below(&random, 3),
                                (uint32_t)hl_random_below(&random, HL_GRANT_STATE_COUNT + 1));
            else
                ((uint32_t *)(void *)shared)[word] = (uint32_t)hl_random_next(&random);
            world_look(&world, 0, record);
            world_check(&world);
        }
        struct manager_session *session = world_session(&world, 0);
        if (session->grants) {
            world_sweep(&world, 0);
            world_engine_dies(&world, 0);
        }
        pthread_mutex_lock(&world.manager->lock);
        for (uint32_t i = 0; session->grants && i < HL_GRANT_RECORDS; i++)
            if (session->operations[i])
                manager_operation_release(world.manager, session->operations[i]);
        manager_session_settle(world.manager, session);
        pthread_mutex_unlock(&world.manager->lock);
        world_close(&world);
    }
}

/* --- the race for the word --- */

struct race {
    struct world *world;
    pthread_barrier_t start;
    unsigned rounds;
    bool *claimed;
};

static void *claim_in_each_round(void *user)
{
    struct race *race = user;
    hl_grant_memory *grants = world_session(race->world, 0)->grants;
    for (unsigned i = 0; i < race->rounds; i++) {
        pthread_barrier_wait(&race->start);
        race->claimed[i] = hl_grant_move(grants, 0, i + 1, HL_GRANT_GRANTED, HL_GRANT_ACTIVE);
        pthread_barrier_wait(&race->start);
    }
    return NULL;
}

/* The engine claims while the Manager revokes, on two threads: one of them wins, and the Manager knows who.
 */
static void claim_and_revocation_have_one_winner(void)
{
    enum { ROUNDS = 500 };
    bool claimed[ROUNDS];
    struct world world;
    struct race race = {.world = &world, .rounds = ROUNDS, .claimed = claimed};
    pthread_t engine;
    world_open(&world, &(struct world_options){0});
    pthread_barrier_init(&race.start, NULL, 2);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&engine, NULL, claim_in_each_round, &race), 0);
    unsigned revoked = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        CU_ASSERT_EQUAL(engine_start(&world, 0, 0, 1, 1, 0), i + 1);
        world_look(&world, 0, 0);
        engine_cancel(&world, 0, 0);
        pthread_barrier_wait(&race.start);
        world_look(&world, 0, 0);
        pthread_barrier_wait(&race.start);
        if (claimed[i]) {
            WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_ACTIVE);
            CU_ASSERT_PTR_NOT_NULL(owner(&world, 0));
            engine_drain(&world, 0, 0, HL_OK);
            world_look(&world, 0, 0);
        } else {
            revoked++;
        }
        WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
        engine_retire(&world, 0, 0);
    }
    pthread_join(engine, NULL);
    pthread_barrier_destroy(&race.start);
    CU_ASSERT_EQUAL(world.manager->counters.revoked, revoked);
    CU_ASSERT_EQUAL(world.manager->counters.restored, ROUNDS - revoked);
    world_expect_idle(&world);
    world_close(&world);
}

struct scribbler {
    struct world *world;
    hl_grant_memory *grants;
    _Atomic bool stop;
};

/* Gives up, cancels, claims, drains and scribbles, whatever the Manager is doing meanwhile. */
static void *scribble_all_the_time(void *user)
{
    struct scribbler *scribbler = user;
    hl_random random;
    hl_random_seed(&random, 3);
    while (!atomic_load(&scribbler->stop)) {
        uint32_t record = (uint32_t)hl_random_below(&random, 4);
        struct hl_grant_record *shared = hl_grant_record_at(scribbler->grants, record);
        struct hl_grant_word word = hl_grant_load(scribbler->grants, record);
        enum hl_grant_state to = (enum hl_grant_state)hl_random_below(&random, HL_GRANT_STATE_COUNT);
        if (hl_random_below(&random, 4) == 0)
            atomic_store(&shared->cancel, word.generation);
        if (hl_random_below(&random, 64) == 0)
            atomic_store(&shared->word, (uint64_t)word.generation << 32 | to);
        else if (word.state < HL_GRANT_STATE_COUNT && word.state != HL_GRANT_PREPARING &&
                 hl_grant_transition_exists((enum hl_grant_state)word.state, to))
            hl_grant_move(scribbler->grants, record, word.generation, (enum hl_grant_state)word.state, to);
    }
    return NULL;
}

/* The same from a thread, at any point of the Manager's work. The memory outlives the session: an engine's
 * own mapping would. */
static void scribbling_at_any_moment_loses_no_credit(void)
{
    for (unsigned round = 0; round < 150; round++) {
        struct world world;
        pthread_t thread;
        world_open(&world, &small_bank);
        struct manager_session *session = world_session(&world, 0);
        struct scribbler scribbler = {.world = &world};
        for (uint32_t i = 0; i < 4; i++)
            engine_start(&world, 0, i, 10 * i, 2, i);
        HL_REQUIRE_OK(hl_grant_memory_map(hl_grant_memory_fd(session->grants), world.manager->epoch,
                                          session->token, &scribbler.grants, &world.err),
                      world.err);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, scribble_all_the_time, &scribbler), 0);
        for (unsigned i = 0; i < 40 && session->grants; i++)
            world_look(&world, 0, i % 4);
        atomic_store(&scribbler.stop, true);
        pthread_join(thread, NULL);
        world_check(&world);
        if (session->grants)
            world_engine_dies(&world, 0);
        world_check(&world);
        pthread_mutex_lock(&world.manager->lock);
        for (uint32_t i = 0; session->grants && i < 4; i++)
            if (owner(&world, i))
                manager_operation_release(world.manager, owner(&world, i));
        manager_session_settle(world.manager, session);
        pthread_mutex_unlock(&world.manager->lock);
        hl_grant_memory_close(scribbler.grants);
        world_close(&world);
    }
}

HL_TESTS(loss, HL_CASE(dead_engine_leaves_only_active_operations_in_quarantine),
         HL_CASE(ended_session_of_a_living_engine_keeps_active_operations),
         HL_CASE(session_without_a_channel_is_still_served), HL_CASE(session_loss_says_why_to_those_who_wait),
         HL_CASE(contradicting_words_end_the_session_and_keep_the_sources),
         HL_CASE(words_of_unowned_records_end_the_session),
         HL_CASE(record_of_generation_zero_is_never_claimed),
         HL_CASE(scribbled_deferred_record_is_found_when_its_turn_comes),
         HL_CASE(session_without_a_channel_is_ended_by_a_scribble_too),
         HL_CASE(scribbling_at_any_moment_loses_no_credit), HL_CASE(malformed_completion_is_no_evidence),
         HL_CASE(last_part_cannot_be_drained_as_another),
         HL_CASE(consuming_parts_that_were_not_granted_is_no_consumption),
         HL_CASE(random_scribbling_loses_no_credit), HL_CASE(claim_and_revocation_have_one_winner));
