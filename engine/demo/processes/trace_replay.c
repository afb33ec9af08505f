#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "engine/demo/processes/processes.h"

#define STAGE "demo.trace_replay"

/* Reports of progress keep the parent patient. */
enum { PROGRESS_EVERY = 64 };

/* A page that is on its way to the host to be compared. */
struct pending {
    uint32_t component;
    uint32_t number; /* of the id */
    uint32_t page;
    size_t slot; /* in the staging buffer */
};

struct replay {
    struct hl_demo_engine engine;
    struct hl_trace trace;
    hl_reference_cache *reference;
    bool exact; /* the cache holds everything: hits must be the reference's */
    hl_random random;
    uint32_t *order;    /* a permutation of the device pages; its first ones serve the request */
    hl_block_key *keys; /* of the request */
    uint32_t *numbers;
    struct pending *pending;
    size_t pending_count, pending_room;
    size_t staged; /* bytes of the staging buffer that are in use */
    struct hl_demo_mismatch *mismatch;
    /* results */
    uint64_t blocks, hits, reference_hits, restored_bytes;
    hl_publish_result published;
    uint64_t unstored;   /* blocks that found no room */
    int64_t *restore_ns; /* by restore */
    int64_t *stage_ns[6];
    uint32_t restores;
};

/* --- pages --- */

/* The first `count` pages of the permutation become a fresh choice. */
static void choose_pages(struct replay *replay, uint32_t count)
{
    uint32_t pages = replay->engine.demo->layout->groups[0].pages;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = i + (uint32_t)hl_random_below(&replay->random, pages - i);
        uint32_t page = replay->order[i];
        replay->order[i] = replay->order[j];
        replay->order[j] = page;
    }
}

/* Waits for the staging buffer's copies; what came back is compared. */
static hl_status settle(struct replay *replay, hl_error *err)
{
    hl_demo *demo = replay->engine.demo;
    hl_status status = demo->dev->ops->stream_synchronize(demo->dev, demo->work, err);
    for (size_t i = 0; i < replay->pending_count && !status && !replay->mismatch->what; i++) {
        const struct pending *page = &replay->pending[i];
        const struct hl_layout_component *component = &demo->layout->components[page->component];
        const unsigned char *got = demo->staging + page->slot;
        uint64_t bytes = component->rows * component->row_bytes, at = 0;
        hl_demo_page_bytes(demo, page->component, page->number, demo->scratch);
        if (!memcmp(got, demo->scratch, bytes))
            continue;
        while (got[at] == demo->scratch[at])
            at++;
        *replay->mismatch = (struct hl_demo_mismatch){.what = "restored page",
                                                      .layer = component->layer,
                                                      .role = component->role,
                                                      .page = page->page,
                                                      .offset = at,
                                                      .expected = demo->scratch[at],
                                                      .got = got[at]};
    }
    replay->pending_count = 0;
    replay->staged = 0;
    return status;
}

static hl_status reserve_slot(struct replay *replay, uint64_t bytes, unsigned char **slot, hl_error *err)
{
    hl_demo *demo = replay->engine.demo;
    hl_status status = HL_OK;
    if (replay->staged + bytes > demo->staging_bytes || replay->pending_count == replay->pending_room)
        status = settle(replay, err);
    *slot = demo->staging + replay->staged;
    replay->staged += bytes;
    return status;
}

/* What is done to each page of blocks first … end - 1 of the request. */
enum pass { POISON, FETCH, FILL };

static hl_status pass_page(struct replay *replay, enum pass pass, uint32_t c, uint32_t block, hl_error *err)
{
    hl_demo *demo = replay->engine.demo;
    const struct hl_layout_component *component = &demo->layout->components[c];
    uint32_t page = replay->order[block];
    hl_devptr address = hl_demo_page_address(demo, component, page);
    uint64_t bytes = component->rows * component->row_bytes;
    if (pass == POISON) /* rows of other components between this one's belong to the same page */
        return demo->dev->ops->fill(demo->dev, address, HL_DEMO_POISON, hl_demo_page_extent(component),
                                    demo->work, err);
    unsigned char *slot;
    hl_status status = reserve_slot(replay, bytes, &slot, err);
    if (status)
        return status;
    if (pass == FILL) {
        hl_demo_page_bytes(demo, c, replay->numbers[block], slot);
        return hl_demo_copy_page(demo, HL_COPY_H2D, component, address, slot, component->row_bytes, err);
    }
    replay->pending[replay->pending_count++] = (struct pending){.component = c,
                                                                .number = replay->numbers[block],
                                                                .page = page,
                                                                .slot = (size_t)(slot - demo->staging)};
    return hl_demo_copy_page(demo, HL_COPY_D2H, component, address, slot, component->row_bytes, err);
}

static hl_status pass_pages(struct replay *replay, enum pass pass, uint32_t first, uint32_t end,
                            hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t block = first; block < end && !status; block++)
        for (uint32_t c = 0; c < replay->engine.demo->layout->component_count && !status; c++)
            status = pass_page(replay, pass, c, block, err);
    return status;
}

/* --- one request --- */

/* Restores the lease's blocks and takes the times; the poison fills before it may still run. */
static hl_status restore_hits(struct replay *replay, hl_lease *lease, uint32_t hits, hl_error *err)
{
    hl_demo *demo = replay->engine.demo;
    hl_restore_source source = {.lease = lease, .pages = replay->order, .count = hits};
    hl_restore_request request;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.ready_stream = demo->work;
    request.has_ready_stream = true;
    request.trace = true;
    hl_restore *restore;
    hl_restore_result result = {0};
    int64_t start = hl_clock_ns();
    hl_status status = hl_restore_start(replay->engine.binding, &request, &restore, err);
    if (status)
        return status;
    status = hl_restore_wait(restore, HL_DEMO_PATIENCE_NS, &result, err);
    int64_t wall_ns = hl_clock_ns() - start;
    hl_restore_close(restore);
    if (status)
        return status;
    uint64_t expected = demo->payload_bytes / demo->block_count * hits;
    if (result.bytes != expected)
        return HL_FAIL(err, HL_E_STATE, STAGE, "a restore of %u blocks moved %llu bytes, not %llu", hits,
                       (unsigned long long)result.bytes, (unsigned long long)expected);
    replay->restored_bytes += result.bytes;
    for (int s = 0; s < 6; s++)
        replay->stage_ns[s][replay->restores] = (int64_t)result.stage_ns[s];
    replay->restore_ns[replay->restores++] = wall_ns;
    return HL_OK;
}

static void compare_hits(struct replay *replay, uint32_t request, uint32_t hits, uint32_t reference)
{
    replay->hits += hits;
    replay->reference_hits += reference;
    if (replay->exact ? hits != reference : hits > reference)
        *replay->mismatch = (struct hl_demo_mismatch){
            .what = replay->exact ? "hits of a request (its number is the page)"
                                  : "more hits than an endless cache (the request's number is the page)",
            .page = request,
            .expected = reference,
            .got = hits};
}

/* Restores the lease's blocks to pages that hold poison, and compares them. */
static hl_status restore_and_compare(struct replay *replay, hl_lease *lease, uint32_t hits, hl_error *err)
{
    hl_status status = pass_pages(replay, POISON, 0, hits, err);
    if (!status)
        status = restore_hits(replay, lease, hits, err);
    if (!status)
        status = pass_pages(replay, FETCH, 0, hits, err);
    return status ? status : settle(replay, err);
}

static hl_status publish_rest(struct replay *replay, uint32_t hits, uint32_t count, hl_error *err)
{
    hl_publish_result before = replay->published;
    if (hits == count)
        return HL_OK;
    hl_status status = pass_pages(replay, FILL, hits, count, err);
    if (status)
        return status;
    status = hl_demo_engine_publish(&replay->engine, 0, replay->keys + hits, replay->order + hits,
                                    count - hits, &replay->published, err);
    if (status && (status != HL_E_NOSPACE || replay->exact))
        return status;
    replay->unstored += count - hits - (replay->published.stored - before.stored) -
                        (replay->published.present - before.present);
    replay->staged = 0; /* the publish has read the pages, hence the fills before it are done */
    return HL_OK;
}

/* Names the request's blocks, asks the reference, and then tells it. */
static hl_status name_blocks(struct replay *replay, const struct hl_trace_request *request,
                             uint32_t *reference, hl_error *err)
{
    const uint64_t *ids = replay->trace.ids + request->first;
    *reference = hl_reference_hits(replay->reference, ids, request->count);
    hl_status status = hl_reference_add(replay->reference, ids, request->count, err);
    for (uint32_t i = 0; i < request->count && !status; i++) {
        hl_demo_key(ids[i], &replay->keys[i]);
        replay->numbers[i] = hl_reference_number(replay->reference, ids[i]);
    }
    choose_pages(replay, request->count);
    return status;
}

static hl_status replay_request(struct replay *replay, uint32_t r, hl_error *err)
{
    const struct hl_trace_request *request = &replay->trace.requests[r];
    uint32_t reference;
    hl_lease *lease;
    if (request->count == 0)
        return HL_OK;
    hl_status status = name_blocks(replay, request, &reference, err);
    if (!status)
        status = hl_query(replay->engine.binding, replay->keys, request->count, NULL, &lease, err);
    if (status)
        return status;
    uint32_t hits = (uint32_t)hl_lease_hits(lease);
    replay->blocks += request->count;
    if (hits)
        status = restore_and_compare(replay, lease, hits, err);
    hl_lease_release(lease);
    if (!status && !replay->mismatch->what)
        compare_hits(replay, r, hits, reference);
    if (status || replay->mismatch->what)
        return status;
    return publish_rest(replay, hits, request->count, err);
}

/* --- all requests --- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The nearest rank of sorted values; 0 of none. */
static int64_t quantile(const int64_t *sorted, uint32_t count, unsigned percent)
{
    return count ? sorted[((uint64_t)count * percent + 99) / 100 - 1] : 0;
}

static hl_status report(struct replay *replay, int64_t wall_ns, hl_error *err)
{
    uint32_t count = replay->restores;
    json_t *stages = json_object();
    qsort(replay->restore_ns, count, sizeof *replay->restore_ns, by_value);
    for (int s = 0; s < 6; s++) {
        qsort(replay->stage_ns[s], count, sizeof *replay->stage_ns[s], by_value);
        json_object_set_new(stages, hl_demo_stage_names[s],
                            json_integer(quantile(replay->stage_ns[s], count, 50)));
    }
    json_t *all = json_pack(
        "{s:s, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I}", "event",
        "replayed", "requests", (json_int_t)replay->trace.request_count, "blocks", (json_int_t)replay->blocks,
        "unique_blocks", (json_int_t)replay->trace.unique, "exact", replay->exact, "hits",
        (json_int_t)replay->hits, "reference_hits", (json_int_t)replay->reference_hits, "restores",
        (json_int_t)count, "restored_bytes", (json_int_t)replay->restored_bytes, "published_blocks",
        (json_int_t)replay->published.stored, "published_bytes", (json_int_t)replay->published.bytes,
        "unstored_blocks", (json_int_t)replay->unstored, "restore_p50_ns",
        quantile(replay->restore_ns, count, 50), "restore_p95_ns", quantile(replay->restore_ns, count, 95),
        "restore_p99_ns", quantile(replay->restore_ns, count, 99), "stage_median_ns", stages, "wall_ns",
        (json_int_t)wall_ns);
    return hl_demo_send_report(all, err);
}

static hl_status replay_all(struct replay *replay, hl_error *err)
{
    uint32_t count = replay->trace.request_count;
    int64_t start = hl_clock_ns();
    hl_status status = HL_OK;
    for (uint32_t r = 0; r < count && !status && !replay->mismatch->what; r++) {
        status = replay_request(replay, r, err);
        hl_demo_progress_requests("replay", r + 1, count);
        if (!status && r % PROGRESS_EVERY == PROGRESS_EVERY - 1)
            status = hl_demo_send_report(
                json_pack("{s:s, s:I}", "event", "progress", "requests", (json_int_t)r + 1), err);
    }
    if (status || replay->mismatch->what)
        return status;
    return report(replay, hl_clock_ns() - start, err);
}

static hl_status allocate(struct replay *replay, hl_error *err)
{
    const hl_demo *demo = replay->engine.demo;
    uint32_t requests = replay->trace.request_count, most = demo->options.pages;
    uint32_t pages = demo->layout->groups[0].pages;
    replay->pending_room = (size_t)most * demo->layout->component_count;
    replay->order = calloc(pages, sizeof *replay->order);
    replay->keys = calloc(most, sizeof *replay->keys);
    replay->numbers = calloc(most, sizeof *replay->numbers);
    replay->pending = calloc(replay->pending_room, sizeof *replay->pending);
    replay->restore_ns = calloc(requests, sizeof *replay->restore_ns);
    bool got = replay->order && replay->keys && replay->numbers && replay->pending && replay->restore_ns;
    for (int s = 0; s < 6; s++) {
        replay->stage_ns[s] = calloc(requests, sizeof *replay->stage_ns[s]);
        got = got && replay->stage_ns[s];
    }
    if (!got)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a replay of %u requests", requests);
    for (uint32_t p = 0; p < pages; p++)
        replay->order[p] = p;
    return hl_reference_open(&replay->reference, err);
}

static void free_replay(struct replay *replay)
{
    hl_reference_close(replay->reference);
    for (int s = 0; s < 6; s++)
        free(replay->stage_ns[s]);
    free(replay->restore_ns);
    free(replay->pending);
    free(replay->numbers);
    free(replay->keys);
    free(replay->order);
    hl_trace_free(&replay->trace);
}

hl_status hl_demo_replay_role(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    struct replay replay = {.engine = {.demo = demo}, .mismatch = mismatch};
    struct hl_demo_scale scale;
    hl_random_seed(&replay.random, demo->options.seed);
    hl_status status = hl_trace_read(demo->options.trace, demo->options.trace_requests, &replay.trace, err);
    if (status)
        return status;
    status = hl_demo_read_model(demo, err);
    if (!status)
        status = hl_demo_scale_geometry(demo, &replay.trace, 0, &scale, err);
    if (!status)
        status = hl_demo_allocate_device_memory(demo, err);
    if (!status)
        status = allocate(&replay, err);
    if (!status)
        status = hl_demo_engine_open(demo, "replay", &replay.engine, err);
    if (!status) {
        replay.exact = demo->options.cache_bytes == 0 || demo->options.cache_bytes >= scale.working_set;
        status = replay_all(&replay, err);
        hl_demo_engine_close(&replay.engine);
    }
    free_replay(&replay);
    return status;
}
