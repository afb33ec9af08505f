/* The data belong to the tensors exactly: no hole, no overlap, nothing behind the last. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

static int compare_names(const void *left, const void *right)
{
    const struct hl_safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* An empty tensor at a boundary stands before what begins there. */
static int compare_places(const void *left, const void *right)
{
    const struct hl_safetensors_entry *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return compare_names(left, right);
}

static const void **entry_pointers(const struct hl_safetensors_scan *scan)
{
    const void **pointers = malloc((scan->count ? scan->count : 1) * sizeof *pointers);
    for (size_t i = 0; pointers && i < scan->count; i++)
        pointers[i] = &scan->entries[i];
    return pointers;
}

hl_status hl_safetensors_order_entries(struct hl_safetensors_scan *scan)
{
    scan->order = entry_pointers(scan);
    if (!scan->order)
        return HL_FAIL(scan->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory to order %zu tensors",
                       scan->count);
    return hl_safetensors_sort(scan->order, scan->count, compare_places, scan->err);
}

hl_status hl_safetensors_check_names(const struct hl_safetensors_scan *scan)
{
    const void **names = entry_pointers(scan);
    if (!names)
        return HL_FAIL(scan->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory to order %zu names",
                       scan->count);
    hl_status status = hl_safetensors_sort(names, scan->count, compare_names, scan->err);
    for (size_t i = 1; status == HL_OK && i < scan->count; i++) {
        const struct hl_safetensors_entry *entry = names[i];
        char quoted[HL_JSON_QUOTE_BYTES];
        if (compare_names(names[i - 1], entry) == 0)
            status = HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE, "tensor %s is given twice",
                             hl_json_quote(quoted, entry->name, strlen(entry->name)));
    }
    free(names);
    return status;
}

/* Data that an empty tensor does not have are aligned. */
static bool is_misaligned(const struct hl_safetensors_entry *entry, uint64_t data_offset)
{
    unsigned bytes = hl_safetensors_bits(entry->dtype) / 8;
    return bytes > 1 && entry->end > entry->begin && (data_offset + entry->begin) % bytes != 0;
}

hl_status hl_safetensors_check_cover(struct hl_safetensors_scan *scan, uint64_t data_offset,
                                     uint64_t data_bytes)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < scan->count; i++) {
        const struct hl_safetensors_entry *entry = scan->order[i];
        char quoted[HL_JSON_QUOTE_BYTES];
        if (entry->begin != covered)
            return HL_FAIL(scan->err, HL_E_RANGE, HL_SAFETENSORS_STAGE,
                           "tensor %s: its data begin at %" PRIu64 ", %s the end of those before, %" PRIu64,
                           hl_json_quote(quoted, entry->name, strlen(entry->name)), entry->begin,
                           entry->begin < covered ? "before" : "behind", covered);
        covered = entry->end;
        scan->tolerated.misaligned += is_misaligned(entry, data_offset);
    }
    if (covered != data_bytes)
        return HL_FAIL(scan->err, HL_E_RANGE, HL_SAFETENSORS_STAGE,
                       "the tensors end at %" PRIu64 " of %" PRIu64 " bytes of data", covered, data_bytes);
    return HL_OK;
}
