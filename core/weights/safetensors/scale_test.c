/* Large headers: the limits hold, and nothing grows faster than n log n. There is no clock here: a quadratic
 * step would take minutes at these sizes, so that the test's time limit is the check. Sanitizers look at the
 * same steps with fewer tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY = 20000 };
#else
enum { MANY = 100000 };
#endif

/* A header that grows; freed by parse_grown(). */
struct grown {
    struct hl_text text;
};

static hl_status parse_grown(struct grown *grown, uint64_t data_bytes,
                             enum hl_safetensors_strictness strictness, hl_safetensors **parsed,
                             hl_error *err)
{
    while (grown->text.size % 8 != 0)
        hl_text_append(&grown->text, " ", 1);
    hl_status status = hl_text_status(&grown->text, "test", err);
    if (status == HL_OK)
        status = hl_safetensors_parse(grown->text.bytes, grown->text.size, 8 + grown->text.size + data_bytes,
                                      strictness, parsed, err);
    hl_text_free(&grown->text);
    return status;
}

static void put_tensors(struct grown *grown, const char *name_format, unsigned count)
{
    hl_text_append(&grown->text, "{", 1);
    for (unsigned i = 0; i < count; i++) {
        char name[128];
        /* An odd step: every name once, in no order. */
        snprintf(name, sizeof name, name_format, (unsigned)(i * 2654435761u));
        hl_text_print(&grown->text, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                      i ? "," : "", name);
    }
}

static void one_tensor_more_than_the_limit_is_refused(void)
{
    struct grown grown = {0};
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    hl_text_append(&grown.text, "{", 1);
    for (unsigned i = 0; i <= HL_WEIGHT_TENSORS; i++) {
        static const char entry[] = ":0,";
        char name[16];
        int size = snprintf(name, sizeof name, "\"%06x\"", i);
        hl_text_append(&grown.text, name, (size_t)size);
        hl_text_append(&grown.text, entry, i == HL_WEIGHT_TENSORS ? 2 : 3);
    }
    hl_text_append(&grown.text, "}", 1);
    HL_EXPECT_STATUS(parse_grown(&grown, 0, HL_SAFETENSORS_STRICT, &parsed, &err), HL_E_LIMIT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "1048577 tensors"));
    CU_ASSERT_PTR_NULL(parsed);
}

static void many_empty_tensors_in_no_order_are_sorted(void)
{
    for (int mode = HL_SAFETENSORS_STRICT; mode <= HL_SAFETENSORS_TOLERANT; mode++) {
        struct grown grown = {0};
        hl_safetensors *parsed = NULL;
        hl_error err = {0};
        put_tensors(&grown, "a.name.with.a.long.common.beginning.that.every.comparison.has.to.read.%08x",
                    MANY);
        hl_text_append(&grown.text, "}", 1);
        HL_REQUIRE_OK(parse_grown(&grown, 0, (enum hl_safetensors_strictness)mode, &parsed, &err), err);
        CU_ASSERT_EQUAL(parsed->tensor_count, MANY);
        require_sound(parsed);
        hl_safetensors_free(parsed);
    }
}

static void a_name_twice_among_many_is_found_in_both_modes(void)
{
    for (int mode = HL_SAFETENSORS_STRICT; mode <= HL_SAFETENSORS_TOLERANT; mode++) {
        struct grown grown = {0};
        hl_safetensors *parsed = NULL;
        hl_error err = {0};
        put_tensors(&grown, "%08x", MANY);
        hl_text_print(&grown.text, ",\"%08x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                      77 * 2654435761u);
        HL_EXPECT_STATUS(parse_grown(&grown, 0, (enum hl_safetensors_strictness)mode, &parsed, &err),
                         HL_E_CORRUPT, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "is given twice"));
        CU_ASSERT_PTR_NULL(parsed);
    }
}

static void many_unknown_fields_and_metadata_keys_are_counted(void)
{
    struct grown grown = {0};
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    hl_text_print(&grown.text, "{\"__metadata__\":{\"k\":\"v\"");
    for (unsigned i = 0; i < MANY; i++)
        hl_text_print(&grown.text, ",\"%u\":\"%u\"", i * 2654435761u % (MANY / 2), i);
    hl_text_print(&grown.text, "},\"a\":{");
    for (unsigned i = 0; i < MANY; i++)
        hl_text_print(&grown.text, "\"%u\":%u,", i * 2654435761u % (MANY / 2), i);
    hl_text_print(&grown.text, "\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
    HL_REQUIRE_OK(parse_grown(&grown, 1, HL_SAFETENSORS_TOLERANT, &parsed, &err), err);
    CU_ASSERT_EQUAL(parsed->tolerated.unknown_fields, MANY);
    CU_ASSERT_EQUAL(parsed->tolerated.duplicate_metadata + parsed->metadata_count, MANY + 1);
    CU_ASSERT_TRUE(parsed->metadata_count <= MANY / 2 + 1);
    require_sound(parsed);
    hl_safetensors_free(parsed);
}

static void more_tensors_than_the_limit_are_not_laid_out(void)
{
    size_t count = HL_WEIGHT_TENSORS + 1;
    struct hl_safetensors_spec *specs = calloc(count, sizeof *specs);
    struct hl_safetensors_layout layout = {0};
    hl_error err = {0};
    CU_ASSERT_PTR_NOT_NULL_FATAL(specs);
    HL_EXPECT_STATUS(hl_safetensors_lay_out(specs, count, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err),
                     HL_E_LIMIT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "1048577 tensors"));
    free(specs);
}

/* One tensor's name is as long as the header may be, or does not leave room for the rest. */
static void a_header_longer_than_the_limit_is_not_laid_out(void)
{
    size_t size = HL_SAFETENSORS_HEADER_BYTES;
    char *name = malloc(size + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(name);
    memset(name, 'n', size);
    name[size] = '\0';
    const struct hl_safetensors_spec specs[] = {{name, HL_SAFETENSORS_U8, 0, NULL},
                                                {"z", HL_SAFETENSORS_U8, 0, NULL}};
    struct hl_safetensors_layout layout = {0};
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_safetensors_lay_out(specs, 2, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err),
                     HL_E_LIMIT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "header of more than"));
    CU_ASSERT_PTR_NULL(layout.header);
    free(name);
}

HL_TESTS(scale, HL_CASE(one_tensor_more_than_the_limit_is_refused),
         HL_CASE(many_empty_tensors_in_no_order_are_sorted),
         HL_CASE(a_name_twice_among_many_is_found_in_both_modes),
         HL_CASE(many_unknown_fields_and_metadata_keys_are_counted),
         HL_CASE(more_tensors_than_the_limit_are_not_laid_out),
         HL_CASE(a_header_longer_than_the_limit_is_not_laid_out));
