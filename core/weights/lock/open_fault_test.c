/* The one step of lock: opening the file, in a build with faults. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "core/testing/cunit.h"
#include "core/weights/lock/lock.h"
#include "core/weights/storage/scratch.h"
#include "faults/testing.h"

static void a_lock_that_cannot_be_opened_keeps_its_errno_and_leaks_nothing(void)
{
    static const char *const points[] = {"weights_lock_open_before", "weights_lock_open_after"};
    static const int errnos[] = {EIO, EMFILE, ENOSPC, ESTALE};
    hl_fault_board *board = hl_fault_board_create();
    int folder = scratch_open();
    hl_fault_use_board(board);
    int before = scratch_next_fd();
    for (int i = 0; i < 2; i++)
        for (size_t e = 0; e < sizeof errnos / sizeof *errnos; e++) {
            hl_error err = {0};
            struct hl_lock lock = HL_LOCK_NONE;
            bool active = true;
            unsigned rule = hl_fault_arm(board, points[i], 1, HL_FAULT_ERROR, (uint64_t)errnos[e]);
            HL_EXPECT_STATUS(hl_lock_take(folder, HL_LOCK_DOMAIN_INIT, NULL, HL_LOCK_SHARED, HL_LOCK_FOREVER,
                                          false, &lock, &err),
                             HL_E_SYSTEM, err);
            CU_ASSERT_TRUE(err.sys_errno == errnos[e] && lock.fd == -1);
            CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
            hl_fault_disarm(board, rule);
            rule = hl_fault_arm(board, points[i], 1, HL_FAULT_ERROR, (uint64_t)errnos[e]);
            HL_EXPECT_STATUS(hl_lock_is_active(folder, HL_LOCK_DOMAIN_INIT, NULL, &active, &err), HL_E_SYSTEM,
                             err);
            CU_ASSERT_TRUE(err.sys_errno == errnos[e] && active);
            CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
            hl_fault_disarm(board, rule);
            CU_ASSERT_EQUAL(scratch_next_fd(), before);
        }
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    scratch_close(folder);
}

HL_TESTS(open_fault, HL_CASE(a_lock_that_cannot_be_opened_keeps_its_errno_and_leaks_nothing));
