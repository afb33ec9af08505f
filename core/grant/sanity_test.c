#include <string.h>

#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

/* A record that is sane in every state. */
static struct hl_grant_record sane_in(uint32_t state)
{
    struct hl_grant_record record = {
        .part_index = 1,
        .part_count = 3,
        .bank_offset = 64,
        .bank_bytes = 100,
        .text = "why",
    };
    atomic_init(&record.word, hl_grant_word_of(7, state));
    record.status = state == HL_GRANT_REVOKED || state == HL_GRANT_REJECTED ? HL_E_EXPIRED : HL_OK;
    return record;
}

static bool is_one_of(uint32_t state, uint32_t a, uint32_t b, uint32_t c)
{
    return state == a || state == b || state == c;
}

static void a_record_as_its_writers_leave_it_is_sane(void)
{
    for (uint32_t state = 0; state < HL_GRANT_STATE_COUNT; state++) {
        struct hl_grant_record record = sane_in(state);
        CU_ASSERT_TRUE(hl_grant_record_is_sane(&record));
    }
    struct hl_grant_record record = sane_in(HL_GRANT_DRAINED);
    record.status = HL_E_DEVICE; /* a failure whose accepted work has drained */
    CU_ASSERT_TRUE(hl_grant_record_is_sane(&record));
}

static void a_scribbled_word_is_not_sane(void)
{
    static const uint32_t states[] = {HL_GRANT_STATE_COUNT, 0xff, 0x100 | HL_GRANT_FREE, UINT32_MAX};
    for (unsigned i = 0; i < sizeof states / sizeof states[0]; i++) {
        struct hl_grant_record record = sane_in(states[i]);
        CU_ASSERT_FALSE(hl_grant_record_is_sane(&record));
    }
}

static void text_without_an_end_is_not_sane_in_any_state(void)
{
    for (uint32_t state = 0; state < HL_GRANT_STATE_COUNT; state++) {
        struct hl_grant_record record = sane_in(state);
        memset(record.text, 'x', sizeof record.text);
        CU_ASSERT_FALSE(hl_grant_record_is_sane(&record));
        record.text[sizeof record.text - 1] = '\0';
        CU_ASSERT_TRUE(hl_grant_record_is_sane(&record));
    }
}

struct part {
    uint16_t index, count;
    uint32_t offset, bytes;
    bool sane;
};

static const struct part parts[] = {
    {0, 2, 0, 1, true},
    {0, 2, 0, HL_PLAN_PART_BYTES, true},
    {0, 2, HL_PLAN_PART_BYTES - 64, 64, true},
    {65533, 65535, 0, 1, true},
    {2, 2, 0, 1, false},     /* beyond its operation's parts */
    {0, 0, 0, 1, false},     /* of no parts */
    {65535, 0, 0, 1, false}, /* index + 1 must not wrap */
    {0, 2, 0, 0, false},     /* empty */
    {0, 2, 32, 1, false},    /* not where a unit begins */
    {0, 2, HL_PLAN_PART_BYTES - 64, 65, false},
    {0, 2, HL_PLAN_PART_BYTES, 1, false},
    {0, 2, 0, HL_PLAN_PART_BYTES + 1, false},
    {0, 2, 4294967232u, 64, false}, /* offset + bytes wraps to 0 */
    {0, 2, 64, UINT32_MAX, false},
};

static void a_part_must_lie_in_the_bank_and_among_its_parts(void)
{
    for (uint32_t state = 0; state < HL_GRANT_STATE_COUNT; state++)
        for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            bool has_part = state == HL_GRANT_GRANTED || state == HL_GRANT_ACTIVE;
            struct hl_grant_record record = sane_in(state);
            record.part_index = parts[i].index;
            record.part_count = parts[i].count;
            record.bank_offset = parts[i].offset;
            record.bank_bytes = parts[i].bytes;
            CU_ASSERT_EQUAL(hl_grant_record_is_sane(&record), !has_part || parts[i].sane);
        }
}

static void a_status_must_be_known_and_fit_the_outcome(void)
{
    static const struct {
        int32_t status;
        bool failure, known;
    } cases[] = {{HL_OK, false, true},
                 {HL_E_CANCELLED, true, true},
                 {HL_E_NO_DEVICE, true, true},
                 {HL_PENDING, false, false},
                 {-1, true, false},
                 {-999, true, false},
                 {INT32_MIN, true, false},
                 {INT32_MAX, false, false}};
    for (uint32_t state = 0; state < HL_GRANT_STATE_COUNT; state++)
        for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct hl_grant_record record = sane_in(state);
            record.status = cases[i].status;
            bool expected = true;
            if (state == HL_GRANT_REVOKED || state == HL_GRANT_REJECTED)
                expected = cases[i].known && cases[i].failure;
            else if (state == HL_GRANT_DRAINED || state == HL_GRANT_COMPLETED)
                expected = cases[i].known;
            CU_ASSERT_EQUAL(hl_grant_record_is_sane(&record), expected);
        }
}

static void an_owner_is_needed_while_a_grant_may_be_used(void)
{
    for (uint32_t state = 0; state <= HL_GRANT_STATE_COUNT; state++)
        CU_ASSERT_EQUAL(hl_grant_state_needs_owner(state),
                        state == HL_GRANT_MANAGED ||
                            is_one_of(state, HL_GRANT_GRANTED, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
}

static void a_copy_is_the_whole_record(void)
{
    static const unsigned char token[16];
    hl_grant_memory *memory = NULL;
    hl_error err;
    struct hl_grant_record copy;
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &memory, &err), err);
    unsigned char *record = (unsigned char *)hl_grant_record_at(memory, 11);
    for (unsigned i = 0; i < sizeof copy; i++)
        record[i] = (unsigned char)(i + 1);
    hl_grant_copy(memory, 11, &copy);
    CU_ASSERT_EQUAL(memcmp((const unsigned char *)&copy, record, sizeof copy), 0);
    hl_grant_memory_close(memory);
}

HL_TESTS(sanity, HL_CASE(a_record_as_its_writers_leave_it_is_sane), HL_CASE(a_scribbled_word_is_not_sane),
         HL_CASE(text_without_an_end_is_not_sane_in_any_state),
         HL_CASE(a_part_must_lie_in_the_bank_and_among_its_parts),
         HL_CASE(a_status_must_be_known_and_fit_the_outcome),
         HL_CASE(an_owner_is_needed_while_a_grant_may_be_used), HL_CASE(a_copy_is_the_whole_record));
