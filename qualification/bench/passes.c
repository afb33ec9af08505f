/* The order of what is measured: warm up each, then floor, executor, restore, restore, executor, floor, each
 * half of its samples, so that a drift of the machine falls on all alike; then the traced restores, apart, as
 * taking the stage clocks costs time (O2). */
#include <stdlib.h>

#include "core/base/error.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.passes"

const char *const latency_subject_names[LATENCY_SUBJECTS] = {"floor", "executor", "restore", "traced"};

struct pass {
    struct latency_world *world;
    struct latency_session *session;
    hl_transfer *transfer;
    uint32_t done[LATENCY_SUBJECTS];
};

static hl_status measure_once(struct pass *pass, enum latency_subject subject, struct latency_sample *sample,
                              hl_error *err)
{
    switch (subject) {
    case LATENCY_FLOOR:
        return latency_floor_once(pass->world, sample, err);
    case LATENCY_EXECUTOR:
        return latency_executor_once(pass->world, pass->transfer, sample, err);
    default:
        return latency_restore_once(pass->session, subject == LATENCY_TRACED, sample, err);
    }
}

/* Appends `count` samples to result; none are kept when it is NULL. */
static hl_status repeat(struct pass *pass, enum latency_subject subject, uint32_t count,
                        struct latency_result *result, hl_error *err)
{
    for (uint32_t i = 0; i < count;) {
        struct latency_sample sample;
        hl_status status = measure_once(pass, subject, &sample, err);
        if (status)
            return status;
        if (subject != LATENCY_FLOOR && pass->world->rewarm > 0) {
            pass->world->rewarm--;
            continue;
        }
        if (result)
            result->samples[subject][pass->done[subject]++] = sample;
        i++;
    }
    return HL_OK;
}

static hl_status warm_up(struct pass *pass, hl_error *err)
{
    hl_status status = HL_OK;
    for (int subject = 0; subject <= LATENCY_RESTORE && !status; subject++)
        status = repeat(pass, (enum latency_subject)subject, pass->world->options->warmup, NULL, err);
    return status;
}

static hl_status run_passes(struct pass *pass, struct latency_result *result, hl_error *err)
{
    static const enum latency_subject order[] = {LATENCY_FLOOR,   LATENCY_EXECUTOR, LATENCY_RESTORE,
                                                 LATENCY_RESTORE, LATENCY_EXECUTOR, LATENCY_FLOOR};
    const uint32_t count = pass->world->options->samples;
    const bool all = !pass->world->options->restores_only;
    hl_status status =
        all ? warm_up(pass, err) : repeat(pass, LATENCY_RESTORE, pass->world->options->warmup, NULL, err);
    for (size_t i = 0; i < sizeof order / sizeof order[0] && !status; i++)
        if (all || order[i] == LATENCY_RESTORE)
            status = repeat(pass, order[i], i < 3 ? count / 2 : count - count / 2, result, err);
    if (!status && all)
        status = repeat(pass, LATENCY_TRACED, count, result, err);
    return status ? status : latency_compare(pass->world, err);
}

static hl_status allocate(const struct latency_options *options, struct latency_result *result, hl_error *err)
{
    result->count = options->samples;
    for (int i = 0; i < LATENCY_SUBJECTS; i++) {
        if (options->restores_only && i != LATENCY_RESTORE)
            continue;
        result->samples[i] = calloc(options->samples, sizeof *result->samples[i]);
        if (!result->samples[i])
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u samples", options->samples);
    }
    return HL_OK;
}

void latency_result_free(struct latency_result *result)
{
    for (int i = 0; i < LATENCY_SUBJECTS; i++)
        free(result->samples[i]);
    *result = (struct latency_result){0};
}

static hl_status measure_in_world(struct latency_world *world, const char *socket, uint32_t spin_us,
                                  struct latency_result *result, hl_error *err)
{
    struct latency_session session;
    struct pass pass = {.world = world, .session = &session};
    hl_status status = latency_fill(world, err);
    if (!status)
        status = latency_session_open(world, socket, spin_us, &session, err);
    if (status)
        return status;
    status = latency_session_publish(&session, err);
    if (!status)
        status = latency_poison(world, err);
    if (!status)
        status = latency_executor_open(world, &pass.transfer, err);
    if (!status)
        status = run_passes(&pass, result, err);
    hl_transfer_close(pass.transfer);
    hl_status closed = latency_session_close(&session, status ? NULL : err);
    return status ? status : closed;
}

hl_status latency_measure(const struct latency_options *options, const struct latency_case *shape,
                          hl_device *dev, uint32_t spin_us, struct latency_result *result, hl_error *err)
{
    struct latency_manager manager;
    struct latency_world world;
    *result = (struct latency_result){.shape = shape, .spin_us = spin_us};
    hl_status status = allocate(options, result, err);
    if (status)
        goto err_free;
    status = latency_world_open(options, shape, dev, &world, err);
    if (status)
        goto err_free;
    status = latency_manager_start(options, spin_us, &manager, err);
    if (status)
        goto err_close;
    status = measure_in_world(&world, manager.socket, spin_us, result, err);
    hl_status stopped = latency_manager_stop(&manager, status ? NULL : err);
    status = status ? status : stopped;
    result->compared_bytes = world.compared_bytes;
    result->slots = world.slots;
err_close:
    latency_world_close(&world);
err_free:
    if (status)
        latency_result_free(result);
    return status;
}
