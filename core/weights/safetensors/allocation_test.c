/* Memory that runs out: each allocation of each operation fails once, in turn. The call says HL_E_NOMEM, sets
 * no output and leaks nothing (which the address sanitizer sees). The linker puts these functions before the
 * C library's, in this program only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static long allocations_left = -1; /* until one fails; -1: none does */
static bool one_failed;

static bool allowed(void)
{
    if (allocations_left != 0)
        return allocations_left < 0 || allocations_left-- > 0;
    allocations_left = -1;
    one_failed = true;
    return false;
}

void *__wrap_malloc(size_t size)
{
    return allowed() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allowed() ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    return allowed() ? __real_realloc(old, size) : NULL;
}

/* Runs `operation` with 0, 1, 2, … allocations until it needs no more; at least `least` must have failed. */
static void fail_each_allocation(hl_status (*operation)(hl_error *err), long least)
{
    for (long allowance = 0;; allowance++) {
        hl_error err = {0};
        CU_ASSERT_TRUE_FATAL(allowance < 1000);
        one_failed = false;
        allocations_left = allowance;
        hl_status status = operation(&err);
        allocations_left = -1;
        if (!one_failed) {
            HL_EXPECT_OK(status, err);
            CU_ASSERT_TRUE(allowance >= least);
            return;
        }
        CU_ASSERT_EQUAL(status, HL_E_NOMEM);
        CU_ASSERT_EQUAL(err.status, HL_E_NOMEM);
    }
}

/* Entries out of order and names that must be compared: everything is allocated that ever is. */
#define FILE_TEXT                                                                                            \
    "\xc8\0\0\0\0\0\0\0"                                                                                     \
    "{\"__metadata__\":{\"k\":\"1\",\"j\":\"2\",\"k\":\"3\"},"                                               \
    "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"                                         \
    "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"                                         \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[2,3]}}"

static int fd;

static hl_status read_file(hl_error *err)
{
    hl_safetensors *parsed = NULL;
    hl_status status = hl_safetensors_read(fd, 8 + 200 + 3, HL_SAFETENSORS_TOLERANT, &parsed, err);
    CU_ASSERT_EQUAL(status == HL_OK, parsed != NULL);
    hl_safetensors_free(parsed);
    return status;
}

static void reading_a_file_survives_each_failure(void)
{
    char bytes[8 + 200 + 3];
    memset(bytes, ' ', sizeof bytes);
    CU_ASSERT_TRUE_FATAL(sizeof FILE_TEXT - 1 <= 8 + 200);
    memcpy(bytes, FILE_TEXT, sizeof FILE_TEXT - 1);
    fd = file_make(bytes, sizeof bytes);
    /* The text; the document, its text, its tape and its order; entries, order, names, pairs, three sorts;
     * the result and its block. */
    fail_each_allocation(read_file, 12);
    close(fd);
}

static hl_status lay_out(hl_error *err)
{
    static const uint64_t shape[] = {2};
    static const struct hl_safetensors_spec specs[] = {{"c", HL_SAFETENSORS_U8, 1, shape},
                                                       {"a", HL_SAFETENSORS_F32, 1, shape},
                                                       {"b", HL_SAFETENSORS_BF16, 1, shape}};
    static const struct hl_safetensors_metadata metadata[] = {{"k", "1"}, {"j", "2"}};
    struct hl_safetensors_layout layout = {0};
    hl_status status = hl_safetensors_lay_out(specs, 3, metadata, 2, HL_SAFETENSORS_ALIGNED, &layout, err);
    CU_ASSERT_EQUAL(status == HL_OK, layout.header != NULL);
    hl_safetensors_layout_free(&layout);
    return status;
}

static void laying_out_survives_each_failure(void)
{
    fail_each_allocation(lay_out, 9);
}

HL_TESTS(allocation, HL_CASE(reading_a_file_survives_each_failure),
         HL_CASE(laying_out_survives_each_failure));
