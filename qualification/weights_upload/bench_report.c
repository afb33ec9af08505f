/* What came out, as JSON. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "core/base/sha256.h"
#include "qualification/weights_upload/upload_bench.h"

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

static void read_setting(const char *path, char text[64])
{
    FILE *file = fopen(path, "r");
    snprintf(text, 64, "unknown");
    if (file && fgets(text, 64, file))
        text[strcspn(text, "\n")] = '\0';
    if (file)
        fclose(file);
}

static json_t *machine(void)
{
    struct utsname names;
    char cpu[128], pages[64], shared[64];
    uname(&names);
    read_cpu(cpu);
    read_setting("/sys/kernel/mm/transparent_hugepage/enabled", pages);
    read_setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared);
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s}", "cpu", cpu, "cpus", (int)bench_cpus(), "kernel",
                     names.release, "architecture", names.machine, "huge_pages", pages, "huge_pages_shmem",
                     shared);
}

static json_t *device(const hl_device *dev)
{
    char uuid[33];
    for (int i = 0; i < 16; i++)
        snprintf(uuid + 2 * i, 3, "%02x", dev->info.uuid[i]);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i}", "kind",
                     dev->info.kind == HL_DEVICE_CUDA ? "cuda" : "software", "name", dev->info.name, "uuid",
                     uuid, "pci_id", dev->info.pci_id, "driver_version", dev->info.driver_version,
                     "numa_node", dev->info.numa_node);
}

void bench_report(const struct bench_world *world)
{
    char digest[HL_SHA256_HEX_BYTES], when[32];
    hl_error err;
    struct tm parts;
    time_t now = time(NULL);
    bench_must(hl_sha256_file("/proc/self/exe", digest, &err), "the program's digest", &err);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:{s:I, s:I, s:I, s:i, s:b}, s:f, s:O, s:O, s:O}", "program",
        "upload_bench", "finished", when, "executable_sha256", digest, "note",
        world->dev->info.kind == HL_DEVICE_SOFTWARE
            ? "software device: copies by the CPU; no figure here says anything about a GPU"
            : "host clock; the ceiling is the better of its medians before and after; warm page cache",
        "machine", machine(), "device", device(world->dev), "weights", "bytes", (json_int_t)world->bytes,
        "tensors", (json_int_t)world->count, "first_tensor_bytes", (json_int_t)world->sizes[0], "files",
        (int)hl_weight_lease_region_count(world->lease), "tmpfs", (int)world->tmpfs, "ceiling_bytes_per_s",
        world->ceiling, "ceilings", world->ceilings, "parts", world->parts, "cases", world->cases);
    if (!root || json_dump_file(root, world->options->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
        bench_die("cannot write the JSON file", NULL);
    json_decref(root);
}
