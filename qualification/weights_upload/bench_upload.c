/* Uploads. */
#include <stdio.h>
#include <sys/resource.h>

#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

/* On the host's clock, from the call that starts the upload. */
struct samples {
    size_t count;
    int64_t call[BENCH_SAMPLES];   /* start() returned */
    int64_t first[BENCH_SAMPLES];  /* the first copy was submitted */
    int64_t tensor[BENCH_SAMPLES]; /* the first tensor has arrived */
    int64_t whole[BENCH_SAMPLES];  /* all have */
    int64_t ended[BENCH_SAMPLES];  /* and everything was unpinned and let go of */
    int64_t enqueued[BENCH_SAMPLES];
    int64_t cpu[BENCH_SAMPLES]; /* of all threads, from start to closed */
    hl_weight_upload_route route;
};

static const char *route_name(hl_weight_upload_route route)
{
    return route == HL_WEIGHT_UPLOAD_REGISTERED ? "registered" : "staging";
}

static int64_t cpu_ns(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * HL_NS_PER_S +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

static void upload_once(struct bench_world *world, const struct bench_case *measured, struct samples *samples)
{
    hl_weight_upload_result result;
    hl_upload *upload;
    hl_error err;
    const size_t i = samples->count++;
    const int64_t start = hl_clock_ns(), cpu = cpu_ns();
    bench_must(hl_upload_start(world->dev, world->lease, &measured->upload, world->destinations, world->count,
                               &upload, &err),
               measured->label, &err);
    samples->call[i] = hl_clock_ns() - start;
    bench_must(hl_upload_wait(upload, -1, &result, &err), measured->label, &err);
    samples->whole[i] = hl_clock_ns() - start;
    samples->first[i] = result.first_copy_ns;
    samples->tensor[i] = result.first_tensor_ns;
    samples->enqueued[i] = result.enqueued_ns;
    samples->route = result.route;
    if (!hl_upload_close(upload))
        bench_die("an upload was not drained", NULL);
    samples->ended[i] = hl_clock_ns() - start;
    samples->cpu[i] = cpu_ns() - cpu;
}

static json_t *list(const int64_t *values, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

static void append(struct bench_world *world, const struct bench_case *measured,
                   const struct samples *samples, bool verified)
{
    const hl_weight_upload_options *upload = &measured->upload;
    const size_t warm = samples->count - 1;
    const double rate = bench_rate(world->bytes, bench_median(samples->whole + 1, warm));
    const double first = bench_rate(world->bytes, samples->whole[0]);
    printf("%-26s %-10s threads %2u: first %6.2f, %s %6.2f GB/s = %.3f of the ceiling; first copy, tensor "
           "after %.2f, %.2f ms, all let go after %.1f ms; CPU %.3f s a GB\n",
           measured->label, route_name(samples->route), upload->copy_threads, first / 1e9,
           measured->fresh ? "each anew" : "then", rate / 1e9, rate / world->ceiling,
           (double)bench_median(samples->first + 1, warm) / 1e6,
           (double)bench_median(samples->tensor + 1, warm) / 1e6,
           (double)bench_median(samples->ended + 1, warm) / 1e6,
           (double)bench_median(samples->cpu + 1, warm) / (double)world->bytes);
    fflush(stdout);
    json_t *object = json_pack(
        "{s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:f}", "case", measured->label, "route",
        route_name(samples->route), "fresh_lease_each", (int)measured->fresh, "verified", (int)verified,
        "staging_bytes", (json_int_t)upload->staging_bytes, "slot_bytes", (json_int_t)upload->slot_bytes,
        "register_chunk_bytes", (json_int_t)upload->register_chunk_bytes, "register_piece_bytes",
        (json_int_t)upload->register_piece_bytes, "copy_threads", (int)upload->copy_threads,
        "first_bytes_per_s", first, "bytes_per_s", rate, "first_of_ceiling", first / world->ceiling,
        "of_ceiling", rate / world->ceiling);
    json_object_set_new(object, "cpu_ns", list(samples->cpu, samples->count));
    json_object_set_new(object, "start_call_ns", list(samples->call, samples->count));
    json_object_set_new(object, "first_copy_ns", list(samples->first, samples->count));
    json_object_set_new(object, "first_tensor_ns", list(samples->tensor, samples->count));
    json_object_set_new(object, "enqueued_ns", list(samples->enqueued, samples->count));
    json_object_set_new(object, "whole_ns", list(samples->whole, samples->count));
    json_object_set_new(object, "ended_ns", list(samples->ended, samples->count));
    json_array_append_new(world->cases, object);
}

void bench_measure_case(struct bench_world *world, const struct bench_case *measured)
{
    struct samples samples = {0};
    const bool verify = world->options->verify || json_array_size(world->cases) < 3;
    bench_lease_renew(world);
    if (verify)
        bench_poison(world);
    upload_once(world, measured, &samples);
    if (verify)
        bench_verify(world, measured->label);
    for (unsigned i = 0; i < world->options->samples; i++) {
        if (measured->fresh)
            bench_lease_renew(world);
        upload_once(world, measured, &samples);
    }
    append(world, measured, &samples, verify);
}
