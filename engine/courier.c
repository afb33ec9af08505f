/* The courier: control messages that no caller waits for. It announces publishes once their producer streams
 * have reached the fence, in the order in which they get there, and gives back leases whose operation was
 * refused after their user had let go of them. */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

/* How often it asks the device about fences: the device wakes nobody. */
#define FENCE_POLL_NS 200000ll

static hl_status query_fence(const hl_publish *publish, hl_error *err)
{
    hl_device *dev = publish->binding->gpu->dev;
    if (!publish->fence)
        return HL_OK;
    hl_status status = hl_device_enter(dev, err);
    if (status != HL_OK)
        return status;
    status = dev->ops->event_query(dev, publish->fence, err);
    hl_device_leave(dev);
    return status;
}

/* Sends PUBLISH. From the moment that the slot is PENDING and the message may have been read, only the slot
 * or the Manager's death ends it: pages must not be given back while somebody may still read them. */
static void announce(hl_publish *publish, hl_error *error)
{
    hl_engine *engine = publish->engine;
    struct hl_publish_slot *slot = hl_descriptors_slot(engine->descriptors, publish->message.slot);
    struct hl_packet packet;
    bool sent = false;
    HL_FAULT_STORE(channel_slot_pending,
                   atomic_store_explicit(&slot->state, HL_PUBLISH_PENDING, memory_order_release));
    hl_status status = engine_request(engine, &publish->message, HL_MESSAGE_DONE, engine->tuning.reply_ns,
                                      &packet, &sent, error);
    if (status == HL_OK)
        hl_packet_close_fds(&packet);
    if (status != HL_OK && !sent) {
        HL_FAULT_STORE(channel_slot_withdraw,
                       atomic_store_explicit(&slot->state, HL_PUBLISH_IDLE, memory_order_release));
        return;
    }
    *error = (hl_error){0};
}

/* The fence has been passed, or has failed with `error`; the publish is out of the list. */
static void go_on(hl_publish *publish, hl_error *error)
{
    hl_engine *engine = publish->engine;
    engine_gpu_give_event(publish->binding->gpu, publish->fence);
    publish->fence = NULL;
    struct hl_extent extent = publish->message.blocks;
    if (error->status == HL_OK)
        announce(publish, error);
    hl_descriptors_give(engine->descriptors, extent);
    if (error->status != HL_OK) {
        engine_publish_fail(publish, error);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    publish->state = ENGINE_PUBLISH_SENT;
    pthread_mutex_unlock(&engine->lock);
    engine_signal(engine->retire_wake); /* it may have finished already */
}

/* Takes the first publish whose fence is no longer pending out of the list; NULL when there is none. Only
 * this thread takes out, so that what it has seen stays in place while it asks the device. */
static hl_publish *take_ready(hl_engine *engine, bool *waiting, hl_error *error)
{
    *waiting = false;
    pthread_mutex_lock(&engine->lock);
    hl_publish *publish = engine->fenced;
    pthread_mutex_unlock(&engine->lock);
    while (publish) {
        *error = (hl_error){0};
        bool lost = engine_check_peer(engine, error) != HL_OK;
        if (lost || query_fence(publish, error) != HL_PENDING)
            break;
        *waiting = true;
        pthread_mutex_lock(&engine->lock);
        publish = publish->next;
        pthread_mutex_unlock(&engine->lock);
    }
    if (!publish)
        return NULL;
    pthread_mutex_lock(&engine->lock);
    hl_publish **link = &engine->fenced;
    while (*link != publish)
        link = &(*link)->next;
    *link = publish->next;
    pthread_mutex_unlock(&engine->lock);
    return publish;
}

static bool give_back_a_lease(hl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    hl_lease *lease = engine->returning;
    if (lease)
        engine->returning = lease->next_return;
    pthread_mutex_unlock(&engine->lock);
    if (lease)
        engine_lease_give_back(lease);
    return lease != NULL;
}

static void *deliver(void *argument)
{
    hl_engine *engine = argument;
    struct pollfd wake = {.fd = engine->courier_wake, .events = POLLIN};
    const struct timespec tick = {.tv_nsec = FENCE_POLL_NS};
    pthread_setname_np(pthread_self(), "hl-courier");
    for (;;) {
        hl_error error;
        bool waiting, stop;
        hl_publish *publish;
        while ((publish = take_ready(engine, &waiting, &error)) != NULL)
            go_on(publish, &error);
        while (give_back_a_lease(engine))
            continue;
        pthread_mutex_lock(&engine->lock);
        stop = engine->courier_stop && !engine->fenced && !engine->returning;
        pthread_mutex_unlock(&engine->lock);
        if (stop)
            return NULL;
        if (ppoll(&wake, 1, waiting ? &tick : NULL, NULL) > 0)
            engine_quiet(engine->courier_wake);
    }
}

hl_status engine_courier_start(hl_engine *engine, hl_error *err)
{
    int failed =
        HL_FAULT_CALL(engine_courier_start, pthread_create(&engine->courier, NULL, deliver, engine), errno);
    if (failed)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, "engine.courier", failed, "cannot start the courier");
    return HL_OK;
}

void engine_courier_stop(hl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->courier_stop = true;
    pthread_mutex_unlock(&engine->lock);
    engine_signal(engine->courier_wake);
    pthread_join(engine->courier, NULL);
}
