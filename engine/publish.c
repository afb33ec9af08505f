/* Publishing: the caller hands blocks over, the courier announces them once their producer has finished, the
 * Manager's worker reads the pages, and the slot in descriptor memory says what came of it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.publish";

static hl_status check_request(const hl_binding *binding, const hl_publish_request *request, hl_error *err)
{
    if (!request || request->size != sizeof *request)
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, hl_publish_request_init() sets %zu",
                       request ? request->size : 0, sizeof *request);
    if (!request->keys || !request->pages || request->count == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "there are no %s", request->keys ? "pages" : "keys");
    if (request->count > HL_PUBLISH_BLOCKS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "count is %zu, at most %u", request->count, HL_PUBLISH_BLOCKS);
    if (request->group >= binding->layout->group_count)
        return HL_FAIL(err, HL_E_RANGE, stage, "group is %u, the layout has %u", request->group,
                       binding->layout->group_count);
    uint32_t pages = binding->layout->groups[request->group].pages;
    for (size_t i = 0; i < request->count; i++)
        if (request->pages[i] >= pages)
            return HL_FAIL(err, HL_E_RANGE, stage, "pages[%zu] is %u, the group has %u", i, request->pages[i],
                           pages);
    return HL_OK;
}

static void drop_publish(hl_publish *publish)
{
    hl_engine *engine = publish->engine;
    if (atomic_fetch_sub(&publish->references, 1) != 1)
        return;
    pthread_cond_destroy(&publish->changed);
    free(publish);
    engine_drop(engine);
}

static hl_status describe(hl_publish *publish, const hl_publish_request *request, hl_error *err)
{
    struct hl_publish_block *blocks;
    void *at = NULL;
    size_t bytes = request->count * sizeof *blocks;
    hl_status status = hl_descriptors_take(publish->engine->descriptors, (uint32_t)bytes,
                                           &publish->message.blocks, &at, err);
    if (status != HL_OK)
        return status;
    blocks = at;
    for (size_t i = 0; i < request->count; i++) {
        memcpy(blocks[i].key, request->keys[i].hash, HL_KEY_BYTES);
        blocks[i].page = request->pages[i];
        blocks[i].zero = 0;
    }
    return HL_OK;
}

static hl_status admit(hl_publish *publish, hl_error *err)
{
    hl_engine *engine = publish->engine;
    hl_status status = HL_OK;
    uint32_t slot = 0;
    pthread_mutex_lock(&engine->lock);
    while (slot < HL_PUBLISH_SLOTS && engine->slots[slot])
        slot++;
    if (engine->closing || publish->binding->closing) {
        status = HL_FAIL(err, HL_E_STATE, stage, "the binding is being unregistered");
    } else if (slot == HL_PUBLISH_SLOTS) {
        status = HL_FAIL(err, HL_E_BUDGET, stage, "%u publishes are pending", HL_PUBLISH_SLOTS);
    } else {
        hl_publish **tail = &engine->fenced;
        while (*tail)
            tail = &(*tail)->next;
        *tail = publish;
        publish->message.slot = slot;
        engine->slots[slot] = publish;
        publish->binding->publishes++;
        engine->publishes++;
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

static hl_status start(hl_binding *binding, const hl_publish_request *request, hl_publish **out,
                       hl_error *err)
{
    hl_status status = check_request(binding, request, err);
    if (status != HL_OK)
        return status;
    hl_publish *publish = calloc(1, sizeof *publish);
    if (!publish)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a publish");
    atomic_init(&publish->references, 2); /* the handle and the engine */
    publish->engine = binding->engine;
    publish->binding = binding;
    publish->message = (struct hl_publish_message){
        .binding = binding->manager_id, .group = request->group, .block_count = (uint32_t)request->count};
    hl_message_head(&publish->message, HL_MESSAGE_PUBLISH, 0);
    engine_cond_init(&publish->changed);
    if (request->has_producer_stream)
        status = engine_gpu_fence(binding->gpu, (hl_stream)request->producer_stream, &publish->fence, err);
    if (status != HL_OK)
        goto err_free;
    status = describe(publish, request, err);
    if (status != HL_OK)
        goto err_event;
    engine_hold(binding->engine);
    status = HL_FAULT_CALL(engine_publish_admit, admit(publish, err),
                           HL_FAIL_ERRNO(err, HL_E_BUDGET, stage, errno, "no publish slot can be had"));
    if (status != HL_OK)
        goto err_extent;
    engine_signal(binding->engine->courier_wake);
    *out = publish;
    return HL_OK;

err_extent:
    engine_drop(binding->engine);
    hl_descriptors_give(publish->engine->descriptors, publish->message.blocks);
err_event:
    engine_gpu_give_event(binding->gpu, publish->fence);
err_free:
    pthread_cond_destroy(&publish->changed);
    free(publish);
    return status;
}

hl_status hl_publish_start(hl_binding *binding, const hl_publish_request *request, hl_publish **publish,
                           hl_error *err)
{
    hl_status status = engine_binding_enter(binding, err);
    if (status != HL_OK)
        return status;
    status = start(binding, request, publish, err);
    engine_binding_leave(binding);
    return status;
}

/* The lock is held, and the publish is out of its slot's table and of the fenced list. */
static void finish_locked(hl_publish *publish, const hl_publish_result *result, const hl_error *error)
{
    hl_engine *engine = publish->engine;
    hl_binding *binding = publish->binding;
    assert(engine->slots[publish->message.slot] == publish);
    engine->slots[publish->message.slot] = NULL;
    publish->result = *result;
    publish->error = *error;
    HL_FAULT_STORE(engine_publish_settle, publish->state = ENGINE_PUBLISH_FINISHED);
    pthread_cond_broadcast(&publish->changed);
    binding->publishes--;
    engine->publishes--;
    if (binding->closing)
        pthread_cond_broadcast(&engine->changed);
    engine_completed(engine);
}

void engine_publish_fail(hl_publish *publish, const hl_error *error)
{
    hl_engine *engine = publish->engine;
    hl_publish_result nothing = {0};
    pthread_mutex_lock(&engine->lock);
    finish_locked(publish, &nothing, error);
    pthread_mutex_unlock(&engine->lock);
    drop_publish(publish);
}

/* What the slot says, as far as it can be true. */
static void read_slot(const hl_publish *publish, struct hl_publish_slot *slot, hl_publish_result *result,
                      hl_error *error)
{
    char text[HL_GRANT_TEXT_BYTES];
    int32_t status = slot->status;
    uint64_t stored = slot->stored, present = slot->present;
    memcpy(text, slot->text, sizeof text);
    text[sizeof text - 1] = '\0';
    *error = (hl_error){0};
    *result = (hl_publish_result){.stored = stored, .present = present, .bytes = slot->bytes};
    if (stored + present > publish->message.block_count || status > 0 ||
        strcmp(hl_status_name((hl_status)status), "unknown") == 0) {
        *result = (hl_publish_result){0};
        hl_error_set(error, HL_E_PROTOCOL, stage, 0, 0,
                     "the Manager reports status %d, %llu stored and %llu present of %u blocks", (int)status,
                     (unsigned long long)stored, (unsigned long long)present, publish->message.block_count);
    } else if (status != HL_OK) {
        hl_error_set(error, (hl_status)status, "engine.manager", 0, 0, "%s",
                     text[0] ? text : hl_status_text((hl_status)status));
    }
}

void engine_publish_collect(hl_engine *engine, uint32_t index, const hl_error *failure)
{
    struct hl_publish_slot *slot = hl_descriptors_slot(engine->descriptors, index);
    hl_publish_result result = {0};
    hl_error error = {0};
    pthread_mutex_lock(&engine->lock);
    hl_publish *publish = engine->slots[index];
    bool finished = publish && publish->state == ENGINE_PUBLISH_SENT;
    if (finished && atomic_load_explicit(&slot->state, memory_order_acquire) == HL_PUBLISH_FINISHED) {
        read_slot(publish, slot, &result, &error);
        HL_FAULT_STORE(channel_slot_read,
                       atomic_store_explicit(&slot->state, HL_PUBLISH_IDLE, memory_order_release));
    } else if (finished && failure) {
        error = *failure;
    } else {
        finished = false;
    }
    if (finished)
        finish_locked(publish, &result, &error);
    pthread_mutex_unlock(&engine->lock);
    if (finished)
        drop_publish(publish);
}

static hl_status report(const hl_publish *publish, hl_publish_result *result, hl_error *err)
{
    if (result)
        *result = publish->result;
    if (publish->error.status != HL_OK && err)
        *err = publish->error;
    return publish->error.status;
}

hl_status hl_publish_poll(hl_publish *publish, hl_publish_result *result, hl_error *err)
{
    pthread_mutex_lock(&publish->engine->lock);
    bool finished = publish->state == ENGINE_PUBLISH_FINISHED;
    pthread_mutex_unlock(&publish->engine->lock);
    return finished ? report(publish, result, err) : HL_PENDING;
}

hl_status hl_publish_wait(hl_publish *publish, int64_t timeout_ns, hl_publish_result *result, hl_error *err)
{
    int64_t deadline = engine_deadline(timeout_ns);
    bool waiting = true;
    pthread_mutex_lock(&publish->engine->lock);
    while (publish->state != ENGINE_PUBLISH_FINISHED && waiting)
        waiting = engine_cond_wait(&publish->changed, &publish->engine->lock, deadline);
    bool finished = publish->state == ENGINE_PUBLISH_FINISHED;
    pthread_mutex_unlock(&publish->engine->lock);
    if (!finished)
        return HL_FAIL(err, HL_E_TIMEOUT, "engine.wait", "the publish has not finished yet");
    return report(publish, result, err);
}

void hl_publish_close(hl_publish *publish)
{
    if (publish)
        drop_publish(publish);
}
