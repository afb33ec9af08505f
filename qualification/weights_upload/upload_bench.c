/* What is measured, and in which order: the ceiling, the defaults by every route, the sweep, the ceiling
 * again. Exit status 0: measured, and compared where it says so; 1: failed; 2: wrong arguments. */
#include <stdio.h>

#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

#define MIB(n) ((n)*HL_MIB)

static void measure(struct bench_world *world, const char *label, hl_weight_upload_route route, bool fresh,
                    const hl_weight_upload_options *upload)
{
    struct bench_case measured = {.label = label, .upload = *upload, .tuning = world->tuning, .fresh = fresh};
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
    measure(world, "staging", HL_WEIGHT_UPLOAD_STAGING, false, upload);
    if (registers(world))
        measure(world, "registered, 1 thread", HL_WEIGHT_UPLOAD_REGISTERED, false, upload);
    measure(world, "auto, fresh lease", HL_WEIGHT_UPLOAD_AUTO, true, upload);
}

/* Whether copying alone reaches the link: rings for as many threads as there are cores, and what the
 * retirer's waiting costs. */
static void sweep_staging(struct bench_world *world)
{
    static const struct {
        const char *label;
        uint64_t ring, slot;
        uint32_t threads;
        bool spin;
    } ways[] = {
        {"staging 64/4 MiB", MIB(64), MIB(4), 12, false},
        {"staging 64/4 MiB", MIB(64), MIB(4), 14, false},
        {"staging 64/4 MiB, spin", MIB(64), MIB(4), 15, true},
        {"staging 64/2 MiB", MIB(64), MIB(2), 12, false},
        {"staging 64/2 MiB", MIB(64), MIB(2), 15, false},
        {"staging 64/2 MiB, spin", MIB(64), MIB(2), 15, true},
        {"staging 96/4 MiB", MIB(96), MIB(4), 15, false},
        {"staging 128/4 MiB", MIB(128), MIB(4), 16, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct bench_case measured = {
            .label = ways[i].label, .upload = world->options->upload, .tuning = {.spin = ways[i].spin}};
        measured.upload.route = HL_WEIGHT_UPLOAD_STAGING;
        measured.upload.staging_bytes = ways[i].ring;
        measured.upload.slot_bytes = ways[i].slot;
        measured.upload.copy_threads = ways[i].threads;
        bench_measure_case(world, &measured);
    }
}

/* Pieces read in place beside the ring. 65536 MiB: nothing is unpinned before the end. */
static void sweep_in_place(struct bench_world *world)
{
    static const struct {
        const char *label;
        uint64_t ring, slot, pinned;
        uint32_t threads, hands, ahead;
        bool fresh;
    } ways[] = {
        {"in place 256 MiB", MIB(64), MIB(4), MIB(256), 12, 1, 8, false},
        {"in place 1 GiB", MIB(64), MIB(4), MIB(1024), 12, 1, 8, false},
        {"in place all", MIB(64), MIB(4), MIB(65536), 12, 1, 8, false},
        {"in place all, ahead 24", MIB(64), MIB(4), MIB(65536), 12, 1, 24, false},
        {"in place all, 2 hands", MIB(64), MIB(4), MIB(65536), 12, 2, 8, false},
        {"in place all, fresh", MIB(64), MIB(4), MIB(65536), 12, 1, 8, true},
        {"in place all, 2 h., fresh", MIB(64), MIB(4), MIB(65536), 12, 2, 8, true},
        {"in place all", MIB(64), MIB(4), MIB(65536), 6, 1, 8, false},
        {"in place all", MIB(64), MIB(4), MIB(65536), 9, 2, 8, false},
        {"in place all, 2 MiB", MIB(64), MIB(2), MIB(65536), 12, 1, 16, false},
        {"in place all, 8 MiB", MIB(128), MIB(8), MIB(65536), 12, 1, 4, false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct bench_case measured = {
            .label = ways[i].label,
            .upload = world->options->upload,
            .tuning = {.direct_hands = ways[i].hands, .direct_ahead = ways[i].ahead},
            .fresh = ways[i].fresh};
        measured.upload.route = HL_WEIGHT_UPLOAD_AUTO;
        measured.upload.staging_bytes = ways[i].ring;
        measured.upload.slot_bytes = ways[i].slot;
        measured.upload.register_chunk_bytes = ways[i].pinned;
        measured.upload.copy_threads = ways[i].threads;
        bench_measure_case(world, &measured);
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
        if (registers(&world))
            sweep_in_place(&world);
        bench_measure_parts(&world);
    }
    bench_measure_ceiling(&world, "after");
    if (options.json)
        bench_report(&world);
    bench_world_close(&world);
    return 0;
}
