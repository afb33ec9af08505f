/* Two threads lead records through whole lives with nothing but the record's word between them. Every other
 * field is written and read plainly, so that the thread sanitizer sees each transition that does not publish
 * what was written before it, and each field with two writers. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "core/base/random.h"
#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

enum { RECORDS = 64, LIVES = 150, PARTS = 3, MOST_FRUITLESS = 1 << 22 };

struct side {
    hl_grant_memory *memory;
    hl_random random;
    unsigned wrong; /* fields that were not as the other side must have written them */
    unsigned drained, revoked, rejected, retired;
};

/* One record's turn: true when something was done. */
typedef bool (*turn)(struct side *side, uint32_t index);

static bool move(struct side *side, uint32_t index, uint32_t generation, enum hl_grant_state from,
                 enum hl_grant_state to)
{
    return hl_grant_move(side->memory, index, generation, from, to);
}

/* --- engine --- */

static void request(struct side *side, struct hl_grant_record *record, uint32_t index, uint32_t generation)
{
    side->wrong += !move(side, index, generation, HL_GRANT_FREE, HL_GRANT_RESERVED);
    record->descriptor_offset = index;
    record->descriptor_bytes = generation;
    record->flags = HL_GRANT_TRACE;
    atomic_store_explicit(&record->cancel, 0, memory_order_relaxed);
    atomic_store_explicit(&record->consumed, 0, memory_order_relaxed);
    atomic_store_explicit(&record->submitted, generation, memory_order_release);
}

static void run_part(struct side *side, struct hl_grant_record *record, uint32_t index, uint32_t generation)
{
    if (!move(side, index, generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE))
        return; /* revoked meanwhile */
    side->wrong += record->bank_offset != 64 * index || record->bank_bytes != generation;
    atomic_fetch_add_explicit(&record->consumed, 1, memory_order_relaxed);
    if (record->part_index + 1 < record->part_count) {
        side->wrong += !move(side, index, generation, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED);
        return;
    }
    record->status = HL_OK;
    record->bytes = generation;
    for (unsigned i = 0; i < HL_STAGE_COUNT; i++)
        record->stage_ns[i] = generation + i;
    memset(record->text, 0, sizeof record->text);
    side->wrong += !move(side, index, generation, HL_GRANT_ACTIVE, HL_GRANT_DRAINED);
}

static void retire(struct side *side, struct hl_grant_record *record, uint32_t index, uint32_t generation)
{
    side->wrong += record->status != HL_OK && record->status != HL_E_EXPIRED && record->status != HL_E_BUDGET;
    side->wrong += !move(side, index, generation, HL_GRANT_REAPED, HL_GRANT_FREE);
    side->retired++;
}

static bool engine_turn(struct side *side, uint32_t index)
{
    struct hl_grant_word word = hl_grant_load(side->memory, index);
    struct hl_grant_record *record = hl_grant_record_at(side->memory, index);
    if (word.state == HL_GRANT_FREE && word.generation <= LIVES)
        request(side, record, index, word.generation);
    else if (word.state == HL_GRANT_GRANTED)
        run_part(side, record, index, word.generation);
    else if (word.state == HL_GRANT_REAPED)
        retire(side, record, index, word.generation);
    else
        return false;
    return true;
}

/* --- Manager --- */

static bool prepare(struct side *side, struct hl_grant_record *record, uint32_t index, uint32_t generation)
{
    if (atomic_load_explicit(&record->submitted, memory_order_acquire) != generation)
        return false;
    side->wrong += !move(side, index, generation, HL_GRANT_RESERVED, HL_GRANT_PREPARING);
    side->wrong += record->descriptor_offset != index || record->descriptor_bytes != generation;
    bool refused = hl_random_below(&side->random, 8) == 0;
    record->part_index = 0;
    record->part_count = PARTS;
    record->bank_offset = 64 * index;
    record->bank_bytes = generation;
    record->status = refused ? HL_E_BUDGET : HL_E_EXPIRED;
    memcpy(record->text, "why", 4);
    side->wrong +=
        !move(side, index, generation, HL_GRANT_PREPARING, refused ? HL_GRANT_REJECTED : HL_GRANT_GRANTED);
    return true;
}

static bool grant_next(struct side *side, struct hl_grant_record *record, uint32_t index, uint32_t generation)
{
    record->part_index++;
    side->wrong += !move(side, index, generation, HL_GRANT_PART_DRAINED, HL_GRANT_GRANTED);
    return true;
}

static bool reap(struct side *side, uint32_t index, struct hl_grant_word word)
{
    struct hl_grant_record copy;
    hl_grant_copy(side->memory, index, &copy);
    side->wrong += !hl_grant_record_is_sane(&copy);
    if (word.state == HL_GRANT_DRAINED) {
        side->wrong += copy.status != HL_OK || copy.bytes != word.generation || copy.text[0] != '\0' ||
                       copy.stage_ns[HL_STAGE_DRAINED] != word.generation + HL_STAGE_DRAINED ||
                       atomic_load(&copy.consumed) != PARTS;
        side->drained++;
    } else {
        side->wrong += copy.status >= 0 || strcmp(copy.text, "why") != 0;
        *(word.state == HL_GRANT_REVOKED ? &side->revoked : &side->rejected) += 1;
    }
    side->wrong += !move(side, index, word.generation, word.state, HL_GRANT_REAPED);
    return true;
}

static bool manager_turn(struct side *side, uint32_t index)
{
    struct hl_grant_word word = hl_grant_load(side->memory, index);
    struct hl_grant_record *record = hl_grant_record_at(side->memory, index);
    switch (word.state) {
    case HL_GRANT_RESERVED:
        return prepare(side, record, index, word.generation);
    case HL_GRANT_GRANTED:
        return hl_random_below(&side->random, 4) == 0 &&
               move(side, index, word.generation, HL_GRANT_GRANTED, HL_GRANT_REVOKED);
    case HL_GRANT_PART_DRAINED:
        return grant_next(side, record, index, word.generation);
    case HL_GRANT_DRAINED:
    case HL_GRANT_REVOKED:
    case HL_GRANT_REJECTED:
        return reap(side, index, word);
    default:
        return false;
    }
}

/* --- both --- */

static bool all_retired(struct side *side)
{
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct hl_grant_word word = hl_grant_load(side->memory, i);
        if (word.state != HL_GRANT_FREE || word.generation != LIVES + 1)
            return false;
    }
    return true;
}

/* Ends when every record has lived its lives; or, should something be lost, after many fruitless rounds. */
static void live(struct side *side, turn take_turn)
{
    for (unsigned fruitless = 0; fruitless < MOST_FRUITLESS;) {
        bool done = false;
        for (uint32_t i = 0; i < RECORDS; i++)
            done |= take_turn(side, i);
        fruitless = done ? 0 : fruitless + 1;
        if (done)
            continue;
        if (all_retired(side))
            return;
        sched_yield();
    }
}

static void *act_as_engine(void *user)
{
    live(user, engine_turn);
    return NULL;
}

static void each_transition_publishes_what_was_written_before_it(void)
{
    static const unsigned char token[16] = "handover test";
    struct side engine = {0}, manager = {0};
    hl_grant_memory *memory = NULL;
    pthread_t thread;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &memory, &err), err);
    engine.memory = manager.memory = memory;
    hl_random_seed(&manager.random, 8);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, act_as_engine, &engine), 0);
    live(&manager, manager_turn);
    pthread_join(thread, NULL);
    CU_ASSERT_TRUE(all_retired(&manager));
    CU_ASSERT_EQUAL(engine.wrong, 0);
    CU_ASSERT_EQUAL(manager.wrong, 0);
    CU_ASSERT_EQUAL(engine.retired, RECORDS * LIVES);
    CU_ASSERT_EQUAL(manager.drained + manager.revoked + manager.rejected, RECORDS * LIVES);
    CU_ASSERT_TRUE(manager.rejected > 0);
    hl_grant_memory_close(memory);
}

HL_TESTS(handover, HL_CASE(each_transition_publishes_what_was_written_before_it));
