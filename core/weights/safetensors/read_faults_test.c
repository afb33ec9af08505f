/* Reads that fail. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"
#include "faults/testing.h"

/* A file without tensors. */
#define FILE_TEXT "\x08\0\0\0\0\0\0\0{}      "
#define FILE_BYTES (sizeof FILE_TEXT - 1)

/* Reading takes two steps, the length and the text; each fails before and after it was done. */
static void an_error_of_either_read_is_passed_on(void)
{
    static const char *const points[] = {"weights_read_before", "weights_read_after"};
    int fd = file_make(FILE_TEXT, FILE_BYTES);
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_use_board(board);
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t nth = 1; nth <= 2; nth++) {
            hl_safetensors *parsed = NULL;
            hl_error err = {0};
            unsigned rule = hl_fault_arm(board, points[i], nth, HL_FAULT_ERROR, EIO);
            HL_EXPECT_STATUS(hl_safetensors_read(fd, FILE_BYTES, HL_SAFETENSORS_STRICT, &parsed, &err),
                             HL_E_SYSTEM, err);
            CU_ASSERT_EQUAL(err.sys_errno, EIO);
            CU_ASSERT_PTR_NULL(parsed);
            CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
            hl_fault_disarm(board, rule);
        }
    }
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    close(fd);
}

static void an_interrupted_read_is_tried_again(void)
{
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    int fd = file_make(FILE_TEXT, FILE_BYTES);
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_use_board(board);
    unsigned rule = hl_fault_arm(board, "weights_read_before", 2, HL_FAULT_ERROR, EINTR);
    HL_REQUIRE_OK(hl_safetensors_read(fd, FILE_BYTES, HL_SAFETENSORS_STRICT, &parsed, &err), err);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    CU_ASSERT_EQUAL(parsed->tensor_count, 0);
    hl_safetensors_free(parsed);
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    close(fd);
}

HL_TESTS(read_faults, HL_CASE(an_error_of_either_read_is_passed_on),
         HL_CASE(an_interrupted_read_is_tried_again));
