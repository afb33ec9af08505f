/* Memory that runs out: each allocation of each operation fails once, in turn. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/testing/allocation.h"
#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

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
    CU_ASSERT_TRUE(hl_fail_each_allocation(read_file) >= 12);
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
    CU_ASSERT_TRUE(hl_fail_each_allocation(lay_out) >= 9);
}

HL_TESTS(allocation, HL_CASE(reading_a_file_survives_each_failure),
         HL_CASE(laying_out_survives_each_failure));
