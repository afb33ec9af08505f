#include <jansson.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "engine/demo/demo.h"
#include "engine/demo/results.h"

/* The machine-readable results: every figure raw, so that a reader can derive what report.c prints. */

#define STAGE "demo.results"

json_t *hl_demo_describe_options(const struct hl_demo_options *options)
{
    return json_pack("{s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:b, s:s, s:i, s:i, s:i, s:s, s:b, s:o, s:i, s:i}",
                     "pages", (int)options->pages, "page_tokens", (int)options->page_tokens, "element_bytes",
                     (int)options->element_bytes, "layout", hl_layout_kind_name(options->layout),
                     "block_order", hl_demo_order_name(options->order), "tp_size", (int)options->tp_size,
                     "tp_rank", (int)options->tp_rank, "store_full_heads", options->store_full_heads, "route",
                     hl_route_name(options->route), "sms", (int)options->sms, "part_bytes",
                     (int)options->part_bytes, "first_part_bytes", (int)options->first_part_bytes, "pitch",
                     hl_demo_pitch_name(options->pitch), "huge", options->huge, "seed",
                     /* a 64-bit seed does not fit a JSON reader's double */
                     json_sprintf("%llu", (unsigned long long)options->seed), "warmup", (int)options->warmup,
                     "runs", (int)options->runs);
}

json_t *hl_demo_describe_device(const struct hl_device_info *info)
{
    char uuid[2 * sizeof info->uuid + 1];
    for (size_t i = 0; i < sizeof info->uuid; i++)
        snprintf(uuid + 2 * i, 3, "%02x", info->uuid[i]);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:b}", "kind",
                     info->kind == HL_DEVICE_CUDA ? "cuda" : "software", "name", info->name, "uuid", uuid,
                     "pci_id", info->pci_id, "numa_node", info->numa_node, "compute_major",
                     info->compute_major, "compute_minor", info->compute_minor, "sm_count", info->sm_count,
                     "driver_version", info->driver_version, "memory_bytes", (json_int_t)info->memory_bytes,
                     "bulk_copy", info->bulk_copy);
}

/* The first processor's "model name", or "unknown" where the kernel gives none. */
static void read_cpu_model(char *model, size_t size)
{
    snprintf(model, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    char line[512];
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            char *name = strchr(line, ':') + 1;
            name += strspn(name, " ");
            snprintf(model, size, "%.*s", (int)strcspn(name, "\n"), name);
            break;
        }
    fclose(file);
}

json_t *hl_demo_describe_host(const hl_demo *demo, hl_error *err)
{
    char program[HL_SHA256_HEX_BYTES], cpu[256];
    if (hl_sha256_file("/proc/self/exe", program, err))
        return NULL;
    struct utsname system;
    uname(&system);
    read_cpu_model(cpu, sizeof cpu);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s}", "program_sha256", program, "kernel",
                     system.release, "machine", system.machine, "cpu", cpu, "cpus",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "page_bytes", (int)sysconf(_SC_PAGESIZE),
                     "arena_pages", demo->options.huge ? "2M" : "regular");
}

json_t *hl_demo_describe_geometry(const hl_demo *demo)
{
    json_t *groups = json_array();
    for (uint32_t g = 0; g < demo->layout->group_count; g++) {
        const struct hl_layout_group *group = &demo->layout->groups[g];
        json_array_append_new(groups, json_pack("{s:i, s:i, s:i, s:I}", "blocks",
                                                (int)hl_demo_group_blocks(demo, g), "device_pages",
                                                (int)group->pages, "window_tokens", (int)group->window_tokens,
                                                "block_bytes", (json_int_t)group->block_bytes));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:o}", "model", demo->geometry.name,
                     "config", demo->config_path, "layers", (int)demo->layout->layers, "components",
                     (int)demo->layout->component_count, "tensors", (int)demo->layout->tensor_count,
                     "kv_heads", (int)demo->geometry.kv_heads, "head_dim", (int)demo->geometry.head_dim,
                     "payload_bytes", (json_int_t)demo->payload_bytes, "arena_bytes",
                     (json_int_t)(demo->arena ? hl_arena_bytes(demo->arena) : 0), "groups", groups);
}

static json_t *describe_plan(const hl_demo *demo)
{
    const struct hl_plan_stats *stats = &demo->plan_stats;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "pieces", (json_int_t)stats->pieces, "ranges",
                     (json_int_t)stats->ranges, "runs", (json_int_t)stats->runs, "run_rows",
                     (json_int_t)stats->run_rows, "metadata_bytes", (json_int_t)stats->metadata_bytes,
                     "parts", (json_int_t)demo->plan_parts);
}

json_t *hl_demo_numbers(const int64_t *values, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

static json_t *describe_cost(const struct hl_route_cost *cost)
{
    return json_pack("{s:f, s:f, s:f}", "call_ns", cost->call_ns, "piece_ns", cost->piece_ns,
                     "bytes_per_second", cost->bytes_per_second);
}

static json_t *describe_model(const struct hl_route_model *model)
{
    return json_pack("{s:b, s:o, s:o, s:o, s:o}", "fitted", model->fitted, "copy",
                     describe_cost(&model->copy), "rows", describe_cost(&model->rows), "batch",
                     describe_cost(&model->batch), "kernel", describe_cost(&model->kernel));
}

static json_t *describe_layers(const hl_demo *demo)
{
    json_t *array = json_array();
    for (uint32_t l = 0; l < demo->layout->layers; l++) {
        const struct hl_layer_result *layer = &demo->layer_results[l];
        json_array_append_new(array,
                              json_pack("{s:i, s:s, s:I, s:i, s:i, s:i}", "layer", (int)l, "route",
                                        hl_route_name(layer->route), "bytes", (json_int_t)layer->bytes,
                                        "copies", (int)layer->copies, "row_copies", (int)layer->row_copies,
                                        "descriptors", (int)layer->descriptors));
    }
    return array;
}

static json_t *describe_runs(const hl_demo *demo)
{
    json_t *array = json_array();
    uint32_t layers = demo->layout->layers;
    for (uint32_t r = 0; r < demo->run_count; r++) {
        const struct hl_demo_run *run = &demo->runs[r];
        json_array_append_new(
            array,
            json_pack("{s:I, s:I, s:I, s:I, s:b, s:o, s:o, s:o}", "total_ns", (json_int_t)run->total_ns,
                      "compile_ns", (json_int_t)run->compile_ns, "submit_ns", (json_int_t)run->submit_ns,
                      "drain_ns", (json_int_t)run->drain_ns, "consumer_before_last_copy",
                      hl_demo_overlapped(run, layers), "ready_ns", hl_demo_numbers(run->ready, layers),
                      "consumer_start_ns", hl_demo_numbers(run->consumer_start, layers), "consumer_end_ns",
                      hl_demo_numbers(run->consumer_end, layers)));
    }
    return array;
}

/* The figures that the report prints, of the run whose total is the median. */
static json_t *describe_summary(const hl_demo *demo)
{
    const struct hl_demo_run *run = hl_demo_median_run(demo);
    int64_t least = run->total_ns, most = run->total_ns;
    for (uint32_t r = 0; r < demo->run_count; r++) {
        least = demo->runs[r].total_ns < least ? demo->runs[r].total_ns : least;
        most = demo->runs[r].total_ns > most ? demo->runs[r].total_ns : most;
    }
    double speed = hl_demo_gbps(demo->payload_bytes, run->total_ns);
    double ceiling = hl_demo_gbps(demo->ceiling_bytes, hl_demo_median_ceiling(demo));
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:b}", "median_total_ns",
                     (json_int_t)run->total_ns, "min_total_ns", (json_int_t)least, "max_total_ns",
                     (json_int_t)most, "gbps", speed, "ceiling_gbps", ceiling, "ratio",
                     ceiling > 0 ? speed / ceiling : 0.0, "layer_0_ready_ns", (json_int_t)run->ready[0],
                     "last_layer_ready_ns", (json_int_t)run->ready[demo->layout->layers - 1],
                     "consumer_before_last_copy", hl_demo_overlapped(run, demo->layout->layers));
}

hl_status hl_demo_write_json(const json_t *root, const char *path, hl_error *err)
{
    if (json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(15)))
        return HL_FAIL(err, HL_E_SYSTEM, STAGE, "cannot write the results to %s", path);
    return HL_OK;
}

hl_status hl_demo_write_results(const hl_demo *demo, const char *path, hl_error *err)
{
    json_t *host = hl_demo_describe_host(demo, err);
    if (!host)
        return err->status;
    json_t *ceiling = json_pack("{s:I, s:o}", "bytes", (json_int_t)demo->ceiling_bytes, "samples_ns",
                                hl_demo_numbers(demo->ceiling_ns, demo->ceiling_count));
    json_t *root = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "schema",
                             "hostlane-demo/1", "options", hl_demo_describe_options(&demo->options), "device",
                             hl_demo_describe_device(&demo->dev->info), "host", host, "geometry",
                             hl_demo_describe_geometry(demo), "plan", describe_plan(demo), "route_model",
                             describe_model(hl_transfer_model(demo->transfer)), "layers",
                             describe_layers(demo), "ceiling", ceiling, "runs", describe_runs(demo),
                             "summary", describe_summary(demo), "state_digest", demo->state_digest);
    if (!root)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the results, or text in them is not UTF-8");
    hl_status status = hl_demo_write_json(root, path, err);
    json_decref(root);
    return status;
}
