/* The protocol's two sides as threads over one session's memory: an engine's caller, worker and retirement
 * thread, and a Manager. All that the atomics of the record are to publish is plain memory: descriptors, the
 * plan bank, sources (overwritten as soon as they are released), results. An order that is too weak is a data
 * race that the thread sanitizer reports; a record that both sides win, or a stale one, is wrong without it
 * too.
 *
 * Weakened one at a time, each of these was reported in every one of five runs under the thread sanitizer:
 * the release and the acquire of hl_grant_move(), the acquire of hl_grant_load(), and release and acquire of
 * `submitted` and `consumed` as engine and Manager use them and as is done here. Not reported, as every
 * caller loads the word before or again: the acquire of hl_grant_copy() and that of a failed hl_grant_move().
 *
 * Each wait has an end: a thread that finds nothing to do for MOST_FRUITLESS rounds gives up, and the counts
 * then show what has not happened. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/random.h"
#include "core/grant/grant.h"
#include "core/testing/cunit.h"

enum { RECORDS = 24, LIVES = 800, PARTS = 3, BYTES = 64, ROOM = 6 * BYTES, MOST_FRUITLESS = 1 << 21 };

struct descriptor {
    uint32_t record, generation;
    unsigned char bytes[BYTES];
};

/* How a life ended, for each side: written by its own thread, compared after both have ended. */
struct life {
    uint8_t claims, drained, taken_back;
};
struct verdict {
    uint8_t grants, drained, revoked, rejected;
};

struct session {
    hl_grant_memory *memory;
    /* BYTES: what the compiler cannot know, so that each copy is a call, which the thread sanitizer sees. */
    size_t bytes;
    struct descriptor descriptors[RECORDS];
    unsigned char sources[RECORDS][PARTS][BYTES];
    /* the engine's */
    unsigned char pages[RECORDS][PARTS][BYTES];
    struct life lives[RECORDS][LIVES + 1];
    uint32_t begun[RECORDS]; /* the generation */
    uint32_t parts[RECORDS];
    bool asked[RECORDS];
    _Atomic uint32_t settled[RECORDS]; /* the generation that the worker is done with */
    hl_random engine_random;
    unsigned engine_wrong, retire_wrong;
    /* the Manager's */
    hl_bank *bank;
    struct verdict verdicts[RECORDS][LIVES + 1];
    uint32_t owned[RECORDS]; /* the generation, or 0 */
    uint32_t part[RECORDS];
    bool between[RECORDS];  /* its last part has been acknowledged, the next one not granted */
    bool unwanted[RECORDS]; /* to be revoked, unless it is claimed first */
    bool bank_held[RECORDS];
    uint32_t bank_offset[RECORDS];
    hl_random manager_random;
    unsigned manager_wrong, waited;
};

/* One record's turn: true when something was done. */
typedef bool (*turn)(struct session *session, uint32_t index);

static unsigned char pattern(uint32_t index, uint32_t generation, uint32_t part)
{
    return (unsigned char)(index * 31 + generation * 7 + part + 1);
}

static bool all_are(const unsigned char *bytes, unsigned char value)
{
    for (unsigned i = 0; i < BYTES; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* --- the engine's caller --- */

/* The compare-and-swap is all that tells it of the life before: it has loaded nothing. */
static bool caller_turn(struct session *session, uint32_t index)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    struct descriptor *descriptor = &session->descriptors[index];
    uint32_t generation = session->begun[index] + 1;
    if (generation > LIVES ||
        !hl_grant_move(session->memory, index, generation, HL_GRANT_FREE, HL_GRANT_RESERVED))
        return false;
    session->begun[index] = generation;
    *descriptor = (struct descriptor){.record = index, .generation = generation};
    memset(descriptor->bytes, pattern(index, generation, 0), session->bytes);
    record->descriptor_offset = index;
    record->descriptor_bytes = generation;
    record->bytes = 0;
    session->parts[index] = 0;
    session->asked[index] = false;
    atomic_store_explicit(&record->cancel, 0, memory_order_relaxed);
    atomic_store_explicit(&record->consumed, 0, memory_order_relaxed);
    atomic_store_explicit(&record->submitted, generation, memory_order_release);
    return true;
}

/* --- the engine's worker --- */

static void settle(struct session *session, uint32_t index, uint32_t generation)
{
    atomic_store_explicit(&session->settled[index], generation, memory_order_release);
}

static bool is_settled(struct session *session, uint32_t index, uint32_t generation)
{
    return atomic_load_explicit(&session->settled[index], memory_order_acquire) == generation;
}

static void conclude(struct session *session, uint32_t index, uint32_t generation)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    record->status = HL_OK;
    record->bytes = generation;
    for (unsigned i = 0; i < HL_STAGE_COUNT; i++)
        record->stage_ns[i] = generation + i;
    memset(record->text, 0, sizeof record->text);
    session->lives[index][generation].drained = 1;
    session->engine_wrong +=
        !hl_grant_move(session->memory, index, generation, HL_GRANT_ACTIVE, HL_GRANT_DRAINED);
    settle(session, index, generation);
}

/* Out of the bank first, whose room may then be another's; then from the sources to the pages. */
static void run_part(struct session *session, uint32_t index, uint32_t generation)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    unsigned char plan[BYTES];
    uint32_t part = session->parts[index];
    if (!hl_grant_move(session->memory, index, generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE))
        return; /* revoked meanwhile */
    session->lives[index][generation].claims++;
    session->engine_wrong += record->part_index != part || record->bank_bytes != BYTES;
    memcpy(plan, (unsigned char *)hl_grant_bank(session->memory) + record->bank_offset, session->bytes);
    session->engine_wrong += !all_are(plan, pattern(index, generation, part));
    session->parts[index]++;
    atomic_store_explicit(&record->consumed, part + 1, memory_order_release);
    /* A copy takes its time: the Manager may see ACTIVE, and use the room for another part. */
    for (uint64_t i = hl_random_below(&session->engine_random, 4); i > 0; i--)
        sched_yield();
    memcpy(session->pages[index][part], session->sources[index][part], session->bytes);
    session->engine_wrong += !all_are(session->pages[index][part], pattern(index, generation, part));
    if (part + 1 == PARTS)
        conclude(session, index, generation);
    else
        session->engine_wrong +=
            !hl_grant_move(session->memory, index, generation, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED);
}

/* Now and then takes back what has not been taken up, or asks to cancel. */
static bool look_at_waiting(struct session *session, uint32_t index, struct hl_grant_word word)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    if (atomic_load_explicit(&record->submitted, memory_order_acquire) != word.generation ||
        session->asked[index] || hl_random_below(&session->engine_random, 16) != 0)
        return false;
    session->asked[index] = true;
    if (word.state == HL_GRANT_RESERVED) {
        session->lives[index][word.generation].taken_back = 1;
        if (hl_grant_move(session->memory, index, word.generation, HL_GRANT_RESERVED, HL_GRANT_FREE))
            return true;
        session->lives[index][word.generation].taken_back = 0;
    }
    atomic_store_explicit(&record->cancel, word.generation, memory_order_release);
    return true;
}

/* The Manager has copied the descriptor by the time that anything but PREPARING is seen. */
static void give_extent(struct session *session, uint32_t index)
{
    memset(session->descriptors[index].bytes, 0xdd, session->bytes);
}

static bool worker_turn(struct session *session, uint32_t index)
{
    struct hl_grant_word word = hl_grant_load(session->memory, index);
    if (word.state == HL_GRANT_RESERVED || word.state == HL_GRANT_PREPARING)
        return look_at_waiting(session, index, word);
    if (word.state == HL_GRANT_GRANTED) {
        give_extent(session, index);
        run_part(session, index, word.generation);
        return true;
    }
    bool ended =
        word.state == HL_GRANT_REVOKED || word.state == HL_GRANT_REJECTED || word.state == HL_GRANT_REAPED;
    if (!ended || is_settled(session, index, word.generation))
        return false;
    give_extent(session, index);
    settle(session, index, word.generation);
    return true;
}

/* --- the engine's retirement thread --- */

static bool retire_turn(struct session *session, uint32_t index)
{
    struct hl_grant_word word = hl_grant_load(session->memory, index);
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    if (word.state != HL_GRANT_REAPED || !is_settled(session, index, word.generation))
        return false;
    bool known = record->status == HL_OK || record->status == HL_E_EXPIRED || record->status == HL_E_BUDGET ||
                 record->status == HL_E_CANCELLED;
    session->retire_wrong += !known || (record->status != HL_OK && strcmp(record->text, "why") != 0);
    session->retire_wrong +=
        !hl_grant_move(session->memory, index, word.generation, HL_GRANT_REAPED, HL_GRANT_FREE);
    return true;
}

/* --- the Manager --- */

static bool must_move(struct session *session, uint32_t index, uint32_t generation, enum hl_grant_state from,
                      enum hl_grant_state to)
{
    bool moved = hl_grant_move(session->memory, index, generation, from, to);
    session->manager_wrong += !moved;
    return moved;
}

static void explain(struct session *session, uint32_t index, hl_status status)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    record->status = status;
    memcpy(record->text, "why", 4);
}

static void give_bank(struct session *session, uint32_t index)
{
    if (session->bank_held[index])
        hl_bank_give(session->bank, session->bank_offset[index], BYTES);
    session->bank_held[index] = false;
}

/* Whatever is written there next may come at once. */
static void release(struct session *session, uint32_t index)
{
    give_bank(session, index);
    memset(session->sources[index], 0xee, PARTS * session->bytes);
    session->owned[index] = 0;
}

static bool grant(struct session *session, uint32_t index, enum hl_grant_state from)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    uint32_t generation = session->owned[index], part = session->part[index];
    if (!hl_bank_take(session->bank, BYTES, &session->bank_offset[index])) {
        session->waited++;
        return false;
    }
    session->bank_held[index] = true;
    memset((unsigned char *)hl_grant_bank(session->memory) + session->bank_offset[index],
           pattern(index, generation, part), session->bytes);
    record->part_index = (uint16_t)part;
    record->part_count = PARTS;
    record->bank_offset = session->bank_offset[index];
    record->bank_bytes = BYTES;
    explain(session, index, HL_E_EXPIRED);
    session->verdicts[index][generation].grants++;
    session->between[index] = false;
    session->unwanted[index] = hl_random_below(&session->manager_random, 4) == 0;
    return must_move(session, index, generation, from, HL_GRANT_GRANTED);
}

static bool reject(struct session *session, uint32_t index, uint32_t generation, hl_status status)
{
    explain(session, index, status);
    session->verdicts[index][generation].rejected = 1;
    must_move(session, index, generation, HL_GRANT_PREPARING, HL_GRANT_REJECTED);
    return must_move(session, index, generation, HL_GRANT_REJECTED, HL_GRANT_REAPED);
}

static bool is_cancelled(struct session *session, uint32_t index, uint32_t generation)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    return atomic_load_explicit(&record->cancel, memory_order_acquire) == generation;
}

static bool prepare(struct session *session, uint32_t index, uint32_t generation)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    if (atomic_load_explicit(&record->submitted, memory_order_acquire) != generation ||
        !hl_grant_move(session->memory, index, generation, HL_GRANT_RESERVED, HL_GRANT_PREPARING))
        return false;
    const struct descriptor *descriptor = &session->descriptors[index];
    session->manager_wrong += descriptor->record != index || descriptor->generation != generation ||
                              record->descriptor_offset != index || record->descriptor_bytes != generation ||
                              !all_are(descriptor->bytes, pattern(index, generation, 0));
    if (is_cancelled(session, index, generation))
        return reject(session, index, generation, HL_E_CANCELLED);
    if (hl_random_below(&session->manager_random, 8) == 0)
        return reject(session, index, generation, HL_E_BUDGET);
    for (uint32_t part = 0; part < PARTS; part++)
        memset(session->sources[index][part], pattern(index, generation, part), session->bytes);
    session->owned[index] = generation;
    session->part[index] = 0;
    session->between[index] = false;
    grant(session, index, HL_GRANT_PREPARING);
    return true;
}

static bool revoke(struct session *session, uint32_t index, uint32_t generation, enum hl_grant_state from)
{
    if (!hl_grant_move(session->memory, index, generation, from, HL_GRANT_REVOKED))
        return false; /* claimed first */
    session->verdicts[index][generation].revoked = 1;
    release(session, index);
    return must_move(session, index, generation, HL_GRANT_REVOKED, HL_GRANT_REAPED);
}

/* Acknowledged once; then granted as soon as the bank has room. */
static bool next_part(struct session *session, uint32_t index, uint32_t generation)
{
    if (!session->between[index]) {
        give_bank(session, index);
        session->part[index]++;
        session->between[index] = true;
    }
    if (is_cancelled(session, index, generation)) {
        explain(session, index, HL_E_CANCELLED);
        return revoke(session, index, generation, HL_GRANT_PART_DRAINED);
    }
    return grant(session, index, HL_GRANT_PART_DRAINED);
}

static bool look_at_prepared(struct session *session, uint32_t index, uint32_t generation)
{
    if (!is_cancelled(session, index, generation))
        return grant(session, index, HL_GRANT_PREPARING);
    release(session, index);
    return reject(session, index, generation, HL_E_CANCELLED);
}

static bool note_consumed(struct session *session, uint32_t index)
{
    struct hl_grant_record *record = hl_grant_record_at(session->memory, index);
    if (!session->bank_held[index] ||
        atomic_load_explicit(&record->consumed, memory_order_acquire) != session->part[index] + 1)
        return false;
    give_bank(session, index);
    return true;
}

static bool end_drained(struct session *session, uint32_t index, uint32_t generation)
{
    struct hl_grant_record copy;
    hl_grant_copy(session->memory, index, &copy);
    session->manager_wrong += !hl_grant_record_is_sane(&copy) || copy.status != HL_OK ||
                              copy.bytes != generation || copy.text[0] != '\0' ||
                              copy.stage_ns[HL_STAGE_DRAINED] != generation + HL_STAGE_DRAINED ||
                              atomic_load(&copy.consumed) != PARTS;
    session->verdicts[index][generation].drained = 1;
    release(session, index);
    return must_move(session, index, generation, HL_GRANT_DRAINED, HL_GRANT_REAPED);
}

static bool manager_turn(struct session *session, uint32_t index)
{
    struct hl_grant_word word = hl_grant_load(session->memory, index);
    bool owned = session->owned[index] != 0;
    session->manager_wrong += owned && session->owned[index] != word.generation;
    session->manager_wrong += hl_grant_state_needs_owner(word.state) && !owned;
    switch (word.state) {
    case HL_GRANT_RESERVED:
        return prepare(session, index, word.generation);
    case HL_GRANT_PREPARING:
        return look_at_prepared(session, index, word.generation);
    case HL_GRANT_GRANTED:
        return (is_cancelled(session, index, word.generation) || session->unwanted[index]) &&
               revoke(session, index, word.generation, HL_GRANT_GRANTED);
    case HL_GRANT_ACTIVE:
        return note_consumed(session, index);
    case HL_GRANT_PART_DRAINED:
        return next_part(session, index, word.generation);
    case HL_GRANT_DRAINED:
        return end_drained(session, index, word.generation);
    default:
        return false;
    }
}

/* --- all --- */

static bool all_retired(struct session *session)
{
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct hl_grant_word word = hl_grant_load(session->memory, i);
        if (word.state != HL_GRANT_FREE || word.generation != LIVES + 1)
            return false;
    }
    return true;
}

static void live(struct session *session, turn take_turn)
{
    for (unsigned fruitless = 0; fruitless < MOST_FRUITLESS;) {
        bool done = false;
        for (uint32_t i = 0; i < RECORDS; i++)
            done = take_turn(session, i) || done;
        fruitless = done ? 0 : fruitless + 1;
        if (done)
            continue;
        if (all_retired(session))
            return;
        sched_yield();
    }
}

static void *act_as_caller(void *session)
{
    live(session, caller_turn);
    return NULL;
}

static void *act_as_worker(void *session)
{
    live(session, worker_turn);
    return NULL;
}

static void *act_as_retirement(void *session)
{
    live(session, retire_turn);
    return NULL;
}

struct totals {
    unsigned drained, revoked, rejected, taken_back;
};

/* Exactly one side has won: each part that was granted was claimed, but for the last one of a life that was
 * revoked instead; and both sides have the same end of each life. */
static void compare(const struct session *session, struct totals *totals)
{
    unsigned wrong = 0;
    for (uint32_t i = 0; i < RECORDS; i++)
        for (uint32_t generation = 1; generation <= LIVES; generation++) {
            const struct life *life = &session->lives[i][generation];
            const struct verdict *verdict = &session->verdicts[i][generation];
            wrong += life->drained + verdict->revoked + verdict->rejected + life->taken_back != 1;
            wrong += life->drained != verdict->drained;
            wrong += life->drained && (life->claims != PARTS || verdict->grants != PARTS);
            wrong += life->claims > verdict->grants || verdict->grants - life->claims > verdict->revoked;
            totals->drained += life->drained;
            totals->revoked += verdict->revoked;
            totals->rejected += verdict->rejected;
            totals->taken_back += life->taken_back;
        }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void each_order_publishes_and_each_race_has_one_winner(void)
{
    static const unsigned char token[16] = "threads test";
    void *(*const roles[])(void *) = {act_as_caller, act_as_worker, act_as_retirement};
    struct session *session = calloc(1, sizeof *session);
    struct totals totals = {0};
    pthread_t threads[3];
    hl_error err;
    CU_ASSERT_PTR_NOT_NULL_FATAL(session);
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &session->memory, &err), err);
    HL_REQUIRE_OK(hl_bank_create(ROOM, &session->bank, &err), err);
    session->bytes = BYTES;
    hl_random_seed(&session->engine_random, 3);
    hl_random_seed(&session->manager_random, 8);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, roles[i], session), 0);
    live(session, manager_turn);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_TRUE(all_retired(session));
    CU_ASSERT_EQUAL(session->engine_wrong + session->retire_wrong, 0);
    CU_ASSERT_EQUAL(session->manager_wrong, 0);
    CU_ASSERT_EQUAL(hl_bank_used(session->bank), 0);
    compare(session, &totals);
    CU_ASSERT_TRUE(totals.drained > 0 && totals.rejected > 0);
    printf("%u lives: %u drained, %u revoked, %u rejected, %u taken back; %u looks found the bank full\n",
           RECORDS * LIVES, totals.drained, totals.revoked, totals.rejected, totals.taken_back,
           session->waited);
    hl_bank_destroy(session->bank);
    hl_grant_memory_close(session->memory);
    free(session);
}

HL_TESTS(interleaving_threads, HL_CASE(each_order_publishes_and_each_race_has_one_winner));
