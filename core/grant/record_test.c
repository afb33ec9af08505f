#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

static const unsigned char token[16] = "record test";

/* The table of grant.h once more, written independently of the code: what each state may become. */
static const char *const table[HL_GRANT_STATE_COUNT] = {
    [HL_GRANT_FREE] = " RESERVED ",
    [HL_GRANT_RESERVED] = " FREE PREPARING ",
    [HL_GRANT_PREPARING] = " GRANTED MANAGED REJECTED ",
    [HL_GRANT_GRANTED] = " ACTIVE REVOKED ",
    [HL_GRANT_MANAGED] = " COMPLETED ",
    [HL_GRANT_ACTIVE] = " PART_DRAINED DRAINED ",
    [HL_GRANT_PART_DRAINED] = " GRANTED REVOKED ",
    [HL_GRANT_DRAINED] = " REAPED ",
    [HL_GRANT_COMPLETED] = " REAPED ",
    [HL_GRANT_REVOKED] = " REAPED ",
    [HL_GRANT_REJECTED] = " REAPED ",
    [HL_GRANT_REAPED] = " FREE ",
};

static bool in_table(uint32_t from, uint32_t to)
{
    char word[32];
    snprintf(word, sizeof word, " %s ", hl_grant_state_name(to));
    return strstr(table[from], word) != NULL;
}

static hl_grant_memory *must_create(void)
{
    hl_grant_memory *memory = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &memory, &err), err);
    return memory;
}

static void put(hl_grant_memory *memory, uint32_t index, uint32_t generation, uint32_t state)
{
    atomic_store(&hl_grant_record_at(memory, index)->word, hl_grant_word_of(generation, state));
}

static uint64_t raw(hl_grant_memory *memory, uint32_t index)
{
    return atomic_load(&hl_grant_record_at(memory, index)->word);
}

/* How a copy of this process ends that does only this. This process has one thread. */
static int outcome_of(void (*act)(hl_grant_memory *, uint32_t, uint32_t), hl_grant_memory *memory, uint32_t a,
                      uint32_t b)
{
    int status = 0;
    pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        close(STDERR_FILENO);
        act(memory, a, b);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    return status;
}

static bool aborts(void (*act)(hl_grant_memory *, uint32_t, uint32_t), hl_grant_memory *memory, uint32_t a,
                   uint32_t b)
{
    int status = outcome_of(act, memory, a, b);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* --- the table --- */

static void every_transition_of_the_table_works(void)
{
    hl_grant_memory *memory = must_create();
    unsigned count = 0;
    for (uint32_t from = 0; from < HL_GRANT_STATE_COUNT; from++)
        for (uint32_t to = 0; to < HL_GRANT_STATE_COUNT; to++) {
            CU_ASSERT_EQUAL(hl_grant_transition_exists(from, to), in_table(from, to));
            if (!in_table(from, to))
                continue;
            count++;
            put(memory, 5, 7, from);
            CU_ASSERT_TRUE(hl_grant_move(memory, 5, 7, from, to));
            struct hl_grant_word word = hl_grant_load(memory, 5);
            CU_ASSERT_EQUAL(word.state, to);
            CU_ASSERT_EQUAL(word.generation, to == HL_GRANT_FREE ? 8 : 7);
        }
    CU_ASSERT_EQUAL(count, 18);
    hl_grant_memory_close(memory);
}

static void move(hl_grant_memory *memory, uint32_t from, uint32_t to)
{
    hl_grant_move(memory, 5, 7, (enum hl_grant_state)from, (enum hl_grant_state)to);
}

static void every_other_transition_aborts(void)
{
    hl_grant_memory *memory = must_create();
    CU_ASSERT_FALSE(aborts(move, memory, HL_GRANT_FREE, HL_GRANT_RESERVED));
    for (uint32_t from = 0; from <= HL_GRANT_STATE_COUNT; from++)
        for (uint32_t to = 0; to <= HL_GRANT_STATE_COUNT; to++) {
            bool known = from < HL_GRANT_STATE_COUNT && to < HL_GRANT_STATE_COUNT;
            if (known && in_table(from, to))
                continue;
            CU_ASSERT_FALSE(hl_grant_transition_exists(from, to));
            put(memory, 5, 7, from);
            if (!aborts(move, memory, from, to)) {
                fprintf(stderr, "%s to %s\n", hl_grant_state_name(from), hl_grant_state_name(to));
                CU_FAIL("the transition did not abort");
            }
            CU_ASSERT_EQUAL(raw(memory, 5), hl_grant_word_of(7, from));
        }
    hl_grant_memory_close(memory);
}

static void look(hl_grant_memory *memory, uint32_t index, uint32_t how)
{
    if (how == 0)
        hl_grant_load(memory, index);
    else if (how == 1)
        hl_grant_mark(memory, index);
    else
        hl_grant_record_at(memory, index);
}

static void an_index_beyond_the_records_aborts(void)
{
    hl_grant_memory *memory = must_create();
    for (uint32_t how = 0; how < 3; how++) {
        CU_ASSERT_TRUE(aborts(look, memory, HL_GRANT_RECORDS, how));
        CU_ASSERT_FALSE(aborts(look, memory, HL_GRANT_RECORDS - 1, how));
    }
    hl_grant_memory_close(memory);
}

/* I4 for one record: only the exact generation and state are moved. */
static void another_generation_or_state_changes_nothing(void)
{
    static const uint32_t stale[] = {0, 1, 6, 8, 7u << 8, UINT32_MAX};
    hl_grant_memory *memory = must_create();
    unsigned char *record = (unsigned char *)hl_grant_record_at(memory, 9);
    memset(record, 0x5a, sizeof(struct hl_grant_record));
    for (uint32_t at = 0; at < HL_GRANT_STATE_COUNT; at++)
        for (uint32_t from = 0; from < HL_GRANT_STATE_COUNT; from++)
            for (uint32_t to = 0; to < HL_GRANT_STATE_COUNT; to++) {
                if (!hl_grant_transition_exists(from, to))
                    continue;
                unsigned char before[sizeof(struct hl_grant_record)];
                put(memory, 9, 7, at);
                memcpy(before, record, sizeof before);
                for (unsigned i = 0; i < sizeof stale / sizeof stale[0]; i++)
                    CU_ASSERT_FALSE(hl_grant_move(memory, 9, stale[i], from, to));
                if (at != from)
                    CU_ASSERT_FALSE(hl_grant_move(memory, 9, 7, from, to));
                CU_ASSERT_EQUAL(memcmp(before, record, sizeof before), 0);
            }
    hl_grant_memory_close(memory);
}

static void a_move_touches_its_own_record_only(void)
{
    static unsigned char before[HL_GRANT_MEMORY_BYTES];
    hl_grant_memory *memory = must_create();
    const unsigned char *base = (const unsigned char *)memory->shared;
    memcpy(before, base, sizeof before);
    CU_ASSERT_TRUE(hl_grant_move(memory, 500, 1, HL_GRANT_FREE, HL_GRANT_RESERVED));
    CU_ASSERT_EQUAL(raw(memory, 500), hl_grant_word_of(1, HL_GRANT_RESERVED));
    put(memory, 500, 1, HL_GRANT_FREE);
    CU_ASSERT_EQUAL(memcmp(before, base, sizeof before), 0);
    hl_grant_memory_close(memory);
}

/* --- generations --- */

static void each_return_to_free_leaves_the_next_generation(void)
{
    hl_grant_memory *memory = must_create();
    struct hl_grant_word word = hl_grant_load(memory, 0);
    CU_ASSERT_EQUAL(word.generation, 1);
    for (uint32_t generation = 1; generation < 100; generation++) {
        CU_ASSERT_TRUE(hl_grant_move(memory, 0, generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
        CU_ASSERT_TRUE(hl_grant_move(memory, 0, generation, HL_GRANT_RESERVED, HL_GRANT_FREE));
        CU_ASSERT_FALSE(hl_grant_move(memory, 0, generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
    }
    hl_grant_memory_close(memory);
}

static void the_last_generation_is_followed_by_the_first(void)
{
    hl_grant_memory *memory = must_create();
    put(memory, 3, UINT32_MAX - 1, HL_GRANT_REAPED);
    CU_ASSERT_TRUE(hl_grant_move(memory, 3, UINT32_MAX - 1, HL_GRANT_REAPED, HL_GRANT_FREE));
    CU_ASSERT_EQUAL(raw(memory, 3), hl_grant_word_of(UINT32_MAX, HL_GRANT_FREE));
    CU_ASSERT_TRUE(hl_grant_move(memory, 3, UINT32_MAX, HL_GRANT_FREE, HL_GRANT_RESERVED));
    CU_ASSERT_TRUE(hl_grant_move(memory, 3, UINT32_MAX, HL_GRANT_RESERVED, HL_GRANT_FREE));
    CU_ASSERT_EQUAL(raw(memory, 3), hl_grant_word_of(1, HL_GRANT_FREE)); /* 0 is no generation */
    hl_grant_memory_close(memory);
}

/* --- scribbled words --- */

static void no_move_succeeds_from_a_scribbled_word(void)
{
    static const uint32_t states[] = {HL_GRANT_STATE_COUNT, 0x7f,       0xff, 0x100 | HL_GRANT_GRANTED,
                                      0x80000000u,          UINT32_MAX, 0x100};
    hl_grant_memory *memory = must_create();
    for (unsigned i = 0; i < sizeof states / sizeof states[0]; i++) {
        put(memory, 1, 7, states[i]);
        struct hl_grant_word word = hl_grant_load(memory, 1);
        CU_ASSERT_EQUAL(word.generation, 7);
        CU_ASSERT_TRUE(word.state >= HL_GRANT_STATE_COUNT);
        CU_ASSERT_STRING_EQUAL(hl_grant_state_name(word.state), "unknown");
        for (uint32_t from = 0; from < HL_GRANT_STATE_COUNT; from++)
            for (uint32_t to = 0; to < HL_GRANT_STATE_COUNT; to++)
                if (hl_grant_transition_exists(from, to))
                    CU_ASSERT_FALSE(hl_grant_move(memory, 1, 7, from, to));
        CU_ASSERT_EQUAL(raw(memory, 1), hl_grant_word_of(7, states[i]));
    }
    hl_grant_memory_close(memory);
}

static void every_state_has_its_name(void)
{
    CU_ASSERT_STRING_EQUAL(hl_grant_state_name(HL_GRANT_FREE), "FREE");
    CU_ASSERT_STRING_EQUAL(hl_grant_state_name(HL_GRANT_PART_DRAINED), "PART_DRAINED");
    CU_ASSERT_STRING_EQUAL(hl_grant_state_name(HL_GRANT_REAPED), "REAPED");
    CU_ASSERT_STRING_EQUAL(hl_grant_state_name(HL_GRANT_STATE_COUNT), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_grant_state_name(UINT32_MAX), "unknown");
}

HL_TESTS(record, HL_CASE(every_transition_of_the_table_works), HL_CASE(every_other_transition_aborts),
         HL_CASE(an_index_beyond_the_records_aborts), HL_CASE(another_generation_or_state_changes_nothing),
         HL_CASE(a_move_touches_its_own_record_only), HL_CASE(each_return_to_free_leaves_the_next_generation),
         HL_CASE(the_last_generation_is_followed_by_the_first),
         HL_CASE(no_move_succeeds_from_a_scribbled_word), HL_CASE(every_state_has_its_name));
