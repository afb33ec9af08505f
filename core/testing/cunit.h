/* A test program includes this, writes one static void function a behaviour, and ends with
 *
 *     HL_TESTS(plan, HL_CASE(merges_only_inside_an_allocation), HL_CASE(…));
 *
 * The shared main runs the cases in order (or only those named on the command line), writes JUnit XML to
 * $XML_OUTPUT_FILE, prints "N passed, N failed", and fails when a case failed or asserted nothing. */
#ifndef CORE_TESTING_CUNIT_H
#define CORE_TESTING_CUNIT_H

#include <CUnit/CUnit.h>

#ifdef __clang_analyzer__
#include <stdlib.h>

/* A fatal assertion that fails leaves the case with longjmp, which the analyser does not see. */
static inline void hl_analyzed_assertion(CU_BOOL holds, CU_BOOL fatal)
{
    if (fatal && !holds)
        abort();
}
#define CU_assertImplementation(holds, line, text, file, function, fatal) hl_analyzed_assertion(holds, fatal)
#endif

typedef struct hl_test_case {
    const char *name;
    void (*run)(void);
} hl_test_case;

extern const char hl_test_suite[];
extern const hl_test_case hl_test_cases[];
extern const unsigned hl_test_case_count;

#define HL_CASE(function)                                                                                    \
    {                                                                                                        \
        .name = #function, .run = function                                                                   \
    }

#define HL_TESTS(suite, ...)                                                                                 \
    const char hl_test_suite[] = #suite;                                                                     \
    const hl_test_case hl_test_cases[] = {__VA_ARGS__};                                                      \
    const unsigned hl_test_case_count = sizeof hl_test_cases / sizeof hl_test_cases[0]

/* Asserts that a call returned `expected`, printing the error's text if it did not. `err` is an hl_error. */
#define HL_EXPECT_STATUS(call, expected, err)                                                                \
    do {                                                                                                     \
        hl_status got_ = (call);                                                                             \
        if (got_ != (expected))                                                                              \
            fprintf(stderr, "%s:%d: %s: got %s, %s\n", __FILE__, __LINE__, #call, hl_status_name(got_),      \
                    got_ == HL_OK ? "no error" : (err).text);                                                \
        CU_ASSERT_EQUAL(got_, (expected));                                                                   \
    } while (0)

#define HL_EXPECT_OK(call, err) HL_EXPECT_STATUS(call, HL_OK, err)

/* The same, and ends the case: what follows needs the call's outputs. */
#define HL_REQUIRE_OK(call, err)                                                                             \
    do {                                                                                                     \
        hl_status got_ = (call);                                                                             \
        if (got_ != HL_OK)                                                                                   \
            fprintf(stderr, "%s:%d: %s: got %s, %s\n", __FILE__, __LINE__, #call, hl_status_name(got_),      \
                    (err).text);                                                                             \
        CU_ASSERT_EQUAL_FATAL(got_, HL_OK);                                                                  \
    } while (0)

#endif
