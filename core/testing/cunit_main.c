#include "core/testing/cunit.h"

#include <CUnit/TestDB.h>
#include <CUnit/TestRun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *report;
static unsigned passed, failed;

static void finish_case(const CU_pTest test, const CU_pSuite suite, const CU_pFailureRecord failure)
{
    static unsigned asserts_before;
    unsigned asserts = CU_get_number_of_asserts() - asserts_before;
    asserts_before = CU_get_number_of_asserts();
    int bad = failure != NULL || asserts == 0;
    *(bad ? &failed : &passed) += 1;
    if (report)
        fprintf(report, "  <testcase classname=\"%s\" name=\"%s\">", suite->pName, test->pName);
    if (bad) {
        printf("FAILED %s.%s", suite->pName, test->pName);
        if (!failure)
            printf(": the case asserted nothing");
        printf("\n");
        if (report)
            fprintf(report, "<failure message=\"%s\"/>", failure ? "assertion failed" : "asserted nothing");
    }
    for (CU_pFailureRecord f = failure; f; f = f->pNext)
        if (f->pTest == test)
            printf("  %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
    if (report)
        fprintf(report, "</testcase>\n");
}

static int selected(const char *name, int argc, char **argv)
{
    if (argc < 2)
        return 1;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], name))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 2;
    CU_pSuite suite = CU_add_suite(hl_test_suite, NULL, NULL);
    unsigned chosen = 0;
    for (unsigned i = 0; i < hl_test_case_count; i++)
        if (selected(hl_test_cases[i].name, argc, argv)) {
            CU_add_test(suite, hl_test_cases[i].name, hl_test_cases[i].run);
            chosen++;
        }
    const char *xml = getenv("XML_OUTPUT_FILE");
    report = xml ? fopen(xml, "w") : NULL;
    if (report)
        fprintf(report, "<testsuites><testsuite name=\"%s\">\n", hl_test_suite);
    CU_set_test_complete_handler(finish_case);
    CU_run_all_tests();
    if (report) {
        fprintf(report, "</testsuite></testsuites>\n");
        fclose(report);
    }
    CU_cleanup_registry();
    printf("%u passed, %u failed\n", passed, failed);
    return failed || passed != chosen ? 1 : 0;
}
