#include "core/device/software_internal.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hostlane/limits.h"

#define DEFAULT_MEMORY_BYTES (16 * HL_GIB)

/* The devices that the thread is inside, innermost last; ids, so that a device opened later at the address of
 * a closed one is not taken for it. */
#define NESTING 32
static _Thread_local struct {
    uint64_t ids[NESTING];
    unsigned depth;
} entered;

static hl_status enter(hl_device *dev, hl_error *err)
{
    if (entered.depth == NESTING)
        return HL_FAIL(err, HL_E_LIMIT, HL_SOFTWARE_STAGE, "this thread is already inside %d contexts",
                       NESTING);
    entered.ids[entered.depth++] = software(dev)->id;
    return HL_OK;
}

static void leave(hl_device *dev)
{
    assert(entered.depth > 0 && entered.ids[entered.depth - 1] == software(dev)->id);
    entered.depth--;
}

hl_status hl_software_check_entered(hl_device *dev, const char *operation, hl_error *err)
{
    if (entered.depth > 0 && entered.ids[entered.depth - 1] == software(dev)->id)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_STATE, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_CONTEXT,
                          "%s outside hl_device_enter: another context, or none, is current on this thread",
                          operation);
}

hl_status hl_software_status(int code)
{
    switch (code) {
    case SOFTWARE_INVALID_VALUE:
    case SOFTWARE_INVALID_HANDLE:
        return HL_E_INVALID;
    case SOFTWARE_OUT_OF_MEMORY:
        return HL_E_NOMEM;
    case SOFTWARE_ALREADY_REGISTERED:
        return HL_E_BUSY;
    case SOFTWARE_NOT_REGISTERED:
        return HL_E_NOT_FOUND;
    case SOFTWARE_NOT_SUPPORTED:
        return HL_E_UNSUPPORTED;
    default:
        return HL_E_DEVICE;
    }
}

static void free_all(struct software_device *dev)
{
    while (dev->null_stream.next) {
        struct hl_stream_handle *stream = dev->null_stream.next;
        dev->null_stream.next = stream->next;
        free(stream);
    }
    while (dev->events) {
        struct hl_event_handle *event = dev->events;
        dev->events = event->next;
        if (event->record)
            hl_software_drop_record(event->record);
        free(event);
    }
    for (size_t i = 0; i < dev->region_count; i++)
        hl_software_free_region(dev->regions[i]);
    free(dev->regions);
}

/* Drops what has not started, as the owner of the memory has gone, and frees what is left. */
static void close_device(hl_device *handle)
{
    struct software_device *dev = software(handle);
    hl_software_stop_stream(dev, &dev->null_stream);
    for (struct hl_stream_handle *stream = dev->null_stream.next; stream; stream = stream->next)
        hl_software_stop_stream(dev, stream);
    free_all(dev);
    pthread_cond_destroy(&dev->changed);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static const struct hl_device_ops ops = {
    .close = close_device,
    .enter = enter,
    .leave = leave,
    .memory_info = hl_software_memory_info,
    .mem_alloc = hl_software_mem_alloc,
    .mem_free = hl_software_mem_free,
    .fill = hl_software_fill,
    .host_register = hl_software_host_register,
    .host_register_read = hl_software_host_register_read,
    .host_unregister = hl_software_host_unregister,
    .host_pointer = hl_software_host_pointer,
    .ipc_export = hl_software_ipc_export,
    .ipc_import = hl_software_ipc_import,
    .ipc_close = hl_software_ipc_close,
    .stream_create = hl_software_stream_create,
    .stream_destroy = hl_software_stream_destroy,
    .stream_query = hl_software_stream_query,
    .stream_synchronize = hl_software_stream_synchronize,
    .stream_wait_event = hl_software_stream_wait_event,
    .stream_wait_value = hl_software_stream_wait_value,
    .stream_write_value = hl_software_stream_write_value,
    .event_create = hl_software_event_create,
    .event_destroy = hl_software_event_destroy,
    .event_record = hl_software_event_record,
    .event_query = hl_software_event_query,
    .event_synchronize = hl_software_event_synchronize,
    .event_elapsed = hl_software_event_elapsed,
    .copy = hl_software_copy,
    .copy_rows = hl_software_copy_rows,
    .copy_batch = hl_software_copy_batch,
    .gather = hl_software_gather,
    .checksum = hl_software_checksum,
};

static uint64_t next_id(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

hl_status hl_device_open_software_with(const struct hl_software_options *options, hl_device **out,
                                       hl_error *err)
{
    struct software_device *dev = HL_FAULT_CALL(device_open, calloc(1, sizeof *dev), NULL);
    if (!dev)
        return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a device");
    dev->id = next_id();
    dev->options = *options;
    if (!dev->options.memory_bytes)
        dev->options.memory_bytes = DEFAULT_MEMORY_BYTES;
    dev->head.ops = HL_SOFTWARE_STEPS(&ops);
    dev->head.info = (struct hl_device_info){.kind = HL_DEVICE_SOFTWARE,
                                             .name = "software device",
                                             .numa_node = -1,
                                             .memory_bytes = dev->options.memory_bytes,
                                             .read_only_registration = !options->no_read_only_registration};
    memcpy(dev->head.info.uuid, "hostlane software", sizeof dev->head.info.uuid);
    hl_random_seed(&dev->random, options->seed);
    pthread_mutex_init(&dev->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&dev->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hl_software_init_stream(dev, &dev->null_stream);
    *out = &dev->head;
    return HL_OK;
}

hl_status hl_device_open_software(hl_device **dev, hl_error *err)
{
    const struct hl_software_options options = {0};
    return hl_device_open_software_with(&options, dev, err);
}
