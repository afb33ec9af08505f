/* What readers of safetensors must refuse, row by row, in both modes; and what the reference reader accepts
 * though it is dubious. What concerns files rather than headers is in read_test.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

#define INFO(shape, begin, end) "{`dtype`:`U8`,`shape`:[" shape "],`data_offsets`:[" begin "," end "]}"
#define ONE(shape, begin, end) "{`a`:" INFO(shape, begin, end) "}"
#define TWO(first, second) "{`a`:" first ",`b`:" second "}"
#define GOOD INFO("16", "0", "16")
#define HEADER(text) .header = (text), .size = sizeof(text) - 1

struct row {
    const char *name;
    const char *header;
    size_t size;
    uint64_t data_bytes;
    hl_status expected; /* in both modes */
    const char *says;   /* in the error's text */
    bool bare;          /* not padded to a multiple of 8 */
};

static hl_status parse_row(const struct row *row, enum hl_safetensors_strictness strictness,
                           hl_safetensors **parsed, hl_error *err)
{
    struct header_text header = header_make(row->header, row->size, !row->bare);
    hl_status status = hl_safetensors_parse(header.bytes, header.size, 8 + header.size + row->data_bytes,
                                            strictness, parsed, err);
    header_free(&header);
    return status;
}

static void expect_refused(const struct row *row, enum hl_safetensors_strictness strictness)
{
    const char *mode = strictness == HL_SAFETENSORS_STRICT ? "strict" : "tolerant";
    static char untouched;
    hl_safetensors *const before = (void *)&untouched;
    hl_safetensors *parsed = before;
    hl_error err = {0};
    hl_status status = parse_row(row, strictness, &parsed, &err);
    if (status != row->expected || !strstr(err.text, row->says))
        fprintf(stderr, "%s, %s: got %s, '%s'; expected %s, '%s'\n", row->name, mode, hl_status_name(status),
                err.text, hl_status_name(row->expected), row->says);
    CU_ASSERT_EQUAL(status, row->expected);
    CU_ASSERT_EQUAL(err.status, row->expected);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, row->says));
    CU_ASSERT_PTR_EQUAL(parsed, before);
}

static void refuse_all(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        expect_refused(&rows[i], HL_SAFETENSORS_STRICT);
        expect_refused(&rows[i], HL_SAFETENSORS_TOLERANT);
    }
}

#define REFUSE_ALL(rows) refuse_all((rows), sizeof(rows) / sizeof(rows)[0])

static void text_that_is_no_json_is_corrupt(void)
{
    static const struct row rows[] = {
        {"N = 0, no data", HEADER(""), 0, HL_E_CORRUPT, "byte 0", true},
        {"N = 0, with data", HEADER(""), 16, HL_E_CORRUPT, "byte 0", true},
        {"only an opening brace", HEADER("{"), 0, HL_E_CORRUPT, "byte 8", false},
        {"only white space", HEADER("        "), 0, HL_E_CORRUPT, "", false},
        {"0xFF", HEADER("\xff"), 0, HL_E_CORRUPT, "byte 0", false},
        {"0xFF in a name", HEADER("{`\xff`:" GOOD "}"), 16, HL_E_CORRUPT, "UTF-8", false},
        {"overlong C0 AF in a name", HEADER("{`\xc0\xaf`:" GOOD "}"), 16, HL_E_CORRUPT, "UTF-8", false},
        {"surrogate ED A0 80 in a name", HEADER("{`\xed\xa0\x80`:" GOOD "}"), 16, HL_E_CORRUPT, "UTF-8",
         false},
        {"byte order mark", HEADER("\xef\xbb\xbf{`a`:" GOOD "}"), 16, HL_E_CORRUPT, "byte order mark", false},
        {"NUL padding", HEADER(ONE("16", "0", "16") "\0\0\0\0\0\0\0"), 16, HL_E_CORRUPT, "follows", false},
        {"two values", HEADER("{}{}"), 0, HL_E_CORRUPT, "follows", false},
        {"trailing comma in an object", HEADER("{`a`:" GOOD ",}"), 16, HL_E_CORRUPT, "byte", false},
        {"trailing comma in an array", HEADER("{`a`:" INFO("16,", "0", "16") "}"), 16, HL_E_CORRUPT, "byte",
         false},
        {"comment", HEADER("{/**/`a`:" GOOD "}"), 16, HL_E_CORRUPT, "byte 1", false},
        {"single quotes", HEADER("{'a':" GOOD "}"), 16, HL_E_CORRUPT, "byte 1", false},
        {"016", HEADER(ONE("016", "0", "16")), 16, HL_E_CORRUPT, "leading zero", false},
        {"+16", HEADER(ONE("+16", "0", "16")), 16, HL_E_CORRUPT, "byte", false},
        {"NaN", HEADER(ONE("NaN", "0", "16")), 16, HL_E_CORRUPT, "byte", false},
        {"raw control character", HEADER("{`a\n`:" GOOD "}"), 16, HL_E_CORRUPT, "byte", false},
        {"lone surrogate escape", HEADER("{`\\ud800`:" GOOD "}"), 16, HL_E_CORRUPT, "surrogate", false},
        {"1e400 in an unknown field",
         HEADER("{`a`:{`x`:1e400,`dtype`:`U8`,`shape`:[16],`data_offsets`:[0,16]}}"), 16, HL_E_CORRUPT,
         "double", false},
    };
    REFUSE_ALL(rows);
}

static void a_header_that_is_no_object_is_corrupt(void)
{
    static const struct row rows[] = {
        {"[]", HEADER("[]"), 0, HL_E_CORRUPT, "array, not an object", false},
        {"null", HEADER("null"), 0, HL_E_CORRUPT, "null, not an object", false},
        {"\"s\"", HEADER("`s`"), 0, HL_E_CORRUPT, "string, not an object", false},
        {"1", HEADER("1"), 0, HL_E_CORRUPT, "integer, not an object", false},
    };
    REFUSE_ALL(rows);
}

static void data_that_the_tensors_do_not_cover_exactly_are_out_of_range(void)
{
    static const struct row rows[] = {
        {"trailing bytes", HEADER(ONE("16", "0", "16")), 17, HL_E_RANGE, "end at 16 of 17", false},
        {"truncated data", HEADER(ONE("16", "0", "16")), 15, HL_E_RANGE, "end at 16 of 15", false},
        {"header only", HEADER(ONE("16", "0", "16")), 0, HL_E_RANGE, "end at 16 of 0", false},
        {"{} and data", HEADER("{}"), 1, HL_E_RANGE, "end at 0 of 1", false},
        {"same range twice", HEADER(TWO(GOOD, GOOD)), 16, HL_E_RANGE, "\"b\"", false},
        {"partial overlap", HEADER(TWO(GOOD, INFO("16", "8", "24"))), 24, HL_E_RANGE, "begin at 8, before",
         false},
        {"hole", HEADER(TWO(GOOD, INFO("16", "17", "33"))), 33, HL_E_RANGE, "begin at 17, behind", false},
        {"first begin is not 0", HEADER(ONE("16", "1", "17")), 17, HL_E_RANGE, "begin at 1, behind", false},
        {"begin beyond end", HEADER(ONE("16", "16", "0")), 16, HL_E_RANGE, "begin at 16 and end at 0", false},
        {"empty tensor inside another", HEADER(TWO(GOOD, INFO("0", "8", "8"))), 16, HL_E_RANGE, "\"b\"",
         false},
        {"empty tensor behind the data", HEADER(TWO(GOOD, INFO("0", "17", "17"))), 16, HL_E_RANGE, "\"b\"",
         false},
        {"chain through a far end",
         HEADER(TWO(GOOD, INFO("18446744073709551599", "16", "18446744073709551615"))), 16, HL_E_OVERFLOW,
         "\"b\"", false},
    };
    REFUSE_ALL(rows);
}

static void numbers_that_are_no_sizes_are_refused_with_the_tensor_and_the_field(void)
{
    static const struct row rows[] = {
        {"negative dimension", HEADER(ONE("-16", "0", "16")), 16, HL_E_CORRUPT,
         "\"a\": shape holds a number with a sign", false},
        {"negative offset", HEADER(ONE("16", "-1", "16")), 16, HL_E_CORRUPT,
         "\"a\": data_offsets holds a number with a sign", false},
        {"-0 in shape", HEADER(ONE("-0", "0", "0")), 0, HL_E_CORRUPT, "sign", false},
        {"-0 in offsets", HEADER(ONE("16", "-0", "16")), 16, HL_E_CORRUPT, "sign", false},
        {"16.0", HEADER(ONE("16.0", "0", "16")), 16, HL_E_CORRUPT, "shape holds real", false},
        {"0.0 in offsets", HEADER(ONE("16", "0.0", "16")), 16, HL_E_CORRUPT, "data_offsets holds real",
         false},
        {"exponent", HEADER(ONE("1e1", "0", "10")), 10, HL_E_CORRUPT, "shape holds real", false},
        {"string", HEADER(ONE("`16`", "0", "16")), 16, HL_E_CORRUPT, "shape holds string", false},
        {"string offset", HEADER(ONE("16", "0", "`16`")), 16, HL_E_CORRUPT, "data_offsets holds string",
         false},
        {"bool", HEADER(ONE("true", "0", "1")), 1, HL_E_CORRUPT, "shape holds boolean", false},
        {"null", HEADER(ONE("16", "null", "16")), 16, HL_E_CORRUPT, "data_offsets holds null", false},
        {"2^64 in shape", HEADER(ONE("18446744073709551616", "0", "16")), 16, HL_E_OVERFLOW,
         "shape holds a number beyond", false},
        {"2^64 in offsets", HEADER(ONE("16", "0", "18446744073709551616")), 16, HL_E_OVERFLOW,
         "data_offsets holds a number beyond", false},
        {"40 digits", HEADER(ONE("1234567890123456789012345678901234567890", "0", "16")), 16, HL_E_OVERFLOW,
         "beyond", false},
        {"nested shape", HEADER(ONE("[16]", "0", "16")), 16, HL_E_CORRUPT, "shape holds array", false},
        {"shape is a number", HEADER("{`a`:{`dtype`:`U8`,`shape`:16,`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "shape is integer, not an array", false},
        {"shape is an object", HEADER("{`a`:{`dtype`:`U8`,`shape`:{},`data_offsets`:[0,1]}}"), 1,
         HL_E_CORRUPT, "shape is object, not an array", false},
        {"no offset", HEADER("{`a`:{`dtype`:`U8`,`shape`:[16],`data_offsets`:[]}}"), 16, HL_E_CORRUPT,
         "0 numbers instead of 2", false},
        {"1 offset", HEADER("{`a`:{`dtype`:`U8`,`shape`:[16],`data_offsets`:[0]}}"), 16, HL_E_CORRUPT,
         "1 numbers instead of 2", false},
        {"3 offsets", HEADER("{`a`:{`dtype`:`U8`,`shape`:[16],`data_offsets`:[0,8,16]}}"), 16, HL_E_CORRUPT,
         "3 numbers instead of 2", false},
        {"offsets are null", HEADER("{`a`:{`dtype`:`U8`,`shape`:[16],`data_offsets`:null}}"), 16,
         HL_E_CORRUPT, "data_offsets is null, not an array", false},
    };
    REFUSE_ALL(rows);
}

static void entries_that_lack_or_repeat_a_field_are_corrupt(void)
{
    static const struct row rows[] = {
        {"no dtype", HEADER("{`a`:{`shape`:[16],`data_offsets`:[0,16]}}"), 16, HL_E_CORRUPT,
         "\"a\": dtype is missing", false},
        {"no shape", HEADER("{`a`:{`dtype`:`U8`,`data_offsets`:[0,16]}}"), 16, HL_E_CORRUPT,
         "\"a\": shape is missing", false},
        {"no offsets", HEADER("{`a`:{`dtype`:`U8`,`shape`:[16]}}"), 16, HL_E_CORRUPT,
         "\"a\": data_offsets is missing", false},
        {"unknown dtype", HEADER("{`a`:{`dtype`:`U7`,`shape`:[16],`data_offsets`:[0,16]}}"), 16, HL_E_CORRUPT,
         "unknown dtype \"U7\"", false},
        {"lower-case dtype", HEADER("{`a`:{`dtype`:`u8`,`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "unknown dtype \"u8\"", false},
        {"dtype with a NUL", HEADER("{`a`:{`dtype`:`U8\\u0000`,`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "unknown dtype", false},
        {"dtype is a number", HEADER("{`a`:{`dtype`:8,`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "dtype is integer, not a string", false},
        {"null entry", HEADER("{`a`:null}"), 0, HL_E_CORRUPT, "\"a\": the entry is null", false},
        {"dtype twice", HEADER("{`a`:{`dtype`:`U8`,`dtype`:`U8`,`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "twice", false},
        {"shape twice", HEADER("{`a`:{`shape`:[16],`dtype`:`U8`,`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "twice", false},
        {"offsets twice, once escaped",
         HEADER("{`a`:{`data_offsets`:[0,16],`dtype`:`U8`,`shape`:[16],`data_offset\\u0073`:[0,16]}}"), 16,
         HL_E_CORRUPT, "twice", false},
    };
    REFUSE_ALL(rows);
}

static void sizes_that_do_not_fit_or_do_not_match_are_refused(void)
{
    static const struct row rows[] = {
        {"product overflows", HEADER(ONE("4294967296,4294967296", "0", "0")), 0, HL_E_OVERFLOW, "\"a\"",
         false},
        {"bits overflow", HEADER(ONE("2305843009213693952", "0", "0")), 0, HL_E_OVERFLOW, "more bits of U8",
         false},
        {"[2^64-1, 2, 0]", HEADER(ONE("18446744073709551615,2,0", "0", "0")), 0, HL_E_OVERFLOW, "\"a\"",
         false},
        {"[0, 2^64-1, 2]", HEADER(ONE("0,18446744073709551615,2", "0", "0")), 0, HL_E_OVERFLOW, "\"a\"",
         false},
        {"fewer bytes than the shape takes", HEADER(ONE("17", "0", "16")), 16, HL_E_CORRUPT,
         "data are 16 bytes, and its shape and dtype take 17", false},
        {"more bytes than the shape takes", HEADER(ONE("15", "0", "16")), 16, HL_E_CORRUPT, "take 15", false},
        {"a scalar of no bytes", HEADER(ONE("", "0", "0")), 0, HL_E_CORRUPT, "take 1", false},
        {"F4 with an odd count", HEADER("{`a`:{`dtype`:`F4`,`shape`:[3],`data_offsets`:[0,2]}}"), 2,
         HL_E_CORRUPT, "elements of 4 bits do not fill", false},
        {"F6 scalar", HEADER("{`a`:{`dtype`:`F6_E2M3`,`shape`:[],`data_offsets`:[0,1]}}"), 1, HL_E_CORRUPT,
         "elements of 6 bits do not fill", false},
    };
    REFUSE_ALL(rows);
}

static void metadata_that_are_no_strings_are_corrupt(void)
{
    static const struct row rows[] = {
        {"number", HEADER("{`__metadata__`:{`k`:1}}"), 0, HL_E_CORRUPT, "\"k\" is integer, not a string",
         false},
        {"object", HEADER("{`__metadata__`:{`k`:{}}}"), 0, HL_E_CORRUPT, "\"k\" is object", false},
        {"array", HEADER("{`__metadata__`:{`k`:[]}}"), 0, HL_E_CORRUPT, "\"k\" is array", false},
        {"null", HEADER("{`__metadata__`:{`k`:null}}"), 0, HL_E_CORRUPT, "\"k\" is null", false},
        {"metadata are an array", HEADER("{`__metadata__`:[]}"), 0, HL_E_CORRUPT,
         "__metadata__ is array, not an object", false},
        {"metadata are a string", HEADER("{`__metadata__`:`x`}"), 0, HL_E_CORRUPT,
         "__metadata__ is string, not an object", false},
        {"given twice", HEADER("{`__metadata__`:{},`__metadata__`:{}}"), 0, HL_E_CORRUPT, "twice", false},
        {"given twice, first null", HEADER("{`__metadata__`:null,`__metadata__`:{}}"), 0, HL_E_CORRUPT,
         "twice", false},
        {"NUL in a key", HEADER("{`__metadata__`:{`k\\u0000`:`v`}}"), 0, HL_E_CORRUPT, "a NUL in", false},
        {"NUL in a value", HEADER("{`__metadata__`:{`k`:`v\\u0000`}}"), 0, HL_E_CORRUPT, "a NUL in", false},
    };
    REFUSE_ALL(rows);
}

/* The reference reader lets these pass; this one does in neither mode. */
static void dubious_names_and_entries_are_refused_in_both_modes(void)
{
    static const struct row rows[] = {
        {"name twice", HEADER("{`a`:" GOOD ",`a`:" GOOD "}"), 16, HL_E_CORRUPT, "\"a\" is given twice",
         false},
        {"name twice, once escaped", HEADER("{`a`:" GOOD ",`\\u0061`:" GOOD "}"), 16, HL_E_CORRUPT,
         "\"a\" is given twice", false},
        {"name twice, others between",
         HEADER("{`a`:" GOOD ",`b`:" INFO("0", "0", "0") ",`a`:" INFO("0", "0", "0") "}"), 16, HL_E_CORRUPT,
         "\"a\" is given twice", false},
        {"two names chained by a duplicate",
         HEADER("{`a`:" GOOD ",`b`:" INFO("16", "16", "32") ",`a`:" INFO("16", "32", "48") "}"), 48,
         HL_E_CORRUPT, "\"a\" is given twice", false},
        {"entry as an array", HEADER("{`a`:[`U8`,[16],[0,16]]}"), 16, HL_E_CORRUPT,
         "\"a\": the entry is array, not an object", false},
        {"dtype as an object", HEADER("{`a`:{`dtype`:{`U8`:null},`shape`:[16],`data_offsets`:[0,16]}}"), 16,
         HL_E_CORRUPT, "dtype is object, not a string", false},
        {"empty name", HEADER("{``:" GOOD "}"), 16, HL_E_CORRUPT, "empty name", false},
        {"NUL in a name", HEADER("{`a\\u0000b`:" GOOD "}"), 16, HL_E_CORRUPT, "NUL at byte 1", false},
        {"name of a NUL", HEADER("{`\\u0000`:" GOOD "}"), 16, HL_E_CORRUPT, "NUL at byte 0", false},
    };
    REFUSE_ALL(rows);
}

struct dubious {
    struct row row; /* the strict reader refuses it so */
    struct hl_safetensors_tolerated tolerated;
};

static void what_only_the_tolerant_reader_accepts_is_counted(void)
{
    static const struct dubious table[] = {
        {{"space before the header", HEADER("   {`a`:" GOOD "}"), 16, HL_E_CORRUPT, "white space", false},
         {.leading_space = 3}},
        {{"every kind of space before the header", HEADER(" \t\r\n{`a`:" GOOD "}"), 16, HL_E_CORRUPT,
          "white space", false},
         {.leading_space = 4}},
        {{"N is no multiple of 8", HEADER("{`a`:{`dtype`:`U16`,`shape`:[8],`data_offsets`:[0,16]}}"), 16,
          HL_E_CORRUPT, "no multiple of 8", true},
         {.unaligned_header = 1}},
        {{"unknown fields",
          HEADER("{`a`:{`x`:1,`dtype`:`U8`,`y`:{`z`:[]},`shape`:[16],`data_offsets`:[0,16]}}"), 16,
          HL_E_CORRUPT, "\"a\": unknown field \"x\"", false},
         {.unknown_fields = 2}},
        {{"null metadata", HEADER("{`__metadata__`:null,`a`:" GOOD "}"), 16, HL_E_CORRUPT,
          "__metadata__ is null", false},
         {.null_metadata = 1}},
        {{"a metadata key three times",
          HEADER("{`__metadata__`:{`k`:`1`,`j`:`2`,`\\u006b`:`3`,`k`:`4`},`a`:" GOOD "}"), 16, HL_E_CORRUPT,
          "\"k\" is given twice", false},
         {.duplicate_metadata = 2}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct row *row = &table[i].row;
        struct hl_safetensors_tolerated expected = table[i].tolerated;
        hl_safetensors *parsed = NULL;
        hl_error err = {0};
        expect_refused(row, HL_SAFETENSORS_STRICT);
        HL_REQUIRE_OK(parse_row(row, HL_SAFETENSORS_TOLERANT, &parsed, &err), err);
        require_sound(parsed);
        if (row->bare) /* whether the data are aligned then depends on N */
            expected.misaligned = parsed->data_offset % 2 != 0;
        if (memcmp(&parsed->tolerated, &expected, sizeof expected) != 0)
            fprintf(stderr, "%s: counted otherwise\n", row->name);
        CU_ASSERT_EQUAL(memcmp(&parsed->tolerated, &expected, sizeof expected), 0);
        CU_ASSERT_EQUAL(parsed->tensor_count, 1);
        hl_safetensors_free(parsed);
    }
}

static void of_a_metadata_key_given_again_the_last_is_kept(void)
{
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(parse_text("{`__metadata__`:{`k`:`1`,`j`:`2`,`k`:`3`,`i`:`4`}}", 0, HL_SAFETENSORS_TOLERANT,
                             &parsed, &err),
                  err);
    CU_ASSERT_EQUAL_FATAL(parsed->metadata_count, 3);
    CU_ASSERT_STRING_EQUAL(parsed->metadata[0].key, "i");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[1].key, "j");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[2].key, "k");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[2].value, "3");
    CU_ASSERT_EQUAL(parsed->tolerated.duplicate_metadata, 1);
    hl_safetensors_free(parsed);
}

/* An unknown field that nests so that the header has `depth` levels. */
static hl_status parse_nested(unsigned depth, enum hl_safetensors_strictness strictness, hl_error *err)
{
    char text[1024] = "{`a`:{`dtype`:`U8`,`shape`:[16],`data_offsets`:[0,16],`x`:";
    hl_safetensors *parsed = NULL;
    size_t at = strlen(text);
    for (unsigned i = 2; i < depth; i++)
        text[at++] = '[';
    for (unsigned i = 2; i < depth; i++)
        text[at++] = ']';
    memcpy(text + at, "}}", 3);
    hl_status status = parse_text(text, 16, strictness, &parsed, err);
    hl_safetensors_free(parsed);
    return status;
}

static void nesting_beyond_127_is_corrupt_and_127_is_tolerated(void)
{
    hl_error err = {0};
    HL_EXPECT_OK(parse_nested(127, HL_SAFETENSORS_TOLERANT, &err), err);
    HL_EXPECT_STATUS(parse_nested(127, HL_SAFETENSORS_STRICT, &err), HL_E_CORRUPT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "unknown field \"x\""));
    HL_EXPECT_STATUS(parse_nested(128, HL_SAFETENSORS_TOLERANT, &err), HL_E_CORRUPT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "nested deeper than 127"));
    HL_EXPECT_STATUS(parse_nested(128, HL_SAFETENSORS_STRICT, &err), HL_E_CORRUPT, err);
}

static void more_dimensions_than_the_limit_are_refused(void)
{
    for (unsigned rank = HL_WEIGHT_RANK; rank <= HL_WEIGHT_RANK + 1; rank++) {
        struct hl_text text = {0};
        hl_safetensors *parsed = NULL;
        hl_error err = {0};
        hl_text_print(&text, "{`a`:{`dtype`:`U8`,`data_offsets`:[0,1],`shape`:[1");
        for (unsigned i = 1; i < rank; i++)
            hl_text_print(&text, ",1");
        hl_text_print(&text, "]}}");
        CU_ASSERT_PTR_NOT_NULL_FATAL(text.bytes);
        HL_EXPECT_STATUS(parse_text(text.bytes, 1, HL_SAFETENSORS_STRICT, &parsed, &err),
                         rank > HL_WEIGHT_RANK ? HL_E_LIMIT : HL_OK, err);
        CU_ASSERT_EQUAL(parsed != NULL, rank <= HL_WEIGHT_RANK);
        hl_safetensors_free(parsed);
        hl_text_free(&text);
    }
}

HL_TESTS(malformed, HL_CASE(text_that_is_no_json_is_corrupt), HL_CASE(a_header_that_is_no_object_is_corrupt),
         HL_CASE(data_that_the_tensors_do_not_cover_exactly_are_out_of_range),
         HL_CASE(numbers_that_are_no_sizes_are_refused_with_the_tensor_and_the_field),
         HL_CASE(entries_that_lack_or_repeat_a_field_are_corrupt),
         HL_CASE(sizes_that_do_not_fit_or_do_not_match_are_refused),
         HL_CASE(metadata_that_are_no_strings_are_corrupt),
         HL_CASE(dubious_names_and_entries_are_refused_in_both_modes),
         HL_CASE(what_only_the_tolerant_reader_accepts_is_counted),
         HL_CASE(of_a_metadata_key_given_again_the_last_is_kept),
         HL_CASE(nesting_beyond_127_is_corrupt_and_127_is_tolerated),
         HL_CASE(more_dimensions_than_the_limit_are_refused));
