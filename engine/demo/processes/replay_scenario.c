#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "engine/demo/processes/processes.h"
#include "engine/demo/results.h"

#define STAGE "demo.replay"

/* What an automatic scale may need of the host's memory. */
#define SOFTWARE_BUDGET HL_GIB
#define CUDA_BUDGET (16 * HL_GIB)

/* Layers of a scaled block, while that is enough: layers cost a copy each. */
enum { FEW_LAYERS = 4 };

/* --- scale --- */

static struct hl_layout_options layout_options(const hl_demo *demo, uint32_t tokens)
{
    return (struct hl_layout_options){.kind = demo->geometry.mla ? HL_LAYOUT_MLA : HL_LAYOUT_SPLIT,
                                      .page_tokens = tokens,
                                      .pages = 1,
                                      .element_bytes = demo->options.element_bytes,
                                      .tp_size = 1};
}

/* Stored bytes of a block of so many tokens, over all groups. */
static hl_status block_bytes(const hl_demo *demo, uint32_t tokens, uint64_t *bytes, hl_error *err)
{
    struct hl_layout_options options = layout_options(demo, tokens);
    hl_layout *layout;
    hl_status status = hl_layout_from_model(&demo->geometry, &options, &layout, err);
    if (status)
        return status;
    *bytes = 0;
    for (uint32_t g = 0; g < layout->group_count; g++)
        *bytes += layout->groups[g].block_bytes;
    hl_layout_free(layout);
    return HL_OK;
}

/* The least F with which all the blocks fit into `budget`, if any does. */
static uint32_t choose_factor(uint64_t real_bytes, uint32_t unique, uint64_t budget)
{
    unsigned __int128 all = (unsigned __int128)real_bytes * unique;
    unsigned __int128 factor = (all + budget - 1) / budget;
    if (factor < 1)
        return 1;
    return factor > UINT32_MAX ? UINT32_MAX : (uint32_t)factor;
}

hl_status hl_demo_scale_geometry(hl_demo *demo, const struct hl_trace *trace, uint64_t budget,
                                 struct hl_demo_scale *scale, hl_error *err)
{
    struct hl_demo_scale chosen;
    uint64_t token_bytes;
    hl_status status = block_bytes(demo, HL_TRACE_BLOCK_TOKENS, &chosen.real_bytes, err);
    if (!status)
        status = block_bytes(demo, 1, &token_bytes, err);
    if (status)
        return status;
    assert(demo->geometry.layers > 0 && token_bytes > 0);
    if (budget)
        demo->options.trace_scale = choose_factor(chosen.real_bytes, trace->unique, budget);
    /* A unit is one token of one layer. */
    uint32_t layers = demo->geometry.layers;
    chosen.model_layers = layers;
    uint64_t unit = token_bytes / layers, units = chosen.real_bytes / demo->options.trace_scale / unit;
    uint64_t least = (units + HL_TRACE_BLOCK_TOKENS - 1) / HL_TRACE_BLOCK_TOKENS; /* layers */
    uint64_t wanted = units < FEW_LAYERS ? units : least > FEW_LAYERS ? least : FEW_LAYERS;
    chosen.layers = wanted < 1 ? 1 : wanted > layers ? layers : (uint32_t)wanted;
    uint64_t tokens = units / chosen.layers;
    chosen.tokens = tokens < 1                       ? 1
                    : tokens > HL_TRACE_BLOCK_TOKENS ? HL_TRACE_BLOCK_TOKENS
                                                     : (uint32_t)tokens;
    /* One group: an id of the trace stands for the whole prefix. */
    demo->geometry.layers = chosen.layers;
    demo->geometry.window_tokens = 0;
    memset(demo->geometry.sliding, 0, sizeof demo->geometry.sliding);
    demo->options.page_tokens = chosen.tokens;
    demo->options.pages = trace->most_ids ? trace->most_ids : 1;
    status = hl_demo_plan_pages(demo, err);
    if (status)
        return status;
    chosen.replayed_bytes = demo->layout->groups[0].block_bytes;
    uint64_t room = hl_align_up(chosen.replayed_bytes, HL_ARENA_ALIGN);
    chosen.working_set = room * (trace->unique ? trace->unique : 1);
    chosen.working_set += chosen.working_set / HL_ARENA_CHUNK_BYTES * room;
    *scale = chosen;
    return HL_OK;
}

/* --- the run --- */

struct replay_run {
    hl_demo *demo;
    struct hl_trace trace;
    struct hl_demo_scale scale;
    struct hl_demo_manager manager;
    struct hl_demo_child engine;
    json_t *replayed;
    uint64_t arena_bytes;
    hl_error err;
};

static uint64_t automatic_budget(const hl_demo *demo)
{
    uint64_t budget = demo->dev->info.kind == HL_DEVICE_CUDA ? CUDA_BUDGET : SOFTWARE_BUDGET;
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return available / 2 < budget ? available / 2 : budget;
}

static hl_status prepare(struct replay_run *run)
{
    hl_demo *demo = run->demo;
    const struct hl_demo_options *options = &demo->options;
    hl_status status = hl_trace_read(options->trace, options->trace_requests, &run->trace, &run->err);
    if (!status)
        status = hl_demo_open_device(options, &demo->dev, &run->err);
    if (!status)
        status = hl_demo_read_model(demo, &run->err);
    if (status)
        return status;
    uint64_t budget = options->trace_scale ? 0 : automatic_budget(demo);
    status = hl_demo_scale_geometry(demo, &run->trace, budget, &run->scale, &run->err);
    if (status)
        return status;
    run->arena_bytes = options->cache_bytes ? options->cache_bytes : run->scale.working_set;
    hl_demo_report_scale(demo, &run->trace, &run->scale, stdout);
    return HL_OK;
}

static hl_status start_engine(struct replay_run *run, int argc, char **argv)
{
    /* The scale that was chosen here, from this moment's free memory, is the engine's too. */
    char scale[48];
    snprintf(scale, sizeof scale, "--trace-scale=%u", run->demo->options.trace_scale);
    char **words = calloc((size_t)argc + 2, sizeof *words);
    char **all = NULL;
    if (words) {
        memcpy(words, argv, (size_t)argc * sizeof *words);
        words[argc] = scale;
        all = hl_demo_role_arguments(run->demo, argc + 1, words, "replay", run->manager.socket);
    }
    hl_status status = all ? hl_demo_child_start(&run->engine, "the engine", all, -1, &run->err)
                           : HL_FAIL(&run->err, HL_E_NOMEM, STAGE, "no memory for the engine's arguments");
    free(all);
    free(words);
    return status;
}

static hl_status replay(struct replay_run *run, int argc, char **argv)
{
    hl_status status = hl_demo_manager_start(run->demo, run->arena_bytes, &run->manager, &run->err);
    if (status)
        return status;
    hl_demo_report_manager(&run->manager, run->arena_bytes, run->demo->options.huge, stdout);
    status = start_engine(run, argc, argv);
    if (!status)
        status = hl_demo_child_report(&run->engine, "replayed", &run->replayed, &run->err);
    if (!status)
        status = hl_demo_child_wait(&run->engine, HL_DEMO_PATIENCE_NS, &run->err);
    if (!status && hl_demo_child_code(&run->engine) != HL_DEMO_OK)
        status = HL_FAIL(&run->err, HL_E_PEER, STAGE, "the engine failed while it closed");
    return status;
}

static hl_status write_results(const struct replay_run *run, hl_error *err)
{
    const hl_demo *demo = run->demo;
    json_t *host = hl_demo_describe_host(demo, err);
    if (!host)
        return err->status;
    const struct hl_demo_scale *scale = &run->scale;
    json_t *root = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:s, s:{s:I, s:I, s:i, s:i, s:I, s:I}, s:O}", "schema",
        "hostlane-demo-replay/1", "options", hl_demo_describe_options(&demo->options), "device",
        hl_demo_describe_device(&demo->dev->info), "host", host, "geometry", hl_demo_describe_geometry(demo),
        "trace", demo->options.trace, "scale", "real_block_bytes", (json_int_t)scale->real_bytes,
        "replayed_block_bytes", (json_int_t)scale->replayed_bytes, "layers", (int)scale->layers, "tokens",
        (int)scale->tokens, "working_set_bytes", (json_int_t)scale->working_set, "arena_bytes",
        (json_int_t)run->arena_bytes, "replay", run->replayed);
    if (!root)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the results, or text in them is not UTF-8");
    hl_status status = hl_demo_write_json(root, demo->options.json_out, err);
    json_decref(root);
    return status;
}

int hl_demo_run_replay(hl_demo *demo, int argc, char **argv)
{
    struct replay_run run = {.demo = demo};
    hl_demo_catch_interrupts();
    hl_status status = prepare(&run);
    if (!status)
        status = replay(&run, argc, argv);
    if (!status)
        hl_demo_report_replay(run.replayed, stdout);
    if (!status && demo->options.json_out)
        status = write_results(&run, &run.err);
    int code = HL_DEMO_OK;
    if (status) {
        code = run.engine.ended ? hl_demo_child_code(&run.engine) : HL_DEMO_ERROR;
        code = code == HL_DEMO_OK ? HL_DEMO_ERROR : code;
        if (code == HL_DEMO_ERROR)
            hl_demo_manager_print_log(&run.manager, stderr);
        if (code == HL_DEMO_ERROR)
            hl_demo_report_error(demo, &run.err, stderr);
    }
    hl_demo_child_close(&run.engine);
    hl_demo_manager_close(&run.manager);
    json_decref(run.replayed);
    hl_trace_free(&run.trace);
    hl_layout_free(demo->layout);
    free(demo->blocks);
    hl_device_close(demo->dev);
    return code;
}
