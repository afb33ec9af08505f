/* Files that the store lays out. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

#define GOLDEN "core/weights/safetensors/testdata/golden.safetensors"

static const struct hl_safetensors_spec weight = {"layer.weight", HL_SAFETENSORS_BF16, 2,
                                                  (const uint64_t[]){4, 3}};
static const struct hl_safetensors_spec scale = {"layer.scale", HL_SAFETENSORS_F32, 1, (const uint64_t[]){2}};

static hl_safetensors *parse_layout(const struct hl_safetensors_layout *layout)
{
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_safetensors_parse(layout->header + 8, layout->header_bytes - 8, layout->file_bytes,
                                       HL_SAFETENSORS_STRICT, &parsed, &err),
                  err);
    require_sound(parsed);
    CU_ASSERT_EQUAL(parsed->data_offset, layout->header_bytes);
    return parsed;
}

static const struct hl_safetensors_tensor *find(const hl_safetensors *parsed, const char *name)
{
    for (size_t i = 0; i < parsed->tensor_count; i++)
        if (strcmp(parsed->tensors[i].name, name) == 0)
            return &parsed->tensors[i];
    return NULL;
}

/* What was laid out is what the reader finds. */
static void expect_found(const hl_safetensors *parsed, const struct hl_safetensors_layout *layout,
                         const struct hl_safetensors_spec *specs, size_t count)
{
    CU_ASSERT_EQUAL(parsed->tensor_count, count);
    for (size_t i = 0; i < count; i++) {
        const struct hl_safetensors_tensor *tensor = find(parsed, specs[i].name);
        CU_ASSERT_PTR_NOT_NULL_FATAL(tensor);
        CU_ASSERT_EQUAL(tensor->dtype, specs[i].dtype);
        CU_ASSERT_EQUAL_FATAL(tensor->rank, specs[i].rank);
        for (uint32_t d = 0; d < tensor->rank; d++)
            CU_ASSERT_EQUAL(tensor->shape[d], specs[i].shape[d]);
        CU_ASSERT_EQUAL(parsed->data_offset + tensor->begin, layout->offsets[i]);
        CU_ASSERT_EQUAL(tensor->end - tensor->begin, layout->sizes[i]);
    }
}

static size_t read_golden(char *bytes, size_t size)
{
    int fd = open(GOLDEN, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    ssize_t got = pread(fd, bytes, size, 0);
    close(fd);
    CU_ASSERT_TRUE_FATAL(got > 0);
    return (size_t)got;
}

static void name_order_gives_the_golden_header_byte_for_byte(void)
{
    const struct hl_safetensors_spec specs[] = {weight, scale};
    const struct hl_safetensors_metadata metadata[] = {{"host_weight_runtime", "1"}, {"format", "pt"}};
    struct hl_safetensors_layout layout;
    hl_error err = {0};
    char golden[512];
    size_t golden_bytes = read_golden(golden, sizeof golden);
    HL_REQUIRE_OK(hl_safetensors_lay_out(specs, 2, metadata, 2, HL_SAFETENSORS_BY_NAME, &layout, &err), err);
    CU_ASSERT_EQUAL(golden_bytes, 232);
    CU_ASSERT_EQUAL(layout.file_bytes, golden_bytes);
    CU_ASSERT_EQUAL_FATAL(layout.header_bytes, golden_bytes - 32);
    CU_ASSERT_EQUAL(memcmp(layout.header, golden, layout.header_bytes), 0);
    CU_ASSERT_EQUAL(layout.offsets[0], layout.header_bytes + 8);
    CU_ASSERT_EQUAL(layout.offsets[1], layout.header_bytes);
    hl_safetensors *parsed = parse_layout(&layout);
    expect_found(parsed, &layout, specs, 2);
    hl_safetensors_free(parsed);
    hl_safetensors_layout_free(&layout);
}

/* Keys are sorted as Python sorts them, the metadata's name among them, and escaped as it does. */
static void keys_are_ordered_by_code_point_and_escaped_to_ascii(void)
{
    static const char expected[] =
        "{\"A\":{\"data_offsets\":[0,1],\"dtype\":\"U8\",\"shape\":[]},"
        "\"__metadata__\":{\"a\":\"\\u007f\",\"b\":\"\\\"\\\\\\n\"},"
        "\"a\":{\"data_offsets\":[1,1],\"dtype\":\"U8\",\"shape\":[0,18446744073709551615]},"
        "\"\\uffff\":{\"data_offsets\":[1,3],\"dtype\":\"U8\",\"shape\":[2]},"
        "\"\\ud83d\\ude00\":{\"data_offsets\":[3,4],\"dtype\":\"U8\",\"shape\":[1,1,1]}}";
    const struct hl_safetensors_spec specs[] = {
        {"\xf0\x9f\x98\x80", HL_SAFETENSORS_U8, 3, (const uint64_t[]){1, 1, 1}},
        {"a", HL_SAFETENSORS_U8, 2, (const uint64_t[]){0, UINT64_MAX}},
        {"\xef\xbf\xbf", HL_SAFETENSORS_U8, 1, (const uint64_t[]){2}},
        {"A", HL_SAFETENSORS_U8, 0, NULL},
    };
    const struct hl_safetensors_metadata metadata[] = {{"b", "\"\\\n"}, {"a", "\x7f"}};
    struct hl_safetensors_layout layout;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_safetensors_lay_out(specs, 4, metadata, 2, HL_SAFETENSORS_BY_NAME, &layout, &err), err);
    CU_ASSERT_EQUAL(layout.header_bytes, (8 + strlen(expected) + 7) / 8 * 8);
    CU_ASSERT_EQUAL(strncmp(layout.header + 8, expected, strlen(expected)), 0);
    hl_safetensors *parsed = parse_layout(&layout);
    expect_found(parsed, &layout, specs, 4);
    hl_safetensors_free(parsed);
    hl_safetensors_layout_free(&layout);
}

static void no_tensors_make_a_header_of_an_empty_object(void)
{
    for (int order = HL_SAFETENSORS_BY_NAME; order <= HL_SAFETENSORS_ALIGNED; order++) {
        struct hl_safetensors_layout layout;
        hl_error err = {0};
        HL_REQUIRE_OK(
            hl_safetensors_lay_out(NULL, 0, NULL, 0, (enum hl_safetensors_order)order, &layout, &err), err);
        CU_ASSERT_EQUAL(memcmp(layout.header + 8, "{}      ", 8), 0);
        CU_ASSERT_EQUAL(layout.file_bytes, order == HL_SAFETENSORS_BY_NAME ? 16 : 4096);
        hl_safetensors_free(parse_layout(&layout));
        hl_safetensors_layout_free(&layout);
    }
}

enum { MOST = 60 };

struct drawn {
    struct hl_safetensors_spec specs[MOST];
    uint64_t shapes[MOST][4];
    char names[MOST][24];
    size_t count;
};

/* Random specs of every dtype; a shape of sub-byte elements fills its bytes. */
static void draw(struct drawn *drawn, uint64_t seed)
{
    static const char *const tails[] = {"", "\xc3\xa9", "\xf0\x9f\x98\x80", "\"", "\n", "/", "\x7f"};
    hl_random random;
    hl_random_seed(&random, seed);
    drawn->count = 1 + hl_random_below(&random, MOST);
    for (size_t i = 0; i < drawn->count; i++) {
        uint32_t rank = (uint32_t)hl_random_below(&random, 5);
        enum hl_safetensors_dtype dtype =
            (enum hl_safetensors_dtype)hl_random_below(&random, HL_SAFETENSORS_DTYPE_COUNT);
        for (uint32_t d = 0; d < rank; d++)
            drawn->shapes[i][d] = hl_random_below(&random, 6);
        if (hl_safetensors_bits(dtype) % 8 != 0) {
            rank = rank ? rank : 1;
            drawn->shapes[i][rank - 1] = 4 * hl_random_below(&random, 4);
        }
        snprintf(drawn->names[i], sizeof drawn->names[i], "%llu.%zu%s",
                 (unsigned long long)hl_random_below(&random, 9), i,
                 tails[hl_random_below(&random, sizeof tails / sizeof tails[0])]);
        drawn->specs[i] =
            (struct hl_safetensors_spec){drawn->names[i], dtype, rank, rank ? drawn->shapes[i] : NULL};
    }
}

static void what_is_laid_out_in_either_order_parses_strictly(void)
{
    static struct drawn drawn;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        draw(&drawn, seed);
        for (int order = HL_SAFETENSORS_BY_NAME; order <= HL_SAFETENSORS_ALIGNED; order++) {
            struct hl_safetensors_layout layout;
            hl_error err = {0};
            HL_REQUIRE_OK(hl_safetensors_lay_out(drawn.specs, drawn.count, NULL, 0,
                                                 (enum hl_safetensors_order)order, &layout, &err),
                          err);
            hl_safetensors *parsed = parse_layout(&layout);
            expect_found(parsed, &layout, drawn.specs, drawn.count);
            for (size_t i = 1; order == HL_SAFETENSORS_BY_NAME && i < parsed->tensor_count; i++)
                if (parsed->tensors[i - 1].begin < parsed->tensors[i - 1].end)
                    CU_ASSERT_TRUE(strcmp(parsed->tensors[i - 1].name, parsed->tensors[i].name) < 0 ||
                                   parsed->tensors[i].begin == parsed->tensors[i].end);
            hl_safetensors_free(parsed);
            hl_safetensors_layout_free(&layout);
        }
    }
}

static void the_aligned_order_aligns_the_data_and_every_tensor(void)
{
    static struct drawn drawn;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct hl_safetensors_layout layout;
        hl_error err = {0};
        draw(&drawn, seed);
        HL_REQUIRE_OK(
            hl_safetensors_lay_out(drawn.specs, drawn.count, NULL, 0, HL_SAFETENSORS_ALIGNED, &layout, &err),
            err);
        CU_ASSERT_EQUAL(layout.header_bytes % HL_SAFETENSORS_DATA_ALIGN, 0);
        for (size_t i = 0; i < drawn.count; i++) {
            unsigned bytes = hl_safetensors_bits(drawn.specs[i].dtype) / 8;
            CU_ASSERT_EQUAL(layout.offsets[i] % (bytes ? bytes : 1), 0);
        }
        hl_safetensors *parsed = parse_layout(&layout);
        CU_ASSERT_EQUAL(parsed->tolerated.misaligned, 0);
        for (size_t i = 1; i < parsed->tensor_count; i++)
            CU_ASSERT_TRUE(parsed->tensors[i].begin == parsed->tensors[i].end ||
                           parsed->tensors[i - 1].begin == parsed->tensors[i - 1].end ||
                           hl_safetensors_bits(parsed->tensors[i - 1].dtype) >=
                               hl_safetensors_bits(parsed->tensors[i].dtype));
        hl_safetensors_free(parsed);
        hl_safetensors_layout_free(&layout);
    }
}

static void a_header_that_needs_no_padding_gets_none(void)
{
    char name[9] = "a";
    unsigned unpadded = 0;
    for (size_t size = 1; size <= 8; size++) {
        const struct hl_safetensors_spec spec = {name, HL_SAFETENSORS_U8, 0, NULL};
        struct hl_safetensors_layout layout;
        hl_error err = {0};
        memset(name, 'a', size);
        HL_REQUIRE_OK(hl_safetensors_lay_out(&spec, 1, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err), err);
        CU_ASSERT_EQUAL(layout.header_bytes % 8, 0);
        unpadded += layout.header[layout.header_bytes - 1] == '}';
        hl_safetensors_layout_free(&layout);
    }
    CU_ASSERT_EQUAL(unpadded, 1);
}

static void bad_specs_are_refused_and_leave_the_layout_alone(void)
{
    static const uint64_t one[1] = {1}, three[1] = {3}, huge[1] = {1ull << 60}, over[1] = {1ull << 61};
    static const uint64_t ranks[HL_WEIGHT_RANK + 1];
    static const struct {
        struct hl_safetensors_spec specs[2];
        hl_status expected;
        const char *says;
    } rows[] = {
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"a", HL_SAFETENSORS_U8, 1, one}},
         HL_E_INVALID,
         "\"a\" is given twice"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"", HL_SAFETENSORS_U8, 1, one}}, HL_E_INVALID, "empty name"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {NULL, HL_SAFETENSORS_U8, 1, one}}, HL_E_INVALID, "empty name"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"__metadata__", HL_SAFETENSORS_U8, 1, one}},
         HL_E_INVALID,
         "name of the metadata"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"\xff", HL_SAFETENSORS_U8, 1, one}}, HL_E_INVALID, "not UTF-8"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"\xed\xa0\x80", HL_SAFETENSORS_U8, 1, one}},
         HL_E_INVALID,
         "not UTF-8"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"b", HL_SAFETENSORS_DTYPE_COUNT, 1, one}},
         HL_E_INVALID,
         "dtype"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"b", HL_SAFETENSORS_F4, 1, three}}, HL_E_INVALID, "do not fill"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"b", HL_SAFETENSORS_U8, 1, over}}, HL_E_OVERFLOW, "more bits"},
        {{{"a", HL_SAFETENSORS_U8, 1, one}, {"b", HL_SAFETENSORS_U8, HL_WEIGHT_RANK + 1, ranks}},
         HL_E_LIMIT,
         "65 dimensions"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int order = HL_SAFETENSORS_BY_NAME; order <= HL_SAFETENSORS_ALIGNED; order++) {
            struct hl_safetensors_layout layout = {.file_bytes = 77};
            hl_error err = {0};
            HL_EXPECT_STATUS(hl_safetensors_lay_out(rows[i].specs, 2, NULL, 0,
                                                    (enum hl_safetensors_order)order, &layout, &err),
                             rows[i].expected, err);
            CU_ASSERT_PTR_NOT_NULL(strstr(err.text, rows[i].says));
            CU_ASSERT_EQUAL(layout.file_bytes, 77);
            CU_ASSERT_PTR_NULL(layout.header);
        }
    }
    /* Eight tensors of 2^60 bytes each fit 64 bits; sixteen do not. */
    struct hl_safetensors_spec many[16];
    char names[16][4];
    for (size_t i = 0; i < 16; i++) {
        snprintf(names[i], sizeof names[i], "%zu", i);
        many[i] = (struct hl_safetensors_spec){names[i], HL_SAFETENSORS_U8, 1, huge};
    }
    for (size_t count = 8; count <= 16; count += 8) {
        struct hl_safetensors_layout layout = {0};
        hl_error err = {0};
        HL_EXPECT_STATUS(hl_safetensors_lay_out(many, count, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err),
                         count == 8 ? HL_OK : HL_E_OVERFLOW, err);
        hl_safetensors_layout_free(&layout);
    }
}

/* Data that fit 64 bits by themselves, and no longer with the header before them. */
static void a_header_that_pushes_the_file_over_64_bits_is_refused(void)
{
    static const uint64_t almost[1] = {(1ull << 61) - 1}, rest[1] = {7};
    struct hl_safetensors_spec specs[9];
    char names[9][4];
    for (size_t i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "%zu", i);
        specs[i] = (struct hl_safetensors_spec){names[i], HL_SAFETENSORS_U8, 1, i < 8 ? almost : rest};
    }
    struct hl_safetensors_layout layout = {0};
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_safetensors_lay_out(specs, 9, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err),
                     HL_E_OVERFLOW, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "header and data"));
    CU_ASSERT_PTR_NULL(layout.header);
}

static void bad_metadata_are_refused(void)
{
    static const struct {
        struct hl_safetensors_metadata pairs[2];
        const char *says;
    } rows[] = {
        {{{"k", "1"}, {"k", "2"}}, "\"k\" is given twice"},
        {{{"k", "1"}, {"\xff", "2"}}, "key that is not UTF-8"},
        {{{"k", "1"}, {"j", "\xc0\xaf"}}, "\"j\" has a value that is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hl_safetensors_layout layout = {0};
        hl_error err = {0};
        HL_EXPECT_STATUS(
            hl_safetensors_lay_out(&weight, 1, rows[i].pairs, 2, HL_SAFETENSORS_BY_NAME, &layout, &err),
            HL_E_INVALID, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, rows[i].says));
        CU_ASSERT_PTR_NULL(layout.header);
    }
}

HL_TESTS(layout, HL_CASE(name_order_gives_the_golden_header_byte_for_byte),
         HL_CASE(keys_are_ordered_by_code_point_and_escaped_to_ascii),
         HL_CASE(no_tensors_make_a_header_of_an_empty_object),
         HL_CASE(what_is_laid_out_in_either_order_parses_strictly),
         HL_CASE(the_aligned_order_aligns_the_data_and_every_tensor),
         HL_CASE(a_header_that_needs_no_padding_gets_none),
         HL_CASE(bad_specs_are_refused_and_leave_the_layout_alone),
         HL_CASE(a_header_that_pushes_the_file_over_64_bits_is_refused), HL_CASE(bad_metadata_are_refused));
