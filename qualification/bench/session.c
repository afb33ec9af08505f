#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.session"
#define PATIENCE_NS (60 * HL_NS_PER_S)

static void print_log(void *user, enum hl_log_level level, const char *text)
{
    (void)user;
    if (level >= HL_LOG_WARNING)
        fprintf(stderr, "restore_latency: %s\n", text);
}

static hl_status register_tensors(struct latency_session *session, hl_error *err)
{
    struct latency_world *world = session->world;
    hl_tensor tensors[HL_LAYOUT_LAYERS] = {0};
    hl_context_batch batch;
    for (uint32_t i = 0; i < world->shape->layers; i++)
        tensors[i] = (hl_tensor){.name = world->layout->tensors[i].name,
                                 .device_ptr = world->tensors[i],
                                 .bytes = world->layout->tensors[i].bytes};
    hl_context_batch_init(&batch);
    batch.instance = "restore_latency";
    batch.model = world->shape->name;
    batch.layout = world->layout;
    batch.tensors = tensors;
    batch.device = world->options->cuda ? NULL : world->dev;
    batch.cuda_ordinal = world->options->ordinal;
    batch.route = hl_route_name(world->options->route);
    batch.sm_cap = world->options->sms;
    return hl_engine_register(session->engine, &batch, &session->binding, err);
}

hl_status latency_session_open(struct latency_world *world, const char *socket, uint32_t spin_us,
                               struct latency_session *session, hl_error *err)
{
    hl_engine_options options;
    hl_random random;
    *session = (struct latency_session){.world = world};
    hl_random_seed(&random, 17);
    for (uint32_t b = 0; b < world->shape->blocks; b++)
        hl_random_fill(&random, session->keys[b].hash, sizeof session->keys[b].hash);
    hl_engine_options_init(&options);
    options.socket_path = socket;
    options.name = "restore_latency";
    options.spin_us = spin_us;
    options.log = print_log;
    hl_status status = hl_engine_connect(&options, &session->engine, err);
    if (status)
        return status;
    status = register_tensors(session, err);
    if (status) {
        hl_engine_close(session->engine);
        session->engine = NULL;
    }
    return status;
}

hl_status latency_session_close(struct latency_session *session, hl_error *err)
{
    hl_status status = session->binding ? hl_engine_unregister(session->binding, err) : HL_OK;
    hl_engine_close(session->engine);
    *session = (struct latency_session){0};
    return status;
}

hl_status latency_session_publish(struct latency_session *session, hl_error *err)
{
    struct latency_world *world = session->world;
    uint32_t pages[LATENCY_BLOCKS];
    hl_publish_request request;
    hl_publish_result result;
    hl_publish *publish;
    for (uint32_t b = 0; b < world->shape->blocks; b++)
        pages[b] = b;
    hl_publish_request_init(&request);
    request.keys = session->keys;
    request.pages = pages;
    request.count = world->shape->blocks;
    hl_status status = hl_publish_start(session->binding, &request, &publish, err);
    if (status)
        return status;
    status = hl_publish_wait(publish, PATIENCE_NS, &result, err);
    hl_publish_close(publish);
    if (!status && result.stored != world->shape->blocks)
        status = HL_FAIL(err, HL_E_STATE, STAGE, "%llu of %u blocks were stored",
                         (unsigned long long)result.stored, world->shape->blocks);
    return status;
}

/* --- one restore --- */

static hl_status query(struct latency_session *session, uint32_t pages[LATENCY_BLOCKS],
                       hl_restore_source sources[HL_RESTORE_LEASES], hl_error *err)
{
    const struct latency_case *shape = session->world->shape;
    const uint32_t blocks = shape->blocks / shape->leases;
    for (uint32_t i = 0; i < shape->leases; i++) {
        hl_status status = hl_query(session->binding, session->keys + (size_t)i * blocks, blocks, NULL,
                                    &sources[i].lease, err);
        if (status)
            return status;
        if (hl_lease_hits(sources[i].lease) != blocks)
            return HL_FAIL(err, HL_E_MISS, STAGE, "lease %u has %zu of %u blocks", i,
                           hl_lease_hits(sources[i].lease), blocks);
        sources[i].pages = pages + (size_t)i * blocks;
        sources[i].count = blocks;
    }
    return HL_OK;
}

/* The measured interval: from the call that starts it to the outcome's return. */
static hl_status start_and_wait(struct latency_session *session, const hl_restore_request *request,
                                struct latency_sample *sample, hl_error *err)
{
    hl_restore_result result;
    hl_restore *restore;
    int64_t start = hl_clock_ns();
    hl_status status = hl_restore_start(session->binding, request, &restore, err);
    if (status)
        return status;
    int64_t started = hl_clock_ns();
    status = hl_restore_wait(restore, PATIENCE_NS, &result, err);
    sample->ns = hl_clock_ns() - start;
    sample->start_ns = started - start;
    hl_restore_close(restore);
    if (!status && result.bytes != latency_case_bytes(session->world->shape))
        status =
            HL_FAIL(err, HL_E_CORRUPT, STAGE, "a restore moved %llu bytes", (unsigned long long)result.bytes);
    if (!status)
        memcpy(sample->stage_ns, result.stage_ns, sizeof sample->stage_ns);
    return status;
}

hl_status latency_restore_once(struct latency_session *session, bool trace, struct latency_sample *sample,
                               hl_error *err)
{
    struct latency_world *world = session->world;
    hl_restore_source sources[HL_RESTORE_LEASES] = {0};
    uint32_t pages[LATENCY_BLOCKS];
    hl_restore_request request;
    *sample = (struct latency_sample){0};
    hl_status status = latency_take_slot(world, pages, err);
    if (status)
        return status;
    int64_t start = hl_clock_ns();
    status = query(session, pages, sources, err);
    sample->query_ns = hl_clock_ns() - start;
    hl_restore_request_init(&request);
    request.sources = sources;
    request.source_count = world->shape->leases;
    request.ready_stream = world->ready;
    request.has_ready_stream = true;
    request.layer_events = world->options->layer_events ? (void *const *)world->layer_events : NULL;
    request.trace = trace;
    if (!status)
        status = start_and_wait(session, &request, sample, err);
    for (uint32_t i = 0; i < world->shape->leases; i++)
        hl_lease_release(sources[i].lease);
    return status;
}
