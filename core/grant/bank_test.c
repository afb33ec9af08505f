#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/grant/grant.h"
#include "core/testing/cunit.h"

enum { UNIT = HL_BANK_UNIT_BYTES, MOST_UNITS = HL_PLAN_PART_BYTES / UNIT };

static hl_bank *must_create(uint32_t bytes)
{
    hl_bank *bank = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_bank_create(bytes, &bank, &err), err);
    return bank;
}

static void a_size_that_is_no_bank_is_refused(void)
{
    static const struct {
        uint32_t bytes;
        hl_status status;
    } cases[] = {{0, HL_E_INVALID},
                 {63, HL_E_INVALID},
                 {65, HL_E_INVALID},
                 {UINT32_MAX, HL_E_INVALID},
                 {HL_PLAN_PART_BYTES + UNIT, HL_E_LIMIT},
                 {UINT32_MAX - UNIT + 1, HL_E_LIMIT}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hl_bank *bank = NULL;
        hl_error err = {0};
        HL_EXPECT_STATUS(hl_bank_create(cases[i].bytes, &bank, &err), cases[i].status, err);
        CU_ASSERT_PTR_NULL(bank);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "bytes is "));
    }
    hl_bank_destroy(NULL);
}

static void a_whole_bank_is_taken_at_once(void)
{
    hl_bank *bank = must_create(HL_PLAN_PART_BYTES);
    uint32_t offset = 7;
    CU_ASSERT_FALSE(hl_bank_take(bank, HL_PLAN_PART_BYTES + 1, &offset));
    CU_ASSERT_FALSE(hl_bank_take(bank, UINT32_MAX, &offset));
    CU_ASSERT_EQUAL(offset, 7);
    for (unsigned round = 0; round < 3; round++) {
        CU_ASSERT_TRUE(hl_bank_take(bank, HL_PLAN_PART_BYTES, &offset));
        CU_ASSERT_EQUAL(offset, 0);
        CU_ASSERT_EQUAL(hl_bank_used(bank), HL_PLAN_PART_BYTES);
        CU_ASSERT_FALSE(hl_bank_take(bank, 1, &offset));
        hl_bank_give(bank, 0, HL_PLAN_PART_BYTES);
        CU_ASSERT_EQUAL(hl_bank_used(bank), 0);
    }
    hl_bank_destroy(bank);
}

/* Every unit taken alone, then given back in an order that merges to the left, to the right and both. */
static void a_full_and_fragmented_bank_becomes_whole_again(void)
{
    static uint32_t order[MOST_UNITS];
    hl_bank *bank = must_create(HL_PLAN_PART_BYTES);
    hl_random random;
    uint32_t offset = 7;
    for (unsigned i = 0; i < MOST_UNITS; i += 8) {
        for (unsigned j = 0; j < 8; j++) {
            CU_ASSERT_TRUE(hl_bank_take(bank, UNIT - j, &offset));
            CU_ASSERT_EQUAL(offset, (i + j) * UNIT);
        }
    }
    offset = 7;
    CU_ASSERT_EQUAL(hl_bank_used(bank), HL_PLAN_PART_BYTES);
    CU_ASSERT_FALSE(hl_bank_take(bank, 1, &offset));
    for (unsigned i = 1; i < MOST_UNITS; i += 2) /* every second: half is free and nothing larger fits */
        hl_bank_give(bank, i * UNIT, UNIT - i % 8);
    CU_ASSERT_EQUAL(hl_bank_used(bank), HL_PLAN_PART_BYTES / 2);
    CU_ASSERT_FALSE(hl_bank_take(bank, UNIT + 1, &offset));
    CU_ASSERT_EQUAL(offset, 7);
    hl_random_seed(&random, 3);
    hl_random_permutation(&random, order, MOST_UNITS / 2);
    for (unsigned i = 0; i < MOST_UNITS / 2; i++)
        hl_bank_give(bank, 2 * order[i] * UNIT, UNIT - 2 * order[i] % 8);
    CU_ASSERT_EQUAL(hl_bank_used(bank), 0);
    CU_ASSERT_TRUE(hl_bank_take(bank, HL_PLAN_PART_BYTES, &offset));
    CU_ASSERT_EQUAL(offset, 0);
    hl_bank_destroy(bank);
}

static void the_first_gap_that_fits_is_taken(void)
{
    hl_bank *bank = must_create(10 * UNIT);
    uint32_t offset = 7;
    for (unsigned i = 0; i < 5; i++)
        CU_ASSERT_TRUE(hl_bank_take(bank, 2 * UNIT, &offset));
    hl_bank_give(bank, 2 * UNIT, 2 * UNIT);
    hl_bank_give(bank, 6 * UNIT, 2 * UNIT);
    hl_bank_give(bank, 8 * UNIT, 2 * UNIT);
    CU_ASSERT_TRUE(hl_bank_take(bank, 3 * UNIT, &offset));
    CU_ASSERT_EQUAL(offset, 6 * UNIT);
    CU_ASSERT_TRUE(hl_bank_take(bank, UNIT, &offset));
    CU_ASSERT_EQUAL(offset, 2 * UNIT);
    CU_ASSERT_FALSE(hl_bank_take(bank, 2 * UNIT, &offset));
    hl_bank_destroy(bank);
}

/* --- a shadow: one flag a unit, searched from the start --- */

struct shadow {
    bool taken[MOST_UNITS];
    uint32_t units, used;
};

static bool shadow_take(struct shadow *shadow, uint32_t bytes, uint32_t *offset)
{
    uint32_t wanted = (bytes + UNIT - 1) / UNIT, run = 0;
    for (uint32_t i = 0; i < shadow->units; i++) {
        run = shadow->taken[i] ? 0 : run + 1;
        if (run < wanted)
            continue;
        for (uint32_t j = i + 1 - wanted; j <= i; j++)
            shadow->taken[j] = true;
        shadow->used += wanted;
        *offset = (i + 1 - wanted) * UNIT;
        return true;
    }
    return false;
}

static void shadow_give(struct shadow *shadow, uint32_t offset, uint32_t bytes)
{
    for (uint32_t i = offset / UNIT; i <= (offset + bytes - 1) / UNIT; i++) {
        shadow->taken[i] = false;
        shadow->used--;
    }
}

/* Sizes from one byte to all of it, small ones more often: each power of two is as likely as another. */
static uint32_t draw_size(hl_random *random, uint32_t bytes)
{
    uint64_t size = 1ull << hl_random_below(random, 21);
    size = size / 2 + hl_random_below(random, size / 2 + 1);
    return size == 0 ? 1 : size > bytes ? bytes : (uint32_t)size;
}

static void follow_a_shadow(uint64_t seed, uint32_t units, unsigned turns)
{
    enum { SLOTS = 512 };
    static struct shadow shadow;
    static struct {
        uint32_t offset, bytes;
    } slots[SLOTS];
    hl_bank *bank = must_create(units * UNIT);
    hl_random random;
    unsigned full = 0, differ = 0;
    memset(&shadow, 0, sizeof shadow);
    memset(slots, 0, sizeof slots);
    shadow.units = units;
    hl_random_seed(&random, seed);
    for (unsigned turn = 0; turn < turns; turn++) {
        unsigned i = (unsigned)hl_random_below(&random, SLOTS);
        if (slots[i].bytes > 0) {
            hl_bank_give(bank, slots[i].offset, slots[i].bytes);
            shadow_give(&shadow, slots[i].offset, slots[i].bytes);
            slots[i].bytes = 0;
        } else {
            uint32_t bytes = draw_size(&random, units * UNIT), got = 1, expected = 1;
            bool took = hl_bank_take(bank, bytes, &got);
            differ += took != shadow_take(&shadow, bytes, &expected) || got != expected;
            if (took) {
                slots[i].offset = got;
                slots[i].bytes = bytes;
            } else {
                full++;
            }
        }
        differ += hl_bank_used(bank) != shadow.used * UNIT;
    }
    CU_ASSERT_EQUAL(differ, 0);
    CU_ASSERT_TRUE(full > 0);
    hl_bank_destroy(bank);
}

static void it_takes_and_gives_as_a_simple_shadow_does(void)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        follow_a_shadow(seed, MOST_UNITS, 2000);
        follow_a_shadow(seed, 1 + (uint32_t)(seed * 37), 2000);
    }
    follow_a_shadow(99, 1, 2000);
}

/* --- misuse: each in a process of its own, without threads --- */

static bool giving_aborts(uint32_t offset, uint32_t bytes)
{
    hl_bank *bank = must_create(16 * UNIT);
    int status = 0;
    uint32_t at;
    CU_ASSERT_TRUE(hl_bank_take(bank, 100, &at));      /* units 0 and 1 */
    CU_ASSERT_TRUE(hl_bank_take(bank, 4 * UNIT, &at)); /* 2 to 5 */
    CU_ASSERT_TRUE(hl_bank_take(bank, UNIT, &at));     /* 6 */
    CU_ASSERT_TRUE(hl_bank_take(bank, UNIT, &at));     /* 7 */
    hl_bank_give(bank, 6 * UNIT, UNIT);
    pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        close(STDERR_FILENO);
        if (bytes > 0)
            hl_bank_give(bank, offset, bytes);
        else
            hl_bank_take(bank, 0, &at);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    hl_bank_destroy(bank);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void giving_what_was_not_taken_exactly_so_aborts(void)
{
    CU_ASSERT_FALSE(giving_aborts(0, 100));
    CU_ASSERT_FALSE(giving_aborts(2 * UNIT, 4 * UNIT));
    CU_ASSERT_TRUE(giving_aborts(6 * UNIT, UNIT));     /* twice */
    CU_ASSERT_TRUE(giving_aborts(0, 99));              /* another size */
    CU_ASSERT_TRUE(giving_aborts(0, 2 * UNIT));        /* the units, not the bytes */
    CU_ASSERT_TRUE(giving_aborts(0, UNIT));            /* a part of it */
    CU_ASSERT_TRUE(giving_aborts(3 * UNIT, 3 * UNIT)); /* its end */
    CU_ASSERT_TRUE(giving_aborts(5 * UNIT, UNIT));     /* its last unit, where its tag is */
    CU_ASSERT_TRUE(giving_aborts(2 * UNIT, 5 * UNIT)); /* and its neighbour */
    CU_ASSERT_TRUE(giving_aborts(8 * UNIT, 8 * UNIT)); /* never taken */
    CU_ASSERT_TRUE(giving_aborts(1, 100));             /* no unit begins there */
    CU_ASSERT_TRUE(giving_aborts(16 * UNIT, UNIT));    /* outside */
    CU_ASSERT_TRUE(giving_aborts(4294967232u, UNIT));
}

static void taking_nothing_aborts(void)
{
    CU_ASSERT_TRUE(giving_aborts(0, 0));
}

HL_TESTS(bank, HL_CASE(a_size_that_is_no_bank_is_refused), HL_CASE(a_whole_bank_is_taken_at_once),
         HL_CASE(a_full_and_fragmented_bank_becomes_whole_again), HL_CASE(the_first_gap_that_fits_is_taken),
         HL_CASE(it_takes_and_gives_as_a_simple_shadow_does),
         HL_CASE(giving_what_was_not_taken_exactly_so_aborts), HL_CASE(taking_nothing_aborts));
