/* Starting an operation: everything that can be refused is refused before the record is announced. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.restore";

static hl_status check_source(const hl_binding *binding, const hl_restore_request *request, size_t index,
                              hl_error *err)
{
    const hl_restore_source *source = &request->sources[index];
    const hl_lease *lease = source->lease;
    if (!lease || !source->pages)
        return HL_FAIL(err, HL_E_INVALID, stage, "sources[%zu].%s is NULL", index, lease ? "pages" : "lease");
    if (lease->engine != binding->engine || lease->binding_serial != binding->serial)
        return HL_FAIL(err, HL_E_STATE, stage, "sources[%zu].lease is of another binding", index);
    for (size_t i = 0; i < index; i++)
        if (request->sources[i].lease == lease)
            return HL_FAIL(err, HL_E_INVALID, stage, "sources[%zu] and [%zu] have the same lease", i, index);
    if (source->count == 0 || source->count > lease->hits)
        return HL_FAIL(err, HL_E_RANGE, stage, "sources[%zu].count is %zu, the lease has %u hits", index,
                       source->count, lease->hits);
    uint32_t pages = binding->layout->groups[lease->group].pages;
    for (size_t i = 0; i < source->count; i++)
        if (source->pages[i] >= pages)
            return HL_FAIL(err, HL_E_RANGE, stage, "sources[%zu].pages[%zu] is %u, the group has %u", index,
                           i, source->pages[i], pages);
    return HL_OK;
}

static hl_status check_request(const hl_binding *binding, const hl_restore_request *request,
                               uint64_t *page_count, hl_error *err)
{
    uint64_t pages = 0;
    if (!request || request->size != sizeof *request)
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, hl_restore_request_init() sets %zu",
                       request ? request->size : 0, sizeof *request);
    if (!request->sources || request->source_count == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "there are no sources");
    if (request->source_count > HL_RESTORE_LEASES)
        return HL_FAIL(err, HL_E_LIMIT, stage, "source_count is %zu, at most %u", request->source_count,
                       HL_RESTORE_LEASES);
    for (size_t i = 0; i < request->source_count; i++) {
        hl_status status = check_source(binding, request, i, err);
        if (status != HL_OK)
            return status;
        pages += request->sources[i].count;
    }
    if (pages > HL_PLAN_BLOCKS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "%llu pages, at most %u", (unsigned long long)pages,
                       HL_PLAN_BLOCKS);
    *page_count = pages;
    return HL_OK;
}

static int compare_events(const void *a, const void *b)
{
    uintptr_t left = (uintptr_t) * (const hl_event *)a, right = (uintptr_t) * (const hl_event *)b;
    return (left > right) - (left < right);
}

/* Live and distinct, before a lease can be consumed (R9). */
static hl_status copy_events(hl_restore *restore, const hl_restore_request *request, hl_error *err)
{
    uint32_t layers = restore->binding->layout->layers;
    hl_device *dev = restore->binding->gpu->dev;
    if (!request->layer_events)
        return HL_OK;
    hl_event *sorted = malloc(layers * sizeof(hl_event));
    restore->layer_events = malloc(layers * sizeof(hl_event));
    hl_status status = sorted && restore->layer_events
                           ? hl_device_enter(dev, err)
                           : HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u events", layers);
    if (status != HL_OK)
        goto free;
    for (uint32_t i = 0; status == HL_OK && i < layers; i++) {
        sorted[i] = restore->layer_events[i] = (hl_event)request->layer_events[i];
        status = sorted[i] ? dev->ops->event_query(dev, sorted[i], err)
                           : HL_FAIL(err, HL_E_INVALID, stage, "layer_events[%u] is NULL", i);
        if (status == HL_PENDING)
            status = HL_OK;
    }
    hl_device_leave(dev);
    if (status == HL_OK)
        qsort(sorted, layers, sizeof(hl_event), compare_events);
    for (uint32_t i = 1; status == HL_OK && i < layers; i++)
        if (sorted[i] == sorted[i - 1])
            status = HL_FAIL(err, HL_E_INVALID, stage, "two of the layer_events are the same event");
free:
    free(sorted);
    return status;
}

static hl_restore *new_restore(hl_binding *binding, const hl_restore_request *request)
{
    hl_restore *restore = calloc(1, sizeof *restore);
    if (!restore)
        return NULL;
    restore->leases = calloc(request->source_count, sizeof(hl_lease *));
    if (!restore->leases) {
        free(restore);
        return NULL;
    }
    for (size_t i = 0; i < request->source_count; i++) {
        const hl_restore_source *source = &request->sources[i];
        restore->leases[i] = source->lease;
        restore->expected_bytes += source->count * binding->page_bytes[source->lease->group];
    }
    restore->lease_count = (uint32_t)request->source_count;
    restore->engine = binding->engine;
    restore->binding = binding;
    restore->worker = binding->gpu->worker;
    restore->events_owner = (struct engine_owner){request->events_owner, request->release_events};
    atomic_init(&restore->references, 2); /* the handle and the engine */
    engine_cond_init(&restore->changed);
    engine_hold(restore->engine);
    return restore;
}

void engine_restore_free(hl_restore *restore)
{
    hl_engine *engine = restore->engine;
    pthread_cond_destroy(&restore->changed);
    free(restore->layer_events);
    free(restore->leases);
    free(restore);
    engine_drop(engine);
}

/* The descriptor as the Manager will copy it. */
static hl_status describe(hl_restore *restore, const hl_restore_request *request, uint64_t page_count,
                          hl_error *err)
{
    hl_descriptors *descriptors = restore->engine->descriptors;
    size_t bytes = hl_wire_restore_bytes(page_count), next = 0;
    void *at = NULL;
    const uint32_t *pages = request->sources[0].pages;
    uint32_t *joined = NULL;
    struct hl_wire_restore head = {.binding = restore->binding->manager_id,
                                   .lease_count = restore->lease_count};
    if (restore->lease_count > 1) {
        pages = joined = malloc(page_count * sizeof *joined);
        if (!joined)
            return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %llu pages",
                           (unsigned long long)page_count);
    }
    for (uint32_t i = 0; i < restore->lease_count; i++) {
        const hl_restore_source *source = &request->sources[i];
        head.leases[i].lease = source->lease->id;
        head.leases[i].page_count = (uint32_t)source->count;
        if (joined)
            memcpy(joined + next, source->pages, source->count * sizeof *joined);
        next += source->count;
    }
    hl_status status = hl_descriptors_take(descriptors, (uint32_t)bytes, &restore->extent, &at, err);
    if (status == HL_OK) {
        status = hl_wire_restore_encode(&head, pages, page_count, at, bytes, err);
        if (status != HL_OK)
            hl_descriptors_give(descriptors, restore->extent);
    }
    free(joined);
    return status;
}

/* The lock is held. Leases, a record, and the counts that unregister and close wait for: all or nothing. */
static hl_status admit_locked(hl_restore *restore, hl_error *err)
{
    hl_engine *engine = restore->engine;
    if (engine->closing || restore->binding->closing)
        return HL_FAIL(err, HL_E_STATE, stage, "the binding is being unregistered");
    for (uint32_t i = 0; i < restore->lease_count; i++)
        if (restore->leases[i]->use != ENGINE_LEASE_IDLE)
            return HL_FAIL(err, HL_E_STATE, stage, "sources[%u].lease has been consumed", i);
    if (engine->free_count == 0)
        return HL_FAIL(err, HL_E_BUDGET, stage, "%u operations are pending", HL_GRANT_RECORDS);
    restore->record = engine->free_records[--engine->free_count];
    restore->generation = engine->generations[restore->record];
    for (uint32_t i = 0; i < restore->lease_count; i++)
        restore->leases[i]->use = ENGINE_LEASE_PENDING;
    restore->binding->operations++;
    engine->operations++;
    return HL_OK;
}

/* FREE → RESERVED is the engine's alone: when it fails, the peer has written where it must not. */
static hl_status reserve(hl_restore *restore, hl_error *err)
{
    hl_engine *engine = restore->engine;
    hl_error why = {0};
    pthread_mutex_lock(&engine->lock);
    hl_status status = HL_FAULT_CALL(engine_record_take, admit_locked(restore, err),
                                     HL_FAIL_ERRNO(err, HL_E_BUDGET, stage, errno, "no record can be had"));
    pthread_mutex_unlock(&engine->lock);
    if (status != HL_OK ||
        HL_FAULT_MOVE(grant_reserve, hl_grant_move(engine->grants, restore->record, restore->generation,
                                                   HL_GRANT_FREE, HL_GRANT_RESERVED)))
        return status;
    status = HL_FAIL(&why, HL_E_PROTOCOL, stage, "record %u was free and is not", restore->record);
    engine_lose(engine, &why);
    if (err)
        *err = why;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < restore->lease_count; i++)
        engine_lease_settle(restore->leases[i], false);
    restore->binding->operations--;
    engine->operations--;
    pthread_mutex_unlock(&engine->lock);
    return status;
}

/* From here on the Manager may act on it; the worker follows it to its end. `bytes` is cleared, so that no
 * earlier operation's outcome can be taken for this one's. */
static void announce(hl_restore *restore, bool trace)
{
    hl_engine *engine = restore->engine;
    struct hl_grant_record *record = hl_grant_record_at(engine->grants, restore->record);
    record->descriptor_offset = restore->extent.offset;
    record->descriptor_bytes = restore->extent.bytes;
    record->flags = trace ? HL_GRANT_TRACE : 0;
    record->bytes = 0;
    atomic_store_explicit(&record->cancel, 0, memory_order_relaxed);
    atomic_store_explicit(&record->consumed, 0, memory_order_relaxed);
    HL_FAULT_STORE(grant_submit,
                   atomic_store_explicit(&record->submitted, restore->generation, memory_order_release));
    hl_grant_mark(engine->grants, restore->record);
    engine_signal_manager(engine);
    if (trace)
        restore->stage_ns[HL_STAGE_DISPATCHED] = (uint64_t)(hl_clock_ns() - restore->start_ns);
    pthread_mutex_lock(&engine->lock);
    HL_FAULT_STORE(engine_follow, engine_worker_add(restore->worker, restore));
    pthread_mutex_unlock(&engine->lock);
}

static hl_status start(hl_binding *binding, const hl_restore_request *request, int64_t start_ns,
                       hl_restore **out, hl_error *err)
{
    uint64_t page_count = 0;
    hl_status status = check_request(binding, request, &page_count, err);
    if (status != HL_OK)
        return status;
    hl_restore *restore = new_restore(binding, request);
    if (!restore)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an operation");
    restore->start_ns = start_ns;
    status = copy_events(restore, request, err);
    if (status == HL_OK && request->has_ready_stream)
        status = engine_gpu_fence(binding->gpu, (hl_stream)request->ready_stream, &restore->ready_event, err);
    if (status != HL_OK)
        goto err_free;
    if (request->trace)
        restore->stage_ns[HL_STAGE_READY] = (uint64_t)(hl_clock_ns() - start_ns);
    status = describe(restore, request, page_count, err);
    if (status != HL_OK)
        goto err_event;
    status = reserve(restore, err);
    if (status != HL_OK)
        goto err_extent;
    /* The worker and the retirement thread may have finished it, but for the handle's reference. */
    announce(restore, request->trace);
    *out = restore;
    return HL_OK;

err_extent:
    hl_descriptors_give(restore->engine->descriptors, restore->extent);
err_event:
    engine_gpu_give_event(binding->gpu, restore->ready_event);
err_free:
    engine_restore_free(restore);
    return status;
}

hl_status hl_restore_start(hl_binding *binding, const hl_restore_request *request, hl_restore **restore,
                           hl_error *err)
{
    /* Without a trace no stage clock is read (O2). */
    int64_t start_ns = request && request->trace ? hl_clock_ns() : 0;
    hl_status status = engine_binding_enter(binding, err);
    if (status != HL_OK)
        return status;
    status = start(binding, request, start_ns, restore, err);
    engine_binding_leave(binding);
    return status;
}
