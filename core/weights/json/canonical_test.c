/* The canonical encoding and the texts it is written to. */
#include <locale.h>

#include "core/base/random.h"
#include "core/weights/json/json_testing.h"

static void expect_canonical(const char *text, const char *canonical)
{
    hl_json *document = parse_good(text);
    struct hl_text got = {0};
    hl_json_put_canonical(&got, hl_json_root(document));
    CU_ASSERT_FALSE(got.failed);
    if (strcmp(got.bytes, canonical) != 0)
        fprintf(stderr, "%s: got %s, not %s\n", text, got.bytes, canonical);
    CU_ASSERT_STRING_EQUAL(got.bytes, canonical);
    CU_ASSERT_EQUAL(got.size, strlen(canonical));
    hl_text_free(&got);
    hl_json_free(document);
}

static void keys_are_ordered_by_code_point(void)
{
    expect_canonical("{\"b\":1, \"a\":2}", "{\"a\":2,\"b\":1}");
    expect_canonical("{\"b\":{\"d\":1,\"c\":[]},\"a\":{}}", "{\"a\":{},\"b\":{\"c\":[],\"d\":1}}");
    /* UTF-16 units would put the pair before U+FFFF. */
    expect_canonical("{\"\\ud800\\udc00\":2,\"\\uffff\":1}", "{\"\\uffff\":1,\"\\ud800\\udc00\":2}");
    expect_canonical("{\"é\":5,\"z\":4,\"ab\":3,\"a\":2,\"\\u0000\":1,\"\":0,\"\\u007f\":6}",
                     "{\"\":0,\"\\u0000\":1,\"a\":2,\"ab\":3,\"z\":4,\"\\u007f\":6,\"\\u00e9\":5}");
}

static void strings_are_ascii_with_lower_case_escapes(void)
{
    expect_canonical("\"\\u0000\\u001F\\b\\t\\n\\f\\r\\\"\\\\\\/\\u0041\"",
                     "\"\\u0000\\u001f\\b\\t\\n\\f\\r\\\"\\\\/A\"");
    expect_canonical("\"\\u007F\\u0080é\\u2028\\uFFFF😀\"",
                     "\"\\u007f\\u0080\\u00e9\\u2028\\uffff\\ud83d\\ude00\"");
    /* The two forms of one letter stay two texts. */
    expect_canonical("[\"\\u00e9\",\"e\\u0301\"]", "[\"\\u00e9\",\"e\\u0301\"]");
}

static void integers_keep_their_digits(void)
{
    expect_canonical("[0,-0,1,-1,18446744073709551616,-123456789012345678901234567890]",
                     "[0,0,1,-1,18446744073709551616,-123456789012345678901234567890]");
}

static void reals_are_the_shortest_digits_in_python_notation(void)
{
    static const char *const reals[][2] = {
        {"1.0", "1.0"},
        {"-1E0", "-1.0"},
        {"0.0", "0.0"},
        {"-0.0", "-0.0"},
        {"-0e5", "-0.0"},
        {"1e-400", "0.0"},
        {"-1e-99999999999999999999", "-0.0"},
        {"0.1", "0.1"},
        {"0.10000000000000001", "0.1"},
        {"100e-2", "1.0"},
        {"123456.789", "123456.789"},
        {"1e15", "1000000000000000.0"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"1e16", "1e+16"},
        {"12345678901234567.0", "1.2345678901234568e+16"},
        {"1e22", "1e+22"},
        {"1e23", "1e+23"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"2251799813685248.5", "2251799813685248.5"},
        {"0.0001", "0.0001"},
        {"0.00012345", "0.00012345"},
        {"0.00001", "1e-05"},
        {"0.000012345", "1.2345e-05"},
        {"1e-7", "1e-07"},
        {"1e100", "1e+100"},
        {"5.684341886080802e-14", "5.684341886080802e-14"}, /* 2^-44: the decimal above, not the nearest */
        {"5.6843418860808015e-14", "5.684341886080802e-14"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"1.7976931348623158e308", "1.7976931348623157e+308"},
        {"2.2250738585072014e-308", "2.2250738585072014e-308"},
        {"2.225073858507201e-308", "2.225073858507201e-308"},
        {"4.9406564584124654e-324", "5e-324"},
        {"3e-324", "5e-324"},
        {"1e-323", "1e-323"},
        {"9.881312916824931e-324", "1e-323"},
        {"2e-324", "0.0"},
        {"9.5", "9.5"},
        {"99999999999999990.0", "9.999999999999998e+16"},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        expect_canonical(reals[i][0], reals[i][1]);
}

/* Any double that is not NaN or infinite. */
static double random_double(hl_random *random)
{
    for (;;) {
        uint64_t bits = hl_random_next(random);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (value - value == 0)
            return value;
    }
}

static void every_real_reads_back_as_the_same_double(void)
{
    hl_random random;
    hl_random_seed(&random, 20);
    for (int i = 0; i < 20000; i++) {
        double value = random_double(&random);
        char text[64];
        snprintf(text, sizeof text, "%.17e", value);
        hl_json *document = parse_good(text);
        struct hl_text got = {0};
        hl_json_put_canonical(&got, hl_json_root(document));
        CU_ASSERT_EQUAL(strtod(got.bytes, NULL), value);
        CU_ASSERT_TRUE(got.size <= 24);
        hl_text_free(&got);
        hl_json_free(document);
    }
}

static void the_locale_changes_nothing(void)
{
    /* Where a locale with a decimal comma is not installed, this runs in the C locale and says little. */
    static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "C"};
    for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
        if (setlocale(LC_ALL, locales[i]))
            break;
    }
    expect_canonical("[1.5,1234567.25,1e-7,1.5e300]", "[1.5,1234567.25,1e-07,1.5e+300]");
    setlocale(LC_ALL, "C");
}

static void an_encoding_is_its_own_encoding(void)
{
    expect_canonical("{\"a\":[1.5,{\"b\":null,\"c\":[true,false]},\"\\ud83d\\ude00\"],\"b\":-7}",
                     "{\"a\":[1.5,{\"b\":null,\"c\":[true,false]},\"\\ud83d\\ude00\"],\"b\":-7}");
}

/* Sorting is checked against a count: every key below KEYS once, in order. */
static void many_keys_in_any_order_are_sorted(void)
{
    enum { KEYS = 5000 };
    static uint32_t order[KEYS];
    hl_random random;
    hl_random_seed(&random, 21);
    hl_random_permutation(&random, order, KEYS);
    struct hl_text text = {0}, want = {0};
    for (unsigned i = 0; i < KEYS; i++) {
        hl_text_print(&text, "%c\"%05u\":%u", i ? ',' : '{', order[i], order[i]);
        hl_text_print(&want, "%c\"%05u\":%u", i ? ',' : '{', i, i);
    }
    hl_text_append(&text, "}", 1);
    hl_text_append(&want, "}", 1);
    expect_canonical(text.bytes, want.bytes);
    hl_text_free(&text);
    hl_text_free(&want);
}

static void a_text_grows_and_ends_in_a_nul(void)
{
    struct hl_text text = {0};
    hl_error err = {0};
    CU_ASSERT_EQUAL(hl_text_status(&text, "test.text", &err), HL_OK);
    hl_text_append(&text, NULL, 0);
    CU_ASSERT_STRING_EQUAL(text.bytes, "");
    for (int i = 0; i < 1000; i++)
        hl_text_print(&text, "%03d,", i);
    CU_ASSERT_EQUAL(text.size, 4000);
    CU_ASSERT_EQUAL(strlen(text.bytes), 4000);
    CU_ASSERT_EQUAL(strncmp(text.bytes + 3996, "999,", 5), 0);
    hl_text_free(&text);
    CU_ASSERT_PTR_NULL(text.bytes);
    hl_text_append(&text, "again", 5);
    CU_ASSERT_STRING_EQUAL(text.bytes, "again");
    hl_text_free(&text);
}

static void a_quoted_key_is_printable_and_short(void)
{
    char quoted[HL_JSON_QUOTE_BYTES];
    char longer[200];
    memset(longer, 'x', sizeof longer);
    CU_ASSERT_STRING_EQUAL(hl_json_quote(quoted, "a\nb\xc3\xa9\0c", 7), "\"a?b???c\"");
    hl_json_quote(quoted, longer, sizeof longer);
    CU_ASSERT_EQUAL(strlen(quoted), 69);
    CU_ASSERT_STRING_EQUAL(quoted + 65, "\"...");
    CU_ASSERT_STRING_EQUAL(hl_json_quote(quoted, longer, 64) + 64, "x\"");
}

static void utf8_is_told_from_other_bytes(void)
{
    CU_ASSERT_TRUE(hl_json_valid_utf8("", 0));
    CU_ASSERT_TRUE(hl_json_valid_utf8("a\0b", 3));
    CU_ASSERT_TRUE(
        hl_json_valid_utf8("\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf", 17));
    CU_ASSERT_FALSE(hl_json_valid_utf8("\xed\xa0\x80", 3));
    CU_ASSERT_FALSE(hl_json_valid_utf8("a\xc3", 2));
    CU_ASSERT_FALSE(hl_json_valid_utf8("\xf0\x9f\x98"
                                       "a",
                                       4));
}

HL_TESTS(json_canonical, HL_CASE(keys_are_ordered_by_code_point),
         HL_CASE(strings_are_ascii_with_lower_case_escapes), HL_CASE(integers_keep_their_digits),
         HL_CASE(reals_are_the_shortest_digits_in_python_notation),
         HL_CASE(every_real_reads_back_as_the_same_double), HL_CASE(the_locale_changes_nothing),
         HL_CASE(an_encoding_is_its_own_encoding), HL_CASE(many_keys_in_any_order_are_sorted),
         HL_CASE(a_text_grows_and_ends_in_a_nul), HL_CASE(a_quoted_key_is_printable_and_short),
         HL_CASE(utf8_is_told_from_other_bytes));
