/* Events. Each record makes a fresh software_record, which waits and queries bind to, so that recording an
 * event again disturbs nobody who waits for the earlier record. */
#include <stdlib.h>

#include "core/device/software_internal.h"

void hl_software_drop_record(struct software_record *record)
{
    if (--record->references == 0)
        free(record);
}

/* Lock held. */
static struct hl_event_handle *find_event(struct software_device *dev, hl_event handle)
{
    struct hl_event_handle *event = dev->events;
    while (event && event != handle)
        event = event->next;
    return event;
}

static hl_status refuse_handle(hl_error *err)
{
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE,
                          "event: not a live event of this device");
}

hl_status hl_software_event_create(hl_device *handle, unsigned flags, hl_event *out, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "event_create", err);
    if (status)
        return status;
    if (flags & ~(unsigned)HL_EVENT_TIMING)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE, "flags: %#x",
                              flags);
    struct hl_event_handle *event = calloc(1, sizeof *event);
    if (!event)
        return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for an event");
    event->flags = flags;
    pthread_mutex_lock(&dev->lock);
    event->next = dev->events;
    dev->events = event;
    dev->counts.events++;
    pthread_mutex_unlock(&dev->lock);
    *out = event;
    return HL_OK;
}

hl_status hl_software_event_destroy(hl_device *handle, hl_event event, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "event_destroy", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    struct hl_event_handle **link = &dev->events;
    while (*link && *link != event)
        link = &(*link)->next;
    if (*link) {
        *link = event->next;
        if (event->record)
            hl_software_drop_record(event->record);
        free(event);
        dev->counts.events--;
    } else {
        status = refuse_handle(err);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

/* Makes the new record the event's latest. Taken together with the submission it might be queued after
 * another thread's record of the same event; CUDA gives no order there either. */
static hl_status bind_record(struct software_device *dev, hl_event handle, struct software_record *record,
                             hl_error *err)
{
    hl_status status = HL_OK;
    pthread_mutex_lock(&dev->lock);
    struct hl_event_handle *event = find_event(dev, handle);
    if (event) {
        if (event->record)
            hl_software_drop_record(event->record);
        event->record = record;
    } else {
        hl_software_drop_record(record);
        status = refuse_handle(err);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_event_record(hl_device *handle, hl_event event, hl_stream stream, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "event_record", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    bool live = find_event(dev, event) != NULL;
    pthread_mutex_unlock(&dev->lock);
    if (!live)
        return refuse_handle(err);
    struct software_record *record = calloc(1, sizeof *record);
    struct software_task *task = record ? hl_software_new_task(TASK_RECORD, 0, err) : NULL;
    if (!task) {
        free(record);
        return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a record");
    }
    record->references = 2; /* the event's and the task's */
    task->record = record;
    status = hl_software_submit(handle, stream, task, NULL, err);
    if (status) {
        pthread_mutex_lock(&dev->lock);
        hl_software_drop_record(record);
        pthread_mutex_unlock(&dev->lock);
        return status;
    }
    return bind_record(dev, event, record, err);
}

/* A reference to the event's latest record in *record, NULL when it was never recorded. */
static hl_status take_record(struct software_device *dev, hl_event handle, struct software_record **record,
                             hl_error *err)
{
    hl_status status = HL_OK;
    pthread_mutex_lock(&dev->lock);
    struct hl_event_handle *event = find_event(dev, handle);
    if (!event) {
        status = refuse_handle(err);
    } else {
        *record = event->record;
        if (event->record)
            event->record->references++;
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

static bool is_done(struct software_device *dev, const void *arg)
{
    (void)dev;
    return ((const struct software_record *)arg)->done;
}

static hl_status look_at_event(hl_device *handle, hl_event event, bool wait, hl_error *err)
{
    struct software_device *dev = software(handle);
    struct software_record *record;
    hl_status status = take_record(dev, event, &record, err);
    if (status || !record)
        return status;
    pthread_mutex_lock(&dev->lock);
    if (wait)
        hl_software_await(dev, is_done, record);
    if (!record->done)
        status = HL_PENDING;
    else if (record->code)
        status = HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, record->code,
                                "work before this event failed with code %d", record->code);
    hl_software_drop_record(record);
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_event_query(hl_device *handle, hl_event event, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "event_query", err);
    return status ? status : look_at_event(handle, event, false, err);
}

hl_status hl_software_event_synchronize(hl_device *handle, hl_event event, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "event_synchronize", err);
    return status ? status : look_at_event(handle, event, true, err);
}

/* Lock held. */
static hl_status check_timed(const struct hl_event_handle *event, const char *name, hl_error *err)
{
    if (!event || !(event->flags & HL_EVENT_TIMING) || !event->record)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE, "%s: %s", name,
                              !event                              ? "not a live event of this device"
                              : !(event->flags & HL_EVENT_TIMING) ? "created without HL_EVENT_TIMING"
                                                                  : "never recorded");
    if (!event->record->done)
        return HL_FAIL_DEVICE(err, HL_E_STATE, HL_SOFTWARE_STAGE, SOFTWARE_NOT_READY, "%s: not complete",
                              name);
    if (event->record->code)
        return HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, event->record->code,
                              "%s: work before it failed with code %d", name, event->record->code);
    return HL_OK;
}

hl_status hl_software_event_elapsed(hl_device *handle, hl_event start_handle, hl_event end_handle,
                                    int64_t *ns, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "event_elapsed", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    const struct hl_event_handle *start = find_event(dev, start_handle), *end = find_event(dev, end_handle);
    status = check_timed(start, "start", err);
    if (!status)
        status = check_timed(end, "end", err);
    if (!status)
        *ns = end->record->ns - start->record->ns;
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_stream_wait_event(hl_device *handle, hl_stream stream, hl_event event, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "stream_wait_event", err);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(TASK_WAIT_EVENT, 0, err);
    if (!task)
        return HL_E_NOMEM;
    status = take_record(dev, event, &task->record, err);
    if (!status && !task->record) {
        /* Never recorded: complete. The wait still takes its place in the stream, so that it is counted. */
        task->record = calloc(1, sizeof *task->record);
        if (!task->record)
            status = HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a record");
        else
            *task->record = (struct software_record){.references = 1, .done = true};
    }
    if (status) {
        free(task);
        return status;
    }
    return hl_software_submit(handle, stream, task, NULL, err);
}
