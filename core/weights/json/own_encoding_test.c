/* Whether a text is its own canonical encoding, held against encoding it again; and documents within their
 * text against documents beside it. Random texts: some canonical, some that depart from it in one place or
 * more, and some with random bytes changed, which may be no JSON at all. */
#include "core/base/random.h"
#include "core/weights/json/json_testing.h"

static uint32_t below(hl_random *random, uint32_t bound)
{
    return (uint32_t)hl_random_below(random, bound);
}

/* One text being made. Each place departs from the canonical form once in `rarity`; 0: never. */
struct maker {
    hl_random *random;
    uint32_t rarity;
    struct hl_text text;
};

static bool departs(struct maker *maker)
{
    return maker->rarity > 0 && below(maker->random, maker->rarity) == 0;
}

static void put(struct maker *maker, const char *text)
{
    hl_text_append(&maker->text, text, strlen(text));
}

static void put_one_of(struct maker *maker, const char *const *texts, size_t count)
{
    put(maker, texts[below(maker->random, (uint32_t)count)]);
}

static void put_space(struct maker *maker)
{
    static const char *const spaces[] = {" ", "\n", "\t", "\r", "  "};
    if (departs(maker))
        put_one_of(maker, spaces, 5);
}

static void put_characters(struct maker *maker)
{
    static const char *const canonical[] = {"a",
                                            "b",
                                            "Z",
                                            " ",
                                            "~",
                                            "/",
                                            "\\\"",
                                            "\\\\",
                                            "\\n",
                                            "\\t",
                                            "\\b",
                                            "\\f",
                                            "\\r",
                                            "\\u0000",
                                            "\\u001f",
                                            "\\u007f",
                                            "\\u00e9",
                                            "\\uffff",
                                            "\\u2028",
                                            "\\ud83d\\ude00",
                                            "model.layers.0.weight",
                                            "12345678"};
    static const char *const others[] = {
        "\\/",  "\\u0041",  "\\u00E9",          "\\u000a",        "\\u0022",        "\\u005c", "\\u001F",
        "\x7f", "\xc3\xa9", "\xf0\x9f\x98\x80", "\\uD83D\\ude00", "\\ud83d\\uDE00", "\\u007F", "\\u007e"};
    for (uint32_t count = below(maker->random, 12); count > 0; count--) {
        if (departs(maker))
            put_one_of(maker, others, sizeof others / sizeof others[0]);
        else
            put_one_of(maker, canonical, sizeof canonical / sizeof canonical[0]);
    }
}

static void put_number(struct maker *maker)
{
    static const char *const canonical[] = {"0",         "1",          "-1",    "18446744073709551616",
                                            "999999999", "1234567890", "1.0",   "0.1",
                                            "1e+16",     "-0.0",       "1e-07", "0.0001",
                                            "1.5e+300"};
    static const char *const others[] = {
        "-0",     "1.00",  "1e16", "1E+16", "1e-7", "0.0", "-1e0", "1e400", "0.10000000000000001",
        "10.0e0", "1e+016"};
    if (departs(maker))
        put_one_of(maker, others, sizeof others / sizeof others[0]);
    else
        put_one_of(maker, canonical, sizeof canonical / sizeof canonical[0]);
}

static void put_value(struct maker *maker, unsigned depth);

/* Keys ascend by their number; a departure gives a key its place too late, or twice. */
static void put_object(struct maker *maker, unsigned depth)
{
    uint32_t number = 0;
    put(maker, "{");
    for (uint32_t count = below(maker->random, 6); count > 0; count--) {
        number = departs(maker) ? below(maker->random, number + 1) : number + 1 + below(maker->random, 3);
        hl_text_print(&maker->text, "\"k%02u\"", number);
        put_space(maker);
        put(maker, ":");
        put_space(maker);
        put_value(maker, depth);
        if (count > 1)
            put(maker, ",");
        put_space(maker);
    }
    put(maker, "}");
}

static void put_array(struct maker *maker, unsigned depth)
{
    put(maker, "[");
    put_space(maker);
    for (uint32_t count = below(maker->random, 6); count > 0; count--) {
        put_value(maker, depth);
        put_space(maker);
        if (count > 1)
            put(maker, ",");
    }
    put(maker, "]");
}

static void put_value(struct maker *maker, unsigned depth)
{
    static const char *const words[] = {"null", "true", "false"};
    switch (below(maker->random, depth > 0 ? 8 : 4)) {
    case 0:
        put_one_of(maker, words, 3);
        break;
    case 1:
        put_number(maker);
        break;
    case 2:
    case 3:
        put(maker, "\"");
        put_characters(maker);
        put(maker, "\"");
        break;
    case 4:
    case 5:
        put_array(maker, depth - 1);
        break;
    default:
        put_object(maker, depth - 1);
    }
}

/* Overwrites, takes out or puts in a byte, which JSON has a use for. */
static void change(struct maker *maker)
{
    static const char bytes[] = "\"\\{}[]:,-+.eE0129 abu/\n\x7f\xc3";
    struct hl_text *text = &maker->text;
    const size_t at = text->size ? below(maker->random, (uint32_t)text->size) : 0;
    const char byte = bytes[below(maker->random, sizeof bytes - 1)];
    switch (text->size ? below(maker->random, 3) : 2) {
    case 0:
        text->bytes[at] = byte;
        break;
    case 1:
        memmove(text->bytes + at, text->bytes + at + 1, text->size - at);
        text->size--;
        break;
    default:
        hl_text_append(text, "x", 1);
        memmove(text->bytes + at + 1, text->bytes + at, text->size - at - 1);
        text->bytes[at] = byte;
    }
}

static bool encodes_to_itself(const hl_json *document, const struct hl_text *text)
{
    struct hl_text again = {0};
    hl_json_put_canonical(&again, hl_json_root(document));
    CU_ASSERT_FALSE_FATAL(again.failed);
    const bool same = again.size == text->size && memcmp(again.bytes, text->bytes, text->size) == 0;
    hl_text_free(&again);
    return same;
}

static void expect_same_values(const hl_json *left, const hl_json *right)
{
    struct hl_text one = {0}, other = {0};
    hl_json_put_canonical(&one, hl_json_root(left));
    hl_json_put_canonical(&other, hl_json_root(right));
    CU_ASSERT_TRUE(one.size == other.size && memcmp(one.bytes, other.bytes, one.size) == 0);
    hl_text_free(&one);
    hl_text_free(&other);
}

static char *exact_copy(const struct hl_text *text)
{
    char *copy = malloc(text->size + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, text->bytes, text->size + 1);
    return copy;
}

/* The same text within itself: the same values, the same refusal, and the same bytes afterwards. */
static void expect_same_within(const struct hl_text *text, const struct hl_json_rules *rules,
                               hl_status expected, const hl_json *beside, const hl_error *refused)
{
    char *copy = exact_copy(text);
    hl_json *within = NULL;
    hl_error err = {0};
    CU_ASSERT_EQUAL(hl_json_parse_within(copy, text->size, rules, &within, &err), expected);
    if (within && beside) {
        CU_ASSERT_EQUAL(hl_json_is_canonical(within), hl_json_is_canonical(beside));
        CU_ASSERT_EQUAL(hl_json_duplicates(within), hl_json_duplicates(beside));
        expect_same_values(within, beside);
        hl_json_restore(within);
    } else {
        CU_ASSERT_STRING_EQUAL(err.text, refused->text);
    }
    CU_ASSERT_EQUAL(memcmp(copy, text->bytes, text->size + 1), 0);
    hl_json_free(within);
    free(copy);
}

enum outcome { CANONICAL, OTHER, REFUSED, OUTCOMES };

static enum outcome try_text(const struct hl_text *text, bool keep_duplicates)
{
    struct hl_json_rules rules = TEST_RULES;
    rules.keep_duplicates = keep_duplicates;
    hl_json *document = NULL;
    hl_error err = {0};
    const hl_status status = parse_exactly(text->bytes, text->size, &rules, &document, &err);
    enum outcome outcome = REFUSED;
    if (status == HL_OK) {
        outcome = hl_json_is_canonical(document) ? CANONICAL : OTHER;
        if (encodes_to_itself(document, text) != (outcome == CANONICAL)) {
            fprintf(stderr, "said to be %scanonical: %s\n", outcome == CANONICAL ? "" : "not ", text->bytes);
            CU_FAIL("the reader and the encoder disagree");
        }
    }
    expect_same_within(text, &rules, status, document, &err);
    hl_json_free(document);
    return outcome;
}

static void try_many(uint64_t seed, uint32_t rarity, unsigned changes, unsigned count,
                     unsigned outcomes[OUTCOMES])
{
    hl_random random;
    hl_random_seed(&random, seed);
    for (unsigned i = 0; i < count; i++) {
        struct maker maker = {.random = &random, .rarity = rarity};
        put_space(&maker);
        put_value(&maker, 1 + below(&random, 5));
        put_space(&maker);
        for (unsigned change_index = 0; change_index < changes; change_index++)
            change(&maker);
        outcomes[try_text(&maker.text, below(&random, 2))]++;
        hl_text_free(&maker.text);
    }
}

static void a_canonical_text_is_known_as_one(void)
{
    unsigned outcomes[OUTCOMES] = {0};
    try_many(30, 0, 0, 4000, outcomes);
    CU_ASSERT_EQUAL(outcomes[CANONICAL], 4000);
}

static void a_text_that_departs_is_judged_as_its_encoding_says(void)
{
    unsigned outcomes[OUTCOMES] = {0};
    try_many(31, 20, 0, 6000, outcomes);
    try_many(32, 4, 0, 3000, outcomes);
    CU_ASSERT_TRUE(outcomes[CANONICAL] > 500);
    CU_ASSERT_TRUE(outcomes[OTHER] > 1500);
    CU_ASSERT_TRUE(outcomes[REFUSED] > 100);
}

static void a_changed_text_is_judged_as_its_encoding_says(void)
{
    unsigned outcomes[OUTCOMES] = {0};
    try_many(33, 0, 1, 8000, outcomes);
    try_many(34, 0, 2, 2000, outcomes);
    CU_ASSERT_TRUE(outcomes[CANONICAL] > 500);
    CU_ASSERT_TRUE(outcomes[OTHER] > 200);
    CU_ASSERT_TRUE(outcomes[REFUSED] > 2000);
}

static void each_departure_is_seen_by_itself(void)
{
    static const struct {
        const char *text;
        bool canonical;
    } texts[] = {
        {"{\"a\":1,\"b\":[true,null,\"\\u00e9\\u007f\\n\"]}", true},
        {" 1", false},
        {"1\n", false},
        {"[1, 2]", false},
        {"{\"a\" :1}", false},
        {"{\"a\":1,\"A\":2}", false},
        {"\"\\/\"", false},
        {"\"/\"", true},
        {"\"\x7f\"", false},
        {"\"\xc3\xa9\"", false},
        {"\"\\u00E9\"", false},
        {"\"\\u0061\"", false},
        {"\"\\u000a\"", false},
        {"\"\\u000b\"", true},
        {"\"\\u000B\"", false},
        {"\"\\u0000\"", true},
        {"\"\\ud83d\\uDE00\"", false},
        {"-0", false},
        {"-0.0", true},
        {"-1", true},
        {"1.50", false},
        {"[1.5,1e+16,\"x\",1e16]", false},
        {"[1.5,1e+16,\"x\",2.5]", true},
        {"[]", true},
        {"[ ]", false},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        hl_json *document = parse_good(texts[i].text);
        if (hl_json_is_canonical(document) != texts[i].canonical)
            fprintf(stderr, "%s\n", texts[i].text);
        CU_ASSERT_EQUAL(hl_json_is_canonical(document), texts[i].canonical);
        hl_json_free(document);
    }
}

HL_TESTS(json_own_encoding, HL_CASE(each_departure_is_seen_by_itself),
         HL_CASE(a_canonical_text_is_known_as_one),
         HL_CASE(a_text_that_departs_is_judged_as_its_encoding_says),
         HL_CASE(a_changed_text_is_judged_as_its_encoding_says));
