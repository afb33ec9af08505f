#include "core/base/error.h"
#include "manager/index_private.h"

/* Keys whose memory is fetched at once: about as many misses as a core keeps in flight. */
enum { WINDOW = 16 };

hl_status hl_index_find(const hl_index *index, const struct hl_index_key *key, hl_entry_id *id, hl_error *err)
{
    if (hl_index_find_prefix(index, key->space, key->group, key->hash, 1, id) == 1)
        return HL_OK;
    return HL_FAIL(err, HL_E_MISS, HL_INDEX_STAGE, "the block is not present");
}

/* The first slot that has the tag, or where the search ended. */
static inline const struct hl_index_slot *seek(const struct hl_index *index, uint32_t tag)
{
    const struct hl_index_table *table = hl_index_table_of(index, tag);
    const struct hl_index_slot *slot = table->slots + hl_index_home(table, tag);
    while (slot->entry && slot->tag < tag)
        slot++;
    return slot;
}

/* Three passes over a window, each of which finds in the cache what the one before it asked for: the slots,
 * the entries, the keys. */
static size_t find_window(const hl_index *index, uint32_t space, const unsigned char *keys, size_t count,
                          hl_entry_id *ids)
{
    uint32_t tags[WINDOW];
    for (size_t i = 0; i < count; i++) {
        tags[i] = (uint32_t)(hl_index_hash(index->seed, space, keys + i * HL_KEY_BYTES) >> 32);
        const struct hl_index_table *table = hl_index_table_of(index, tags[i]);
        __builtin_prefetch(table->slots + hl_index_home(table, tags[i]));
    }
    for (size_t i = 0; i < count; i++) {
        const struct hl_index_slot *slot = seek(index, tags[i]);
        if (!slot->entry || slot->tag != tags[i]) {
            count = i; /* a miss ends the prefix */
            break;
        }
        __builtin_prefetch(&index->entries[slot->entry - 1]);
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t place;
        if (!hl_index_table_find(index, tags[i], space, keys + i * HL_KEY_BYTES, &place) ||
            index->entries[place].state != HL_INDEX_PRESENT)
            return i;
        ids[i] = hl_index_id_of(index, place);
    }
    return count;
}

size_t hl_index_find_prefix(const hl_index *index, uint32_t space, uint32_t group, const unsigned char *keys,
                            size_t count, hl_entry_id *ids)
{
    if (space >= HL_INDEX_NAMESPACES || group >= HL_INDEX_GROUPS)
        return 0;
    size_t found = 0;
    while (found < count) {
        size_t window = count - found < WINDOW ? count - found : WINDOW;
        size_t hits =
            find_window(index, space << 8 | group, keys + found * HL_KEY_BYTES, window, ids + found);
        found += hits;
        if (hits < window)
            break;
    }
    return found;
}

/* --- walks and figures --- */

bool hl_index_next(const hl_index *index, struct hl_index_cursor *cursor, struct hl_index_info *info)
{
    while (cursor->place < index->fresh) {
        uint32_t place = (uint32_t)cursor->place++;
        if (index->entries[place].state != HL_INDEX_FREE) {
            hl_index_describe(index, place, info);
            return true;
        }
    }
    return false;
}

size_t hl_index_remove_namespace(hl_index *index, uint32_t space, struct hl_index_cursor *cursor,
                                 struct hl_index_victim *victims, size_t most, bool *done)
{
    size_t removed = 0;
    for (uint32_t seen = 0; seen < HL_INDEX_SWEEP && removed < most && cursor->place < index->fresh; seen++) {
        uint32_t place = (uint32_t)cursor->place++;
        const struct hl_index_entry *entry = &index->entries[place];
        if (entry->state == HL_INDEX_FREE || entry->space >> 8 != space)
            continue;
        if (entry->state == HL_INDEX_WRITING || entry->pins > 0)
            cursor->kept++;
        else
            hl_index_take_out(index, place, &victims[removed++]);
    }
    *done = cursor->place >= index->fresh;
    return removed;
}

static uint64_t memory_of(uint64_t entries, uint64_t homes, uint64_t ghost_sets)
{
    return entries * (sizeof(struct hl_index_entry) + sizeof(struct hl_index_link)) +
           homes * sizeof(struct hl_index_slot) +
           ghost_sets * HL_INDEX_GHOST_WAYS * sizeof(struct hl_index_ghost);
}

void hl_index_get_stats(const hl_index *index, struct hl_index_stats *stats)
{
    uint64_t capacity = index->capacity;
    *stats = (struct hl_index_stats){
        .capacity = capacity,
        .present = index->present,
        .writing = index->live - index->present,
        .present_bytes = index->present_bytes,
        .pinned = index->pinned,
        .pinned_bytes = index->pinned_bytes,
        .pins = index->pins,
        .small = index->queues[HL_QUEUE_SMALL].count,
        .main = index->queues[HL_QUEUE_MAIN].count,
        .set_aside = index->queues[HL_QUEUE_SET_ASIDE].count,
        .small_bytes = index->queues[HL_QUEUE_SMALL].bytes,
        .evicted = index->evicted,
        .ghost_hits = index->ghost_hits,
        .memory_bytes = memory_of(index->fresh, (uint64_t)index->table.homes + index->former.homes,
                                  index->table.ghost_sets),
        .most_bytes = memory_of(capacity, capacity + capacity / 2,
                                (capacity + HL_INDEX_GHOST_WAYS - 1) / HL_INDEX_GHOST_WAYS),
    };
}
