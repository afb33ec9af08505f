/* The GPUs that bindings use: one device, one worker and one pool of events each. */
#include <assert.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"

static struct engine_gpu *find_gpu(hl_engine *engine, const hl_device *dev, int ordinal)
{
    struct engine_gpu *gpu = engine->gpus;
    while (gpu && (dev ? gpu->dev != dev : !gpu->owned || gpu->ordinal != ordinal))
        gpu = gpu->next;
    return gpu;
}

/* Where engine_lose() finds it. A GPU has a binding, so there is room. */
static void list_worker(hl_engine *engine, struct engine_worker *from, struct engine_worker *to)
{
    uint32_t i = 0;
    pthread_mutex_lock(&engine->lock);
    while (engine->workers[i] != from)
        i++;
    assert(i < HL_SESSION_BINDINGS);
    engine->workers[i] = to;
    pthread_mutex_unlock(&engine->lock);
}

hl_status engine_gpu_take(hl_engine *engine, hl_device *dev, int ordinal, struct engine_gpu **out,
                          hl_error *err)
{
    struct engine_gpu *gpu = find_gpu(engine, dev, ordinal);
    if (gpu) {
        gpu->references++;
        *out = gpu;
        return HL_OK;
    }
    gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return HL_FAIL(err, HL_E_NOMEM, "engine.register", "no memory for a GPU");
    *gpu =
        (struct engine_gpu){.engine = engine, .dev = dev, .owned = !dev, .ordinal = ordinal, .references = 1};
    hl_status status = gpu->owned ? hl_device_open_cuda(ordinal, &gpu->dev, err) : HL_OK;
    if (status != HL_OK)
        goto err_free;
    status = engine_worker_start(engine, gpu->dev, &gpu->worker, err);
    if (status != HL_OK)
        goto err_device;
    list_worker(engine, NULL, gpu->worker);
    gpu->next = engine->gpus;
    engine->gpus = gpu;
    *out = gpu;
    return HL_OK;

err_device:
    if (gpu->owned)
        hl_device_close(gpu->dev);
err_free:
    free(gpu);
    return status;
}

void engine_gpu_give(struct engine_gpu *gpu)
{
    if (--gpu->references > 0)
        return;
    assert(!gpu->arenas && gpu->idle_count == gpu->event_count);
    struct engine_gpu **link = &gpu->engine->gpus;
    while (*link != gpu)
        link = &(*link)->next;
    *link = gpu->next;
    list_worker(gpu->engine, gpu->worker, NULL);
    engine_worker_stop(gpu->worker);
    if (gpu->event_count > 0 && hl_device_enter(gpu->dev, NULL) == HL_OK) {
        for (size_t i = 0; i < gpu->event_count; i++)
            gpu->dev->ops->event_destroy(gpu->dev, gpu->idle_events[i], NULL);
        hl_device_leave(gpu->dev);
    }
    if (gpu->owned)
        hl_device_close(gpu->dev);
    free(gpu->idle_events);
    free(gpu);
}

/* The device has been entered. Room for its return is made before an event exists. */
static hl_status take_event(struct engine_gpu *gpu, hl_event *event, hl_error *err)
{
    hl_engine *engine = gpu->engine;
    hl_status status = HL_OK;
    pthread_mutex_lock(&engine->lock);
    if (gpu->idle_count > 0) {
        *event = gpu->idle_events[--gpu->idle_count];
    } else {
        hl_event *larger = reallocarray(gpu->idle_events, gpu->event_count + 1, sizeof(hl_event));
        if (larger)
            gpu->idle_events = larger;
        status = larger ? gpu->dev->ops->event_create(gpu->dev, 0, event, err)
                        : HL_FAIL(err, HL_E_NOMEM, "engine.fence", "no memory for an event");
        if (status == HL_OK)
            gpu->event_count++;
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void engine_gpu_give_event(struct engine_gpu *gpu, hl_event event)
{
    if (!event)
        return;
    pthread_mutex_lock(&gpu->engine->lock);
    assert(gpu->idle_count < gpu->event_count);
    gpu->idle_events[gpu->idle_count++] = event;
    pthread_mutex_unlock(&gpu->engine->lock);
}

/* Each caller gets an event of its own: one that were recorded again before an earlier operation has taken it
 * up would make that one wait for the wrong stream. */
hl_status engine_gpu_fence(struct engine_gpu *gpu, hl_stream stream, hl_event *out, hl_error *err)
{
    hl_device *dev = gpu->dev;
    hl_event event = NULL;
    hl_status status = hl_device_enter(dev, err);
    if (status != HL_OK)
        return status;
    status = dev->ops->stream_query(dev, stream, err);
    if (status == HL_PENDING) {
        status = take_event(gpu, &event, err);
        if (status == HL_OK)
            status = dev->ops->event_record(dev, event, stream, err);
        if (status != HL_OK) {
            engine_gpu_give_event(gpu, event);
            event = NULL;
        }
    }
    hl_device_leave(dev);
    if (status == HL_OK)
        *out = event;
    return status;
}
