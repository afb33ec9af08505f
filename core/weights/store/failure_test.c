#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "core/testing/cunit.h"
#include "core/weights/store/store.h"

static void every_code_has_a_name_a_status_and_a_remedy(void)
{
#define EXPECT(name, text, status, remedy)                                                                   \
    CU_ASSERT_STRING_EQUAL(hl_weight_code_name(HL_WEIGHT_##name), text);                                     \
    CU_ASSERT_EQUAL(hl_weight_code_status(HL_WEIGHT_##name), status);                                        \
    CU_ASSERT_STRING_EQUAL(hl_weight_code_remedy(HL_WEIGHT_##name), remedy);                                 \
    CU_ASSERT_TRUE(hl_weight_code_status(HL_WEIGHT_##name) < 0);
    HL_WEIGHT_CODE_LIST(EXPECT)
#undef EXPECT
#define EXPECT(name, text) CU_ASSERT_STRING_EQUAL(hl_weight_stage_name(HL_WEIGHT_STAGE_##name), text);
    HL_WEIGHT_STAGE_LIST(EXPECT)
#undef EXPECT
    CU_ASSERT_STRING_EQUAL(hl_weight_code_name((hl_weight_code)999), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_weight_code_remedy((hl_weight_code)-1), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_weight_stage_name((hl_weight_stage)999), "unknown");
    CU_ASSERT_TRUE(hl_weight_code_status((hl_weight_code)999) < 0);
}

static void a_failure_may_repeat_its_own_text(void)
{
    hl_weight_failure failure;
    CU_ASSERT_EQUAL(HL_WEIGHT_FAIL_ERRNO(&failure, LOOKUP, ACTIVE_LEASE, true, EBUSY, "in use"), HL_E_BUSY);
    CU_ASSERT_STRING_EQUAL(failure.error.text, "in use: Device or resource busy");
    CU_ASSERT_STRING_EQUAL(failure.error.stage, "weights.lookup");
    CU_ASSERT_STRING_EQUAL(failure.details, "{}");
    hl_weight_failure_from(&failure, HL_WEIGHT_STAGE_DOMAIN, HL_WEIGHT_DOMAIN_UNAVAILABLE, false,
                           &failure.error);
    CU_ASSERT_STRING_EQUAL(failure.error.text, "in use: Device or resource busy");
    CU_ASSERT_EQUAL(failure.error.sys_errno, EBUSY);
    CU_ASSERT_FALSE(failure.retryable);
    HL_WEIGHT_FAIL(&failure, DOMAIN, UNSUPPORTED, false, "again: %s", failure.error.text);
    CU_ASSERT_STRING_EQUAL(failure.error.text, "again: in use: Device or resource busy");
    CU_ASSERT_EQUAL(HL_WEIGHT_FAIL(NULL, LOOKUP, LOCAL_MISS, false, "nobody asks"), HL_E_MISS);
    CU_ASSERT_EQUAL(
        hl_weight_failure_from(NULL, HL_WEIGHT_STAGE_LOOKUP, HL_WEIGHT_LOCAL_MISS, false, &failure.error),
        HL_E_MISS);
}

static void details_are_whole_or_empty(void)
{
    hl_weight_failure failure;
    char details[sizeof failure.details + 1];
    HL_WEIGHT_FAIL(&failure, LOOKUP, ACTIVE_LEASE, true, "text");
    hl_weight_failure_details(&failure, "{\"a\":1}");
    CU_ASSERT_STRING_EQUAL(failure.details, "{\"a\":1}");
    memset(details, 'x', sizeof details - 1);
    details[sizeof details - 1] = 0;
    hl_weight_failure_details(&failure, details);
    CU_ASSERT_STRING_EQUAL(failure.details, "{}");
    hl_weight_failure_details(&failure, details + 1);
    CU_ASSERT_EQUAL(strlen(failure.details), sizeof failure.details - 1);
    hl_weight_failure_details(NULL, "{}");
}

static void a_full_disk_is_capacity_and_everything_else_the_domain(void)
{
    hl_weight_failure failure;
    hl_error err;
    const int full[] = {ENOSPC, EDQUOT};
    for (size_t i = 0; i < 2; i++) {
        HL_FAIL_ERRNO(&err, HL_E_SYSTEM, "test", full[i], "cannot write");
        CU_ASSERT_EQUAL(hl_weight_failure_io(&failure, HL_WEIGHT_STAGE_PRODUCTION, &err), HL_E_NOSPACE);
        CU_ASSERT_EQUAL(failure.code, HL_WEIGHT_ENOSPC);
        CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_CAPACITY);
        CU_ASSERT_TRUE(failure.retryable);
    }
    HL_FAIL_ERRNO(&err, HL_E_SYSTEM, "test", EIO, "cannot write");
    CU_ASSERT_EQUAL(hl_weight_failure_io(&failure, HL_WEIGHT_STAGE_PRODUCTION, &err), HL_E_SYSTEM);
    CU_ASSERT_EQUAL(failure.code, HL_WEIGHT_DOMAIN_UNAVAILABLE);
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_PRODUCTION);
    CU_ASSERT_TRUE(failure.retryable);
}

HL_TESTS(store_failure, HL_CASE(every_code_has_a_name_a_status_and_a_remedy),
         HL_CASE(a_failure_may_repeat_its_own_text), HL_CASE(details_are_whole_or_empty),
         HL_CASE(a_full_disk_is_capacity_and_everything_else_the_domain));
