#include "core/weights/store/coverage.h"

#include <stdio.h>
#include <string.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"

static void pieces_in_any_order_become_one_span(void)
{
    enum { PIECES = 500, WIDTH = 7 };
    static uint32_t order[PIECES];
    hl_random random;
    hl_random_seed(&random, 1);
    for (unsigned round = 0; round < 20; round++) {
        struct hl_coverage coverage = {0};
        hl_error err;
        uint64_t gap = 0;
        hl_random_permutation(&random, order, PIECES);
        for (unsigned i = 0; i < PIECES; i++) {
            CU_ASSERT_FALSE(hl_coverage_complete(&coverage, PIECES * WIDTH, &gap));
            HL_EXPECT_OK(hl_coverage_add(&coverage, order[i] * WIDTH, (order[i] + 1) * WIDTH, &err), err);
        }
        CU_ASSERT_TRUE(hl_coverage_complete(&coverage, PIECES * WIDTH, &gap));
        CU_ASSERT_EQUAL(coverage.head + coverage.tail, 1);
        hl_coverage_free(&coverage);
    }
}

/* Against one byte of memory for each byte of the tensor. */
static void agrees_with_a_map_of_bytes(void)
{
    enum { BYTES = 300 };
    hl_random random;
    hl_random_seed(&random, 2);
    for (unsigned round = 0; round < 200; round++) {
        struct hl_coverage coverage = {0};
        char map[BYTES] = {0};
        hl_error err;
        for (unsigned i = 0; i < 150; i++) {
            const uint64_t begin = hl_random_below(&random, BYTES);
            const uint64_t room = BYTES - begin < 12 ? BYTES - begin : 12;
            const uint64_t end = begin + hl_random_below(&random, room + 1);
            const bool taken = memchr(map + begin, 1, end - begin) != NULL;
            HL_EXPECT_STATUS(hl_coverage_add(&coverage, begin, end, &err), taken ? HL_E_OVERLAP : HL_OK, err);
            if (!taken)
                memset(map + begin, 1, end - begin);
            const char *const hole = memchr(map, 0, BYTES);
            uint64_t gap = 0;
            CU_ASSERT_EQUAL(hl_coverage_complete(&coverage, BYTES, &gap), hole == NULL);
            CU_ASSERT_EQUAL(gap, hole ? (uint64_t)(hole - map) : BYTES);
        }
        hl_coverage_free(&coverage);
    }
}

static void an_empty_range_is_nothing_and_an_empty_tensor_is_complete(void)
{
    struct hl_coverage coverage = {0};
    hl_error err;
    uint64_t gap = 9;
    HL_EXPECT_OK(hl_coverage_add(&coverage, 5, 5, &err), err);
    CU_ASSERT_TRUE(hl_coverage_complete(&coverage, 0, &gap));
    CU_ASSERT_FALSE(hl_coverage_complete(&coverage, 1, &gap));
    CU_ASSERT_EQUAL(gap, 0);
    hl_coverage_free(&coverage);
}

/* Rows of a tensor that two sources share, one after the other: as many spans as rows, then fewer. */
static void the_gaps_between_rows_close_one_by_one(void)
{
    enum { ROWS = 100000, ROW = 64 };
    struct hl_coverage coverage = {0};
    hl_error err;
    uint64_t gap = 0;
    for (uint64_t row = 0; row < ROWS; row++)
        CU_ASSERT_EQUAL_FATAL(hl_coverage_add(&coverage, row * ROW, row * ROW + ROW / 2, &err), HL_OK);
    CU_ASSERT_EQUAL(coverage.head + coverage.tail, ROWS);
    for (uint64_t row = 0; row < ROWS; row++)
        CU_ASSERT_EQUAL_FATAL(hl_coverage_add(&coverage, row * ROW + ROW / 2, (row + 1) * ROW, &err), HL_OK);
    CU_ASSERT_TRUE(hl_coverage_complete(&coverage, (uint64_t)ROWS * ROW, &gap));
    hl_coverage_free(&coverage);
}

HL_TESTS(coverage, HL_CASE(pieces_in_any_order_become_one_span), HL_CASE(agrees_with_a_map_of_bytes),
         HL_CASE(an_empty_range_is_nothing_and_an_empty_tensor_is_complete),
         HL_CASE(the_gaps_between_rows_close_one_by_one));
