/* The authority boundary: GRANTED to ACTIVE by the engine against GRANTED to REVOKED by the Manager. */
#include <pthread.h>
#include <sched.h>

#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

enum { ROUNDS = 24 };

static const unsigned char token[16] = "claim race test";

static hl_grant_memory *must_create(void)
{
    hl_grant_memory *memory = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &memory, &err), err);
    return memory;
}

/* Leads a FREE record to GRANTED, writing what the Manager writes before. */
static uint32_t grant(hl_grant_memory *memory, uint32_t index)
{
    struct hl_grant_record *record = hl_grant_record_at(memory, index);
    uint32_t generation = hl_grant_load(memory, index).generation;
    CU_ASSERT_TRUE(hl_grant_move(memory, index, generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
    CU_ASSERT_TRUE(hl_grant_move(memory, index, generation, HL_GRANT_RESERVED, HL_GRANT_PREPARING));
    record->part_index = 0;
    record->part_count = 1;
    record->bank_offset = 64 * index;
    record->bank_bytes = 64;
    record->status = HL_E_EXPIRED; /* what a revocation says */
    CU_ASSERT_TRUE(hl_grant_move(memory, index, generation, HL_GRANT_PREPARING, HL_GRANT_GRANTED));
    return generation;
}

static bool claim(hl_grant_memory *memory, uint32_t index, uint32_t generation)
{
    return hl_grant_move(memory, index, generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE);
}

static bool revoke(hl_grant_memory *memory, uint32_t index, uint32_t generation)
{
    return hl_grant_move(memory, index, generation, HL_GRANT_GRANTED, HL_GRANT_REVOKED);
}

/* --- forced, one after the other --- */

static void revoke_after_claim_is_refused(void)
{
    hl_grant_memory *memory = must_create();
    uint32_t generation = grant(memory, 3);
    CU_ASSERT_TRUE(claim(memory, 3, generation));
    CU_ASSERT_FALSE(revoke(memory, 3, generation));
    CU_ASSERT_FALSE(claim(memory, 3, generation)); /* nor is it claimed twice */
    CU_ASSERT_EQUAL(hl_grant_load(memory, 3).state, HL_GRANT_ACTIVE);
    hl_grant_memory_close(memory);
}

static void claim_after_revoke_is_refused(void)
{
    hl_grant_memory *memory = must_create();
    uint32_t generation = grant(memory, 3);
    CU_ASSERT_TRUE(revoke(memory, 3, generation));
    CU_ASSERT_FALSE(claim(memory, 3, generation));
    CU_ASSERT_FALSE(revoke(memory, 3, generation));
    CU_ASSERT_EQUAL(hl_grant_load(memory, 3).state, HL_GRANT_REVOKED);
    CU_ASSERT_EQUAL(hl_grant_record_at(memory, 3)->status, HL_E_EXPIRED);
    hl_grant_memory_close(memory);
}

/* F10: an owner that was stopped and wakes late. */
static void a_claim_or_revocation_of_an_earlier_generation_is_refused(void)
{
    hl_grant_memory *memory = must_create();
    uint32_t before = grant(memory, 3);
    CU_ASSERT_TRUE(revoke(memory, 3, before));
    CU_ASSERT_TRUE(hl_grant_move(memory, 3, before, HL_GRANT_REVOKED, HL_GRANT_REAPED));
    CU_ASSERT_TRUE(hl_grant_move(memory, 3, before, HL_GRANT_REAPED, HL_GRANT_FREE));
    uint32_t now = grant(memory, 3);
    CU_ASSERT_EQUAL(now, before + 1);
    CU_ASSERT_FALSE(claim(memory, 3, before));
    CU_ASSERT_FALSE(revoke(memory, 3, before));
    CU_ASSERT_TRUE(claim(memory, 3, now));
    hl_grant_memory_close(memory);
}

/* --- two threads --- */

struct race {
    hl_grant_memory *memory;
    pthread_barrier_t lap;
    uint32_t generations[HL_GRANT_RECORDS];
    bool claimed[HL_GRANT_RECORDS]; /* engine's */
    bool revoked[HL_GRANT_RECORDS]; /* Manager's */
    atomic_uint lined_up[HL_GRANT_RECORDS];
};

/* Both sides leave together, as nearly as two threads can, for each record anew: who comes first to the line
 * spins there, and yields now and then in case the other needs this processor. */
static void line_up(struct race *race, uint32_t index)
{
    atomic_fetch_add(&race->lined_up[index], 1);
    for (unsigned spins = 1; atomic_load(&race->lined_up[index]) % 2 != 0; spins++)
        if (spins % 256 == 0)
            sched_yield();
}

/* After a won claim the engine alone writes the result: plain writes, so that the thread sanitizer sees any
 * other writer, and any reader without the transition between. */
static void engine_lap(struct race *race)
{
    for (uint32_t index = 0; index < HL_GRANT_RECORDS; index++) {
        uint32_t generation = race->generations[index];
        struct hl_grant_record *record = hl_grant_record_at(race->memory, index);
        line_up(race, index);
        race->claimed[index] = claim(race->memory, index, generation);
        if (!race->claimed[index])
            continue;
        record->bytes = record->bank_offset;
        record->status = HL_OK;
        race->claimed[index] =
            hl_grant_move(race->memory, index, generation, HL_GRANT_ACTIVE, HL_GRANT_DRAINED);
    }
}

static void *act_as_engine(void *user)
{
    struct race *race = user;
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&race->lap); /* granted */
        engine_lap(race);
        pthread_barrier_wait(&race->lap); /* run */
    }
    return NULL;
}

static void manager_lap(struct race *race)
{
    for (uint32_t index = 0; index < HL_GRANT_RECORDS; index++) {
        line_up(race, index);
        race->revoked[index] = revoke(race->memory, index, race->generations[index]);
    }
}

/* Exactly one has won, and the record says what the winner said. */
static void check_and_retire(struct race *race, uint32_t index)
{
    uint32_t generation = race->generations[index];
    struct hl_grant_record copy;
    hl_grant_copy(race->memory, index, &copy);
    CU_ASSERT_NOT_EQUAL(race->claimed[index], race->revoked[index]);
    CU_ASSERT_TRUE(hl_grant_record_is_sane(&copy));
    CU_ASSERT_EQUAL(copy.status, race->claimed[index] ? HL_OK : HL_E_EXPIRED);
    if (race->claimed[index])
        CU_ASSERT_EQUAL(copy.bytes, 64ull * index);
    enum hl_grant_state state = race->claimed[index] ? HL_GRANT_DRAINED : HL_GRANT_REVOKED;
    CU_ASSERT_TRUE(hl_grant_move(race->memory, index, generation, state, HL_GRANT_REAPED));
    CU_ASSERT_TRUE(hl_grant_move(race->memory, index, generation, HL_GRANT_REAPED, HL_GRANT_FREE));
}

static void exactly_one_of_claim_and_revoke_wins(void)
{
    static struct race race;
    pthread_t engine;
    race.memory = must_create();
    CU_ASSERT_EQUAL_FATAL(pthread_barrier_init(&race.lap, NULL, 2), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&engine, NULL, act_as_engine, &race), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
            race.generations[i] = grant(race.memory, i);
        pthread_barrier_wait(&race.lap);
        manager_lap(&race);
        pthread_barrier_wait(&race.lap);
        for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
            check_and_retire(&race, i);
    }
    pthread_join(engine, NULL);
    pthread_barrier_destroy(&race.lap);
    CU_ASSERT_EQUAL(hl_grant_load(race.memory, 0).generation, ROUNDS + 1);
    hl_grant_memory_close(race.memory);
}

HL_TESTS(claim_race, HL_CASE(revoke_after_claim_is_refused), HL_CASE(claim_after_revoke_is_refused),
         HL_CASE(a_claim_or_revocation_of_an_earlier_generation_is_refused),
         HL_CASE(exactly_one_of_claim_and_revoke_wins));
