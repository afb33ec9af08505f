#include <stdio.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "engine/demo/demo.h"

enum { MOST_WORDS = 16 };

/* Parses the words, which follow the program's name. */
static hl_status parse(struct hl_demo_options *options, hl_error *err, const char *const *words)
{
    char *argv[MOST_WORDS + 2] = {(char *)"hostlane-demo"};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    return hl_demo_options_parse(argc, argv, options, err);
}

#define PARSE(options, err, ...) parse((options), (err), (const char *const[]){__VA_ARGS__, NULL})

static void no_option_gives_the_defaults(void)
{
    struct hl_demo_options options;
    hl_error err;
    HL_REQUIRE_OK(parse(&options, &err, (const char *const[]){NULL}), err);
    CU_ASSERT_PTR_NULL(options.model_config);
    CU_ASSERT_EQUAL(options.pages, 0);
    CU_ASSERT_EQUAL(options.page_tokens, 16);
    CU_ASSERT_EQUAL(options.layout, HL_LAYOUT_SPLIT);
    CU_ASSERT_FALSE(options.layout_given);
    CU_ASSERT_EQUAL(options.route, HL_ROUTE_AUTO);
    CU_ASSERT_EQUAL(options.pitch, HL_DEMO_SCATTERED);
    CU_ASSERT_EQUAL(options.device, HL_DEMO_DEVICE_AUTO);
    CU_ASSERT_EQUAL(options.tp_size, 1);
    CU_ASSERT_EQUAL(options.part_bytes, 1048576);
    CU_ASSERT_EQUAL(options.first_part_bytes, 16384);
    CU_ASSERT_EQUAL(options.runs, 1);
    CU_ASSERT_EQUAL(options.warmup, 0);
    CU_ASSERT_FALSE(options.huge || options.help || options.store_full_heads);
}

static void every_option_reaches_its_field(void)
{
    struct hl_demo_options options;
    hl_error err;
    HL_REQUIRE_OK(PARSE(&options, &err, "--model-config", "m.json", "--pages", "7", "--page-tokens=4",
                        "--layout", "page-first", "--block-order", "token", "--element-bytes=1",
                        "--seed=18446744073709551615"),
                  err);
    CU_ASSERT_STRING_EQUAL(options.model_config, "m.json");
    CU_ASSERT_EQUAL(options.pages, 7);
    CU_ASSERT_EQUAL(options.page_tokens, 4);
    CU_ASSERT_EQUAL(options.layout, HL_LAYOUT_PAGE_FIRST);
    CU_ASSERT_TRUE(options.layout_given);
    CU_ASSERT_EQUAL(options.order, HL_BLOCK_TOKEN_MAJOR);
    CU_ASSERT_EQUAL(options.element_bytes, 1);
    CU_ASSERT_EQUAL(options.seed, UINT64_MAX);
    HL_REQUIRE_OK(PARSE(&options, &err, "--tp-size=4", "--tp-rank=3", "--store-full-heads", "--route",
                        "kernel", "--sms", "8", "--part-bytes=65536", "--first-part-bytes=8192", "--pitch",
                        "constant", "--huge", "--in-process"),
                  err);
    CU_ASSERT_EQUAL(options.tp_size, 4);
    CU_ASSERT_EQUAL(options.tp_rank, 3);
    CU_ASSERT_TRUE(options.store_full_heads && options.huge);
    CU_ASSERT_EQUAL(options.route, HL_ROUTE_KERNEL);
    CU_ASSERT_EQUAL(options.sms, 8);
    CU_ASSERT_EQUAL(options.part_bytes, 65536);
    CU_ASSERT_EQUAL(options.first_part_bytes, 8192);
    CU_ASSERT_EQUAL(options.pitch, HL_DEMO_CONSTANT);
    HL_REQUIRE_OK(PARSE(&options, &err, "--device=software", "--warmup=2", "--runs=5", "--trace-out",
                        "t.json", "--json-out", "r.json", "--help", "--in-process"),
                  err);
    CU_ASSERT_EQUAL(options.device, HL_DEMO_DEVICE_SOFTWARE);
    CU_ASSERT_EQUAL(options.warmup, 2);
    CU_ASSERT_EQUAL(options.runs, 5);
    CU_ASSERT_STRING_EQUAL(options.trace_out, "t.json");
    CU_ASSERT_STRING_EQUAL(options.json_out, "r.json");
    CU_ASSERT_TRUE(options.help);
}

static void the_first_part_is_no_larger_than_the_others(void)
{
    struct hl_demo_options options;
    hl_error err;
    HL_REQUIRE_OK(PARSE(&options, &err, "--in-process", "--part-bytes=8192"), err);
    CU_ASSERT_EQUAL(options.first_part_bytes, 8192);
}

static void each_mode_has_its_own_options(void)
{
    struct hl_demo_options options;
    hl_error err;
    HL_REQUIRE_OK(parse(&options, &err, (const char *const[]){NULL}), err);
    CU_ASSERT_EQUAL(hl_demo_mode(&options), HL_DEMO_PROCESSES);
    HL_REQUIRE_OK(PARSE(&options, &err, "--runs=2", "--in-process"), err);
    CU_ASSERT_EQUAL(hl_demo_mode(&options), HL_DEMO_IN_PROCESS);
    HL_REQUIRE_OK(PARSE(&options, &err, "--trace", "t", "--trace-requests=9", "--trace-scale", "12",
                        "--cache-bytes=4096"),
                  err);
    CU_ASSERT_EQUAL(hl_demo_mode(&options), HL_DEMO_REPLAY);
    CU_ASSERT_STRING_EQUAL(options.trace, "t");
    CU_ASSERT_EQUAL(options.trace_requests, 9);
    CU_ASSERT_EQUAL(options.trace_scale, 12);
    CU_ASSERT_EQUAL(options.cache_bytes, 4096);
    HL_REQUIRE_OK(PARSE(&options, &err, "--trace", "t", "--trace-scale=auto"), err);
    CU_ASSERT_EQUAL(options.trace_scale, 0);
    HL_REQUIRE_OK(PARSE(&options, &err, "--trace-generate=t", "--seed=4", "--trace-requests=2"), err);
    CU_ASSERT_EQUAL(hl_demo_mode(&options), HL_DEMO_GENERATE);
}

static void an_option_of_another_mode_is_refused(void)
{
    static const struct {
        const char *words[MOST_WORDS];
        const char *named;
    } bad[] = {
        {{"--runs=2"}, "--runs: it means nothing without --in-process"},
        {{"--trace-out", "t"}, "--trace-out"},
        {{"--pages=2", "--trace=t"}, "--pages: it means nothing with --trace"},
        {{"--cache-bytes=1"}, "--cache-bytes"},
        {{"--trace=t", "--in-process"}, "--trace: it means nothing with --in-process"},
        {{"--trace=t", "--trace-generate=u"}, "--trace: it means nothing with --trace-generate"},
        {{"--trace-generate=u", "--json-out=r"}, "--json-out"},
        {{"--trace=t", "--trace-scale=x"}, "auto or a number"},
        {{"--trace=t", "--trace-scale=4294967296"}, "auto or a number"},
        {{"--socket=s"}, "--socket: no such option"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hl_demo_options options;
        hl_error err = {0};
        CU_ASSERT_EQUAL(parse(&options, &err, bad[i].words), HL_E_INVALID);
        if (!strstr(err.text, bad[i].named))
            fprintf(stderr, "%s: %s\n", bad[i].words[0], err.text);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, bad[i].named));
    }
}

static void the_last_of_a_repeated_option_counts(void)
{
    struct hl_demo_options options;
    hl_error err;
    HL_REQUIRE_OK(PARSE(&options, &err, "--model-config", "a", "--model-config", "b"), err);
    CU_ASSERT_STRING_EQUAL(options.model_config, "b");
}

static void a_bad_option_is_refused_by_name_and_changes_nothing(void)
{
    static const struct {
        const char *words[3];
        const char *named;
    } bad[] = {
        {{"pages", "3"}, "pages: an option starts with --"},
        {{"--page", "3"}, "--page: no such option"},
        {{"--"}, "no such option"},
        {{"--pages"}, "--pages: N is missing"},
        {{"--pages", "0"}, "--pages 0"},
        {{"--pages", "524289"}, "524288"},
        {{"--pages", "-1"}, "--pages -1"},
        {{"--pages", " 1"}, "--pages"},
        {{"--pages", "12x"}, "--pages 12x"},
        {{"--pages="}, "--pages"},
        {{"--pages", "99999999999999999999999"}, "--pages"},
        {{"--page-tokens", "4097"}, "4096"},
        {{"--element-bytes", "3"}, "--element-bytes 3"},
        {{"--element-bytes", "9"}, "--element-bytes 9"},
        {{"--layout", "ragged"}, "--layout ragged"},
        {{"--block-order", "layer"}, "component or token"},
        {{"--tp-size", "0"}, "--tp-size 0"},
        {{"--tp-rank", "1"}, "--tp-rank 1: it must be below --tp-size (1)"},
        {{"--store-full-heads=1"}, "it takes no value"},
        {{"--route", "fast"}, "--route fast"},
        {{"--sms", "65"}, "--sms 65"},
        {{"--part-bytes", "4095"}, "--part-bytes 4095"},
        {{"--part-bytes", "4097"}, "multiple of 8"},
        {{"--first-part-bytes", "4095"}, "--first-part-bytes 4095"},
        {{"--first-part-bytes", "4097"}, "multiple of 8"},
        {{"--first-part-bytes", "1048577"}, "1048576"},
        {{"--pitch", "random"}, "scattered or constant"},
        {{"--huge=yes"}, "--huge: it takes no value"},
        {{"--device", "tpu"}, "auto, cuda or software"},
        {{"--seed", "18446744073709551616"}, "--seed"},
        {{"--warmup", "10001"}, "10000"},
        {{"--runs", "0"}, "--runs 0"},
        {{"--trace-out", ""}, "--trace-out: it is empty"},
        {{"--json-out"}, "--json-out: FILE is missing"},
        {{"--model-config="}, "--model-config: it is empty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hl_demo_options options = {.seed = 77};
        hl_error err = {0};
        CU_ASSERT_EQUAL(parse(&options, &err, bad[i].words), HL_E_INVALID);
        if (!strstr(err.text, bad[i].named))
            fprintf(stderr, "%s: %s\n", bad[i].words[0], err.text);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, bad[i].named));
        CU_ASSERT_EQUAL(options.seed, 77);
    }
}

static void the_usage_text_lists_the_options_and_exit_codes(void)
{
    char text[8192] = "";
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    hl_demo_usage(out);
    fclose(out);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--store-full-heads"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--trace-out FILE"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--in-process"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--trace FILE"));
    CU_ASSERT_PTR_NULL(strstr(text, "--role")); /* which is not for people */
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "Exit status: 0"));
}

HL_TESTS(options, HL_CASE(no_option_gives_the_defaults), HL_CASE(every_option_reaches_its_field),
         HL_CASE(the_first_part_is_no_larger_than_the_others), HL_CASE(the_last_of_a_repeated_option_counts),
         HL_CASE(a_bad_option_is_refused_by_name_and_changes_nothing), HL_CASE(each_mode_has_its_own_options),
         HL_CASE(an_option_of_another_mode_is_refused),
         HL_CASE(the_usage_text_lists_the_options_and_exit_codes));
