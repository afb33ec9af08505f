#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "engine/demo/processes/processes.h"

#define STAGE "demo.trace_generate"

enum {
    PROMPTS = 64,       /* that requests begin with */
    PROMPT_BLOCKS = 24, /* the longest that one grows to */
    NEW_BLOCKS = 6,     /* most that a request adds */
    DEFAULT_REQUESTS = 1000
};

/* A prompt is a chain of ids; who asks takes a prefix of it and goes on with ids of its own, which in half of
 * the cases become the prompt's next blocks (a conversation). */
struct prompts {
    uint64_t ids[PROMPTS][PROMPT_BLOCKS];
    uint32_t length[PROMPTS];
    double up_to[PROMPTS]; /* sum of 1/rank up to the prompt: Zipf's law */
    uint64_t next_id;
};

static void begin(struct prompts *prompts, hl_random *random)
{
    double sum = 0;
    for (uint32_t p = 0; p < PROMPTS; p++) {
        sum += 1.0 / (p + 1);
        prompts->up_to[p] = sum;
        prompts->length[p] = 1 + (uint32_t)hl_random_below(random, 4);
        for (uint32_t i = 0; i < prompts->length[p]; i++)
            prompts->ids[p][i] = prompts->next_id++;
    }
}

static uint32_t choose(const struct prompts *prompts, hl_random *random)
{
    double at = (double)(hl_random_next(random) >> 11) / 9007199254740992.0 * prompts->up_to[PROMPTS - 1];
    uint32_t p = 0;
    while (p + 1 < PROMPTS && at >= prompts->up_to[p])
        p++;
    return p;
}

static uint32_t next_request(struct prompts *prompts, hl_random *random, uint64_t *ids)
{
    uint32_t p = choose(prompts, random);
    uint32_t shared = 1 + (uint32_t)hl_random_below(random, prompts->length[p]);
    uint32_t fresh = (uint32_t)hl_random_below(random, NEW_BLOCKS + 1);
    bool keep = shared == prompts->length[p] && hl_random_below(random, 2) == 0;
    for (uint32_t i = 0; i < shared; i++)
        ids[i] = prompts->ids[p][i];
    for (uint32_t i = 0; i < fresh; i++) {
        ids[shared + i] = prompts->next_id++;
        if (keep && prompts->length[p] < PROMPT_BLOCKS)
            prompts->ids[p][prompts->length[p]++] = ids[shared + i];
    }
    return shared + fresh;
}

hl_status hl_trace_generate(const char *path, uint32_t requests, uint64_t seed, hl_error *err)
{
    struct prompts *prompts = calloc(1, sizeof *prompts);
    if (!prompts)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the prompts");
    FILE *file = fopen(path, "we");
    if (!file) {
        free(prompts);
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot write %.100s", path);
    }
    hl_random random;
    hl_random_seed(&random, seed);
    begin(prompts, &random);
    uint64_t timestamp = 0;
    for (uint32_t r = 0; r < requests && !ferror(file); r++) {
        uint64_t ids[PROMPT_BLOCKS + NEW_BLOCKS];
        uint32_t count = next_request(prompts, &random, ids);
        uint64_t tokens =
            (uint64_t)count * HL_TRACE_BLOCK_TOKENS - hl_random_below(&random, HL_TRACE_BLOCK_TOKENS);
        timestamp += hl_random_below(&random, 500);
        fprintf(
            file, "{\"timestamp\": %llu, \"input_length\": %llu, \"output_length\": %llu, \"hash_ids\": [",
            (unsigned long long)timestamp, (unsigned long long)tokens, 1ull + hl_random_below(&random, 1000));
        for (uint32_t i = 0; i < count; i++)
            fprintf(file, "%s%llu", i ? ", " : "", (unsigned long long)ids[i]);
        fprintf(file, "]}\n");
    }
    free(prompts);
    bool failed = ferror(file) != 0;
    int code = errno;
    if (fclose(file) && !failed) {
        failed = true;
        code = errno;
    }
    if (failed)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, code, "cannot write %.100s", path);
    return HL_OK;
}

int hl_demo_run_generate(hl_demo *demo)
{
    const struct hl_demo_options *options = &demo->options;
    uint32_t requests = options->trace_requests ? options->trace_requests : DEFAULT_REQUESTS;
    hl_error err;
    if (hl_trace_generate(options->trace_generate, requests, options->seed, &err)) {
        hl_demo_report_error(demo, &err, stderr);
        return HL_DEMO_ERROR;
    }
    printf("%s: %u requests\n", options->trace_generate, requests);
    return HL_DEMO_OK;
}
