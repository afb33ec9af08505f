#include <stdlib.h>

#include "core/base/error.h"
#include "engine/demo/processes/processes.h"
#include "engine/demo/results.h"

#define STAGE "demo.scenario"

struct scenario {
    hl_demo *demo;
    int argc;
    char **argv;
    struct hl_demo_manager manager;
    struct hl_demo_child a, b;
    uint64_t arena_bytes;
    json_t *published, *restored, *survived;
    hl_error err;
};

/* The geometry decides how large the arena must be; the device, how many pages there are by default. */
static hl_status prepare(struct scenario *scenario)
{
    hl_demo *demo = scenario->demo;
    hl_status status = hl_demo_open_device(&demo->options, &demo->dev, &scenario->err);
    if (!status)
        status = hl_demo_plan_geometry(demo, &scenario->err);
    if (status)
        return status;
    scenario->arena_bytes = hl_demo_arena_bytes(demo);
    hl_demo_report_geometry(demo, stdout);
    return HL_OK;
}

static hl_status start_engine(struct scenario *scenario, struct hl_demo_child *child, const char *name,
                              const char *role)
{
    char **words = hl_demo_role_arguments(scenario->demo, scenario->argc, scenario->argv, role,
                                          scenario->manager.socket);
    if (!words)
        return HL_FAIL(&scenario->err, HL_E_NOMEM, STAGE, "no memory for the arguments of %s", name);
    hl_status status = hl_demo_child_start(child, name, words, -1, &scenario->err);
    free(words);
    return status;
}

static hl_status publish_and_die(struct scenario *scenario)
{
    hl_status status = start_engine(scenario, &scenario->a, "engine A", "publish");
    if (!status)
        status = hl_demo_child_report(&scenario->a, "published", &scenario->published, &scenario->err);
    if (!status)
        status = hl_demo_child_kill(&scenario->a, &scenario->err);
    if (!status)
        hl_demo_report_published(scenario->a.pid, scenario->published, stdout);
    return status;
}

static hl_status restore(struct scenario *scenario)
{
    hl_status status = start_engine(scenario, &scenario->b, "engine B", "restore");
    if (!status)
        status = hl_demo_child_report(&scenario->b, "restored", &scenario->restored, &scenario->err);
    if (!status)
        hl_demo_report_restored(scenario->b.pid, scenario->restored, stdout);
    return status;
}

static hl_status lose_manager(struct scenario *scenario)
{
    hl_status status = hl_demo_child_kill(&scenario->manager.child, &scenario->err);
    if (!status)
        status = hl_demo_child_go_on(&scenario->b, &scenario->err);
    if (!status)
        status = hl_demo_child_report(&scenario->b, "survived", &scenario->survived, &scenario->err);
    if (!status)
        status = hl_demo_child_wait(&scenario->b, HL_DEMO_PATIENCE_NS, &scenario->err);
    if (!status && hl_demo_child_code(&scenario->b) != HL_DEMO_OK)
        status = HL_FAIL(&scenario->err, HL_E_PEER, STAGE, "engine B failed while it closed");
    if (!status)
        hl_demo_report_survived(scenario->survived, stdout);
    return status;
}

static hl_status play(struct scenario *scenario)
{
    hl_status status =
        hl_demo_manager_start(scenario->demo, scenario->arena_bytes, &scenario->manager, &scenario->err);
    if (status)
        return status;
    hl_demo_report_manager(&scenario->manager, scenario->arena_bytes, scenario->demo->options.huge, stdout);
    status = publish_and_die(scenario);
    if (!status)
        status = restore(scenario);
    return status ? status : lose_manager(scenario);
}

static hl_status write_results(const struct scenario *scenario, hl_error *err)
{
    const hl_demo *demo = scenario->demo;
    json_t *host = hl_demo_describe_host(demo, err);
    if (!host)
        return err->status;
    json_t *root = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:{s:s, s:I, s:s}, s:{s:s, s:O}, s:{s:O, s:O}, s:b}", "schema",
        "hostlane-demo-processes/1", "options", hl_demo_describe_options(&demo->options), "device",
        hl_demo_describe_device(&demo->dev->info), "host", host, "geometry", hl_demo_describe_geometry(demo),
        "manager", "program", "hostlane-manager", "arena_bytes", (json_int_t)scenario->arena_bytes,
        "killed_by", "SIGKILL", "engine_a", "killed_by", "SIGKILL", "published", scenario->published,
        "engine_b", "restored", scenario->restored, "survived", scenario->survived, "every_byte_equal", true);
    if (!root)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the results, or text in them is not UTF-8");
    hl_status status = hl_demo_write_json(root, demo->options.json_out, err);
    json_decref(root);
    return status;
}

/* A child that ended by itself has said why, and its exit status is the program's. */
static int conclude(struct scenario *scenario, hl_status status)
{
    if (!status)
        return HL_DEMO_OK;
    int code = HL_DEMO_ERROR;
    if (scenario->b.ended)
        code = hl_demo_child_code(&scenario->b);
    if (code == HL_DEMO_MISMATCH)
        return code;
    hl_demo_manager_print_log(&scenario->manager, stderr);
    hl_demo_report_error(scenario->demo, &scenario->err, stderr);
    return HL_DEMO_ERROR;
}

static void close_scenario(struct scenario *scenario)
{
    hl_demo *demo = scenario->demo;
    hl_demo_child_close(&scenario->a);
    hl_demo_child_close(&scenario->b);
    hl_demo_manager_close(&scenario->manager);
    json_decref(scenario->published);
    json_decref(scenario->restored);
    json_decref(scenario->survived);
    hl_layout_free(demo->layout);
    free(demo->blocks);
    hl_device_close(demo->dev);
}

int hl_demo_run_processes(hl_demo *demo, int argc, char **argv)
{
    struct scenario scenario = {.demo = demo, .argc = argc, .argv = argv};
    hl_demo_catch_interrupts();
    hl_status status = prepare(&scenario);
    if (!status)
        status = play(&scenario);
    if (!status)
        printf("every byte compared: OK (restored pages, pages left alone, consumer's sums; and again after "
               "the Manager's death)\n");
    if (!status && demo->options.json_out)
        status = write_results(&scenario, &scenario.err);
    int code = conclude(&scenario, status);
    close_scenario(&scenario);
    return code;
}
