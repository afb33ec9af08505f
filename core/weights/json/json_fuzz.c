/* libFuzzer target: hostile JSON. What is accepted is walked through every accessor; its canonical encoding
 * must be accepted again and be its own encoding; whether the text is that encoding must be known without it.
 * The same text read within itself must give the same, and be as it was afterwards. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const hl_json_node *node, size_t text_bytes)
{
    uint64_t u64;
    int64_t i64;
    size_t bytes = 0, count = 0;
    assert(hl_json_begin(node) < hl_json_end(node) && hl_json_end(node) <= text_bytes);
    hl_json_u64(node, &u64);
    hl_json_i64(node, &i64);
    if (hl_json_type_of(node) == HL_JSON_STRING) {
        const char *string = hl_json_string(node, &bytes);
        assert(hl_json_valid_utf8(string, bytes) && string[bytes] == '\0');
    }
    for (const hl_json_node *child = hl_json_first(node); child; child = hl_json_next(child), count++) {
        if (hl_json_type_of(node) == HL_JSON_OBJECT) {
            const char *key = hl_json_key(child, &bytes);
            assert(hl_json_valid_utf8(key, bytes));
        }
        walk(child, text_bytes);
    }
    assert(count == hl_json_count(node));
}

static void check_encoding(const hl_json *document, const char *text, size_t size,
                           const struct hl_json_rules *rules)
{
    struct hl_text first = {0}, second = {0};
    hl_json *again = NULL;
    hl_error err;
    hl_json_put_canonical(&first, hl_json_root(document));
    assert(hl_json_is_canonical(document) == (first.size == size && memcmp(first.bytes, text, size) == 0));
    assert(hl_json_parse(first.bytes, first.size, rules, &again, &err) == HL_OK);
    hl_json_put_canonical(&second, hl_json_root(again));
    assert(hl_json_is_canonical(again));
    assert(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
    hl_json_free(again);
    hl_text_free(&first);
    hl_text_free(&second);
}

static void check_within(const hl_json *document, const char *text, size_t size,
                         const struct hl_json_rules *rules)
{
    char *copy = malloc(size + 1);
    hl_json *within = NULL;
    hl_error err;
    assert(copy);
    memcpy(copy, text, size);
    copy[size] = '\0';
    const hl_status status = hl_json_parse_within(copy, size, rules, &within, &err);
    assert((status == HL_OK) == (document != NULL));
    if (within) {
        struct hl_text first = {0}, second = {0};
        walk(hl_json_root(within), size);
        hl_json_put_canonical(&first, hl_json_root(document));
        hl_json_put_canonical(&second, hl_json_root(within));
        assert(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
        assert(hl_json_is_canonical(within) == hl_json_is_canonical(document));
        hl_text_free(&first);
        hl_text_free(&second);
        hl_json_restore(within);
    }
    assert(memcmp(copy, text, size) == 0);
    hl_json_free(within);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct hl_json_rules rules = {
        .max_bytes = 1u << 20, .max_depth = 127, .stage = "fuzz.json", .keep_duplicates = data[0] & 1};
    const struct hl_json_rules strict = {.max_bytes = 8u << 20, .max_depth = 127, .stage = "fuzz.json"};
    hl_json *document = NULL;
    hl_error err;
    if (hl_json_parse((const char *)data + 1, size - 1, &rules, &document, &err) == HL_OK) {
        assert(rules.keep_duplicates || hl_json_duplicates(document) == 0);
        walk(hl_json_root(document), size - 1);
        check_encoding(document, (const char *)data + 1, size - 1, &strict);
    }
    check_within(document, (const char *)data + 1, size - 1, &rules);
    hl_json_free(document);
    return 0;
}
