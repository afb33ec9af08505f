/* Destinations: whether each can take its tensor, and no two get into each other's way. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/checked.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.check"

/* What one sorted list holds of a destination. */
struct entry {
    uint64_t key;
    uint64_t bytes;
    size_t index; /* of the destination */
};

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static hl_status check_room(const hl_weight_tensor_view *view, const hl_weight_destination *destination,
                            hl_error *err)
{
    uint64_t end;
    if (view->bytes > destination->bytes)
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "tensor %s has %" PRIu64 " bytes, its destination room for %" PRIu64, view->name,
                       view->bytes, destination->bytes);
    if (!view->bytes)
        return HL_OK;
    if (!destination->device_ptr)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %s: device_ptr is 0", view->name);
    if (!hl_add_u64(destination->device_ptr, destination->bytes, &end))
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "tensor %s: device_ptr %#" PRIx64 " and bytes %" PRIu64 " pass the end of addresses",
                       view->name, destination->device_ptr, destination->bytes);
    return HL_OK;
}

/* Also collects what the lists are made of: the tensor's identity, its range and its event. */
static hl_status check_each(const hl_weight_lease *lease, const hl_weight_destination *destinations,
                            size_t count, struct hl_upload_target *targets, struct entry *tensors,
                            hl_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const char *name = destinations[i].tensor;
        if (!name)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "destinations[%zu].tensor is NULL", i);
        const hl_weight_tensor_view *view = hl_weight_lease_tensor(lease, name);
        if (!view)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "destinations[%zu].tensor: the lease has no %s", i,
                           name);
        hl_status status = check_room(view, &destinations[i], err);
        if (status)
            return status;
        tensors[i] = (struct entry){.key = (uintptr_t)view, .index = i};
        targets[i] = (struct hl_upload_target){.dst = destinations[i].device_ptr,
                                               .bytes = view->bytes,
                                               .offset = view->region_offset,
                                               .region = view->region,
                                               .event = destinations[i].event};
    }
    return HL_OK;
}

/* The first pair of neighbours with one key, or NULL. */
static const struct entry *find_repeated(struct entry *entries, size_t count)
{
    qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 1; i < count; i++)
        if (entries[i].key == entries[i - 1].key)
            return &entries[i - 1];
    return NULL;
}

static hl_status check_repeated(const hl_weight_destination *destinations, size_t count,
                                struct entry *entries, const char *what, hl_error *err)
{
    const struct entry *repeated = find_repeated(entries, count);
    if (!repeated)
        return HL_OK;
    return HL_FAIL(err, HL_E_INVALID, STAGE, "destinations[%zu] and [%zu], of %s, have the same %s",
                   repeated[0].index, repeated[1].index, destinations[repeated[1].index].tensor, what);
}

/* Neighbours in the order of their addresses suffice: ranges that overlap anywhere overlap between two. */
static hl_status check_overlap(const hl_weight_destination *destinations, struct entry *ranges, size_t count,
                               hl_error *err)
{
    qsort(ranges, count, sizeof *ranges, compare_entries);
    for (size_t i = 1; i < count; i++)
        if (ranges[i].key - ranges[i - 1].key < ranges[i - 1].bytes)
            return HL_FAIL(err, HL_E_OVERLAP, STAGE, "the destinations of tensors %s and %s overlap",
                           destinations[ranges[i - 1].index].tensor, destinations[ranges[i].index].tensor);
    return HL_OK;
}

static hl_status check_all(const hl_weight_lease *lease, const hl_weight_destination *destinations,
                           size_t count, struct hl_upload_target *targets, struct entry *entries,
                           hl_error *err)
{
    hl_status status = check_each(lease, destinations, count, targets, entries, err);
    if (!status)
        status = check_repeated(destinations, count, entries, "tensor", err);
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (targets[i].event)
            entries[used++] = (struct entry){.key = (uintptr_t)targets[i].event, .index = i};
    if (!status)
        status = check_repeated(destinations, used, entries, "event", err);
    used = 0;
    for (size_t i = 0; i < count; i++)
        if (targets[i].bytes)
            entries[used++] = (struct entry){.key = targets[i].dst, .bytes = targets[i].bytes, .index = i};
    return status ? status : check_overlap(destinations, entries, used, err);
}

hl_status hl_upload_check(const hl_weight_lease *lease, const hl_weight_destination *destinations,
                          size_t count, struct hl_upload_target **targets, hl_error *err)
{
    hl_status status;
    if (!destinations || !count)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "destinations: there are none");
    if (count > HL_WEIGHT_TENSORS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "count: %zu destinations, at most %u are allowed", count,
                       HL_WEIGHT_TENSORS);
    struct hl_upload_target *checked = calloc(count, sizeof *checked);
    struct entry *entries = calloc(count, sizeof *entries);
    if (checked && entries)
        status = check_all(lease, destinations, count, checked, entries, err);
    else
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %zu destinations", count);
    free(entries);
    if (status)
        free(checked);
    else
        *targets = checked;
    return status;
}
