#include <assert.h>
#include <string.h>

#include "engine/demo/demo.h"

void hl_demo_format_size(uint64_t bytes, char *text, size_t size)
{
    if (bytes >= HL_GIB / 100 * 99)
        snprintf(text, size, "%.2f GiB", (double)bytes / (double)HL_GIB);
    else
        snprintf(text, size, "%.1f MiB", (double)bytes / (double)HL_MIB);
}

static double us(int64_t ns)
{
    return (double)ns / 1000;
}

void hl_demo_report_device(const hl_demo *demo, FILE *out)
{
    const struct hl_device_info *info = &demo->dev->info;
    if (info->kind == HL_DEVICE_SOFTWARE)
        fprintf(out, "device    software device: times have no performance meaning\n");
    else
        fprintf(out, "device    %s at %s, compute %d.%d, %d SMs, driver %d.%d\n", info->name, info->pci_id,
                info->compute_major, info->compute_minor, info->sm_count, info->driver_version / 1000,
                info->driver_version % 1000 / 10);
}

void hl_demo_report_geometry(const hl_demo *demo, FILE *out)
{
    const struct hl_demo_options *options = &demo->options;
    hl_demo_report_device(demo, out);
    fprintf(out, "model     %s (%s): %u layers, %u KV head%s of %u elements, %u bytes each\n",
            demo->geometry.name, demo->config_path, demo->geometry.layers, demo->geometry.kv_heads,
            demo->geometry.kv_heads == 1 ? "" : "s", demo->geometry.head_dim,
            options->element_bytes ? options->element_bytes : demo->geometry.element_bytes);
    fprintf(out, "layout    %s, %u tokens a page, blocks by %s", hl_layout_kind_name(options->layout),
            options->page_tokens, hl_demo_order_name(options->order));
    if (options->tp_size > 1)
        fprintf(out, ", rank %u of %u%s", options->tp_rank, options->tp_size,
                options->store_full_heads ? ", blocks of all ranks' heads" : "");
    fprintf(out, "\n");
    for (uint32_t g = 0; g < demo->layout->group_count; g++) {
        const struct hl_layout_group *group = &demo->layout->groups[g];
        fprintf(out, "blocks    %u of %llu bytes for %u device pages", hl_demo_group_blocks(demo, g),
                (unsigned long long)group->block_bytes, group->pages);
        if (group->window_tokens)
            fprintf(out, " (sliding window of %u tokens)", group->window_tokens);
        fprintf(out, "\n");
    }
}

void hl_demo_report_setup(const hl_demo *demo, FILE *out)
{
    const struct hl_demo_options *options = &demo->options;
    hl_demo_report_geometry(demo, out);
    char size[32];
    hl_demo_format_size(hl_arena_bytes(demo->arena), size, sizeof size);
    fprintf(out, "arena     %s of %s pages; pages and blocks %s\n", size, options->huge ? "2 MiB" : "regular",
            options->pitch == HL_DEMO_SCATTERED ? "scattered" : "consecutive, rows at a constant pitch");
}

/* "0-3, 7, 9-11": the layers that took `route`. */
static void list_layers(const hl_demo *demo, enum hl_route route, FILE *out)
{
    const struct hl_layer_result *layers = demo->layer_results;
    const char *comma = "";
    for (uint32_t first = 0, end; first < demo->layout->layers; first = end) {
        end = first + 1;
        if (layers[first].route != route)
            continue;
        while (end < demo->layout->layers && layers[end].route == route)
            end++;
        fprintf(out, end - first > 1 ? "%s%u-%u" : "%s%u", comma, first, end - 1);
        comma = ", ";
    }
}

static void report_routes(const hl_demo *demo, FILE *out)
{
    static const enum hl_route routes[] = {HL_ROUTE_DIRECT, HL_ROUTE_KERNEL};
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        uint64_t bytes = 0, copies = 0, row_copies = 0, descriptors = 0;
        for (uint32_t l = 0; l < demo->layout->layers; l++) {
            const struct hl_layer_result *layer = &demo->layer_results[l];
            if (layer->route != routes[i])
                continue;
            bytes += layer->bytes;
            copies += layer->copies;
            row_copies += layer->row_copies;
            descriptors += layer->descriptors;
        }
        if (!bytes)
            continue;
        char size[32];
        hl_demo_format_size(bytes, size, sizeof size);
        fprintf(out, "route     %s: layers ", hl_route_name(routes[i]));
        list_layers(demo, routes[i], out);
        fprintf(out, ": %s in %llu copies, %llu strided copies, %llu kernel descriptors\n", size,
                (unsigned long long)copies, (unsigned long long)row_copies, (unsigned long long)descriptors);
    }
}

static int64_t median_compile(const hl_demo *demo)
{
    int64_t values[HL_DEMO_MAX_RUNS];
    for (uint32_t r = 0; r < demo->run_count; r++)
        values[r] = demo->runs[r].compile_ns;
    return hl_demo_median(values, demo->run_count);
}

static void report_speed(const hl_demo *demo, const struct hl_demo_run *run, FILE *out)
{
    int64_t least = run->total_ns, most = run->total_ns;
    for (uint32_t r = 0; r < demo->run_count; r++) {
        least = demo->runs[r].total_ns < least ? demo->runs[r].total_ns : least;
        most = demo->runs[r].total_ns > most ? demo->runs[r].total_ns : most;
    }
    double speed = hl_demo_gbps(demo->payload_bytes, run->total_ns);
    double ceiling = hl_demo_gbps(demo->ceiling_bytes, hl_demo_median_ceiling(demo));
    char size[32];
    hl_demo_format_size(demo->payload_bytes, size, sizeof size);
    fprintf(out, "restore   %s in %.1f us: %.2f GB/s", size, us(run->total_ns), speed);
    if (demo->run_count > 1)
        fprintf(out, " (median of %u runs, %.1f to %.1f us)", demo->run_count, us(least), us(most));
    fprintf(out, "\nceiling   one copy of %.0f MiB: %.2f GB/s (median of %u); ratio %.3f\n",
            (double)demo->ceiling_bytes / (double)HL_MIB, ceiling, demo->ceiling_count,
            ceiling > 0 ? speed / ceiling : 0);
}

void hl_demo_report_result(const hl_demo *demo, FILE *out)
{
    const struct hl_plan_stats *stats = &demo->plan_stats;
    const struct hl_demo_run *run = hl_demo_median_run(demo);
    assert(demo->layout->layers > 0);
    uint32_t last = demo->layout->layers - 1;
    int64_t compile = median_compile(demo);
    fprintf(out,
            "plan      %llu pieces to %llu ranges and %llu runs of %llu rows; %zu part%s, %llu bytes, "
            "compiled in "
            "%.1f us (%.0f ns a piece)\n",
            (unsigned long long)stats->pieces, (unsigned long long)stats->ranges,
            (unsigned long long)stats->runs, (unsigned long long)stats->run_rows, demo->plan_parts,
            demo->plan_parts == 1 ? "" : "s", (unsigned long long)stats->metadata_bytes, us(compile),
            stats->pieces ? (double)compile / (double)stats->pieces : 0);
    report_routes(demo, out);
    report_speed(demo, run, out);
    fprintf(out,
            "layers    layer 0 ready after %.1f us (1/%u of the whole is %.1f us), layer %u after %.1f us\n",
            us(run->ready[0]), last + 1, us(run->total_ns / (last + 1)), last, us(run->ready[last]));
    int64_t ahead = run->total_ns - run->consumer_start[0];
    fprintf(out, "consumer  first started %.1f us after layer 0 was ready, %.1f us %s the last copy ended\n",
            us(run->consumer_start[0] - run->ready[0]), us(ahead < 0 ? -ahead : ahead),
            ahead > 0 ? "before" : "after");
    fprintf(
        out,
        "every byte compared: OK (published blocks, restored pages, pages left alone, consumer's sums)\n");
}

void hl_demo_report_mismatch(const struct hl_demo_mismatch *mismatch, FILE *out)
{
    fprintf(out, "MISMATCH  %s: layer %u, %s, page %u, offset %llu: expected 0x%llx, got 0x%llx\n",
            mismatch->what, mismatch->layer, hl_demo_role_name(mismatch->role), mismatch->page,
            (unsigned long long)mismatch->offset, (unsigned long long)mismatch->expected,
            (unsigned long long)mismatch->got);
}

static const char *advice(const hl_demo *demo, const hl_error *err)
{
    if (demo->options.huge && (err->status == HL_E_NOMEM || err->status == HL_E_NOSPACE))
        return "reserve 2 MiB pages (sysctl vm.nr_hugepages=N), ask for fewer --pages, or leave --huge out";
    switch (err->status) {
    case HL_E_NO_DEVICE:
        return "install or load the NVIDIA driver, or run with --device software";
    case HL_E_NOMEM:
    case HL_E_NOSPACE:
        return "ask for fewer --pages, or free memory of the host or the device";
    case HL_E_SYSTEM:
    case HL_E_NOT_FOUND:
    case HL_E_PERMISSION:
        return "check the file or limit that is named (for pinning: ulimit -l)";
    case HL_E_CORRUPT:
    case HL_E_INVALID:
    case HL_E_UNSUPPORTED:
        return "correct the field or option that is named; --help lists the options";
    case HL_E_LIMIT:
        return "ask for fewer --pages, or more --page-tokens";
    case HL_E_PEER:
    case HL_E_PROTOCOL:
        return "read what the other process said, above, then run again";
    case HL_E_TIMEOUT:
        return "look whether the machine is busy or stopped the processes, then run again";
    case HL_E_CANCELLED:
        return "nothing: it was interrupted, and the processes that it had started are gone";
    case HL_E_VERSION:
        return "take hostlane-demo and hostlane-manager from one build";
    case HL_E_DEVICE:
        return "look for the device's own message (dmesg, nvidia-smi -q), then run again";
    default:
        return "this is a defect of the program: please report the line above with the options";
    }
}

void hl_demo_report_error(const hl_demo *demo, const hl_error *err, FILE *out)
{
    fprintf(out, "hostlane-demo: %s at %s: %s\n", hl_status_name(err->status), err->stage, err->text);
    if (err->device_code)
        fprintf(out, "  device code: %d\n", err->device_code);
    fprintf(out, "  what to do: %s\n", advice(demo, err));
}
