/* The test controls of software.h. */
#include <assert.h>

#include "core/device/software_internal.h"

/* Lock held. A test that names a stream that is not there is wrong. */
static struct hl_stream_handle *named_stream(struct software_device *dev, hl_stream handle)
{
    struct hl_stream_handle *stream = hl_software_find_stream(dev, handle);
    assert(stream);
    return stream;
}

void hl_software_hold(hl_device *handle, hl_stream stream_handle, uint64_t nth)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    struct hl_stream_handle *stream = named_stream(dev, stream_handle);
    stream->held = true;
    stream->hold_sequence = nth ? stream->submitted + nth : 0;
    pthread_cond_broadcast(&dev->changed);
    pthread_mutex_unlock(&dev->lock);
}

void hl_software_release(hl_device *handle, hl_stream stream_handle)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    struct hl_stream_handle *stream = named_stream(dev, stream_handle);
    stream->held = false;
    pthread_cond_signal(&stream->wake);
    pthread_cond_broadcast(&dev->changed);
    pthread_mutex_unlock(&dev->lock);
}

/* Everything before the hold has finished, whether or not the next operation is there yet. */
static bool stands_at_hold(struct software_device *dev, const void *arg)
{
    (void)dev;
    const struct hl_stream_handle *stream = arg;
    return stream->held && !stream->running && stream->completed + 1 >= stream->hold_sequence;
}

void hl_software_wait_held(hl_device *handle, hl_stream stream)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    hl_software_await(dev, stands_at_hold, named_stream(dev, stream));
    pthread_mutex_unlock(&dev->lock);
}

static bool is_settled(struct software_device *dev, const void *arg)
{
    return !hl_software_can_go_on(dev, arg);
}

void hl_software_wait_settled(hl_device *handle, hl_stream stream)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    hl_software_await(dev, is_settled, named_stream(dev, stream));
    pthread_mutex_unlock(&dev->lock);
}

static void arm(struct software_device *dev, uint64_t *countdown, int *armed_code, uint64_t nth, int code)
{
    assert(!nth || code);
    pthread_mutex_lock(&dev->lock);
    *countdown = nth;
    *armed_code = code;
    pthread_mutex_unlock(&dev->lock);
}

void hl_software_fail_submit(hl_device *handle, uint64_t nth, int device_code)
{
    struct software_device *dev = software(handle);
    arm(dev, &dev->fail_submit, &dev->fail_submit_code, nth, device_code);
}

void hl_software_fail_execution(hl_device *handle, uint64_t nth, int device_code)
{
    struct software_device *dev = software(handle);
    arm(dev, &dev->fail_execution, &dev->fail_execution_code, nth, device_code);
}

void hl_software_fail_register(hl_device *handle, uint64_t nth, int device_code)
{
    struct software_device *dev = software(handle);
    arm(dev, &dev->fail_register, &dev->fail_register_code, nth, device_code);
}

unsigned hl_software_step(hl_device *handle, int choice)
{
    struct software_device *dev = software(handle);
    assert(dev->options.single_step);
    pthread_mutex_lock(&dev->lock);
    unsigned runnable = hl_software_step_locked(dev, choice);
    pthread_mutex_unlock(&dev->lock);
    return runnable;
}

void hl_software_counts(hl_device *handle, struct hl_software_counts *counts)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    *counts = dev->counts;
    pthread_mutex_unlock(&dev->lock);
}

void hl_software_peek(hl_device *handle, void *host, hl_devptr src, size_t bytes)
{
    bool is_device = hl_software_access_now(software(handle), src, host, bytes, false);
    assert(is_device);
}

void hl_software_poke(hl_device *handle, hl_devptr dst, const void *host, size_t bytes)
{
    bool is_device = hl_software_access_now(software(handle), dst, (void *)(uintptr_t)host, bytes, true);
    assert(is_device);
}
