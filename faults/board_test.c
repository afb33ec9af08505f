/* What a test sees of faults in another process. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "faults/board.h"
#include "faults/testing.h"

#define POINT "weights_read_before"

static const char *victim(void)
{
    const char *path = getenv("HL_BOARD_VICTIM");
    CU_ASSERT_PTR_NOT_NULL_FATAL(path);
    return path;
}

static pid_t spawn(const hl_fault_board *board, const char *threads, const char *hits, const char *kind,
                   const char *const *environment)
{
    return hl_fault_spawn(board, (const char *const[]){victim(), threads, hits, kind, NULL}, environment);
}

static int wait_for(pid_t child)
{
    int status = -1;
    CU_ASSERT_TRUE_FATAL(hl_fault_await_exit(child, HL_FAULT_PATIENCE_NS, &status));
    return status;
}

static void exited(int status, int code)
{
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), code);
}

static void killed(int status, int by)
{
    CU_ASSERT_TRUE(WIFSIGNALED(status));
    CU_ASSERT_EQUAL(WTERMSIG(status), by);
}

static void a_kill_is_sigkill_at_exactly_the_nth_hit(void)
{
    for (uint32_t nth = 1; nth <= 6; nth++) {
        hl_fault_board *board = hl_fault_board_create();
        const unsigned rule = hl_fault_arm(board, POINT, nth, HL_FAULT_KILL, 0);
        const int status = wait_for(spawn(board, "1", "5", "error", NULL));
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), nth <= 5);
        if (nth <= 5) {
            killed(status, SIGKILL);
            CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), nth);
        } else {
            exited(status, 0);
            CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 5);
        }
        hl_fault_board_free(board);
    }
}

static void an_error_meets_one_hit_of_all_threads(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_arm(board, POINT, 37, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, POINT, 400, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, POINT, 401, HL_FAULT_ERROR, EIO);
    exited(wait_for(spawn(board, "4", "100", "error", NULL)), 2);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 400);
    hl_fault_board_free(board);
}

static void drops_and_short_transfers_cross_the_process_border(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_arm(board, POINT, 3, HL_FAULT_DROP, 0);
    exited(wait_for(spawn(board, "2", "5", "drop", NULL)), 1);
    hl_fault_board_reset(board);
    hl_fault_arm_spec(
        board, &(hl_fault_rule_spec){
                   .point = POINT, .nth = 3, .action = HL_FAULT_SHORT, .argument = 5, .persistent = true});
    exited(wait_for(spawn(board, "2", "5", "short", NULL)), 8);
    hl_fault_board_free(board);
}

static void a_parked_child_is_seen_stopped_continued_and_released(void)
{
    hl_fault_board *board = hl_fault_board_create();
    const unsigned rule = hl_fault_arm(board, POINT, 2, HL_FAULT_PARK, 0);
    const pid_t child = spawn(board, "1", "3", "error", NULL);
    CU_ASSERT_TRUE(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    CU_ASSERT_TRUE(hl_fault_parked_tid(board, rule) > 0);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 2);
    int status = 0;
    CU_ASSERT_EQUAL(kill(child, SIGSTOP), 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, WUNTRACED), child);
    CU_ASSERT_TRUE(WIFSTOPPED(status));
    hl_fault_release(board, rule);
    CU_ASSERT_EQUAL(kill(child, SIGCONT), 0);
    exited(wait_for(child), 0);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 3);
    CU_ASSERT_EQUAL(hl_fault_parked(board, rule), 0);
    hl_fault_board_free(board);
}

static void a_parked_child_dies_of_a_kill_from_outside(void)
{
    hl_fault_board *board = hl_fault_board_create();
    const unsigned rule = hl_fault_arm(board, POINT, 1, HL_FAULT_PARK, 0);
    const pid_t child = spawn(board, "3", "4", "error", NULL);
    CU_ASSERT_TRUE(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    kill(child, SIGKILL);
    killed(wait_for(child), SIGKILL);
    CU_ASSERT_EQUAL(hl_fault_parked(board, rule), 1);
    hl_fault_board_free(board);
}

static void a_rule_can_wait_for_a_later_process(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_arm(board, POINT, 2, HL_FAULT_KILL, 0);
    const unsigned second = hl_fault_arm_spec(
        board, &(hl_fault_rule_spec){.point = POINT, .nth = 3, .action = HL_FAULT_KILL, .process = 2});
    killed(wait_for(spawn(board, "1", "9", "error", NULL)), SIGKILL);
    CU_ASSERT_EQUAL(hl_fault_fired(board, second), 0);
    killed(wait_for(spawn(board, "1", "9", "error", NULL)), SIGKILL);
    CU_ASSERT_EQUAL(hl_fault_fired(board, second), 1);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 5);
    exited(wait_for(spawn(board, "1", "9", "error", NULL)), 0);
    hl_fault_board_free(board);
}

static void a_child_without_a_board_meets_no_fault(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_arm(board, POINT, 1, HL_FAULT_KILL, 0);
    setenv(HL_FAULT_BOARD_ENV, "99", 1);
    exited(wait_for(spawn(NULL, "1", "2", "error", NULL)), 0);
    unsetenv(HL_FAULT_BOARD_ENV);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 0);
    hl_fault_board_free(board);
}

static void a_rule_that_does_not_suit_its_point_ends_the_process(void)
{
    static const struct {
        hl_fault_action action;
        const char *kind;
    } wrong[] = {{HL_FAULT_DROP, "error"}, {HL_FAULT_ERROR, "drop"}, {HL_FAULT_DROP, "short"}};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hl_fault_board *board = hl_fault_board_create();
        hl_fault_arm(board, POINT, 1, wrong[i].action, EIO);
        killed(wait_for(spawn(board, "1", "1", wrong[i].kind, NULL)), SIGABRT);
        hl_fault_board_free(board);
    }
}

/* Whether a child that is given this descriptor as its board refuses it. */
static void refused(const char *number)
{
    char text[64];
    snprintf(text, sizeof text, HL_FAULT_BOARD_ENV "=%s", number);
    killed(wait_for(spawn(NULL, "1", "1", "error", (const char *const[]){text, NULL})), SIGABRT);
}

static int memory(size_t bytes, unsigned seals, const void *content, size_t content_bytes)
{
    const int fd = memfd_create("not-quite-a-board", MFD_ALLOW_SEALING);
    CU_ASSERT_TRUE_FATAL(fd >= 0 && !ftruncate(fd, (off_t)bytes));
    CU_ASSERT_EQUAL_FATAL(pwrite(fd, content, content_bytes, 0), (ssize_t)content_bytes);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void refused_fd(int fd)
{
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    refused(number);
    close(fd);
}

static void a_malformed_board_ends_the_process(void)
{
    enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    refused("");
    refused("three");
    refused("-1");
    refused("7x");
    refused("99999999999999999999");
    refused("1000");                                  /* not open */
    refused_fd(open("/dev/zero", O_RDWR));            /* no memfd */
    refused_fd(open("/dev/null", O_RDWR | O_APPEND)); /* no memfd */

    hl_fault_board *board = hl_fault_board_create();
    const size_t bytes = sizeof *board;
    refused_fd(memory(bytes, 0, board, bytes));
    refused_fd(memory(bytes, F_SEAL_SHRINK, board, bytes));
    refused_fd(memory(bytes - 8, SIZE_SEALS, board, bytes - 8));
    refused_fd(memory(bytes + 8, SIZE_SEALS, board, bytes));
    board->magic ^= 1;
    refused_fd(memory(bytes, SIZE_SEALS, board, bytes));
    board->magic ^= 1;
    board->version++;
    refused_fd(memory(bytes, SIZE_SEALS, board, bytes));
    board->version--;
    board->point_count++;
    refused_fd(memory(bytes, SIZE_SEALS, board, bytes));
    board->point_count--;
    board->point_names ^= 1;
    refused_fd(memory(bytes, SIZE_SEALS, board, bytes));
    board->point_names ^= 1;

    /* The same bytes, unspoilt, are a board. */
    const int fd = memory(bytes, SIZE_SEALS, board, bytes);
    char text[64];
    snprintf(text, sizeof text, HL_FAULT_BOARD_ENV "=%d", fd);
    exited(wait_for(spawn(NULL, "1", "1", "error", (const char *const[]){text, NULL})), 0);
    close(fd);
    hl_fault_board_free(board);
}

static void a_parked_process_outlives_its_board_s_creator_by_seconds_only(void)
{
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    CU_ASSERT_EQUAL_FATAL(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const int out = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(ends[1], STDOUT_FILENO);
    const pid_t child = hl_fault_spawn(NULL, (const char *const[]){victim(), "orphan", NULL}, NULL);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(ends[1]);
    killed(wait_for(child), SIGKILL);
    char text[32] = {0};
    CU_ASSERT_TRUE_FATAL(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    killed(wait_for((pid_t)strtol(text, NULL, 10)), SIGKILL);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

HL_TESTS(fault_board, HL_CASE(a_kill_is_sigkill_at_exactly_the_nth_hit),
         HL_CASE(an_error_meets_one_hit_of_all_threads),
         HL_CASE(drops_and_short_transfers_cross_the_process_border),
         HL_CASE(a_parked_child_is_seen_stopped_continued_and_released),
         HL_CASE(a_parked_child_dies_of_a_kill_from_outside), HL_CASE(a_rule_can_wait_for_a_later_process),
         HL_CASE(a_child_without_a_board_meets_no_fault),
         HL_CASE(a_rule_that_does_not_suit_its_point_ends_the_process),
         HL_CASE(a_malformed_board_ends_the_process),
         HL_CASE(a_parked_process_outlives_its_board_s_creator_by_seconds_only));
