#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "engine/demo/processes/trace.h"

static hl_reference_cache *open_cache(void)
{
    hl_reference_cache *cache = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_reference_open(&cache, &err), err);
    return cache;
}

static void hits_are_the_longest_prefix_that_has_been_seen(void)
{
    static const uint64_t first[] = {10, 11, 12}, again[] = {10, 11, 99, 12}, other[] = {13, 10};
    hl_reference_cache *cache = open_cache();
    hl_error err;
    CU_ASSERT_EQUAL(hl_reference_hits(cache, first, 3), 0);
    HL_EXPECT_OK(hl_reference_add(cache, first, 3, &err), err);
    CU_ASSERT_EQUAL(hl_reference_hits(cache, first, 3), 3);
    CU_ASSERT_EQUAL(hl_reference_hits(cache, again, 4), 2); /* 12 has been seen, but after a gap */
    CU_ASSERT_EQUAL(hl_reference_hits(cache, other, 2), 0);
    CU_ASSERT_EQUAL(hl_reference_hits(cache, first, 0), 0);
    hl_reference_close(cache);
}

static void an_id_is_counted_once_and_keeps_its_number(void)
{
    static const uint64_t ids[] = {7, 7, 0, UINT64_MAX, 7, 0};
    hl_reference_cache *cache = open_cache();
    hl_error err;
    CU_ASSERT_EQUAL(hl_reference_number(cache, 0), UINT32_MAX); /* 0 is an id like any other */
    HL_EXPECT_OK(hl_reference_add(cache, ids, 6, &err), err);
    HL_EXPECT_OK(hl_reference_add(cache, ids, 6, &err), err);
    CU_ASSERT_EQUAL(hl_reference_size(cache), 3);
    CU_ASSERT_EQUAL(hl_reference_number(cache, 7), 0);
    CU_ASSERT_EQUAL(hl_reference_number(cache, 0), 1);
    CU_ASSERT_EQUAL(hl_reference_number(cache, UINT64_MAX), 2);
    CU_ASSERT_EQUAL(hl_reference_number(cache, 8), UINT32_MAX);
    hl_reference_close(cache);
}

/* Against a plain array of flags, through many growths, with ids that share low bits. */
static void a_large_cache_agrees_with_a_list(void)
{
    enum { IDS = 20000, STEPS = 3000, MOST = 12 };
    static unsigned char seen[IDS];
    hl_reference_cache *cache = open_cache();
    hl_error err;
    hl_random random;
    uint32_t unique = 0, wrong = 0;
    hl_random_seed(&random, 41);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t ids[MOST];
        uint32_t count = 1 + (uint32_t)hl_random_below(&random, MOST), expected = 0;
        uint64_t first = hl_random_below(&random, IDS - MOST);
        for (uint32_t i = 0; i < count; i++)
            ids[i] = (first + i) << 20;
        while (expected < count && seen[first + expected])
            expected++;
        wrong += hl_reference_hits(cache, ids, count) != expected;
        HL_EXPECT_OK(hl_reference_add(cache, ids, count, &err), err);
        for (uint32_t i = 0; i < count; i++) {
            unique += !seen[first + i];
            seen[first + i] = 1;
        }
        wrong += hl_reference_size(cache) != unique;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(unique > 4096);
    hl_reference_close(cache);
}

static void closing_nothing_is_allowed(void)
{
    hl_reference_close(NULL);
    CU_PASS("it did not crash");
}

HL_TESTS(reference_cache, HL_CASE(hits_are_the_longest_prefix_that_has_been_seen),
         HL_CASE(an_id_is_counted_once_and_keeps_its_number), HL_CASE(a_large_cache_agrees_with_a_list),
         HL_CASE(closing_nothing_is_allowed));
