#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/demo/demo.h"

#define STAGE "demo.options"

#define FIRST_PART_BYTES 16384u

static hl_status parse_layout(const char *text, struct hl_demo_options *options, hl_error *err)
{
    hl_status status = hl_layout_kind_parse(text, &options->layout, err);
    options->layout_given = status == HL_OK;
    return status;
}

static hl_status parse_route(const char *text, struct hl_demo_options *options, hl_error *err)
{
    return hl_route_parse(text, &options->route, err);
}

static hl_status parse_order(const char *text, struct hl_demo_options *options, hl_error *err)
{
    if (strcmp(text, "component") != 0 && strcmp(text, "token") != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "it is component or token");
    options->order = text[0] == 'c' ? HL_BLOCK_COMPONENT_MAJOR : HL_BLOCK_TOKEN_MAJOR;
    return HL_OK;
}

static hl_status parse_pitch(const char *text, struct hl_demo_options *options, hl_error *err)
{
    if (strcmp(text, "scattered") != 0 && strcmp(text, "constant") != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "it is scattered or constant");
    options->pitch = text[0] == 's' ? HL_DEMO_SCATTERED : HL_DEMO_CONSTANT;
    return HL_OK;
}

static hl_status parse_device(const char *text, struct hl_demo_options *options, hl_error *err)
{
    static const char *const names[] = {"auto", "cuda", "software"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(text, names[i])) {
            options->device = (enum hl_demo_device)i;
            return HL_OK;
        }
    return HL_FAIL(err, HL_E_INVALID, STAGE, "it is auto, cuda or software");
}

static hl_status parse_scale(const char *text, struct hl_demo_options *options, hl_error *err)
{
    errno = 0;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    bool digits = text[0] >= '0' && text[0] <= '9';
    if (!strcmp(text, "auto"))
        value = 0;
    else if (!digits || *end || errno || value < 1 || value > UINT32_MAX)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "it is auto or a number from 1 to %u", UINT32_MAX);
    options->trace_scale = (uint32_t)value;
    return HL_OK;
}

struct option {
    const char *name;
    const char *argument; /* NULL: a flag */
    const char *help;     /* NULL: not for people */
    enum { FLAG, TEXT, NUMBER, WIDE_NUMBER, WORD } kind;
    unsigned modes; /* in which it means something; 0: only for processes that the demo starts */
    size_t field;   /* offset in the options: bool, const char *, uint32_t or uint64_t; unused for a WORD */
    uint64_t least;
    uint64_t most;
    hl_status (*parse)(const char *text, struct hl_demo_options *options, hl_error *err);
};

#define FIELD(member) offsetof(struct hl_demo_options, member)

enum {
    IN_PROCESS = 1u << HL_DEMO_IN_PROCESS,
    RESTORES = 1u << HL_DEMO_PROCESSES | IN_PROCESS,
    REPLAY = 1u << HL_DEMO_REPLAY,
    GENERATE = 1u << HL_DEMO_GENERATE,
    DEVICES = RESTORES | REPLAY,
    ALL = DEVICES | GENERATE
};

static const struct option known[] = {
    {"model-config", "FILE", "a Hugging Face config.json (default: the shipped Qwen3-8B geometry)", TEXT,
     DEVICES, FIELD(model_config), 0, 0, NULL},
    {"pages", "N", "pages restored in each layer (default: 455 on CUDA, 32 on the software device)", NUMBER,
     RESTORES, FIELD(pages), 1, HL_PLAN_BLOCKS / 2, NULL},
    {"page-tokens", "N", "tokens a page (default: 16)", NUMBER, RESTORES, FIELD(page_tokens), 1,
     HL_LAYOUT_PAGE_TOKENS, NULL},
    {"element-bytes", "N", "bytes an element, where the cache's type is not the model's", NUMBER, DEVICES,
     FIELD(element_bytes), 1, 8, NULL},
    {"layout", "KIND",
     "split, contiguous, fused, mla or page-first (default: split, or mla for a latent cache)", WORD, DEVICES,
     0, 0, 0, parse_layout},
    {"block-order", "ORDER", "stored blocks by component or by token (default: component)", WORD, DEVICES, 0,
     0, 0, parse_order},
    {"tp-size", "N", "ranks that the heads are split over (default: 1)", NUMBER, RESTORES, FIELD(tp_size), 1,
     1024, NULL},
    {"tp-rank", "N", "the rank that this device holds (default: 0)", NUMBER, RESTORES, FIELD(tp_rank), 0,
     1023, NULL},
    {"store-full-heads", NULL, "a stored block holds the heads of all ranks", FLAG, RESTORES,
     FIELD(store_full_heads), 0, 0, NULL},
    {"route", "ROUTE", "auto, direct (copy engines) or kernel (default: auto)", WORD, DEVICES, 0, 0, 0,
     parse_route},
    {"sms", "N", "most thread blocks of the gather kernel (default: 4)", NUMBER, DEVICES, FIELD(sms), 1,
     HL_TRANSFER_MAX_SMS, NULL},
    {"huge", NULL, "arena of 2 MiB pages, which must be reserved", FLAG, DEVICES, FIELD(huge), 0, 0, NULL},
    {"device", "DEVICE", "auto, cuda or software (default: auto)", WORD, DEVICES, 0, 0, 0, parse_device},
    {"seed", "N", "of page contents, of the order of pages, of a generated trace (default: 1)", WIDE_NUMBER,
     ALL, FIELD(seed), 0, UINT64_MAX, NULL},
    {"json-out", "FILE", "writes all figures as JSON", TEXT, DEVICES, FIELD(json_out), 0, 0, NULL},
    {"help", NULL, "this text", FLAG, ALL, FIELD(help), 0, 0, NULL},

    {"in-process", NULL, "one process that drives the executor itself, to measure it", FLAG, IN_PROCESS,
     FIELD(in_process), 0, 0, NULL},
    {"part-bytes", "N", "bound on one plan part; consumers are queued after each (default: 1048576)", NUMBER,
     IN_PROCESS, FIELD(part_bytes), 4096, HL_PLAN_PART_BYTES, NULL},
    {"first-part-bytes", "N",
     "bound on the first part, doubled from part to part (default: 16384, or the bound on all)", NUMBER,
     IN_PROCESS, FIELD(first_part_bytes), 4096, HL_PLAN_PART_BYTES, NULL},
    {"pitch", "PITCH",
     "pages and blocks scattered, or consecutive with a constant pitch (default: scattered)", WORD,
     IN_PROCESS, 0, 0, 0, parse_pitch},
    {"warmup", "N", "restores before the measured ones (default: 0)", NUMBER, IN_PROCESS, FIELD(warmup), 0,
     HL_DEMO_MAX_RUNS, NULL},
    {"runs", "N", "measured restores (default: 1)", NUMBER, IN_PROCESS, FIELD(runs), 1, HL_DEMO_MAX_RUNS,
     NULL},
    {"trace-out", "FILE", "writes a Chrome/Perfetto trace", TEXT, IN_PROCESS, FIELD(trace_out), 0, 0, NULL},

    {"trace", "FILE", "replays a request trace in Mooncake's format (JSON lines with hash_ids)", TEXT, REPLAY,
     FIELD(trace), 0, 0, NULL},
    {"trace-generate", "FILE", "writes a trace whose requests share prefixes, and ends", TEXT, GENERATE,
     FIELD(trace_generate), 0, 0, NULL},
    {"trace-requests", "N", "the first N requests (default: all; 1000 of a generated trace)", NUMBER,
     REPLAY | GENERATE, FIELD(trace_requests), 1, UINT32_MAX, NULL},
    {"trace-scale", "F", "blocks are 1/F of the model's, or auto (default: auto, so that all fit)", WORD,
     REPLAY, 0, 0, 0, parse_scale},
    {"cache-bytes", "N", "size of the Manager's arena (default: room for all blocks of the trace)",
     WIDE_NUMBER, REPLAY, FIELD(cache_bytes), 1, HL_ARENA_MAX_BYTES, NULL},

    {"role", "ROLE", NULL, TEXT, 0, FIELD(role), 0, 0, NULL},
    {"socket", "PATH", NULL, TEXT, 0, FIELD(socket), 0, 0, NULL},
    {"program", "PATH", NULL, TEXT, 0, FIELD(program), 0, 0, NULL},
};
enum { KNOWN = sizeof known / sizeof known[0] };
_Static_assert(KNOWN <= 64, "the options that were given are bits of one word");

static hl_status set_number(const struct option *option, const char *text, struct hl_demo_options *options,
                            hl_error *err)
{
    errno = 0;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    bool digits = text[0] >= '0' && text[0] <= '9'; /* strtoull takes blanks and a minus sign */
    if (!digits || *end || errno || value < option->least || value > option->most)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "it is a number from %llu to %llu",
                       (unsigned long long)option->least, (unsigned long long)option->most);
    char *field = (char *)options + option->field;
    if (option->kind == NUMBER)
        *(uint32_t *)field = (uint32_t)value;
    else
        *(uint64_t *)field = value;
    return HL_OK;
}

static hl_status set_option(const struct option *option, const char *text, struct hl_demo_options *options,
                            hl_error *err)
{
    char *field = (char *)options + option->field;
    hl_error reason;
    hl_status status = HL_OK;
    assert(text || option->kind == FLAG);
    switch (option->kind) {
    case FLAG:
        *(bool *)field = true;
        return HL_OK;
    case TEXT:
        if (!*text)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s: it is empty", option->name);
        *(const char **)field = text;
        return HL_OK;
    case WORD:
        status = option->parse(text, options, &reason);
        break;
    case NUMBER:
    case WIDE_NUMBER:
        status = set_number(option, text, options, &reason);
        break;
    }
    if (status)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s %.40s: %.150s", option->name, text, reason.text);
    return HL_OK;
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && !memcmp(known[i].name, name, length))
            return &known[i];
    return NULL;
}

enum hl_demo_mode hl_demo_mode(const struct hl_demo_options *options)
{
    if (options->in_process)
        return HL_DEMO_IN_PROCESS;
    if (options->trace_generate)
        return HL_DEMO_GENERATE;
    return options->trace ? HL_DEMO_REPLAY : HL_DEMO_PROCESSES;
}

static const char *mode_text(enum hl_demo_mode mode)
{
    static const char *const texts[] = {[HL_DEMO_PROCESSES] = "without --in-process or --trace",
                                        [HL_DEMO_IN_PROCESS] = "with --in-process",
                                        [HL_DEMO_REPLAY] = "with --trace",
                                        [HL_DEMO_GENERATE] = "with --trace-generate"};
    return texts[mode];
}

/* `given` has the bit of each option that was named. */
static hl_status check_modes(const struct hl_demo_options *options, uint64_t given, hl_error *err)
{
    enum hl_demo_mode mode = hl_demo_mode(options);
    if (options->role)
        return HL_OK; /* the demo chose them itself */
    for (size_t i = 0; i < KNOWN; i++) {
        bool named = given >> i & 1;
        if (named && known[i].modes && !(known[i].modes >> mode & 1))
            return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s: it means nothing %s", known[i].name,
                           mode_text(mode));
        if (named && !known[i].modes)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s: no such option", known[i].name);
    }
    return HL_OK;
}

static hl_status check_together(struct hl_demo_options *options, hl_error *err)
{
    if (options->tp_rank >= options->tp_size)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--tp-rank %u: it must be below --tp-size (%u)",
                       options->tp_rank, options->tp_size);
    if (options->element_bytes & (options->element_bytes - 1))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--element-bytes %u: it is 1, 2, 4 or 8",
                       options->element_bytes);
    if (options->part_bytes % 8)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--part-bytes %u: it is a multiple of 8",
                       options->part_bytes);
    if (!options->first_part_bytes)
        options->first_part_bytes =
            options->part_bytes < FIRST_PART_BYTES ? options->part_bytes : FIRST_PART_BYTES;
    if (options->first_part_bytes > options->part_bytes || options->first_part_bytes % 8)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "--first-part-bytes %u: it is a multiple of 8, at most --part-bytes (%u)",
                       options->first_part_bytes, options->part_bytes);
    return HL_OK;
}

hl_status hl_demo_options_parse(int argc, char **argv, struct hl_demo_options *options, hl_error *err)
{
    struct hl_demo_options parsed = {.layout = HL_LAYOUT_SPLIT,
                                     .page_tokens = 16,
                                     .tp_size = 1,
                                     .part_bytes = HL_PLAN_PART_BYTES,
                                     .runs = 1,
                                     .seed = 1};
    uint64_t given = 0;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strncmp(word, "--", 2) != 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%.60s: an option starts with --", word);
        const char *equals = strchr(word, '=');
        size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
        const struct option *option = find_option(word + 2, length);
        if (!option)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%.60s: no such option", word);
        if (!option->argument && equals)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s: it takes no value", option->name);
        const char *text = equals ? equals + 1 : NULL;
        if (option->argument && !text) {
            if (i + 1 == argc)
                return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s: %s is missing", option->name,
                               option->argument);
            text = argv[++i];
        }
        given |= 1ull << (option - known);
        hl_status status = set_option(option, text, &parsed, err);
        if (status)
            return status;
    }
    hl_status status = check_together(&parsed, err);
    if (!status)
        status = check_modes(&parsed, given, err);
    if (status)
        return status;
    *options = parsed;
    return HL_OK;
}

static void list_options(FILE *out, const char *heading, enum hl_demo_mode mode, unsigned without)
{
    fprintf(out, "\n%s\n", heading);
    for (size_t i = 0; i < KNOWN; i++) {
        if (!known[i].help || !(known[i].modes >> mode & 1) || known[i].modes & without)
            continue;
        char left[40];
        snprintf(left, sizeof left, "--%s %s", known[i].name, known[i].argument ? known[i].argument : "");
        fprintf(out, "  %-24s %s\n", left, known[i].help);
    }
}

void hl_demo_usage(FILE *out)
{
    fprintf(
        out,
        "usage: hostlane-demo [OPTIONS]\n"
        "       hostlane-demo --in-process [OPTIONS]\n"
        "       hostlane-demo --trace FILE [OPTIONS]\n"
        "       hostlane-demo --trace-generate FILE [--trace-requests N] [--seed N]\n\n"
        "Starts a Manager; one engine publishes the KV pages of a model's geometry and is killed; a second "
        "one restores\n"
        "them to other pages while a consumer reads each layer as soon as it is ready, compares every "
        "byte, and keeps\n"
        "them when the Manager is killed too.\n");
    list_options(out, "Options:", HL_DEMO_PROCESSES, 0);
    list_options(out, "Only in one process:", HL_DEMO_IN_PROCESS, 1u << HL_DEMO_PROCESSES);
    list_options(out, "Traces:", HL_DEMO_REPLAY, 1u << HL_DEMO_PROCESSES);
    list_options(out, "A trace of its own:", HL_DEMO_GENERATE,
                 1u << HL_DEMO_PROCESSES | 1u << HL_DEMO_REPLAY);
    fprintf(out,
            "\nExit status: 0 done and every byte equal, 1 a check failed, 2 wrong usage, 3 an error.\n");
}

const char *hl_demo_order_name(enum hl_block_order order)
{
    return order == HL_BLOCK_TOKEN_MAJOR ? "token" : "component";
}

const char *hl_demo_pitch_name(enum hl_demo_pitch pitch)
{
    return pitch == HL_DEMO_CONSTANT ? "constant" : "scattered";
}
