#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/random.h"
#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

static const unsigned char token[16] = "marks test";
static uint32_t indices[HL_GRANT_RECORDS];

static hl_grant_memory *must_create(void)
{
    hl_grant_memory *memory = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &memory, &err), err);
    return memory;
}

/* --- one thread --- */

static void each_mark_is_taken_once(void)
{
    hl_grant_memory *memory = must_create();
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 0);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++) {
        hl_grant_mark(memory, i);
        hl_grant_mark(memory, i); /* marked twice, taken once */
        CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 1);
        CU_ASSERT_EQUAL(indices[0], i);
        CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 0);
    }
    hl_grant_memory_close(memory);
}

static void any_set_of_marks_is_taken_in_ascending_order(void)
{
    hl_grant_memory *memory = must_create();
    hl_random random;
    hl_random_seed(&random, 5);
    for (unsigned round = 0; round < 500; round++) {
        bool marked[HL_GRANT_RECORDS] = {false};
        size_t expected = 0;
        for (uint64_t left = hl_random_below(&random, 2000); left > 0; left--) {
            uint32_t index = (uint32_t)hl_random_below(&random, HL_GRANT_RECORDS);
            hl_grant_mark(memory, index);
            expected += !marked[index];
            marked[index] = true;
        }
        size_t count = hl_grant_take_marks(memory, indices);
        CU_ASSERT_EQUAL(count, expected);
        for (size_t i = 0; i < count; i++) {
            CU_ASSERT_TRUE(marked[indices[i]]);
            CU_ASSERT_TRUE(i == 0 || indices[i - 1] < indices[i]);
        }
    }
    hl_grant_memory_close(memory);
}

static void all_marks_fit(void)
{
    hl_grant_memory *memory = must_create();
    memset(memory->shared->header.dirty, 0xff, sizeof memory->shared->header.dirty); /* or scribbled */
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), HL_GRANT_RECORDS);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        CU_ASSERT_EQUAL(indices[i], i);
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 0);
    hl_grant_memory_close(memory);
}

/* G7: records that nobody marked are not looked at. */
static void taking_reads_no_record(void)
{
    hl_grant_memory *memory = must_create();
    hl_grant_mark(memory, 0);
    hl_grant_mark(memory, 1023);
    memset(memory->shared->records, 0xa5, sizeof memory->shared->records);
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 2);
    CU_ASSERT_EQUAL(indices[0], 0);
    CU_ASSERT_EQUAL(indices[1], 1023);
    hl_grant_memory_close(memory);
}

/* --- several threads mark while one takes --- */

enum { MARKERS = 4, ROUNDS = 300, OWN = 48, MOST_FRUITLESS = 1 << 23 };

struct board {
    hl_grant_memory *memory;
    uint64_t written[HL_GRANT_RECORDS];          /* plain: only the mark publishes it */
    _Atomic uint64_t answered[HL_GRANT_RECORDS]; /* the last `written` that the taker saw */
    _Atomic uint64_t counted[HL_GRANT_RECORDS];
    atomic_uint finished;
    atomic_bool abandoned; /* a mark was lost: nobody waits any longer */
};

struct marker {
    struct board *board;
    unsigned number;
};

/* Record number `i` of a marker; those of all markers share words of the bitset. */
static uint32_t own_record(const struct marker *marker, unsigned i)
{
    return (i * MARKERS + marker->number) * 5 % HL_GRANT_RECORDS;
}

/* Writes, marks, and waits until the taker has answered before it writes again, so that the plain writes are
 * no data race exactly if a mark publishes what precedes it: the thread sanitizer is the judge. */
static void *mark_and_wait(void *user)
{
    struct marker *marker = user;
    struct board *board = marker->board;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned i = 0; i < OWN; i++) {
            uint32_t index = own_record(marker, i);
            board->written[index] = round;
            hl_grant_mark(board->memory, index);
        }
        for (unsigned i = 0; i < OWN; i++)
            while (atomic_load_explicit(&board->answered[own_record(marker, i)], memory_order_acquire) !=
                       round &&
                   !atomic_load(&board->abandoned))
                sched_yield();
    }
    atomic_fetch_add(&board->finished, 1);
    return NULL;
}

/* Marks without waiting: many marks of a record fall together, and the last one must not be lost. */
static void *mark_freely(void *user)
{
    struct marker *marker = user;
    struct board *board = marker->board;
    hl_random random;
    hl_random_seed(&random, marker->number);
    for (unsigned i = 0; i < ROUNDS * OWN; i++) {
        uint32_t index = own_record(marker, (unsigned)hl_random_below(&random, OWN));
        atomic_fetch_add_explicit(&board->counted[index], 1, memory_order_relaxed);
        hl_grant_mark(board->memory, index);
    }
    atomic_fetch_add_explicit(&board->finished, 1, memory_order_release);
    return NULL;
}

static void start(struct board *board, struct marker *markers, pthread_t *threads, void *(*run)(void *))
{
    memset(board, 0, sizeof *board);
    board->memory = must_create();
    for (unsigned i = 0; i < MARKERS; i++) {
        markers[i] = (struct marker){board, i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, run, &markers[i]), 0);
    }
}

static void finish(struct board *board, pthread_t *threads)
{
    for (unsigned i = 0; i < MARKERS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(hl_grant_take_marks(board->memory, indices), 0);
    hl_grant_memory_close(board->memory);
}

static void what_was_written_before_a_mark_is_seen_by_its_taker(void)
{
    static struct board board;
    struct marker markers[MARKERS];
    pthread_t threads[MARKERS];
    uint64_t answers = 0, wrong = 0, fruitless = 0;
    start(&board, markers, threads, mark_and_wait);
    while (answers < (uint64_t)MARKERS * OWN * ROUNDS && fruitless < MOST_FRUITLESS) {
        size_t count = hl_grant_take_marks(board.memory, indices);
        for (size_t i = 0; i < count; i++) {
            uint64_t before = atomic_load_explicit(&board.answered[indices[i]], memory_order_relaxed);
            uint64_t seen = board.written[indices[i]];
            wrong += seen != before + 1;
            atomic_store_explicit(&board.answered[indices[i]], seen, memory_order_release);
        }
        answers += count;
        fruitless = count == 0 ? fruitless + 1 : 0;
        if (count == 0)
            sched_yield();
    }
    atomic_store(&board.abandoned, fruitless == MOST_FRUITLESS);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(answers, (uint64_t)MARKERS * OWN * ROUNDS);
    finish(&board, threads);
    CU_ASSERT_EQUAL(atomic_load(&board.finished), MARKERS);
}

static void no_mark_is_lost_while_others_mark_and_one_takes(void)
{
    static struct board board;
    struct marker markers[MARKERS];
    pthread_t threads[MARKERS];
    static uint64_t seen[HL_GRANT_RECORDS];
    bool last = false;
    start(&board, markers, threads, mark_freely);
    for (;;) {
        size_t count = hl_grant_take_marks(board.memory, indices);
        for (size_t i = 0; i < count; i++)
            seen[indices[i]] = atomic_load_explicit(&board.counted[indices[i]], memory_order_relaxed);
        if (last)
            break;
        last = atomic_load_explicit(&board.finished, memory_order_acquire) == MARKERS;
    }
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        CU_ASSERT_EQUAL(seen[i], atomic_load(&board.counted[i]));
    finish(&board, threads);
}

HL_TESTS(marks, HL_CASE(each_mark_is_taken_once), HL_CASE(any_set_of_marks_is_taken_in_ascending_order),
         HL_CASE(all_marks_fit), HL_CASE(taking_reads_no_record),
         HL_CASE(what_was_written_before_a_mark_is_seen_by_its_taker),
         HL_CASE(no_mark_is_lost_while_others_mark_and_one_takes));
