/* Every step of storage fails once, before and after it was done: the errno comes out, what was there is as
 * before, nothing temporary and no descriptor is left. Runs as a *_faults twin only. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"
#include "faults/testing.h"

static hl_fault_board *board;

static void use_board(void)
{
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

static void drop_board(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

/* Arms STEP_before or STEP_after to fail at its n-th hit. */
static unsigned arm(const char *step, bool after, uint32_t nth, int sys_errno)
{
    char point[96];
    snprintf(point, sizeof point, "%s_%s", step, after ? "after" : "before");
    return hl_fault_arm(board, point, nth, HL_FAULT_ERROR, (uint64_t)sys_errno);
}

static void disarm_fired(unsigned rule, const char *step)
{
    if (hl_fault_fired(board, rule) != 1)
        fprintf(stderr, "the fault at %s was not reached\n", step);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    hl_fault_disarm(board, rule);
}

static const int errnos[] = {EIO, ENOSPC, EDQUOT};

static hl_status expected(int sys_errno)
{
    return sys_errno == EIO ? HL_E_SYSTEM : HL_E_NOSPACE;
}

static void a_document_is_created_whole_or_not_at_all(void)
{
    static const struct {
        const char *step;
        uint32_t nth;
    } steps[] = {{"weights_document_open", 1},
                 {"weights_document_write", 1},
                 {"weights_document_sync", 1},
                 {"weights_document_seal", 1},
                 {"weights_document_sync", 2}};
    int folder = scratch_open();
    use_board();
    int before = scratch_next_fd();
    for (size_t i = 0; i < 2 * sizeof steps / sizeof *steps; i++)
        for (size_t e = 0; e < 3; e++) {
            hl_error err = {0};
            unsigned rule = arm(steps[i / 2].step, i % 2, steps[i / 2].nth, errnos[e]);
            HL_EXPECT_STATUS(hl_storage_create_document(folder, "it", "text", 4, &err), expected(errnos[e]),
                             err);
            CU_ASSERT_EQUAL(err.sys_errno, errnos[e]);
            disarm_fired(rule, steps[i / 2].step);
            CU_ASSERT_EQUAL(scratch_entries(folder), 0);
            CU_ASSERT_EQUAL(scratch_next_fd(), before);
        }
    drop_board();
    scratch_close(folder);
}

static void a_failed_replacement_leaves_what_was_there(void)
{
    static const char *const steps[] = {"weights_document_open",   "weights_document_write",
                                        "weights_document_seal",   "weights_document_sync",
                                        "weights_document_rename", "weights_folder_sync"};
    int folder = scratch_open();
    use_board();
    int before = scratch_next_fd();
    for (int old = 0; old < 2; old++) {
        if (old)
            scratch_write(folder, "it", "old", 0444);
        for (size_t i = 0; i < 2 * sizeof steps / sizeof *steps; i++)
            for (size_t e = 0; e < 3; e++) {
                hl_error err = {0};
                unsigned rule = arm(steps[i / 2], i % 2, 1, errnos[e]);
                HL_EXPECT_STATUS(hl_storage_replace_document(folder, "it", "new", 3, &err),
                                 expected(errnos[e]), err);
                CU_ASSERT_EQUAL(err.sys_errno, errnos[e]);
                disarm_fired(rule, steps[i / 2]);
                CU_ASSERT_EQUAL(scratch_entries(folder), (size_t)old);
                CU_ASSERT_EQUAL(scratch_holds(folder, "it", "old"), old == 1);
                CU_ASSERT_EQUAL(scratch_next_fd(), before);
            }
    }
    drop_board();
    scratch_close(folder);
}

/* The last step takes the old document away. When it is not done, the old one comes back; when it was done
 * and reports failure all the same, only the new one is left to stand. */
static void an_old_document_that_cannot_be_removed_comes_back(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    use_board();
    scratch_write(folder, "it", "old", 0444);
    unsigned rule = arm("weights_remove", false, 1, EIO);
    HL_EXPECT_STATUS(hl_storage_replace_document(folder, "it", "new", 3, &err), HL_E_SYSTEM, err);
    disarm_fired(rule, "weights_remove");
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "old") && scratch_entries(folder) == 1);
    rule = arm("weights_remove", true, 1, EIO);
    HL_EXPECT_STATUS(hl_storage_replace_document(folder, "it", "new", 3, &err), HL_E_SYSTEM, err);
    disarm_fired(rule, "weights_remove");
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "new") && scratch_entries(folder) == 1);
    drop_board();
    scratch_close(folder);
}

static void short_writes_go_on(void)
{
    enum { BYTES = 1000 };
    hl_error err = {0};
    char text[BYTES + 1];
    int folder = scratch_open();
    for (int i = 0; i < BYTES; i++)
        text[i] = (char)('a' + i % 26);
    text[BYTES] = 0;
    use_board();
    hl_fault_rule_spec spec = {.point = "weights_write_short",
                               .nth = 1,
                               .action = HL_FAULT_SHORT,
                               .argument = 7,
                               .persistent = true};
    unsigned rule = hl_fault_arm_spec(board, &spec);
    HL_EXPECT_OK(hl_storage_create_document(folder, "it", text, BYTES, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", text));
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), (BYTES + 6) / 7);
    hl_fault_disarm(board, rule);
    drop_board();
    scratch_close(folder);
}

static void a_failed_read_is_an_error_and_an_interrupted_one_goes_on(void)
{
    hl_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int folder = scratch_open();
    scratch_write(folder, "it", "text", 0444);
    use_board();
    int before = scratch_next_fd();
    for (int after = 0; after < 2; after++)
        for (uint32_t nth = 1; nth <= 2; nth++) {
            unsigned rule = arm("weights_read", after, nth, EIO);
            HL_EXPECT_STATUS(hl_storage_read_document(folder, "it", 9, true, &text, &bytes, &err),
                             HL_E_SYSTEM, err);
            CU_ASSERT_EQUAL(err.sys_errno, EIO);
            disarm_fired(rule, "weights_read");
            rule = arm("weights_read", after, nth, EINTR);
            HL_EXPECT_OK(hl_storage_read_document(folder, "it", 9, true, &text, &bytes, &err), err);
            disarm_fired(rule, "weights_read");
            CU_ASSERT_TRUE(bytes == 4 && !strcmp(text, "text"));
            free(text);
            text = NULL;
        }
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    drop_board();
    scratch_close(folder);
}

static void a_folder_that_cannot_be_made_is_an_error_unless_it_is_there(void)
{
    hl_error err = {0};
    int folder = scratch_open(), fd = -7;
    use_board();
    int before = scratch_next_fd();
    for (int after = 0; after < 2; after++)
        for (size_t e = 0; e < 3; e++) {
            unsigned rule = arm("weights_folder_make", after, 1, errnos[e]);
            HL_EXPECT_STATUS(hl_storage_make_folder(folder, "it", true, &fd, &err), expected(errnos[e]), err);
            CU_ASSERT_EQUAL(err.sys_errno, errnos[e]);
            disarm_fired(rule, "weights_folder_make");
            CU_ASSERT_EQUAL(scratch_next_fd(), before);
            CU_ASSERT_EQUAL(scratch_entries(folder), (size_t)after);
            unlinkat(folder, "it", AT_REMOVEDIR);
        }
    CU_ASSERT_EQUAL(fd, -7);
    /* Somebody else was faster. */
    unsigned rule = arm("weights_folder_make", true, 1, EEXIST);
    HL_REQUIRE_OK(hl_storage_make_folder(folder, "it", true, &fd, &err), err);
    disarm_fired(rule, "weights_folder_make");
    close(fd);
    drop_board();
    scratch_close(folder);
}

/* tree/{a,b}, tree/below/{a,b}, tree/below/deeper: 7 removals in all. */
static void make_tree(int folder)
{
    CU_ASSERT_TRUE_FATAL(mkdirat(folder, "tree", 0755) == 0 && mkdirat(folder, "tree/below", 0755) == 0 &&
                         mkdirat(folder, "tree/below/deeper", 0755) == 0);
    scratch_write(folder, "tree/a", "x", 0444);
    scratch_write(folder, "tree/b", "x", 0444);
    scratch_write(folder, "tree/below/a", "x", 0444);
    scratch_write(folder, "tree/below/b", "x", 0444);
    CU_ASSERT_TRUE_FATAL(fchmodat(folder, "tree/below", 0555, 0) == 0 &&
                         fchmodat(folder, "tree", 0555, 0) == 0);
}

static void removal_stops_at_a_failure_and_is_finished_by_the_next(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    use_board();
    int before = scratch_next_fd();
    make_tree(folder);
    HL_REQUIRE_OK(hl_storage_remove_tree(folder, "tree", &err), err);
    const uint32_t removals = hl_fault_hits(board, "weights_remove_before");
    CU_ASSERT_TRUE(removals >= 7); /* a folder is met once as an entry and once as a folder */
    for (uint32_t nth = 1; nth <= removals; nth++)
        for (int after = 0; after < 2; after++) {
            make_tree(folder);
            unsigned rule = arm("weights_remove", after, nth, EIO);
            HL_EXPECT_STATUS(hl_storage_remove_tree(folder, "tree", &err), HL_E_SYSTEM, err);
            CU_ASSERT_EQUAL(err.sys_errno, EIO);
            disarm_fired(rule, "weights_remove");
            CU_ASSERT_EQUAL(scratch_next_fd(), before);
            HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", &err), err);
            CU_ASSERT_EQUAL(scratch_entries(folder), 0);
        }
    for (int after = 0; after < 2; after++)
        for (uint32_t nth = 1; nth <= 2; nth++) {
            make_tree(folder);
            unsigned rule = arm("weights_remove_unlock", after, nth, EROFS);
            HL_EXPECT_STATUS(hl_storage_remove_tree(folder, "tree", &err), HL_E_SYSTEM, err);
            CU_ASSERT_EQUAL(err.sys_errno, EROFS);
            disarm_fired(rule, "weights_remove_unlock");
            HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", &err), err);
        }
    drop_board();
    scratch_close(folder);
}

/* A folder that is said to have vanished when it has not makes its parent fail, and the next call go on. */
static void entries_that_vanish_on_the_way_are_no_failure(void)
{
    hl_error err = {0};
    int folder = scratch_open(), passed_over = 0;
    use_board();
    make_tree(folder);
    HL_REQUIRE_OK(hl_storage_remove_tree(folder, "tree", &err), err);
    const uint32_t removals = hl_fault_hits(board, "weights_remove_before");
    for (uint32_t nth = 1; nth <= removals; nth++) {
        make_tree(folder);
        unsigned rule = arm("weights_remove", true, nth, ENOENT);
        if (hl_storage_remove_tree(folder, "tree", &err) == HL_OK)
            passed_over++;
        else
            CU_ASSERT_EQUAL(err.sys_errno, ENOTEMPTY);
        disarm_fired(rule, "weights_remove");
        HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", &err), err);
        CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    }
    CU_ASSERT_EQUAL(passed_over, 7);
    drop_board();
    scratch_close(folder);
}

/* The outcome of a replacement in a process that is killed at a step: its exit is not looked at. */
static bool is_killed_replacing(int folder, const char *point)
{
    int status = 0;
    unsigned rule = hl_fault_arm(board, point, 1, HL_FAULT_KILL, 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        hl_storage_replace_document(folder, "it", "new", 3, NULL);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    disarm_fired(rule, point);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void a_process_killed_at_any_step_leaves_the_old_or_the_new(void)
{
    static const struct {
        const char *point;
        const char *text;
    } kills[] = {
        {"weights_document_open_before", "old"},   {"weights_document_open_after", "old"},
        {"weights_document_write_before", "old"},  {"weights_document_write_after", "old"},
        {"weights_document_seal_before", "old"},   {"weights_document_seal_after", "old"},
        {"weights_document_sync_before", "old"},   {"weights_document_sync_after", "old"},
        {"weights_document_rename_before", "old"}, {"weights_document_rename_after", "new"},
        {"weights_folder_sync_before", "new"},     {"weights_folder_sync_after", "new"},
        {"weights_remove_before", "new"},          {"weights_remove_after", "new"},
    };
    use_board();
    for (size_t i = 0; i < sizeof kills / sizeof *kills; i++) {
        int folder = scratch_open();
        scratch_write(folder, "it", "old", 0444);
        CU_ASSERT_TRUE(is_killed_replacing(folder, kills[i].point));
        CU_ASSERT_TRUE(scratch_holds(folder, "it", kills[i].text));
        CU_ASSERT_TRUE(scratch_entries(folder) <= 2);
        scratch_close(folder);
    }
    drop_board();
}

/* Starts `life` in a child and lets `meanwhile` happen while it is parked at `point`, hit for the n-th time.
 * Returns its exit status. */
static int park(int folder, const char *point, uint32_t nth, int (*life)(int folder),
                void (*meanwhile)(int folder))
{
    int status = -1;
    unsigned rule = hl_fault_arm(board, point, nth, HL_FAULT_PARK, 0);
    fflush(NULL);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    if (child == 0)
        _exit(life(folder));
    const bool parked = hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS);
    CU_ASSERT_TRUE(parked);
    if (parked)
        meanwhile(folder);
    hl_fault_release(board, rule);
    CU_ASSERT_TRUE(hl_fault_await_exit(child, HL_FAULT_PATIENCE_NS, &status));
    hl_fault_disarm(board, rule);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int read_to_be_corrupt(int folder)
{
    char *text = NULL;
    size_t bytes;
    return hl_storage_read_document(folder, "it", 100, false, &text, &bytes, NULL) == HL_E_CORRUPT ? 0 : 1;
}

static void set_size(int folder, off_t size)
{
    int fd = openat(folder, "it", O_WRONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL(ftruncate(fd, size), 0);
    close(fd);
}

static void lengthen(int folder)
{
    set_size(folder, 5);
}

static void shorten(int folder)
{
    set_size(folder, 3);
}

static void a_file_that_grows_or_shrinks_while_it_is_read_is_corrupt(void)
{
    int folder = scratch_open();
    use_board();
    scratch_write(folder, "it", "text", 0644);
    CU_ASSERT_EQUAL(park(folder, "weights_read_before", 1, read_to_be_corrupt, shorten), 0);
    set_size(folder, 4);
    CU_ASSERT_EQUAL(park(folder, "weights_read_before", 1, read_to_be_corrupt, lengthen), 0);
    set_size(folder, 4);
    CU_ASSERT_EQUAL(park(folder, "weights_read_before", 2, read_to_be_corrupt, lengthen), 0);
    drop_board();
    scratch_close(folder);
}

enum { LEVELS = 80, MOVED_LEVEL = 70 };

static int open_level(int folder, int level)
{
    int at = openat(folder, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < level; i++) {
        int below = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(at);
        at = below;
    }
    return at;
}

static int remove_to_be_stale(int folder)
{
    hl_error err = {0};
    return hl_storage_remove_tree(folder, "tree", &err) == HL_E_SYSTEM && err.sys_errno == ESTALE ? 0 : 1;
}

static int remove_to_be_busy(int folder)
{
    hl_error err = {0};
    return hl_storage_remove_tree(folder, "tree", &err) == HL_E_SYSTEM && err.sys_errno == ENOTEMPTY ? 0 : 1;
}

static int remove_to_succeed(int folder)
{
    return hl_storage_remove_tree(folder, "tree", NULL) == HL_OK ? 0 : 1;
}

static void move_a_folder_away(int folder)
{
    int at = open_level(folder, MOVED_LEVEL);
    CU_ASSERT_EQUAL(renameat(at, "d", folder, "moved"), 0);
    close(at);
}

static void remove_the_file(int folder)
{
    int at = open_level(folder, LEVELS);
    CU_ASSERT_EQUAL(unlinkat(at, "file", 0), 0);
    close(at);
}

static void add_a_file_at_the_top(int folder)
{
    scratch_write(folder, "tree/late", "x", 0444);
}

static void make_deep(int folder)
{
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "tree", 0755), 0);
    for (int level = 0; level < LEVELS; level++) {
        int at = open_level(folder, level);
        CU_ASSERT_EQUAL_FATAL(mkdirat(at, "d", 0755), 0);
        close(at);
    }
    int at = open_level(folder, LEVELS);
    scratch_write(at, "file", "x", 0444);
    close(at);
}

/* On the way down each folder is hit once as an entry, so the file at the bottom is the hit behind them. */
static void removal_meets_others_at_work(void)
{
    int folder = scratch_open();
    use_board();
    scratch_write(folder, "kept", "kept", 0444);
    make_deep(folder);
    CU_ASSERT_EQUAL(park(folder, "weights_remove_before", LEVELS + 1, remove_to_be_stale, move_a_folder_away),
                    0);
    CU_ASSERT_TRUE(scratch_holds(folder, "kept", "kept") && scratch_exists(folder, "moved"));
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "moved", NULL), (hl_error){0});
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", NULL), (hl_error){0});
    make_deep(folder);
    CU_ASSERT_EQUAL(
        park(folder, "weights_remove_before", LEVELS + 1, remove_to_be_busy, add_a_file_at_the_top), 0);
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", NULL), (hl_error){0});
    make_deep(folder);
    CU_ASSERT_EQUAL(park(folder, "weights_remove_before", LEVELS + 1, remove_to_succeed, remove_the_file), 0);
    CU_ASSERT_EQUAL(scratch_entries(folder), 1);
    drop_board();
    scratch_close(folder);
}

HL_TESTS(steps, HL_CASE(a_document_is_created_whole_or_not_at_all),
         HL_CASE(a_failed_replacement_leaves_what_was_there),
         HL_CASE(an_old_document_that_cannot_be_removed_comes_back), HL_CASE(short_writes_go_on),
         HL_CASE(a_failed_read_is_an_error_and_an_interrupted_one_goes_on),
         HL_CASE(a_folder_that_cannot_be_made_is_an_error_unless_it_is_there),
         HL_CASE(removal_stops_at_a_failure_and_is_finished_by_the_next),
         HL_CASE(entries_that_vanish_on_the_way_are_no_failure),
         HL_CASE(a_file_that_grows_or_shrinks_while_it_is_read_is_corrupt),
         HL_CASE(removal_meets_others_at_work),
         HL_CASE(a_process_killed_at_any_step_leaves_the_old_or_the_new));
