#include <jansson.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/demo/demo.h"

/* The trace of the median run in Chrome's JSON array format, which Perfetto opens. Host stages carry the host
 * clock; device intervals come from events and are placed by the host clock at the base event's record. Times
 * are microseconds from the program's first stage. */

#define STAGE "demo.trace"

enum { PROCESS = 1, HOST = 1, COPY = 2, CONSUMER = 3 };

struct trace {
    json_t *events;
    int64_t origin_ns; /* host clock of the trace's 0 */
    bool failed;       /* out of memory */
};

/* Steals `args`. */
static void add(struct trace *trace, const char *phase, const char *name, int row, int64_t start_ns,
                int64_t end_ns, json_t *args)
{
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:f}", "ph", phase, "name", name, "pid", PROCESS, "tid",
                              row, "ts", (double)(start_ns - trace->origin_ns) / 1000);
    if (event && *phase == 'X')
        json_object_set_new(event, "dur", json_real((double)(end_ns - start_ns) / 1000));
    if (event && *phase == 'i')
        json_object_set_new(event, "s", json_string("t"));
    if (event && args)
        json_object_set_new(event, "args", args);
    else
        json_decref(args);
    if (!event || json_array_append_new(trace->events, event))
        trace->failed = true;
}

static void name_row(struct trace *trace, const char *kind, int row, const char *name)
{
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", kind, "pid", PROCESS, "tid",
                              row, "args", "name", name);
    if (!event || json_array_append_new(trace->events, event))
        trace->failed = true;
}

static int64_t first_instant(const hl_demo *demo, const struct hl_demo_run *run)
{
    int64_t first = run->base_ns;
    for (size_t s = 0; s < demo->span_count; s++)
        if (demo->spans[s].run == -1 && demo->spans[s].start_ns < first)
            first = demo->spans[s].start_ns;
    return first;
}

static void add_summary(struct trace *trace, const hl_demo *demo, const struct hl_demo_run *run)
{
    double speed = hl_demo_gbps(demo->payload_bytes, run->total_ns);
    double ceiling = hl_demo_gbps(demo->ceiling_bytes, hl_demo_median_ceiling(demo));
    json_t *args =
        json_pack("{s:s, s:b, s:s, s:i, s:i, s:s, s:I, s:f, s:f, s:f}", "device", demo->dev->info.name,
                  "performance_meaning", demo->dev->info.kind == HL_DEVICE_CUDA, "model", demo->geometry.name,
                  "layers", (int)demo->layout->layers, "pages", (int)demo->options.pages, "route",
                  hl_route_name(demo->options.route), "bytes", (json_int_t)demo->payload_bytes, "gbps", speed,
                  "ceiling_gbps", ceiling, "total_us", (double)run->total_ns / 1000);
    add(trace, "i", "restore summary", HOST, run->base_ns, 0, args);
}

static void add_layers(struct trace *trace, const hl_demo *demo, const struct hl_demo_run *run)
{
    for (uint32_t l = 0; l < demo->layout->layers; l++) {
        const struct hl_layer_result *layer = &demo->layer_results[l];
        char name[48];
        snprintf(name, sizeof name, "layer %u", l);
        int64_t start = run->base_ns + (l ? run->ready[l - 1] : 0), ready = run->base_ns + run->ready[l];
        add(trace, "X", name, COPY, start, ready,
            json_pack("{s:i, s:s, s:I, s:i, s:i, s:i}", "layer", (int)l, "route", hl_route_name(layer->route),
                      "bytes", (json_int_t)layer->bytes, "copies", (int)layer->copies, "row_copies",
                      (int)layer->row_copies, "descriptors", (int)layer->descriptors));
        snprintf(name, sizeof name, "layer %u ready", l);
        add(trace, "i", name, COPY, ready, 0, json_pack("{s:i}", "layer", (int)l));
        snprintf(name, sizeof name, "read layer %u", l);
        add(trace, "X", name, CONSUMER, run->base_ns + run->consumer_start[l],
            run->base_ns + run->consumer_end[l], json_pack("{s:i}", "layer", (int)l));
    }
}

hl_status hl_demo_write_trace(const hl_demo *demo, const char *path, hl_error *err)
{
    const struct hl_demo_run *run = hl_demo_median_run(demo);
    int number = (int)(run - demo->runs);
    struct trace trace = {.events = json_array(), .origin_ns = first_instant(demo, run)};
    if (!trace.events)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the trace");
    name_row(&trace, "process_name", HOST, "hostlane-demo");
    name_row(&trace, "thread_name", HOST, "host");
    name_row(&trace, "thread_name", COPY, "copy stream");
    name_row(&trace, "thread_name", CONSUMER, "consumer stream");
    for (size_t s = 0; s < demo->span_count; s++)
        if (demo->spans[s].run == -1 || demo->spans[s].run == number)
            add(&trace, "X", demo->spans[s].name, HOST, demo->spans[s].start_ns, demo->spans[s].end_ns, NULL);
    add_summary(&trace, demo, run);
    add_layers(&trace, demo, run);
    hl_status status = HL_OK;
    if (trace.failed)
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the trace");
    else if (json_dump_file(trace.events, path, JSON_COMPACT | JSON_REAL_PRECISION(15)))
        status = HL_FAIL(err, HL_E_SYSTEM, STAGE, "cannot write the trace to %s", path);
    json_decref(trace.events);
    return status;
}
