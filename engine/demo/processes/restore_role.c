#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/demo/processes/processes.h"
#include "engine/demo/results.h"

#define STAGE "demo.restore_role"

enum { HEALTH_MS = 5 };
#define HEALTH_PATIENCE_NS (60 * HL_NS_PER_S)

/* What engine B knows about its one restore. */
struct restoration {
    struct hl_demo_engine engine;
    hl_restore_source sources[HL_RESTORE_LEASES];
    size_t source_count;
    uint32_t *pages; /* by block */
    hl_block_key *keys;
    struct hl_demo_run run;
    hl_restore_result result;
    uint64_t hits;
    int64_t query_ns, enqueued_ns, wall_ns;
};

static hl_status name_blocks(struct restoration *restoration, hl_error *err)
{
    const hl_demo *demo = restoration->engine.demo;
    restoration->pages = calloc(demo->block_count, sizeof *restoration->pages);
    restoration->keys = calloc(demo->block_count, sizeof *restoration->keys);
    if (!restoration->pages || !restoration->keys)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the keys of %u blocks", demo->block_count);
    for (uint32_t b = 0; b < demo->block_count; b++) {
        hl_demo_key(b, &restoration->keys[b]);
        restoration->pages[b] = demo->blocks[b].page;
    }
    return HL_OK;
}

/* One lease for at most HL_QUERY_KEYS blocks of one group. A block that is missing is a failed check. */
static hl_status query(struct restoration *restoration, uint32_t group, uint32_t first, uint32_t count,
                       struct hl_demo_mismatch *mismatch, hl_error *err)
{
    hl_query_options options;
    hl_query_options_init(&options);
    options.group = group;
    if (restoration->source_count == HL_RESTORE_LEASES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "the blocks need more than %u leases", HL_RESTORE_LEASES);
    hl_restore_source *source = &restoration->sources[restoration->source_count];
    hl_status status = hl_query(restoration->engine.binding, restoration->keys + first, count, &options,
                                &source->lease, err);
    if (status)
        return status;
    restoration->source_count++;
    source->pages = restoration->pages + first;
    source->count = hl_lease_hits(source->lease);
    restoration->hits += source->count;
    uint32_t resident = 0;
    while (resident < source->count && hl_lease_residency(source->lease, resident) == 1)
        resident++;
    if (source->count != count || resident != count)
        *mismatch = (struct hl_demo_mismatch){
            .what = "resident blocks of a group", .expected = count, .got = resident};
    return HL_OK;
}

static hl_status query_groups(struct restoration *restoration, struct hl_demo_mismatch *mismatch,
                              hl_error *err)
{
    const hl_demo *demo = restoration->engine.demo;
    int64_t start = hl_clock_ns();
    hl_status status = HL_OK;
    for (uint32_t g = 0; g < demo->layout->group_count; g++)
        for (uint32_t first = demo->group_first[g]; first < demo->group_first[g + 1] && !status;
             first += HL_QUERY_KEYS) {
            uint32_t left = demo->group_first[g + 1] - first;
            status = query(restoration, g, first, left < HL_QUERY_KEYS ? left : HL_QUERY_KEYS, mismatch, err);
        }
    restoration->query_ns = hl_clock_ns() - start;
    return status;
}

/* Queues the consumer of each layer once all events are recorded, and waits for both. */
static hl_status consume_and_wait(struct restoration *restoration, hl_restore *restore, int64_t start,
                                  hl_error *err)
{
    hl_demo *demo = restoration->engine.demo;
    hl_status status = hl_restore_wait_enqueued(restore, HL_DEMO_PATIENCE_NS, err);
    restoration->enqueued_ns = hl_clock_ns() - start;
    for (uint32_t l = 0; l < demo->layout->layers && !status; l++)
        status = hl_demo_queue_consumer(demo, l, err);
    /* Whatever happened, the operation must end before its pages and events may go. */
    hl_error reason;
    hl_status waited = hl_restore_wait(restore, HL_DEMO_PATIENCE_NS, &restoration->result, &reason);
    restoration->wall_ns = hl_clock_ns() - start;
    if (!status && waited) {
        status = waited;
        *err = reason;
    }
    if (!status)
        status = demo->dev->ops->stream_synchronize(demo->dev, demo->consumer, err);
    return status ? status : hl_demo_read_times(demo, &restoration->run, err);
}

static hl_status restore(struct restoration *restoration, hl_error *err)
{
    hl_demo *demo = restoration->engine.demo;
    hl_restore_request request;
    hl_restore_request_init(&request);
    request.sources = restoration->sources;
    request.source_count = restoration->source_count;
    request.ready_stream = demo->work;
    request.has_ready_stream = true;
    request.layer_events = (void *const *)demo->layer_events;
    request.trace = true;
    hl_status status = demo->dev->ops->event_record(demo->dev, demo->base_event, demo->work, err);
    if (status)
        return status;
    hl_restore *handle;
    int64_t start = hl_clock_ns();
    restoration->run.base_ns = start;
    status = hl_restore_start(restoration->engine.binding, &request, &handle, err);
    if (status)
        return status;
    status = consume_and_wait(restoration, handle, start, err);
    hl_restore_close(handle);
    if (!status && restoration->result.bytes != demo->payload_bytes)
        status =
            HL_FAIL(err, HL_E_STATE, STAGE, "the restore moved %llu bytes of %llu",
                    (unsigned long long)restoration->result.bytes, (unsigned long long)demo->payload_bytes);
    return status;
}

/* As in one process: order always, overlap where times mean something. */
static hl_status verify(struct restoration *restoration, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    hl_demo *demo = restoration->engine.demo;
    hl_demo_verify_order(demo, &restoration->run, mismatch);
    hl_status status = HL_OK;
    if (!mismatch->what)
        status = hl_demo_verify_sums(demo, mismatch, err);
    if (!status && !mismatch->what)
        status = hl_demo_verify_restored(demo, mismatch, err);
    return status;
}

static hl_status report(const struct restoration *restoration, hl_error *err)
{
    const hl_demo *demo = restoration->engine.demo;
    const struct hl_demo_run *run = &restoration->run;
    uint32_t layers = demo->layout->layers;
    json_t *stages = json_object();
    for (int s = 0; s < 6; s++)
        json_object_set_new(stages, hl_demo_stage_names[s],
                            json_integer((json_int_t)restoration->result.stage_ns[s]));
    json_t *all = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:b, s:o, s:o, s:o, s:s}", "event", "restored",
        "blocks", (json_int_t)demo->block_count, "hits", (json_int_t)restoration->hits, "bytes",
        (json_int_t)restoration->result.bytes, "query_ns", (json_int_t)restoration->query_ns, "enqueued_ns",
        (json_int_t)restoration->enqueued_ns, "wall_ns", (json_int_t)restoration->wall_ns, "drained_ns",
        (json_int_t)restoration->result.stage_ns[5], "stage_ns", stages, "last_layer_ns",
        (json_int_t)run->total_ns, "consumer_before_last_copy", hl_demo_overlapped(run, layers), "ready_ns",
        hl_demo_numbers(run->ready, layers), "consumer_start_ns",
        hl_demo_numbers(run->consumer_start, layers), "consumer_end_ns",
        hl_demo_numbers(run->consumer_end, layers), "state_digest", demo->state_digest);
    return hl_demo_send_report(all, err);
}

/* --- after the Manager's death --- */

/* Waits until the engine has noticed, and asks for something that it must refuse. */
static hl_status see_loss(struct restoration *restoration, json_t **survived, hl_error *err)
{
    hl_engine *engine = restoration->engine.engine;
    struct pollfd completion = {.fd = hl_engine_completion_fd(engine), .events = POLLIN};
    int64_t start = hl_clock_ns();
    hl_error loss;
    while (hl_engine_health(engine, &loss) == HL_OK) {
        if (hl_clock_ns() - start > HEALTH_PATIENCE_NS)
            return HL_FAIL(err, HL_E_TIMEOUT, STAGE, "the engine did not notice the Manager's death");
        hl_engine_completion_clear(engine);
        poll(&completion, 1, HEALTH_MS);
    }
    int64_t noticed_ns = hl_clock_ns() - start;
    hl_lease *lease;
    hl_error refusal;
    hl_status status = hl_query(restoration->engine.binding, restoration->keys, 1, NULL, &lease, &refusal);
    if (status == HL_OK) {
        hl_lease_release(lease);
        return HL_FAIL(err, HL_E_STATE, STAGE, "a query was answered after the Manager's death");
    }
    *survived = json_pack("{s:s, s:s, s:s, s:s, s:I}", "event", "survived", "health",
                          hl_status_name(loss.status), "text", loss.text, "new_query", hl_status_name(status),
                          "noticed_ns", (json_int_t)noticed_ns);
    if (loss.status != HL_E_PEER) {
        json_decref(*survived);
        return HL_FAIL(err, HL_E_STATE, STAGE, "the Manager's death was seen as %s: %.150s",
                       hl_status_name(loss.status), loss.text);
    }
    return HL_OK;
}

static hl_status survive(struct restoration *restoration, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    hl_demo *demo = restoration->engine.demo;
    char before[sizeof demo->state_digest];
    json_t *survived;
    hl_status status = hl_demo_await_command(err);
    if (!status)
        status = see_loss(restoration, &survived, err);
    if (status)
        return status;
    memcpy(before, demo->state_digest, sizeof before);
    status = hl_demo_verify_restored(demo, mismatch, err);
    if (!status && !mismatch->what && strcmp(before, demo->state_digest) != 0)
        status = HL_FAIL(err, HL_E_CHECKSUM, STAGE, "the pages changed after the Manager's death");
    if (status || mismatch->what) {
        json_decref(survived);
        return status;
    }
    return hl_demo_send_report(survived, err);
}

static hl_status run(struct restoration *restoration, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    hl_demo *demo = restoration->engine.demo;
    hl_status status = hl_demo_alloc_run(demo->layout->layers, &restoration->run, err);
    if (!status)
        status = name_blocks(restoration, err);
    if (!status)
        status = query_groups(restoration, mismatch, err);
    if (!status && !mismatch->what)
        status = restore(restoration, err);
    if (!status && !mismatch->what)
        status = verify(restoration, mismatch, err);
    if (!status && !mismatch->what)
        status = report(restoration, err);
    if (!status && !mismatch->what)
        status = survive(restoration, mismatch, err);
    for (size_t s = 0; s < restoration->source_count; s++)
        hl_lease_release(restoration->sources[s].lease);
    hl_demo_free_run(&restoration->run);
    free(restoration->pages);
    free(restoration->keys);
    return status;
}

hl_status hl_demo_restore_role(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    struct restoration restoration = {.engine = {.demo = demo}};
    hl_status status = hl_demo_plan_geometry(demo, err);
    if (!status)
        status = hl_demo_allocate_device_memory(demo, err);
    if (!status)
        status = hl_demo_open_consumer(demo, err);
    if (!status)
        status = hl_demo_poison(demo, err);
    if (status)
        return status;
    hl_demo_expect(demo);
    status = hl_demo_engine_open(demo, "engine B", &restoration.engine, err);
    if (status)
        return status;
    status = run(&restoration, mismatch, err);
    hl_demo_engine_close(&restoration.engine);
    return status;
}
