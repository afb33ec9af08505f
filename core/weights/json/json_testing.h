/* For the tests of core/weights/json. */
#ifndef CORE_WEIGHTS_JSON_JSON_TESTING_H
#define CORE_WEIGHTS_JSON_JSON_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/json/json.h"

#define TEST_RULES ((struct hl_json_rules){.max_bytes = 64u << 20, .max_depth = 127, .stage = "test.json"})

/* Parses a copy that ends where the text ends, so that a sanitizer sees a read beyond it. */
static inline hl_status parse_exactly(const char *text, size_t bytes, const struct hl_json_rules *rules,
                                      hl_json **document, hl_error *err)
{
    char *copy = malloc(bytes ? bytes : 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, text, bytes);
    hl_status status = hl_json_parse(copy, bytes, rules, document, err);
    free(copy);
    return status;
}

static inline hl_json *parse_good(const char *text)
{
    struct hl_json_rules rules = TEST_RULES;
    hl_json *document = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(parse_exactly(text, strlen(text), &rules, &document, &err), err);
    return document;
}

#endif
