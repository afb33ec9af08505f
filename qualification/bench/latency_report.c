#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.report"
#define SOFTWARE_NOTE "software device: copies by the CPU; no figure here says anything about a GPU"

static const char *const stage_names[HL_STAGE_COUNT] = {"ready",   "dispatched", "dequeued",
                                                        "claimed", "enqueued",   "drained"};
static const unsigned percents[] = {50, 95, 99};
enum { PERCENTS = sizeof percents / sizeof percents[0] };

static size_t stage_offset(int stage)
{
    return offsetof(struct latency_sample, stage_ns) + (size_t)stage * sizeof(uint64_t);
}

static int64_t quantile_of(const struct latency_result *result, enum latency_subject subject,
                           unsigned percent)
{
    return latency_quantile(result->samples[subject], result->count, offsetof(struct latency_sample, ns),
                            percent);
}

static double ratio_of(const struct latency_result *result, enum latency_subject subject,
                       enum latency_subject floor, unsigned percent)
{
    return (double)quantile_of(result, subject, percent) / (double)quantile_of(result, floor, percent);
}

/* --- text --- */

void latency_report_head(const struct latency_options *options, const hl_device *dev, FILE *out)
{
    fprintf(out, "device: %s; %u samples each after %u\n", dev->info.name, options->samples, options->warmup);
    if (dev->info.kind == HL_DEVICE_SOFTWARE)
        fprintf(out, "%s\n", SOFTWARE_NOTE);
    fprintf(out, "%-4s %6s  %-8s %10s %10s %10s %8s\n", "case", "spin", "what", "p50 us", "p95 us", "p99 us",
            "x floor");
}

void latency_report_case(const struct latency_result *result, FILE *out)
{
    for (int s = 0; s < LATENCY_SUBJECTS; s++) {
        if (!result->samples[s])
            continue;
        fprintf(out, "%-4s %6u  %-8s", result->shape->name, result->spin_us, latency_subject_names[s]);
        for (int i = 0; i < PERCENTS; i++)
            fprintf(out, " %10.1f", (double)quantile_of(result, (enum latency_subject)s, percents[i]) / 1e3);
        if (result->samples[LATENCY_FLOOR])
            fprintf(out, " %8.2f", ratio_of(result, (enum latency_subject)s, LATENCY_FLOOR, 50));
        fprintf(out, "\n");
    }
    if (!result->samples[LATENCY_TRACED])
        return;
    fprintf(out, "%-4s %6u  stages p50 us:", result->shape->name, result->spin_us);
    for (int i = 0; i < HL_STAGE_COUNT; i++)
        fprintf(
            out, " %s %.1f", stage_names[i],
            (double)latency_quantile(result->samples[LATENCY_TRACED], result->count, stage_offset(i), 50) /
                1e3);
    fprintf(out, "\n");
}

/* --- JSON --- */

static json_t *raw(const struct latency_result *result, enum latency_subject subject, size_t offset)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < result->count; i++) {
        int64_t value;
        memcpy(&value, (const unsigned char *)&result->samples[subject][i] + offset, sizeof value);
        json_array_append_new(array, json_integer(value));
    }
    return array;
}

static json_t *summary(const struct latency_result *result, enum latency_subject subject)
{
    json_t *object = json_object();
    for (int i = 0; i < PERCENTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%u_ns", percents[i]);
        json_object_set_new(object, name, json_integer(quantile_of(result, subject, percents[i])));
        if (!result->samples[LATENCY_FLOOR])
            continue;
        snprintf(name, sizeof name, "p%u_ratio", percents[i]);
        json_object_set_new(object, name, json_real(ratio_of(result, subject, LATENCY_FLOOR, percents[i])));
    }
    return object;
}

static json_t *subject_of(const struct latency_result *result, enum latency_subject subject)
{
    json_t *object = json_pack("{s:o, s:o}", "summary", summary(result, subject), "ns",
                               raw(result, subject, offsetof(struct latency_sample, ns)));
    const size_t start = offsetof(struct latency_sample, start_ns);
    if (subject == LATENCY_EXECUTOR)
        json_object_set_new(object, "compile_ns", raw(result, subject, start));
    if (subject == LATENCY_RESTORE || subject == LATENCY_TRACED) {
        json_object_set_new(object, "start_call_ns", raw(result, subject, start));
        json_object_set_new(object, "query_ns",
                            raw(result, subject, offsetof(struct latency_sample, query_ns)));
    }
    if (subject != LATENCY_TRACED)
        return object;
    json_t *medians = json_object(), *stages = json_object();
    for (int i = 0; i < HL_STAGE_COUNT; i++) {
        json_object_set_new(
            medians, stage_names[i],
            json_integer(latency_quantile(result->samples[subject], result->count, stage_offset(i), 50)));
        json_object_set_new(stages, stage_names[i], raw(result, subject, stage_offset(i)));
    }
    json_object_set_new(object, "stage_p50_ns", medians);
    json_object_set_new(object, "stage_ns", stages);
    return object;
}

static json_t *case_of(const struct latency_result *result)
{
    json_t *object =
        json_pack("{s:s, s:i, s:I, s:i, s:i, s:i, s:i, s:I, s:i}", "case", result->shape->name, "spin_us",
                  (int)result->spin_us, "bytes", (json_int_t)latency_case_bytes(result->shape), "layers",
                  (int)result->shape->layers, "blocks", (int)result->shape->blocks, "leases",
                  (int)result->shape->leases, "piece_bytes", (int)LATENCY_PAGE_BYTES, "compared_bytes",
                  (json_int_t)result->compared_bytes, "slots", (int)result->slots);
    for (int s = 0; s < LATENCY_SUBJECTS; s++)
        if (result->samples[s])
            json_object_set_new(object, latency_subject_names[s],
                                subject_of(result, (enum latency_subject)s));
    return object;
}

static void read_cpu(char name[128])
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, 128, "unknown");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", name) == 1)
            break;
    if (file)
        fclose(file);
}

static json_t *machine(void)
{
    struct utsname names;
    char cpu[128];
    uname(&names);
    read_cpu(cpu);
    return json_pack("{s:s, s:i, s:s, s:s, s:s}", "cpu", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN),
                     "kernel", names.release, "kernel_version", names.version, "architecture", names.machine);
}

static json_t *device(const hl_device *dev)
{
    char uuid[33];
    for (int i = 0; i < 16; i++)
        snprintf(uuid + 2 * i, 3, "%02x", dev->info.uuid[i]);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "kind",
                     dev->info.kind == HL_DEVICE_CUDA ? "cuda" : "software", "name", dev->info.name, "uuid",
                     uuid, "pci_id", dev->info.pci_id, "sm_count", dev->info.sm_count, "compute_major",
                     dev->info.compute_major, "driver_version", dev->info.driver_version, "numa_node",
                     dev->info.numa_node);
}

static json_t *arguments(const struct latency_options *options)
{
    return json_pack("{s:i, s:i, s:s, s:i, s:b, s:b}", "samples", (int)options->samples, "warmup",
                     (int)options->warmup, "route", hl_route_name(options->route), "sms", (int)options->sms,
                     "ascending", (int)options->ascending, "layer_events", (int)options->layer_events);
}

hl_status latency_report_json(const struct latency_options *options, const hl_device *dev,
                              const struct latency_result *results, size_t count, hl_error *err)
{
    char digest[HL_SHA256_HEX_BYTES], manager_digest[HL_SHA256_HEX_BYTES], manager[1024], when[32];
    time_t now = time(NULL);
    struct tm parts;
    hl_status status = hl_sha256_file("/proc/self/exe", digest, err);
    if (!status)
        status = latency_manager_program(manager, sizeof manager, err);
    if (!status)
        status = hl_sha256_file(manager, manager_digest, err);
    if (status)
        return status;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    json_t *cases = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(cases, case_of(&results[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "program", "restore_latency", "finished",
                  when, "executable_sha256", digest, "manager_sha256", manager_digest, "note",
                  dev->info.kind == HL_DEVICE_SOFTWARE ? SOFTWARE_NOTE : "host clock; traced passes apart",
                  "machine", machine(), "device", device(dev), "options", arguments(options), "cases", cases);
    if (!root || json_dump_file(root, options->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
        status = HL_FAIL(err, HL_E_SYSTEM, STAGE, "cannot write %.150s", options->json);
    json_decref(root);
    return status;
}
