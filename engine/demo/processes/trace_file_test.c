#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "engine/demo/processes/trace.h"

static const char *test_path(const char *name)
{
    static char path[512];
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/tmp", name);
    return path;
}

static const char *write_bytes(const char *bytes, size_t size)
{
    const char *path = test_path("trace.jsonl");
    FILE *file = fopen(path, "we");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, size, file), size);
    fclose(file);
    return path;
}

static hl_status read_text(const char *text, struct hl_trace *trace, hl_error *err)
{
    return hl_trace_read(write_bytes(text, strlen(text)), 0, trace, err);
}

#define LINE(ids) "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [" ids "]}\n"

static void a_trace_is_read_in_order(void)
{
    struct hl_trace trace;
    hl_error err;
    HL_REQUIRE_OK(read_text(LINE("1, 2") LINE("") LINE("1, 9223372036854775807, 3"), &trace, &err), err);
    CU_ASSERT_EQUAL(trace.request_count, 3);
    CU_ASSERT_EQUAL(trace.id_count, 5);
    CU_ASSERT_EQUAL(trace.most_ids, 3);
    CU_ASSERT_EQUAL(trace.unique, 4);
    CU_ASSERT_EQUAL(trace.requests[0].timestamp, 5);
    CU_ASSERT_EQUAL(trace.requests[0].input_length, 600);
    CU_ASSERT_EQUAL(trace.requests[0].output_length, 7);
    CU_ASSERT_EQUAL(trace.requests[1].count, 0);
    CU_ASSERT_EQUAL(trace.requests[2].first, 2);
    CU_ASSERT_EQUAL(trace.ids[3], INT64_MAX);
    hl_trace_free(&trace);
    CU_ASSERT_PTR_NULL(trace.ids);
}

static void only_the_first_requests_are_read_when_asked(void)
{
    struct hl_trace trace;
    hl_error err;
    const char *path = write_bytes(LINE("1") LINE("2") "no JSON\n", strlen(LINE("1") LINE("2") "no JSON\n"));
    HL_REQUIRE_OK(hl_trace_read(path, 2, &trace, &err), err); /* what follows is not looked at */
    CU_ASSERT_EQUAL(trace.request_count, 2);
    hl_trace_free(&trace);
}

static void unknown_fields_and_a_missing_last_newline_are_accepted(void)
{
    struct hl_trace trace;
    hl_error err;
    HL_REQUIRE_OK(
        read_text("{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": [3], "
                  "\"type\": \"chat\"}",
                  &trace, &err),
        err);
    CU_ASSERT_EQUAL(trace.request_count, 1);
    hl_trace_free(&trace);
}

/* Each is the second line of a file. */
static void a_bad_line_is_refused_with_its_number(void)
{
#define NUMBERS(t, i, o)                                                                                     \
    "{\"timestamp\": " t ", \"input_length\": " i ", \"output_length\": " o ", \"hash_ids\": "
    static const struct {
        const char *line;
        hl_status status;
        const char *named;
    } bad[] = {
        {"", HL_E_CORRUPT, "line 2"},
        {"{", HL_E_CORRUPT, "line 2"},
        {"[1]", HL_E_CORRUPT, "no JSON object"},
        {"17", HL_E_CORRUPT, "line 2"},
        {"{} {}", HL_E_CORRUPT, "line 2"},
        {"{}", HL_E_INVALID, "timestamp is missing"},
        {"{\"timestamp\": 1, \"timestamp\": 1}", HL_E_CORRUPT, "line 2"},
        {"{\"timestamp\": \"1\"}", HL_E_INVALID, "timestamp is no integer"},
        {NUMBERS("1.5", "1", "1") "[]}", HL_E_INVALID, "timestamp"},
        {NUMBERS("1", "-1", "1") "[]}", HL_E_INVALID, "input_length"},
        {NUMBERS("1", "1", "null") "[]}", HL_E_INVALID, "output_length"},
        {NUMBERS("1", "1", "99999999999999999999") "[]}", HL_E_CORRUPT, "line 2"},
        {NUMBERS("1", "1", "NaN") "[]}", HL_E_CORRUPT, "line 2"},
        {NUMBERS("1", "1", "1") "7}", HL_E_INVALID, "hash_ids is no array"},
        {NUMBERS("1", "1", "1") "[1, -2]}", HL_E_INVALID, "hash_ids[1]"},
        {NUMBERS("1", "1", "1") "[\"1\"]}", HL_E_INVALID, "hash_ids[0]"},
        {NUMBERS("1", "1", "1") "[1, 2, [3]]}", HL_E_INVALID, "hash_ids[2]"},
        {NUMBERS("1", "1", "1") "[1e3]}", HL_E_INVALID, "hash_ids[0]"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}", HL_E_INVALID,
         "hash_ids is missing"},
        {"{\"\xff\": 1}", HL_E_CORRUPT, "line 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[1024];
        struct hl_trace trace = {.request_count = 77};
        hl_error err = {0};
        snprintf(text, sizeof text, "%s%s\n%s", LINE("1"), bad[i].line, LINE("2"));
        CU_ASSERT_EQUAL(read_text(text, &trace, &err), bad[i].status);
        if (!strstr(err.text, bad[i].named))
            fprintf(stderr, "%s: %s\n", bad[i].line, err.text);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, bad[i].named));
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "line 2"));
        CU_ASSERT_EQUAL(trace.request_count, 77);
    }
}

static void bytes_that_are_no_text_are_refused(void)
{
    static const char bytes[] = LINE("1") "{\"timestamp\0\": 1}\n";
    struct hl_trace trace;
    hl_error err;
    CU_ASSERT_EQUAL(hl_trace_read(write_bytes(bytes, sizeof bytes - 1), 0, &trace, &err), HL_E_CORRUPT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "line 2"));
}

static void a_file_without_requests_is_refused(void)
{
    struct hl_trace trace;
    hl_error err;
    CU_ASSERT_EQUAL(read_text("", &trace, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_trace_read(test_path("no/such.jsonl"), 0, &trace, &err), HL_E_SYSTEM);
    CU_ASSERT_EQUAL(hl_trace_read(getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp", 0, &trace, &err),
                    HL_E_SYSTEM); /* a folder opens, and cannot be read */
}

static void a_line_or_request_beyond_the_bounds_is_refused(void)
{
    struct hl_trace trace;
    hl_error err;
    size_t room = HL_TRACE_LINE_BYTES + 2;
    char *text = malloc(room);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    memset(text, ' ', room);
    CU_ASSERT_EQUAL(hl_trace_read(write_bytes(text, room), 0, &trace, &err), HL_E_LIMIT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "line 1"));

    int used = snprintf(text, room, "%s[0", NUMBERS("1", "1", "1"));
    for (uint32_t i = 0; i < HL_TRACE_REQUEST_IDS; i++)
        used += snprintf(text + used, room - (size_t)used, ",%u", i);
    used += snprintf(text + used, room - (size_t)used, "]}");
    CU_ASSERT_EQUAL(hl_trace_read(write_bytes(text, (size_t)used), 0, &trace, &err), HL_E_LIMIT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "hash_ids"));
    free(text);
}

/* Whatever a byte of a good trace becomes: it is read or refused, and nothing leaks or is read out of bounds.
 */
static void every_changed_byte_is_survived(void)
{
    static const char good[] = LINE("1, 2") LINE("1, 3");
    static const char values[] = {'\0', '\n', '"', '{', '}', '[', ']', ',', '-', '9', '\xff'};
    uint32_t refused = 0;
    for (size_t at = 0; at < sizeof good - 1; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            char text[sizeof good];
            struct hl_trace trace;
            hl_error err;
            memcpy(text, good, sizeof good);
            text[at] = values[v];
            if (hl_trace_read(write_bytes(text, sizeof good - 1), 0, &trace, &err))
                refused++;
            else
                hl_trace_free(&trace);
        }
    CU_ASSERT_TRUE(refused > 500);
    for (size_t size = 0; size < sizeof good - 1; size++) {
        struct hl_trace trace;
        hl_error err;
        if (!hl_trace_read(write_bytes(good, size), 0, &trace, &err))
            hl_trace_free(&trace);
    }
}

/* --- generated traces --- */

static void a_generated_trace_depends_on_its_seed_alone(void)
{
    struct hl_trace trace[3];
    hl_error err;
    for (int i = 0; i < 3; i++) {
        const char *path = test_path("generated.jsonl");
        HL_REQUIRE_OK(hl_trace_generate(path, 200, i == 2 ? 8 : 7, &err), err);
        HL_REQUIRE_OK(hl_trace_read(path, 0, &trace[i], &err), err);
    }
    CU_ASSERT_EQUAL(trace[0].request_count, 200);
    CU_ASSERT_EQUAL_FATAL(trace[0].id_count, trace[1].id_count);
    CU_ASSERT_EQUAL(memcmp(trace[0].ids, trace[1].ids, trace[0].id_count * sizeof(uint64_t)), 0);
    uint32_t less = trace[0].id_count < trace[2].id_count ? trace[0].id_count : trace[2].id_count;
    CU_ASSERT_NOT_EQUAL(memcmp(trace[0].ids, trace[2].ids, less * sizeof(uint64_t)), 0);
    for (int i = 0; i < 3; i++)
        hl_trace_free(&trace[i]);
}

static void a_generated_trace_shares_prefixes(void)
{
    struct hl_trace trace;
    hl_reference_cache *cache;
    hl_error err;
    const char *path = test_path("generated.jsonl");
    HL_REQUIRE_OK(hl_trace_generate(path, 500, 1, &err), err);
    HL_REQUIRE_OK(hl_trace_read(path, 0, &trace, &err), err);
    HL_REQUIRE_OK(hl_reference_open(&cache, &err), err);
    uint64_t hits = 0, with_hits = 0;
    for (uint32_t r = 0; r < trace.request_count; r++) {
        const struct hl_trace_request *request = &trace.requests[r];
        uint32_t found = hl_reference_hits(cache, trace.ids + request->first, request->count);
        hits += found;
        with_hits += found > 0;
        CU_ASSERT_EQUAL((request->input_length + HL_TRACE_BLOCK_TOKENS - 1) / HL_TRACE_BLOCK_TOKENS,
                        request->count);
        HL_EXPECT_OK(hl_reference_add(cache, trace.ids + request->first, request->count, &err), err);
    }
    CU_ASSERT_TRUE(hits * 10 > trace.id_count * 3ull && hits * 10 < trace.id_count * 9ull);
    CU_ASSERT_TRUE(with_hits > trace.request_count / 2);
    hl_reference_close(cache);
    hl_trace_free(&trace);
}

static void a_trace_that_cannot_be_written_is_an_error(void)
{
    hl_error err;
    CU_ASSERT_EQUAL(hl_trace_generate(test_path("no/such/folder.jsonl"), 1, 1, &err), HL_E_SYSTEM);
    if (access("/dev/full", W_OK) == 0)
        CU_ASSERT_EQUAL(hl_trace_generate("/dev/full", 100, 1, &err), HL_E_SYSTEM);
}

HL_TESTS(trace_file, HL_CASE(a_trace_is_read_in_order), HL_CASE(only_the_first_requests_are_read_when_asked),
         HL_CASE(unknown_fields_and_a_missing_last_newline_are_accepted),
         HL_CASE(a_bad_line_is_refused_with_its_number), HL_CASE(bytes_that_are_no_text_are_refused),
         HL_CASE(a_file_without_requests_is_refused), HL_CASE(a_line_or_request_beyond_the_bounds_is_refused),
         HL_CASE(every_changed_byte_is_survived), HL_CASE(a_generated_trace_depends_on_its_seed_alone),
         HL_CASE(a_generated_trace_shares_prefixes), HL_CASE(a_trace_that_cannot_be_written_is_an_error));
