/* What readers of safetensors must accept, in both modes, and what they then say about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

/* Parses in both modes, expects the same from both, and returns the strict reader's. */
static hl_safetensors *accept(const char *text, uint64_t data_bytes)
{
    hl_safetensors *strict = NULL, *tolerant = NULL;
    hl_error err = {0};
    HL_EXPECT_OK(parse_text(text, data_bytes, HL_SAFETENSORS_STRICT, &strict, &err), err);
    HL_EXPECT_OK(parse_text(text, data_bytes, HL_SAFETENSORS_TOLERANT, &tolerant, &err), err);
    if (!strict || !tolerant)
        fprintf(stderr, "in: %s\n", text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(strict);
    CU_ASSERT_PTR_NOT_NULL_FATAL(tolerant);
    require_sound(strict);
    require_sound(tolerant);
    CU_ASSERT_EQUAL(strict->tensor_count, tolerant->tensor_count);
    CU_ASSERT_EQUAL(strict->data_bytes, data_bytes);
    CU_ASSERT_EQUAL(memcmp(&strict->tolerated, &tolerant->tolerated, sizeof strict->tolerated), 0);
    hl_safetensors_free(tolerant);
    return strict;
}

static void expect_names(const hl_safetensors *parsed, const char *names)
{
    struct hl_text text = {0};
    for (size_t i = 0; i < parsed->tensor_count; i++)
        hl_text_print(&text, i ? " %s" : "%s", parsed->tensors[i].name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.bytes);
    CU_ASSERT_STRING_EQUAL(text.bytes, names);
    hl_text_free(&text);
}

static void each_of_the_22_dtypes_is_read_with_its_size(void)
{
    static const struct {
        const char *name, *framework;
        unsigned bits;
    } rows[] = {
        {"F4", "float4_e2m1fn", 4},
        {"F6_E2M3", "float6_e2m3", 6},
        {"F6_E3M2", "float6_e3m2", 6},
        {"BOOL", "torch.bool", 8},
        {"U8", "torch.uint8", 8},
        {"I8", "torch.int8", 8},
        {"F8_E5M2", "torch.float8_e5m2", 8},
        {"F8_E4M3", "torch.float8_e4m3fn", 8},
        {"F8_E8M0", "torch.float8_e8m0fnu", 8},
        {"F8_E4M3FNUZ", "torch.float8_e4m3fnuz", 8},
        {"F8_E5M2FNUZ", "torch.float8_e5m2fnuz", 8},
        {"I16", "torch.int16", 16},
        {"U16", "torch.uint16", 16},
        {"F16", "torch.float16", 16},
        {"BF16", "torch.bfloat16", 16},
        {"I32", "torch.int32", 32},
        {"U32", "torch.uint32", 32},
        {"F32", "torch.float32", 32},
        {"C64", "torch.complex64", 64},
        {"F64", "torch.float64", 64},
        {"I64", "torch.int64", 64},
        {"U64", "torch.uint64", 64},
    };
    CU_ASSERT_EQUAL(sizeof rows / sizeof rows[0], 22);
    CU_ASSERT_EQUAL(HL_SAFETENSORS_DTYPE_COUNT, 22);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum hl_safetensors_dtype by_name = HL_SAFETENSORS_DTYPE_COUNT, by_framework = by_name;
        char text[128];
        CU_ASSERT_TRUE_FATAL(hl_safetensors_dtype_parse(rows[i].name, &by_name));
        CU_ASSERT_TRUE_FATAL(hl_safetensors_framework_parse(rows[i].framework, &by_framework));
        CU_ASSERT_EQUAL(by_name, by_framework);
        CU_ASSERT_EQUAL(hl_safetensors_bits(by_name), rows[i].bits);
        CU_ASSERT_STRING_EQUAL(hl_safetensors_dtype_name(by_name), rows[i].name);
        CU_ASSERT_STRING_EQUAL(hl_safetensors_framework_name(by_name), rows[i].framework);
        snprintf(text, sizeof text, "{`a`:{`dtype`:`%s`,`shape`:[2,4],`data_offsets`:[0,%u]}}", rows[i].name,
                 rows[i].bits);
        hl_safetensors *parsed = accept(text, rows[i].bits);
        CU_ASSERT_EQUAL(parsed->tensors[0].dtype, by_name);
        CU_ASSERT_EQUAL(parsed->tensors[0].rank, 2);
        CU_ASSERT_EQUAL(parsed->tensors[0].shape[0], 2);
        CU_ASSERT_EQUAL(parsed->tensors[0].shape[1], 4);
        hl_safetensors_free(parsed);
    }
}

static void names_that_are_no_dtypes_are_not_parsed(void)
{
    static const char *const names[] = {"", "f32", "F32 ", "F3", "float32", "torch.F32", "torch.float"};
    enum hl_safetensors_dtype dtype = HL_SAFETENSORS_F4;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CU_ASSERT_FALSE(hl_safetensors_dtype_parse(names[i], &dtype));
        CU_ASSERT_FALSE(hl_safetensors_framework_parse(names[i], &dtype));
    }
    CU_ASSERT_EQUAL(dtype, HL_SAFETENSORS_F4);
}

static void a_shape_has_bytes_or_a_typed_error(void)
{
    static const struct {
        enum hl_safetensors_dtype dtype;
        uint32_t rank;
        uint64_t shape[3];
        hl_status expected;
        uint64_t bytes;
    } rows[] = {
        {HL_SAFETENSORS_F32, 0, {0}, HL_OK, 4},
        {HL_SAFETENSORS_F32, 2, {3, 5}, HL_OK, 60},
        {HL_SAFETENSORS_F32, 2, {3, 0}, HL_OK, 0},
        {HL_SAFETENSORS_F4, 1, {6}, HL_OK, 3},
        {HL_SAFETENSORS_F4, 1, {7}, HL_E_INVALID, 0},
        {HL_SAFETENSORS_F6_E3M2, 1, {4}, HL_OK, 3},
        {HL_SAFETENSORS_F6_E3M2, 1, {2}, HL_E_INVALID, 0},
        {HL_SAFETENSORS_U8, 1, {(1ull << 61) - 1}, HL_OK, (1ull << 61) - 1},
        {HL_SAFETENSORS_U8, 1, {1ull << 61}, HL_E_OVERFLOW, 0},
        {HL_SAFETENSORS_U8, 2, {1ull << 32, 1ull << 32}, HL_E_OVERFLOW, 0},
        {HL_SAFETENSORS_U8, 3, {0, UINT64_MAX, 2}, HL_E_OVERFLOW, 0},
        {HL_SAFETENSORS_U8, 2, {UINT64_MAX, 0}, HL_OK, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 77;
        hl_error err = {0};
        HL_EXPECT_STATUS(
            hl_safetensors_tensor_bytes(rows[i].dtype, rows[i].shape, rows[i].rank, &bytes, &err),
            rows[i].expected, err);
        CU_ASSERT_EQUAL(bytes, rows[i].expected == HL_OK ? rows[i].bytes : 77);
    }
}

static void scalars_have_rank_0_and_one_element(void)
{
    hl_safetensors *parsed = accept("{`s`:{`dtype`:`F64`,`shape`:[],`data_offsets`:[0,8]}}", 8);
    CU_ASSERT_EQUAL(parsed->tensors[0].rank, 0);
    CU_ASSERT_EQUAL(parsed->tensors[0].end, 8);
    hl_safetensors_free(parsed);
}

static void empty_tensors_stand_at_the_start_a_boundary_and_the_end(void)
{
    hl_safetensors *parsed = accept("{`z`:{`dtype`:`U8`,`shape`:[4],`data_offsets`:[0,4]},"
                                    "`y`:{`dtype`:`U8`,`shape`:[4],`data_offsets`:[4,8]},"
                                    "`end`:{`dtype`:`F64`,`shape`:[0],`data_offsets`:[8,8]},"
                                    "`middle`:{`dtype`:`I32`,`shape`:[3,0],`data_offsets`:[4,4]},"
                                    "`start`:{`dtype`:`BF16`,`shape`:[0,9],`data_offsets`:[0,0]}}",
                                    8);
    expect_names(parsed, "start z middle y end");
    hl_safetensors_free(parsed);
}

static void many_empty_tensors_share_one_offset_in_name_order(void)
{
    struct hl_text text = {0};
    hl_text_print(&text, "{");
    for (unsigned i = 0; i < 60; i++)
        hl_text_print(&text, "`e%02u`:{`dtype`:`F32`,`shape`:[0],`data_offsets`:[%u,%u]},", i * 7 % 60,
                      4 * (i % 2), 4 * (i % 2));
    hl_text_print(&text, "`data`:{`dtype`:`F32`,`shape`:[1],`data_offsets`:[0,4]}}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.bytes);
    hl_safetensors *parsed = accept(text.bytes, 4);
    hl_text_free(&text);
    CU_ASSERT_EQUAL_FATAL(parsed->tensor_count, 61);
    CU_ASSERT_STRING_EQUAL(parsed->tensors[30].name, "data");
    for (size_t i = 1; i < 61; i++)
        if (i != 30 && i != 31)
            CU_ASSERT_TRUE(strcmp(parsed->tensors[i - 1].name, parsed->tensors[i].name) < 0);
    hl_safetensors_free(parsed);
}

static void a_file_without_tensors_is_accepted_with_and_without_metadata(void)
{
    hl_safetensors *parsed = accept("{}", 0);
    CU_ASSERT_EQUAL(parsed->tensor_count, 0);
    CU_ASSERT_EQUAL(parsed->metadata_count, 0);
    CU_ASSERT_EQUAL(parsed->data_offset, 16);
    hl_safetensors_free(parsed);
    parsed = accept("{`__metadata__`:{}}", 0);
    CU_ASSERT_EQUAL(parsed->metadata_count, 0);
    hl_safetensors_free(parsed);
}

static void trailing_white_space_of_every_kind_is_accepted(void)
{
    hl_safetensors_free(accept("{`a`:{`dtype`:`U8`,`shape`:[1],`data_offsets`:[0,1]}}    \t\r\n \n\n", 1));
    hl_safetensors_free(accept("{ `a` : { `dtype` :\n`U8`,\t`shape` : [ 1 ] , `data_offsets`:[0,1] } }", 1));
}

static void names_and_metadata_are_unescaped_utf8(void)
{
    hl_safetensors *parsed =
        accept("{`\\u00e9\\ud83d\\ude00\\n/\\``:{`dtype`:`U8`,`shape`:[1],`data_offsets`:[0,1]},"
               "`\xe3\x83\xa2`:{`dtype`:`U8`,`shape`:[1],`data_offsets`:[1,2]},"
               "`__metadata__`:{`z`:`\\u0001`,``:``,`\\u00e9`:`v`}}",
               2);
    CU_ASSERT_STRING_EQUAL(parsed->tensors[0].name, "\xc3\xa9\xf0\x9f\x98\x80\n/\"");
    CU_ASSERT_STRING_EQUAL(parsed->tensors[1].name, "\xe3\x83\xa2");
    CU_ASSERT_EQUAL_FATAL(parsed->metadata_count, 3);
    CU_ASSERT_STRING_EQUAL(parsed->metadata[0].key, "");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[0].value, "");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[1].key, "z");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[1].value, "\x01");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[2].key, "\xc3\xa9");
    hl_safetensors_free(parsed);
}

static void data_misaligned_for_their_dtype_are_accepted_and_counted(void)
{
    hl_safetensors *parsed = accept("{`a`:{`dtype`:`U8`,`shape`:[1],`data_offsets`:[0,1]},"
                                    "`b`:{`dtype`:`F64`,`shape`:[1],`data_offsets`:[1,9]},"
                                    "`c`:{`dtype`:`F64`,`shape`:[0],`data_offsets`:[9,9]},"
                                    "`d`:{`dtype`:`BF16`,`shape`:[2],`data_offsets`:[9,13]},"
                                    "`e`:{`dtype`:`F6_E2M3`,`shape`:[4],`data_offsets`:[13,16]},"
                                    "`f`:{`dtype`:`U64`,`shape`:[1],`data_offsets`:[16,24]}}",
                                    24);
    CU_ASSERT_EQUAL(parsed->tolerated.misaligned, 2);
    hl_safetensors_free(parsed);
}

/* Tensors of random sizes, some empty, whose entries stand in random order. */
static void entries_in_any_order_are_sorted_by_place(void)
{
    enum { TENSORS = 300 };
    hl_random random;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct hl_text text = {0};
        uint32_t order[TENSORS];
        unsigned long long begin[TENSORS + 1] = {0};
        hl_random_seed(&random, seed);
        size_t count = 1 + hl_random_below(&random, TENSORS);
        for (size_t i = 0; i < count; i++)
            begin[i + 1] = begin[i] + hl_random_below(&random, 4);
        hl_random_permutation(&random, order, count);
        hl_text_print(&text, "{");
        for (size_t k = 0; k < count; k++) {
            uint32_t i = order[k];
            hl_text_print(&text, "%s`t%03u`:{`dtype`:`U8`,`shape`:[%llu],`data_offsets`:[%llu,%llu]}",
                          k ? "," : "", i, begin[i + 1] - begin[i], begin[i], begin[i + 1]);
        }
        hl_text_print(&text, "}");
        CU_ASSERT_PTR_NOT_NULL_FATAL(text.bytes);
        hl_safetensors *parsed = accept(text.bytes, begin[count]);
        hl_text_free(&text);
        CU_ASSERT_EQUAL(parsed->tensor_count, count);
        hl_safetensors_free(parsed);
    }
}

static void freeing_nothing_is_allowed(void)
{
    hl_safetensors_free(NULL);
    CU_PASS("freed");
}

HL_TESTS(accept, HL_CASE(each_of_the_22_dtypes_is_read_with_its_size),
         HL_CASE(names_that_are_no_dtypes_are_not_parsed), HL_CASE(a_shape_has_bytes_or_a_typed_error),
         HL_CASE(scalars_have_rank_0_and_one_element),
         HL_CASE(empty_tensors_stand_at_the_start_a_boundary_and_the_end),
         HL_CASE(many_empty_tensors_share_one_offset_in_name_order),
         HL_CASE(a_file_without_tensors_is_accepted_with_and_without_metadata),
         HL_CASE(trailing_white_space_of_every_kind_is_accepted),
         HL_CASE(names_and_metadata_are_unescaped_utf8),
         HL_CASE(data_misaligned_for_their_dtype_are_accepted_and_counted),
         HL_CASE(entries_in_any_order_are_sorted_by_place), HL_CASE(freeing_nothing_is_allowed));
