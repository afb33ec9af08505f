/* What the reader refuses, and what callers see of what it accepts. */
#include "core/weights/json/json_testing.h"

struct malformed {
    const char *text;
    size_t bytes;
    const char *says;
};
#define MALFORMED(text, says)                                                                                \
    {                                                                                                        \
        text, sizeof(text) - 1, says                                                                         \
    }

static const struct malformed malformed[] = {
    MALFORMED("", "byte 0: the text ends where a value is expected"),
    MALFORMED(" \n", "byte 2: the text ends"),
    MALFORMED("[", "byte 1: the text ends"),
    MALFORMED("\xef\xbb\xbf{}", "byte 0: a byte order mark"),
    MALFORMED("[1,]", "byte 3: no JSON value"),
    MALFORMED("[,1]", "byte 1: no JSON value"),
    MALFORMED("{\"a\":1,}", "byte 7: a key in double quotes"),
    MALFORMED("{,}", "byte 1: a key in double quotes"),
    MALFORMED("{\"a\"}", "byte 4: ':' is expected"),
    MALFORMED("{\"a\" 1}", "byte 5: ':' is expected"),
    MALFORMED("{\"a\":}", "byte 5: no JSON value"),
    MALFORMED("{\"a\":1", "byte 6: ',' or '}' is expected"),
    MALFORMED("{\"a\":1]", "byte 6: ',' or '}' is expected"),
    MALFORMED("[1}", "byte 2: ',' or ']' is expected"),
    MALFORMED("[1 2]", "byte 3: ',' or ']' is expected"),
    MALFORMED("[1:2]", "byte 2: ',' or ']' is expected"),
    MALFORMED("{a:1}", "byte 1: a key in double quotes"),
    MALFORMED("{'a':1}", "byte 1: a key in double quotes"),
    MALFORMED("{1:1}", "byte 1: a key in double quotes"),
    MALFORMED("'a'", "byte 0: no JSON value"),
    MALFORMED("[1/**/]", "byte 2: ','"),
    MALFORMED("// x\n1", "byte 0: no JSON value"),
    MALFORMED("# x\n1", "byte 0: no JSON value"),
    MALFORMED("\v1", "byte 0: no JSON value"),
    MALFORMED("\xc2\xa0"
              "1",
              "byte 0: no JSON value"),
    MALFORMED("016", "byte 0: a number with a leading zero"),
    MALFORMED("-01", "byte 0: a number with a leading zero"),
    MALFORMED("00", "byte 0: a number with a leading zero"),
    MALFORMED("+16", "byte 0: no JSON value"),
    MALFORMED("-", "byte 0: a sign without a number"),
    MALFORMED("--1", "byte 0: a sign without a number"),
    MALFORMED("-a", "byte 0: a sign without a number"),
    MALFORMED("1.", "byte 0: a number that ends in a point"),
    MALFORMED("1.e5", "byte 0: a number that ends in a point"),
    MALFORMED(".5", "byte 0: no JSON value"),
    MALFORMED("1e", "byte 0: a number without the digits of its exponent"),
    MALFORMED("1e+", "byte 0: a number without the digits of its exponent"),
    MALFORMED("1.5E-", "byte 0: a number without the digits of its exponent"),
    MALFORMED("0x10", "byte 1: something follows"),
    MALFORMED("1_000", "byte 1: something follows"),
    MALFORMED("1,5", "byte 1: something follows"),
    MALFORMED("NaN", "byte 0: no JSON value"),
    MALFORMED("Infinity", "byte 0: no JSON value"),
    MALFORMED("-Infinity", "byte 0: a sign without a number"),
    MALFORMED("inf", "byte 0: no JSON value"),
    MALFORMED("1e400", "byte 0: a number that no double can hold"),
    MALFORMED("[0,-1e400]", "byte 3: a number that no double can hold"),
    MALFORMED("1.7976931348623159e308", "byte 0: a number that no double can hold"),
    MALFORMED("1e99999999999999999999", "byte 0: a number that no double can hold"),
    MALFORMED("tru", "byte 0: no JSON value"),
    MALFORMED("True", "byte 0: no JSON value"),
    MALFORMED("nullx", "byte 4: something follows"),
    MALFORMED("true false", "byte 5: something follows"),
    MALFORMED("{}{}", "byte 2: something follows"),
    MALFORMED("{}\0", "byte 2: something follows"),
    MALFORMED("\0", "byte 0: no JSON value"),
    MALFORMED("{}]", "byte 2: something follows"),
    MALFORMED("]", "byte 0: no JSON value"),
    MALFORMED("\"abc", "byte 0: a string that does not end"),
    MALFORMED("\"", "byte 0: a string that does not end"),
    MALFORMED("\"abc\\\"", "byte 0: a string that does not end"),
    MALFORMED("\"\\", "byte 1: an unknown escape"),
    MALFORMED("\"\\x41\"", "byte 1: an unknown escape"),
    MALFORMED("\"\\'\"", "byte 1: an unknown escape"),
    MALFORMED("\"\\\0\"", "byte 1: an unknown escape"),
    MALFORMED("\"\\U0041\"", "byte 1: an unknown escape"),
    MALFORMED("\"\\u12\"", "byte 1: \\u without four"),
    MALFORMED("\"\\u12g4\"", "byte 1: \\u without four"),
    MALFORMED("\"\\u", "byte 1: \\u without four"),
    MALFORMED("\"\\u+123\"", "byte 1: \\u without four"),
    MALFORMED("\"a\nb\"", "byte 2: a control character"),
    MALFORMED("\"\x01\"", "byte 1: a control character"),
    MALFORMED("\"\0\"", "byte 1: a control character"),
    MALFORMED("\"\x1f\"", "byte 1: a control character"),
    MALFORMED("\"\\ud800\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\udc00\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\ud800\\ud800\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\udc00\\ud800\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\ud800\\u0041\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\ud800\\n\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\ud800\\u12\"", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\\ud800", "byte 1: a surrogate without its other half"),
    MALFORMED("\"\xff\"", "byte 1: not UTF-8"),
    MALFORMED("\"\x80\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xc0\xaf\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xc1\xbf\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xe0\x9f\xbf\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xf0\x8f\xbf\xbf\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xed\xa0\x80\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xed\xbf\xbf\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xf4\x90\x80\x80\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xf5\x80\x80\x80\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xe2\x82\"", "byte 1: not UTF-8"),
    MALFORMED("\"\xe2\x82", "byte 1: not UTF-8"),
    MALFORMED("\"\xf0\x9f\x98", "byte 1: not UTF-8"),
    MALFORMED("\"\xc3", "byte 1: not UTF-8"),
    MALFORMED("{\"a\":1,\"a\":2}", "byte 7: the key \"a\" is given twice"),
    MALFORMED("{\"b\":1,\"a\":2,\"\\u0061\":3}", "byte 13: the key \"a\" is given twice"),
    MALFORMED("{\"\":1,\"\":2}", "byte 6: the key \"\" is given twice"),
    MALFORMED("[{\"k\":{\"\\n\":1,\"a\":0,\"\\u000a\":2}}]", "the key \"?\" is given twice"),
    MALFORMED("{\"a\\u0000b\":1,\"a\\u0000b\":2}", "the key \"a?b\" is given twice"),
};

static void every_malformed_text_is_refused_with_its_place(void)
{
    struct hl_json_rules rules = TEST_RULES;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        hl_json *document = NULL;
        hl_error err = {0};
        hl_status status = parse_exactly(malformed[i].text, malformed[i].bytes, &rules, &document, &err);
        if (status != HL_E_CORRUPT || !strstr(err.text, malformed[i].says))
            fprintf(stderr, "%s: got %s, %s\n", malformed[i].text, hl_status_name(status), err.text);
        CU_ASSERT_EQUAL(status, HL_E_CORRUPT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, malformed[i].says));
        CU_ASSERT_STRING_EQUAL(err.stage, "test.json");
        CU_ASSERT_PTR_NULL(document);
    }
}

/* `depth` arrays, or objects, in each other. */
static hl_status parse_nested(unsigned depth, bool objects, unsigned allowed, hl_error *err)
{
    struct hl_json_rules rules = TEST_RULES;
    struct hl_text text = {0};
    hl_json *document = NULL;
    rules.max_depth = allowed;
    for (unsigned i = 0; i < depth; i++)
        hl_text_print(&text, "%s", objects ? (i + 1 < depth ? "{\"a\":" : "{") : "[");
    for (unsigned i = 0; i < depth; i++)
        hl_text_print(&text, "%c", objects ? '}' : ']');
    hl_status status = parse_exactly(text.bytes, text.size, &rules, &document, err);
    hl_json_free(document);
    hl_text_free(&text);
    return status;
}

static void nesting_ends_where_the_rules_say(void)
{
    hl_error err = {0};
    for (int objects = 0; objects < 2; objects++) {
        HL_EXPECT_OK(parse_nested(127, objects, 127, &err), err);
        HL_EXPECT_STATUS(parse_nested(128, objects, 127, &err), HL_E_CORRUPT, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "nested deeper than 127"));
        HL_EXPECT_OK(parse_nested(2, objects, 2, &err), err);
        HL_EXPECT_STATUS(parse_nested(3, objects, 2, &err), HL_E_CORRUPT, err);
        HL_EXPECT_STATUS(parse_nested(100000, objects, 127, &err), HL_E_CORRUPT, err);
    }
}

static void a_text_beyond_the_limit_is_refused_before_it_is_read(void)
{
    struct hl_json_rules rules = TEST_RULES;
    hl_json *document = NULL;
    hl_error err = {0};
    rules.max_bytes = 4;
    HL_EXPECT_OK(parse_exactly("[12]", 4, &rules, &document, &err), err);
    hl_json_free(document);
    document = NULL;
    HL_EXPECT_STATUS(parse_exactly("[123]", 5, &rules, &document, &err), HL_E_LIMIT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "5 bytes of JSON, of which 4 are allowed"));
    rules.max_bytes = SIZE_MAX;
    HL_EXPECT_STATUS(hl_json_parse("1", (size_t)UINT32_MAX, &rules, &document, &err), HL_E_LIMIT, err);
    CU_ASSERT_PTR_NULL(document);
}

static void values_are_seen_in_the_order_of_the_text(void)
{
    hl_json *document = parse_good(
        " {\"b\" : [ 1, -2.5 ,\"x\" ], \"a\":{}, \"c\":[], \"d\":true,\"e\":false,\"f\":null}\r\n\t");
    const hl_json_node *root = hl_json_root(document);
    CU_ASSERT_EQUAL(hl_json_type_of(root), HL_JSON_OBJECT);
    CU_ASSERT_EQUAL(hl_json_count(root), 6);
    CU_ASSERT_EQUAL(hl_json_begin(root), 1);
    const char *keys = "bacdef";
    static const enum hl_json_type types[] = {HL_JSON_ARRAY, HL_JSON_OBJECT, HL_JSON_ARRAY,
                                              HL_JSON_BOOL,  HL_JSON_BOOL,   HL_JSON_NULL};
    size_t i = 0;
    for (const hl_json_node *member = hl_json_first(root); member; member = hl_json_next(member), i++) {
        size_t bytes = 0;
        CU_ASSERT_EQUAL(hl_json_key(member, &bytes)[0], keys[i]);
        CU_ASSERT_EQUAL(bytes, 1);
        CU_ASSERT_EQUAL(hl_json_type_of(member), types[i]);
    }
    CU_ASSERT_EQUAL(i, 6);
    const hl_json_node *array = hl_json_member(root, "b");
    CU_ASSERT_PTR_NOT_NULL_FATAL(array);
    CU_ASSERT_EQUAL(hl_json_count(array), 3);
    CU_ASSERT_EQUAL(hl_json_begin(array), 8);
    CU_ASSERT_EQUAL(hl_json_end(array), 24);
    CU_ASSERT_EQUAL(hl_json_type_of(hl_json_next(hl_json_first(array))), HL_JSON_REAL);
    CU_ASSERT_PTR_NULL(hl_json_next(hl_json_next(hl_json_next(hl_json_first(array)))));
    CU_ASSERT_PTR_NULL(hl_json_first(hl_json_member(root, "a")));
    CU_ASSERT_PTR_NULL(hl_json_first(hl_json_member(root, "c")));
    CU_ASSERT_PTR_NULL(hl_json_first(hl_json_member(root, "f")));
    CU_ASSERT_TRUE(hl_json_is_true(hl_json_member(root, "d")));
    CU_ASSERT_FALSE(hl_json_is_true(hl_json_member(root, "e")));
    CU_ASSERT_FALSE(hl_json_is_true(hl_json_member(root, "f")));
    CU_ASSERT_PTR_NULL(hl_json_member(root, "g"));
    CU_ASSERT_PTR_NULL(hl_json_member(root, ""));
    hl_json_free(document);
}

static void a_single_scalar_is_a_document(void)
{
    static const struct {
        const char *text;
        enum hl_json_type type;
    } scalars[] = {{"null", HL_JSON_NULL},
                   {" 7", HL_JSON_INTEGER},
                   {"7e0 ", HL_JSON_REAL},
                   {"\"\"", HL_JSON_STRING},
                   {"true", HL_JSON_BOOL}};
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        hl_json *document = parse_good(scalars[i].text);
        CU_ASSERT_EQUAL(hl_json_type_of(hl_json_root(document)), scalars[i].type);
        CU_ASSERT_EQUAL(hl_json_count(hl_json_root(document)), 0);
        CU_ASSERT_PTR_NULL(hl_json_next(hl_json_root(document)));
        hl_json_free(document);
    }
}

static void strings_are_unescaped_and_may_hold_a_nul(void)
{
    hl_json *document = parse_good(
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"a\\u0000b\", \"\\u00e9\\uD83D\\ude00\\u20AC\", \"é😀€\","
        " \"\\u007f\\uffff\\ud800\\udc00\\udbff\\udfff\"]");
    const hl_json_node *node = hl_json_first(hl_json_root(document));
    size_t bytes = 0;
    CU_ASSERT_STRING_EQUAL(hl_json_string(node, NULL), "\"\\/\b\f\n\r\t");
    node = hl_json_next(node);
    CU_ASSERT_EQUAL(memcmp(hl_json_string(node, &bytes), "a\0b", 4), 0);
    CU_ASSERT_EQUAL(bytes, 3);
    node = hl_json_next(node);
    CU_ASSERT_STRING_EQUAL(hl_json_string(node, NULL), "é😀€");
    node = hl_json_next(node);
    CU_ASSERT_STRING_EQUAL(hl_json_string(node, &bytes), "é😀€");
    CU_ASSERT_EQUAL(bytes, 9);
    node = hl_json_next(node);
    CU_ASSERT_STRING_EQUAL(hl_json_string(node, NULL), "\x7f\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
    hl_json_free(document);
}

static void integers_fit_or_say_that_they_do_not(void)
{
    static const struct {
        const char *text;
        bool fits_u64, fits_i64;
        uint64_t u64;
        int64_t i64;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"-0", true, true, 0, 0},
        {"-1", false, true, 0, -1},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"9223372036854775808", true, false, 1ull << 63, 0},
        {"-9223372036854775808", false, true, 0, INT64_MIN},
        {"-9223372036854775809", false, false, 0, 0},
        {"18446744073709551615", true, false, UINT64_MAX, 0},
        {"18446744073709551616", false, false, 0, 0},
        {"99999999999999999999999999", false, false, 0, 0},
        {"1.0", false, false, 0, 0},
        {"1e2", false, false, 0, 0},
        {"true", false, false, 0, 0},
        {"\"1\"", false, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hl_json *document = parse_good(cases[i].text);
        uint64_t u64 = 77;
        int64_t i64 = 77;
        CU_ASSERT_EQUAL(hl_json_u64(hl_json_root(document), &u64), cases[i].fits_u64);
        CU_ASSERT_EQUAL(u64, cases[i].fits_u64 ? cases[i].u64 : 77);
        CU_ASSERT_EQUAL(hl_json_i64(hl_json_root(document), &i64), cases[i].fits_i64);
        CU_ASSERT_EQUAL(i64, cases[i].fits_i64 ? cases[i].i64 : 77);
        hl_json_free(document);
    }
}

static void kept_duplicates_are_counted_and_the_last_counts(void)
{
    struct hl_json_rules rules = TEST_RULES;
    static const char text[] = "{\"b\":1,\"a\":2,\"b\":3,\"c\":{\"x\":1,\"x\":1,\"x\":4},\"b\":5}";
    hl_json *document = NULL;
    hl_error err = {0};
    uint64_t value = 0;
    rules.keep_duplicates = true;
    HL_REQUIRE_OK(parse_exactly(text, sizeof text - 1, &rules, &document, &err), err);
    CU_ASSERT_EQUAL(hl_json_duplicates(document), 4);
    CU_ASSERT_EQUAL(hl_json_count(hl_json_root(document)), 5);
    CU_ASSERT_TRUE(hl_json_u64(hl_json_member(hl_json_root(document), "b"), &value));
    CU_ASSERT_EQUAL(value, 5);
    struct hl_text canonical = {0};
    hl_json_put_canonical(&canonical, hl_json_root(document));
    CU_ASSERT_STRING_EQUAL(canonical.bytes, "{\"a\":2,\"b\":5,\"c\":{\"x\":4}}");
    hl_text_free(&canonical);
    hl_json_free(document);
    document = parse_good("{\"b\":1,\"a\":[{\"b\":1},{\"b\":2}],\"B\":3}");
    CU_ASSERT_EQUAL(hl_json_duplicates(document), 0);
    hl_json_free(document);
}

/* Keys that differ only at their ends, in descending order, so that neither order nor short prefixes help. */
static void a_duplicate_is_found_among_many_keys(void)
{
    enum { KEYS = 20000 };
    struct hl_json_rules rules = TEST_RULES;
    for (int twice = 0; twice < 2; twice++) {
        struct hl_text text = {0};
        hl_json *document = NULL;
        hl_error err = {0};
        for (int i = KEYS; i > 0; i--)
            hl_text_print(&text, "%c\"transformer.blocks.%06d\":%d", i == KEYS ? '{' : ',', i, i);
        if (twice)
            hl_text_print(&text, ",\"transformer.blocks.%06d\":0", KEYS / 3);
        hl_text_print(&text, "}");
        hl_status status = parse_exactly(text.bytes, text.size, &rules, &document, &err);
        CU_ASSERT_EQUAL(status, twice ? HL_E_CORRUPT : HL_OK);
        if (twice)
            CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "\"transformer.blocks.006666\" is given twice"));
        hl_json_free(document);
        hl_text_free(&text);
    }
}

static void types_have_names(void)
{
    CU_ASSERT_STRING_EQUAL(hl_json_type_name(HL_JSON_NULL), "null");
    CU_ASSERT_STRING_EQUAL(hl_json_type_name(HL_JSON_BOOL), "boolean");
    CU_ASSERT_STRING_EQUAL(hl_json_type_name(HL_JSON_INTEGER), "integer");
    CU_ASSERT_STRING_EQUAL(hl_json_type_name(HL_JSON_OBJECT), "object");
    CU_ASSERT_STRING_EQUAL(hl_json_type_name((enum hl_json_type)99), "unknown");
    hl_json_free(NULL);
}

HL_TESTS(json_reader, HL_CASE(every_malformed_text_is_refused_with_its_place),
         HL_CASE(nesting_ends_where_the_rules_say),
         HL_CASE(a_text_beyond_the_limit_is_refused_before_it_is_read),
         HL_CASE(values_are_seen_in_the_order_of_the_text), HL_CASE(a_single_scalar_is_a_document),
         HL_CASE(strings_are_unescaped_and_may_hold_a_nul), HL_CASE(integers_fit_or_say_that_they_do_not),
         HL_CASE(kept_duplicates_are_counted_and_the_last_counts),
         HL_CASE(a_duplicate_is_found_among_many_keys), HL_CASE(types_have_names));
