#include <assert.h>

#include "core/base/error.h"
#include "engine/demo/demo.h"
#include "engine/demo/processes/processes.h"

static int in_process(hl_demo *demo)
{
    hl_error err;
    if (hl_demo_open_device(&demo->options, &demo->dev, &err)) {
        hl_demo_report_error(demo, &err, stderr);
        return HL_DEMO_ERROR;
    }
    assert(demo->dev);
    int code = HL_DEMO_ERROR;
    if (hl_device_enter(demo->dev, &err)) {
        hl_demo_report_error(demo, &err, stderr);
    } else {
        code = hl_demo_run_in_process(demo);
        hl_device_leave(demo->dev);
    }
    hl_device_close(demo->dev);
    return code;
}

int main(int argc, char **argv)
{
    static hl_demo demo = {.progress = hl_demo_progress};
    hl_error err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (hl_demo_options_parse(argc, argv, &demo.options, &err)) {
        fprintf(stderr, "hostlane-demo: %s\n  what to do: --help lists the options\n", err.text);
        return HL_DEMO_USAGE;
    }
    if (demo.options.help) {
        hl_demo_usage(stdout);
        return HL_DEMO_OK;
    }
    if (demo.options.role)
        return hl_demo_run_role(&demo);
    switch (hl_demo_mode(&demo.options)) {
    case HL_DEMO_IN_PROCESS:
        return in_process(&demo);
    case HL_DEMO_PROCESSES:
        return hl_demo_run_processes(&demo, argc, argv);
    case HL_DEMO_REPLAY:
        return hl_demo_run_replay(&demo, argc, argv);
    case HL_DEMO_GENERATE:
        return hl_demo_run_generate(&demo);
    }
    return HL_DEMO_ERROR;
}
