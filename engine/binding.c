/* Registering an instance's tensors, and ending that. */
#include <assert.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.register";

hl_status engine_binding_enter(hl_binding *binding, hl_error *err)
{
    hl_engine *engine = binding->engine;
    hl_status status = engine_check_peer(engine, err);
    if (status != HL_OK)
        return status;
    pthread_mutex_lock(&engine->lock);
    if (engine->closing || binding->closing)
        status = HL_FAIL(err, HL_E_STATE, "engine.binding", "the binding is being unregistered");
    else
        binding->users++;
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void engine_binding_leave(hl_binding *binding)
{
    hl_engine *engine = binding->engine;
    pthread_mutex_lock(&engine->lock);
    assert(binding->users > 0);
    binding->users--;
    if (binding->closing)
        pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

/* `registering` is held: nobody adds a binding meanwhile. */
static hl_status check_admission(hl_engine *engine, const hl_context_batch *batch, hl_error *err)
{
    hl_status status = HL_OK;
    uint32_t count = 0;
    pthread_mutex_lock(&engine->lock);
    if (engine->closing)
        status = HL_FAIL(err, HL_E_STATE, stage, "the engine is being closed");
    for (hl_binding *other = engine->bindings; status == HL_OK && other; other = other->next) {
        count++;
        if (!other->gpu)
            continue; /* only its owners' callbacks are left to run */
        bool same_device = batch->device ? other->gpu->dev == batch->device
                                         : other->gpu->owned && other->gpu->ordinal == batch->cuda_ordinal;
        if (same_device && other->rank == batch->rank && !strcmp(other->instance, batch->instance))
            status = HL_FAIL(err, HL_E_BUSY, stage, "instance %s rank %u is registered for this device",
                             batch->instance, batch->rank);
    }
    if (status == HL_OK && count >= HL_SESSION_BINDINGS)
        status = HL_FAIL(err, HL_E_LIMIT, stage, "a session has at most %u bindings", HL_SESSION_BINDINGS);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

static hl_status open_transfer(hl_binding *binding, const hl_context_batch *batch, enum hl_route route,
                               hl_error *err)
{
    struct hl_tensor_binding tensors[HL_LAYOUT_TENSORS];
    hl_registration *registrations[HL_ARENA_IMPORTS];
    for (uint32_t i = 0; i < binding->layout->tensor_count; i++)
        tensors[i] = (struct hl_tensor_binding){batch->tensors[i].device_ptr, batch->tensors[i].bytes};
    for (uint32_t i = 0; i < binding->arena_count; i++)
        registrations[i] = binding->arenas[i]->registration;
    struct hl_transfer_options options = {.dev = binding->gpu->dev,
                                          .tensors = tensors,
                                          .tensor_count = binding->layout->tensor_count,
                                          .registrations = registrations,
                                          .registration_count = binding->arena_count,
                                          .layers = binding->layout->layers,
                                          .route = route,
                                          .sm_cap = batch->sm_cap,
                                          .calibrate = route == HL_ROUTE_AUTO &&
                                                       binding->gpu->dev->info.kind == HL_DEVICE_CUDA};
    return HL_FAULT_CALL(engine_transfer_open, hl_transfer_open(&options, &binding->transfer, err),
                         HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "cannot open an executor"));
}

/* The Manager forgets the binding; what cannot be told is lost with the session. */
static hl_status tell_unregister(hl_binding *binding, hl_error *err)
{
    hl_engine *engine = binding->engine;
    struct hl_unregister message = {.binding = binding->manager_id};
    struct hl_packet packet;
    hl_message_head(&message, HL_MESSAGE_UNREGISTER, 0);
    hl_status status =
        engine_request(engine, &message, HL_MESSAGE_DONE, engine->tuning.reply_ns, &packet, NULL, err);
    if (status == HL_OK)
        hl_packet_close_fds(&packet);
    return status;
}

/* From the description to an executor that may be used. */
static hl_status introduce(hl_binding *binding, const hl_context_batch *batch, enum hl_route route,
                           hl_error *err)
{
    hl_engine *engine = binding->engine;
    struct hl_register message = {0};
    struct hl_packet packet;
    hl_status status = engine_binding_describe(binding, batch, &message.extent, err);
    if (status != HL_OK)
        return status;
    hl_message_head(&message, HL_MESSAGE_REGISTER, 0);
    status = engine_request(engine, &message, HL_MESSAGE_REGISTERED, engine->tuning.register_ns, &packet,
                            NULL, err);
    hl_descriptors_give(engine->descriptors, message.extent);
    if (status != HL_OK)
        return status;
    const struct hl_registered *reply = (const struct hl_registered *)(const void *)packet.bytes;
    binding->manager_id = reply->binding;
    status = engine_arenas_take(binding, reply, &packet, err);
    hl_packet_close_fds(&packet);
    if (status != HL_OK)
        goto err_tell;
    status = open_transfer(binding, batch, route, err);
    if (status != HL_OK)
        goto err_arenas;
    return HL_OK;

err_arenas:
    engine_arenas_give(binding);
err_tell:
    tell_unregister(binding, NULL);
    return status;
}

static hl_status register_locked(hl_engine *engine, const hl_context_batch *batch, enum hl_route route,
                                 hl_binding **out, hl_error *err)
{
    hl_binding *binding = NULL;
    hl_status status = check_admission(engine, batch, err);
    if (status == HL_OK)
        status = engine_check_peer(engine, err);
    if (status == HL_OK)
        status = engine_binding_new(engine, batch, &binding, err);
    if (status != HL_OK)
        return status;
    status = engine_gpu_take(engine, batch->device, batch->cuda_ordinal, &binding->gpu, err);
    if (status != HL_OK)
        goto err_free;
    status = introduce(binding, batch, route, err);
    if (status != HL_OK)
        goto err_gpu;
    pthread_mutex_lock(&engine->lock);
    binding->serial = ++engine->next_serial;
    binding->next = engine->bindings;
    HL_FAULT_STORE(engine_binding_list, engine->bindings = binding);
    pthread_mutex_unlock(&engine->lock);
    *out = binding;
    return HL_OK;

err_gpu:
    engine_gpu_give(binding->gpu);
err_free:
    engine_binding_free(binding);
    return status;
}

hl_status hl_engine_register(hl_engine *engine, const hl_context_batch *batch, hl_binding **binding,
                             hl_error *err)
{
    enum hl_route route;
    hl_status status = engine_batch_check(batch, &route, err);
    if (status != HL_OK)
        return status;
    pthread_mutex_lock(&engine->registering);
    status = register_locked(engine, batch, route, binding, err);
    pthread_mutex_unlock(&engine->registering);
    return status;
}

hl_status hl_engine_unregister(hl_binding *binding, hl_error *err)
{
    if (!binding)
        return HL_OK;
    hl_engine *engine = binding->engine;
    pthread_mutex_lock(&engine->lock);
    if (binding->closing) {
        pthread_mutex_unlock(&engine->lock);
        return HL_FAIL(err, HL_E_STATE, "engine.unregister", "the binding is being unregistered already");
    }
    binding->closing = true;
    while (binding->users > 0 || binding->operations > 0 || binding->publishes > 0)
        engine_cond_wait(&engine->changed, &engine->lock, -1);
    pthread_mutex_unlock(&engine->lock);

    hl_status status = tell_unregister(binding, err);
    pthread_mutex_lock(&engine->registering);
    HL_FAULT_STORE(engine_unregister, {
        hl_transfer_close(binding->transfer);
        engine_arenas_give(binding);
        engine_gpu_give(binding->gpu);
    });
    pthread_mutex_lock(&engine->lock);
    binding->gpu = NULL;
    pthread_mutex_unlock(&engine->lock);
    pthread_mutex_unlock(&engine->registering);
    engine_release_owners(engine, binding->owners, binding->owner_count);
    pthread_mutex_lock(&engine->lock);
    hl_binding **link = &engine->bindings;
    while (*link != binding)
        link = &(*link)->next;
    *link = binding->next;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    engine_binding_free(binding);
    return status;
}
