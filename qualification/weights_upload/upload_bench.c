/* What is measured, and in which order: the ceiling, the defaults by every route, the sweep, the ceiling
 * again. Exit status 0: measured, and compared where it says so; 1: failed; 2: wrong arguments. */
#include <stdio.h>

#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

#define MIB(n) ((n)*HL_MIB)

static void measure(struct bench_world *world, const char *label, hl_weight_upload_route route, bool fresh,
                    const hl_weight_upload_options *upload)
{
    struct bench_case measured = {.label = label, .upload = *upload, .fresh = fresh};
    measured.upload.route = route;
    if (route == HL_WEIGHT_UPLOAD_REGISTERED && !upload->copy_threads)
        measured.upload.copy_threads = 1; /* registration is serialised: more are slower */
    bench_measure_case(world, &measured);
}

static bool registers(const struct bench_world *world)
{
    return world->tmpfs && world->dev->info.read_only_registration;
}

static void measure_defaults(struct bench_world *world)
{
    const hl_weight_upload_options *upload = &world->options->upload;
    measure(world, "auto", HL_WEIGHT_UPLOAD_AUTO, false, upload);
    if (registers(world))
        measure(world, "registered, 1 thread", HL_WEIGHT_UPLOAD_REGISTERED, false, upload);
    measure(world, "auto, fresh lease", HL_WEIGHT_UPLOAD_AUTO, true, upload);
}

/* The ring's default with other slots, and the default slot with another ring. */
static void sweep_staging(struct bench_world *world)
{
    static const struct {
        const char *label;
        uint64_t ring, slot;
    } ways[] = {
        {"staging 64/1 MiB", MIB(64), MIB(1)},
        {"staging 64/2 MiB", MIB(64), MIB(2)},
        {"staging 64/4 MiB", MIB(64), MIB(4)},
        {"staging 32/2 MiB", MIB(32), MIB(2)},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        hl_weight_upload_options upload = world->options->upload;
        upload.staging_bytes = ways[i].ring;
        upload.slot_bytes = ways[i].slot;
        measure(world, ways[i].label, HL_WEIGHT_UPLOAD_STAGING, false, &upload);
    }
}

int main(int argc, char **argv)
{
    struct bench_options options;
    struct bench_world world;
    int exit_status;
    if (!bench_options_parse(argc, argv, &options, &exit_status))
        return exit_status;
    bench_world_open(&world, &options);
    printf("device: %s; %.3f GB in %zu tensors, %s; %u CPUs; %u samples after the first\n",
           world.dev->info.name, (double)world.bytes / 1e9, world.count, world.tmpfs ? "tmpfs" : "disk",
           bench_cpus(), options.samples);
    if (world.dev->info.kind == HL_DEVICE_SOFTWARE)
        puts("software device: copies by the CPU; no figure here says anything about a GPU");
    bench_measure_ceiling(&world, "before");
    measure_defaults(&world);
    if (options.sweep) {
        sweep_staging(&world);
        bench_measure_parts(&world);
    }
    bench_measure_ceiling(&world, "after");
    if (options.json)
        bench_report(&world);
    bench_world_close(&world);
    return 0;
}
