#include "engine/demo/processes/processes.h"

/* What a person reads. Figures come from the children's reports, which name them. */

static int64_t number(const json_t *report, const char *name)
{
    return json_integer_value(json_object_get(report, name));
}

static double us(int64_t ns)
{
    return (double)ns / 1000;
}

static int64_t element(const json_t *report, const char *name, size_t index)
{
    return json_integer_value(json_array_get(json_object_get(report, name), index));
}

void hl_demo_report_manager(const struct hl_demo_manager *manager, uint64_t arena_bytes, bool huge, FILE *out)
{
    char size[32];
    hl_demo_format_size(arena_bytes, size, sizeof size);
    fprintf(out, "manager   process %d: %s arena of %s pages, socket %s\n", (int)manager->child.pid, size,
            huge ? "2 MiB" : "regular", manager->socket);
}

void hl_demo_report_published(pid_t pid, const json_t *published, FILE *out)
{
    char size[32];
    hl_demo_format_size((uint64_t)number(published, "bytes"), size, sizeof size);
    fprintf(out, "engine A  process %d published %lld blocks, %s, in %.1f us; then killed (SIGKILL)\n",
            (int)pid, (long long)number(published, "blocks"), size, us(number(published, "publish_ns")));
}

static void print_stages(const json_t *stages, const char *heading, FILE *out)
{
    fprintf(out, "%s", heading);
    for (int s = 0; s < 6; s++)
        fprintf(out, "%s%s %.1f", s ? ", " : "", hl_demo_stage_names[s],
                us(number(stages, hl_demo_stage_names[s])));
    fprintf(out, " us\n");
}

void hl_demo_report_restored(pid_t pid, const json_t *restored, FILE *out)
{
    char size[32];
    int64_t drained = number(restored, "drained_ns"), bytes = number(restored, "bytes");
    size_t layers = json_array_size(json_object_get(restored, "ready_ns"));
    hl_demo_format_size((uint64_t)bytes, size, sizeof size);
    fprintf(out, "engine B  process %d, a new one: %lld of %lld blocks resident, asked in %.1f us\n",
            (int)pid, (long long)number(restored, "hits"), (long long)number(restored, "blocks"),
            us(number(restored, "query_ns")));
    fprintf(out, "restore   %s in %.1f us from the call until drained: %.2f GB/s\n", size, us(drained),
            hl_demo_gbps((uint64_t)bytes, drained));
    print_stages(json_object_get(restored, "stage_ns"), "stages    ", out);
    int64_t last = number(restored, "last_layer_ns"), start = element(restored, "consumer_start_ns", 0);
    fprintf(out, "layers    layer 0 ready after %.1f us, layer %zu after %.1f us\n",
            us(element(restored, "ready_ns", 0)), layers - 1, us(element(restored, "ready_ns", layers - 1)));
    fprintf(out, "consumer  first started %.1f us after layer 0 was ready, %.1f us %s the last copy ended\n",
            us(start - element(restored, "ready_ns", 0)), us(start < last ? last - start : start - last),
            start < last ? "before" : "after");
}

void hl_demo_report_survived(const json_t *survived, FILE *out)
{
    fprintf(out,
            "survival  the Manager was killed (SIGKILL): engine B reports %s, keeps its verified bytes, and "
            "has a "
            "new query refused with %s\n",
            json_string_value(json_object_get(survived, "health")),
            json_string_value(json_object_get(survived, "new_query")));
}

void hl_demo_report_scale(const hl_demo *demo, const struct hl_trace *trace,
                          const struct hl_demo_scale *scale, FILE *out)
{
    hl_demo_report_device(demo, out);
    fprintf(out, "trace     %s: %u requests with %u blocks of %u tokens, %u of them different\n",
            demo->options.trace, trace->request_count, trace->id_count, HL_TRACE_BLOCK_TOKENS, trace->unique);
    fprintf(
        out,
        "scale     1/%.1f: a block of %s (%s) has %llu bytes, replayed with %llu (%u of %u layers, %u of %u "
        "tokens)\n",
        (double)scale->real_bytes / (double)scale->replayed_bytes, demo->geometry.name, demo->config_path,
        (unsigned long long)scale->real_bytes, (unsigned long long)scale->replayed_bytes, scale->layers,
        scale->model_layers, scale->tokens, HL_TRACE_BLOCK_TOKENS);
}

void hl_demo_report_replay(const json_t *replayed, FILE *out)
{
    char restored[32], published[32];
    int64_t blocks = number(replayed, "blocks"), hits = number(replayed, "hits");
    bool exact = json_is_true(json_object_get(replayed, "exact"));
    hl_demo_format_size((uint64_t)number(replayed, "restored_bytes"), restored, sizeof restored);
    hl_demo_format_size((uint64_t)number(replayed, "published_bytes"), published, sizeof published);
    fprintf(out, "hits      %lld (%.1f %%)", (long long)hits,
            blocks ? 100 * (double)hits / (double)blocks : 0.0);
    if (exact)
        fprintf(out, ", in every request as many as the reference says\n");
    else
        fprintf(out,
                "; the cache is smaller than the working set: checked that no request has more than an "
                "endless cache (%lld)\n",
                (long long)number(replayed, "reference_hits"));
    fprintf(out, "bytes     %s restored, %s published in %lld blocks", restored, published,
            (long long)number(replayed, "published_blocks"));
    if (number(replayed, "unstored_blocks"))
        fprintf(out, ", %lld found no room", (long long)number(replayed, "unstored_blocks"));
    fprintf(out, "\nrestores  %lld, from the call until drained: p50 %.1f, p95 %.1f, p99 %.1f us\n",
            (long long)number(replayed, "restores"), us(number(replayed, "restore_p50_ns")),
            us(number(replayed, "restore_p95_ns")), us(number(replayed, "restore_p99_ns")));
    print_stages(json_object_get(replayed, "stage_median_ns"), "stages    medians: ", out);
    fprintf(out, "time      %.3f s for the replay, every request after the one before\n",
            (double)number(replayed, "wall_ns") / 1e9);
    fprintf(out, "every restored byte compared: OK\n");
}
