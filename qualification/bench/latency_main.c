/* restore_latency: P5 and P6, see latency.h. Exit status 0: measured and every byte compared; 1: failed; 2:
 * wrong arguments. */
#include "core/base/error.h"
#include "qualification/bench/latency.h"

enum { RESULTS = 4 };

static hl_status measure_all(const struct latency_options *options, hl_device *dev,
                             struct latency_result results[RESULTS], size_t *count, hl_error *err)
{
    const struct latency_case *const shapes[2] = {options->case_p5 ? &latency_p5 : NULL,
                                                  options->case_p6 ? &latency_p6 : NULL};
    const bool spins[2] = {options->spin_on, options->spin_off};
    for (int i = 0; i < RESULTS; i++) {
        const struct latency_case *shape = shapes[i / 2];
        if (!shape || !spins[i % 2])
            continue;
        hl_status status =
            latency_measure(options, shape, dev, i % 2 ? 0 : options->spin_us, &results[*count], err);
        if (status)
            return status;
        latency_report_case(&results[(*count)++], stdout);
        fflush(stdout);
    }
    return HL_OK;
}

static hl_status run(const struct latency_options *options, hl_error *err)
{
    struct latency_result results[RESULTS];
    size_t count = 0;
    hl_device *dev;
    hl_status status =
        options->cuda ? hl_device_open_cuda(options->ordinal, &dev, err) : hl_device_open_software(&dev, err);
    if (status)
        return status;
    status = hl_device_enter(dev, err);
    if (status)
        goto close;
    latency_report_head(options, dev, stdout);
    status = measure_all(options, dev, results, &count, err);
    if (!status && options->json)
        status = latency_report_json(options, dev, results, count, err);
    for (size_t i = 0; i < count; i++)
        latency_result_free(&results[i]);
    hl_device_leave(dev);
close:
    hl_device_close(dev);
    return status;
}

int main(int argc, char **argv)
{
    struct latency_options options;
    hl_error err = {0};
    bool help;
    if (latency_options_parse(argc, argv, &options, &help, &err)) {
        fprintf(stderr, "restore_latency: %s\n", err.text);
        return 2;
    }
    if (help) {
        latency_options_help(stdout);
        return 0;
    }
    if (options.role)
        return latency_manager_role(&options);
    if (run(&options, &err)) {
        fprintf(stderr, "restore_latency: %s (%s in %s)\n", err.text, hl_status_name(err.status), err.stage);
        return 1;
    }
    return 0;
}
