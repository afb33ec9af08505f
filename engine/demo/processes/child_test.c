#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "engine/demo/processes/processes.h"

/* Children are shells that speak as the demo's own processes do. */
static void start(struct hl_demo_child *child, const char *script)
{
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    hl_error err;
    HL_REQUIRE_OK(hl_demo_child_start(child, "the shell", argv, -1, &err), err);
}

static void reports_arrive_in_order_and_progress_is_skipped(void)
{
    struct hl_demo_child child;
    json_t *report = NULL;
    hl_error err;
    start(&child, "echo '{\"event\":\"progress\"}' >&3; echo '{\"event\":\"one\",\"n\":7}' >&3;"
                  "printf '{\"event\":' >&3; echo '\"two\"}' >&3");
    HL_REQUIRE_OK(hl_demo_child_report(&child, "one", &report, &err), err);
    CU_ASSERT_EQUAL(json_integer_value(json_object_get(report, "n")), 7);
    json_decref(report);
    HL_REQUIRE_OK(hl_demo_child_report(&child, "two", &report, &err), err);
    json_decref(report);
    CU_ASSERT_EQUAL(hl_demo_child_report(&child, "three", &report, &err), HL_E_PEER);
    CU_ASSERT_EQUAL(hl_demo_child_code(&child), HL_DEMO_OK);
    hl_demo_child_close(&child);
}

static void a_wrong_report_is_refused(void)
{
    static const char *const scripts[] = {"echo '{\"event\":\"other\"}' >&3", "echo '{\"no\":1}' >&3",
                                          "echo '[1]' >&3", "echo 'no JSON' >&3", "echo >&3"};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct hl_demo_child child;
        json_t *report = NULL;
        hl_error err;
        start(&child, scripts[i]);
        CU_ASSERT_EQUAL(hl_demo_child_report(&child, "one", &report, &err), HL_E_PROTOCOL);
        CU_ASSERT_PTR_NULL(report);
        hl_demo_child_close(&child);
    }
}

static void an_end_says_how(void)
{
    struct hl_demo_child child;
    json_t *report;
    hl_error err;
    start(&child, "exit 1");
    CU_ASSERT_EQUAL(hl_demo_child_report(&child, "one", &report, &err), HL_E_PEER);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "status 1"));
    CU_ASSERT_EQUAL(hl_demo_child_code(&child), HL_DEMO_MISMATCH);
    CU_ASSERT_EQUAL(hl_demo_child_kill(&child, &err), HL_E_STATE);
    hl_demo_child_close(&child);
    start(&child, "kill -TERM $$");
    CU_ASSERT_EQUAL(hl_demo_child_report(&child, "one", &report, &err), HL_E_PEER);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "signal 15"));
    CU_ASSERT_EQUAL(hl_demo_child_code(&child), HL_DEMO_ERROR);
    hl_demo_child_close(&child);
}

static void a_killed_child_died_of_sigkill(void)
{
    struct hl_demo_child child;
    json_t *report;
    hl_error err;
    start(&child, "trap '' TERM; echo '{\"event\":\"up\"}' >&3; read word");
    HL_REQUIRE_OK(hl_demo_child_report(&child, "up", &report, &err), err);
    json_decref(report);
    CU_ASSERT_EQUAL(hl_demo_child_wait(&child, 1000000, &err), HL_E_TIMEOUT);
    HL_EXPECT_OK(hl_demo_child_kill(&child, &err), err);
    CU_ASSERT_TRUE(child.ended && WIFSIGNALED(child.wait_status) && WTERMSIG(child.wait_status) == SIGKILL);
    hl_demo_child_close(&child);
}

static void a_child_waits_for_the_word(void)
{
    struct hl_demo_child child;
    json_t *report;
    hl_error err;
    start(&child, "read word && echo '{\"event\":\"heard\"}' >&3");
    HL_EXPECT_OK(hl_demo_child_go_on(&child, &err), err);
    HL_REQUIRE_OK(hl_demo_child_report(&child, "heard", &report, &err), err);
    json_decref(report);
    HL_EXPECT_OK(hl_demo_child_wait(&child, HL_DEMO_PATIENCE_NS, &err), err);
    CU_ASSERT_EQUAL(hl_demo_child_code(&child), HL_DEMO_OK);
    hl_demo_child_close(&child);
}

static void closing_ends_a_child_that_lives(void)
{
    struct hl_demo_child child;
    start(&child, "read word");
    pid_t pid = child.pid;
    hl_demo_child_close(&child);
    CU_ASSERT_NOT_EQUAL(kill(pid, 0), 0);
    hl_demo_child_close(&child); /* and again */
}

static void a_program_that_is_missing_is_an_error(void)
{
    struct hl_demo_child child;
    char *const argv[] = {(char *)"/no/such/program", NULL};
    hl_error err;
    CU_ASSERT_EQUAL(hl_demo_child_start(&child, "nobody", argv, -1, &err), HL_E_SYSTEM);
    hl_demo_child_close(&child);
}

static void output_goes_to_the_log(void)
{
    struct hl_demo_child child;
    json_t *report;
    hl_error err;
    char text[32] = "";
    FILE *file = tmpfile();
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    /* Whatever its number is, that of the reports included. */
    int log_fd = dup2(fileno(file), HL_DEMO_REPORT_FD);
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c",
                          (char *)"echo out; echo err >&2; echo '{\"event\":\"one\"}' >&3", NULL};
    HL_REQUIRE_OK(hl_demo_child_start(&child, "the shell", argv, log_fd, &err), err);
    HL_REQUIRE_OK(hl_demo_child_report(&child, "one", &report, &err), err);
    json_decref(report);
    hl_demo_child_close(&child);
    if (log_fd != fileno(file))
        close(log_fd);
    rewind(file);
    CU_ASSERT_EQUAL(fread(text, 1, sizeof text - 1, file), 8);
    CU_ASSERT_STRING_EQUAL(text, "out\nerr\n");
    fclose(file);
}

static void an_interrupt_ends_the_wait(void)
{
    struct hl_demo_child child;
    json_t *report;
    hl_error err;
    hl_demo_catch_interrupts();
    start(&child, "kill -INT $PPID; read word");
    CU_ASSERT_EQUAL(hl_demo_child_report(&child, "one", &report, &err), HL_E_CANCELLED);
    hl_demo_child_close(&child);
}

HL_TESTS(child, HL_CASE(reports_arrive_in_order_and_progress_is_skipped), HL_CASE(a_wrong_report_is_refused),
         HL_CASE(an_end_says_how), HL_CASE(a_killed_child_died_of_sigkill),
         HL_CASE(a_child_waits_for_the_word), HL_CASE(closing_ends_a_child_that_lives),
         HL_CASE(a_program_that_is_missing_is_an_error), HL_CASE(output_goes_to_the_log),
         HL_CASE(an_interrupt_ends_the_wait));
