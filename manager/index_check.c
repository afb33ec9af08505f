#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "manager/index_private.h"

/* Every part counts anew what the index says of itself; the first difference is reported. */

#define BROKEN(...) HL_FAIL(err, HL_E_CORRUPT, HL_INDEX_STAGE, __VA_ARGS__)

static hl_status compare(const char *what, uint64_t counted, uint64_t kept, hl_error *err)
{
    if (counted == kept)
        return HL_OK;
    return BROKEN("%s: counted %" PRIu64 ", the index says %" PRIu64, what, counted, kept);
}

static hl_status check_entry(const hl_index *index, uint32_t place, hl_error *err)
{
    const struct hl_index_entry *entry = &index->entries[place];
    bool present = entry->state == HL_INDEX_PRESENT;
    if (entry->generation == 0)
        return BROKEN("place %" PRIu32 " has the generation 0", place);
    if (!present && (entry->pins || entry->queue != HL_QUEUE_NONE || entry->allocation || entry->bytes))
        return BROKEN("place %" PRIu32 " is not PRESENT, but has pins, a queue or a source", place);
    if (present && (!entry->allocation || !entry->bytes || !entry->residency))
        return BROKEN("place %" PRIu32 " is PRESENT without a source", place);
    if (present && entry->queue == HL_QUEUE_NONE)
        return BROKEN("place %" PRIu32 " is PRESENT and in no queue", place);
    if (entry->queue == HL_QUEUE_SET_ASIDE && !entry->pins)
        return BROKEN("place %" PRIu32 " is set aside without a pin: it could never be evicted", place);
    return HL_OK;
}

static hl_status check_entries(const hl_index *index, hl_error *err)
{
    uint64_t live = 0, present = 0, bytes = 0, pinned = 0, pinned_bytes = 0, pins = 0;
    uint64_t aside = 0, aside_bytes = 0;
    hl_status status;
    for (uint32_t place = 0; place < index->fresh; place++) {
        const struct hl_index_entry *entry = &index->entries[place];
        if ((status = check_entry(index, place, err)) != HL_OK)
            return status;
        live += entry->state != HL_INDEX_FREE;
        present += entry->state == HL_INDEX_PRESENT;
        bytes += entry->bytes;
        pinned += entry->pins > 0;
        pinned_bytes += entry->pins ? entry->bytes : 0;
        pins += entry->pins;
        aside += entry->queue == HL_QUEUE_SET_ASIDE;
        aside_bytes += entry->queue == HL_QUEUE_SET_ASIDE ? entry->bytes : 0;
    }
    const struct hl_index_queue *set_aside = &index->queues[HL_QUEUE_SET_ASIDE];
    if ((status = compare("live entries", live, index->live, err)) != HL_OK ||
        (status = compare("present entries", present, index->present, err)) != HL_OK ||
        (status = compare("present bytes", bytes, index->present_bytes, err)) != HL_OK ||
        (status = compare("pinned entries", pinned, index->pinned, err)) != HL_OK ||
        (status = compare("pinned bytes", pinned_bytes, index->pinned_bytes, err)) != HL_OK ||
        (status = compare("pins", pins, index->pins, err)) != HL_OK ||
        (status = compare("entries set aside", aside, set_aside->count, err)) != HL_OK)
        return status;
    return compare("bytes set aside", aside_bytes, set_aside->bytes, err);
}

static hl_status check_free_list(const hl_index *index, hl_error *err)
{
    uint64_t expected = index->fresh - index->live, seen = 0;
    for (uint32_t at = index->free_head; at; at = index->links[at - 1].newer, seen++) {
        if (at > index->fresh || index->entries[at - 1].state != HL_INDEX_FREE)
            return BROKEN("the free list holds place %" PRIu32 ", which is not free", at - 1);
        if (seen == expected)
            return BROKEN("the free list is longer than the %" PRIu64 " free places", expected);
    }
    return compare("free places", seen, expected, err);
}

static hl_status check_queue(const hl_index *index, enum hl_index_queue_name name, hl_error *err)
{
    const struct hl_index_queue *queue = &index->queues[name];
    uint64_t count = 0, bytes = 0;
    uint32_t before = 0;
    hl_status status;
    for (uint32_t at = queue->oldest; at; before = at, at = index->links[at - 1].newer, count++) {
        if (at > index->fresh || index->entries[at - 1].queue != name || count == queue->count)
            return BROKEN("queue %d holds place %" PRIu32 ", which is not of it", (int)name, at - 1);
        if (index->links[at - 1].older != before)
            return BROKEN("the links of queue %d disagree at place %" PRIu32, (int)name, at - 1);
        bytes += index->entries[at - 1].bytes;
    }
    if (queue->newest != before)
        return BROKEN("the newest entry of queue %d is not its last", (int)name);
    if ((status = compare("entries of a queue", count, queue->count, err)) != HL_OK)
        return status;
    return compare("bytes of a queue", bytes, queue->bytes, err);
}

static bool same_key(const struct hl_index_entry *a, const struct hl_index_entry *b)
{
    return a->space == b->space && !memcmp(a->hash, b->hash, HL_KEY_BYTES);
}

static hl_status check_slot(const hl_index *index, const struct hl_index_table *table, size_t at,
                            hl_error *err)
{
    struct hl_index_slot slot = table->slots[at];
    uint32_t home = hl_index_home(table, slot.tag);
    if (slot.entry > index->fresh || index->entries[slot.entry - 1].state == HL_INDEX_FREE)
        return BROKEN("slot %zu names place %" PRIu32 ", which is free", at, slot.entry - 1);
    const struct hl_index_entry *entry = &index->entries[slot.entry - 1];
    if (hl_index_hash(index->seed, entry->space, entry->hash) >> 32 != slot.tag)
        return BROKEN("slot %zu has another tag than the key of place %" PRIu32, at, slot.entry - 1);
    if (hl_index_table_of(index, slot.tag) != table)
        return BROKEN("slot %zu is in the wrong table for its tag", at);
    if (home > at)
        return BROKEN("slot %zu lies before its home %" PRIu32, at, home);
    if (home < at && (!table->slots[at - 1].entry || table->slots[at - 1].tag > slot.tag))
        return BROKEN("slot %zu cannot be reached from its home %" PRIu32, at, home);
    for (size_t p = at; p > home && table->slots[p - 1].tag == slot.tag; p--)
        if (same_key(entry, &index->entries[table->slots[p - 1].entry - 1]))
            return BROKEN("slots %zu and %zu have one key", p - 1, at);
    return HL_OK;
}

static hl_status check_table(const hl_index *index, const struct hl_index_table *table, uint64_t *seen,
                             hl_error *err)
{
    uint64_t before = *seen;
    hl_status status;
    /* Behind the homes an empty slot ends the last run; nothing beyond it has ever been touched. */
    for (size_t p = 0; p + 1 < hl_index_slot_count(table); p++) {
        if (!table->slots[p].entry && p >= table->homes)
            break;
        if (!table->slots[p].entry)
            continue;
        if ((status = check_slot(index, table, p, err)) != HL_OK)
            return status;
        ++*seen;
    }
    if (*seen - before > table->limit)
        return BROKEN("%" PRIu64 " entries in a table for %" PRIu32, *seen - before, table->limit);
    return HL_OK;
}

static hl_status check_tables(const hl_index *index, hl_error *err)
{
    uint64_t seen = 0;
    hl_status status;
    if (!index->former.slots && index->boundary != HL_INDEX_NO_MOVE)
        return BROKEN("no former table, but the boundary is %#" PRIx64, index->boundary);
    if ((status = check_table(index, &index->table, &seen, err)) != HL_OK)
        return status;
    if (index->former.slots && (status = check_table(index, &index->former, &seen, err)) != HL_OK)
        return status;
    return compare("slots", seen, index->live, err);
}

hl_status hl_index_check(const hl_index *index, hl_error *err)
{
    hl_status status;
    if ((status = check_entries(index, err)) != HL_OK || (status = check_free_list(index, err)) != HL_OK ||
        (status = check_queue(index, HL_QUEUE_SMALL, err)) != HL_OK ||
        (status = check_queue(index, HL_QUEUE_MAIN, err)) != HL_OK)
        return status;
    return check_tables(index, err);
}
