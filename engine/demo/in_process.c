#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/demo/demo.h"

#define STAGE "demo.in_process"

/* The outcome of a step that compares: HL_OK with `mismatch.what` set is a failed check, not an error. */
struct outcome {
    hl_error err;
    struct hl_demo_mismatch mismatch;
};

typedef hl_status (*host_step)(hl_demo *demo, hl_error *err);
typedef hl_status (*host_check)(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);

static hl_status fill_sources(hl_demo *demo, hl_error *err)
{
    return hl_demo_fill(demo, HL_DEMO_SOURCES, err);
}

static bool step(hl_demo *demo, const char *name, int run, host_step function, struct outcome *outcome)
{
    int64_t start = hl_clock_ns();
    outcome->err.status = function(demo, &outcome->err);
    hl_demo_add_span(demo, name, run, start, hl_clock_ns());
    return outcome->err.status == HL_OK;
}

static bool check(hl_demo *demo, const char *name, int run, host_check function, struct outcome *outcome)
{
    int64_t start = hl_clock_ns();
    outcome->err.status = function(demo, &outcome->mismatch, &outcome->err);
    hl_demo_add_span(demo, name, run, start, hl_clock_ns());
    return outcome->err.status == HL_OK && !outcome->mismatch.what;
}

static bool prepare(hl_demo *demo, struct outcome *outcome)
{
    if (!step(demo, "read geometry", -1, hl_demo_plan_geometry, outcome) ||
        !step(demo, "allocate and pin", -1, hl_demo_allocate_memory, outcome) ||
        !step(demo, "open executor", -1, hl_demo_open_restore, outcome))
        return false;
    hl_demo_report_setup(demo, stdout);
    return step(demo, "fill", -1, fill_sources, outcome) &&
           step(demo, "publish", -1, hl_demo_publish, outcome) &&
           check(demo, "verify published", -1, hl_demo_verify_published, outcome);
}

/* Overlap is a matter of speed: on the software device, whose times mean nothing, only the order is required.
 */
static bool check_overlap(const hl_demo *demo, const struct hl_demo_run *run, struct outcome *outcome)
{
    hl_demo_verify_order(demo, run, &outcome->mismatch);
    uint32_t layers = demo->layout->layers;
    if (!outcome->mismatch.what && layers > 1 && demo->dev->info.kind == HL_DEVICE_CUDA &&
        !hl_demo_overlapped(run, layers))
        outcome->mismatch =
            (struct hl_demo_mismatch){.what = "no consumer started before the last copy ended (ns)",
                                      .expected = (uint64_t)run->total_ns,
                                      .got = (uint64_t)run->consumer_start[0]};
    return !outcome->mismatch.what;
}

/* One poisoned, restored and compared round; a measured one is kept. */
static bool round_trip(hl_demo *demo, uint32_t generation, bool measured, struct outcome *outcome)
{
    size_t spans_before = demo->span_count;
    int number = (int)demo->run_count;
    struct hl_demo_run run;
    if (!step(demo, "poison", number, hl_demo_poison, outcome))
        return false;
    outcome->err.status = hl_demo_restore(demo, generation, &run, &outcome->err);
    if (outcome->err.status)
        return false;
    bool right = check_overlap(demo, &run, outcome) &&
                 check(demo, "verify sums", number, hl_demo_verify_sums, outcome) &&
                 check(demo, "verify restored", number, hl_demo_verify_restored, outcome);
    if (right && measured) {
        demo->runs[demo->run_count++] = run;
        return true;
    }
    demo->span_count = spans_before;
    hl_demo_free_run(&run);
    return right;
}

static bool measure(hl_demo *demo, struct outcome *outcome)
{
    uint32_t samples = demo->dev->info.kind == HL_DEVICE_CUDA ? 10 : 3;
    demo->runs = calloc(demo->options.runs, sizeof *demo->runs);
    if (!demo->runs) {
        outcome->err.status = HL_FAIL(&outcome->err, HL_E_NOMEM, STAGE,
                                      "no memory for the results of %u runs", demo->options.runs);
        return false;
    }
    outcome->err.status = hl_demo_measure_ceiling(demo, samples, &outcome->err);
    uint32_t rounds = demo->options.warmup + demo->options.runs;
    for (uint32_t i = 0; i < rounds && !outcome->err.status; i++) {
        hl_demo_progress(demo, "restore and compare", (i + 1) * demo->payload_bytes,
                         rounds * demo->payload_bytes);
        if (!round_trip(demo, i + 1, i >= demo->options.warmup, outcome))
            return false;
    }
    if (!outcome->err.status) /* before and after the restores: a drifting link shows in the samples */
        outcome->err.status = hl_demo_measure_ceiling(demo, samples, &outcome->err);
    return outcome->err.status == HL_OK;
}

static bool write_files(hl_demo *demo, struct outcome *outcome)
{
    if (demo->options.json_out)
        outcome->err.status = hl_demo_write_results(demo, demo->options.json_out, &outcome->err);
    if (!outcome->err.status && demo->options.trace_out)
        outcome->err.status = hl_demo_write_trace(demo, demo->options.trace_out, &outcome->err);
    return outcome->err.status == HL_OK;
}

int hl_demo_run_in_process(hl_demo *demo)
{
    struct outcome outcome = {0};
    bool right = prepare(demo, &outcome) && measure(demo, &outcome);
    if (right) {
        hl_demo_report_result(demo, stdout);
        right = write_files(demo, &outcome);
    }
    if (!right && outcome.mismatch.what)
        hl_demo_report_mismatch(&outcome.mismatch, stdout);
    else if (!right)
        hl_demo_report_error(demo, &outcome.err, stderr);
    hl_demo_close(demo);
    if (right)
        return HL_DEMO_OK;
    return outcome.mismatch.what ? HL_DEMO_MISMATCH : HL_DEMO_ERROR;
}
