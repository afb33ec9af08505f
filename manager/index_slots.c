#include <assert.h>
#include <string.h>

#include "manager/index_hash.h"
#include "manager/index_private.h"

uint64_t hl_index_hash(const uint64_t seed[2], uint32_t space, const unsigned char hash[HL_KEY_BYTES])
{
    uint64_t words[1 + HL_KEY_BYTES / 8] = {space};
    memcpy(words + 1, hash, HL_KEY_BYTES);
    return hl_index_sip(seed, words, sizeof words / sizeof words[0]);
}

static size_t ghost_bytes(const struct hl_index_table *table)
{
    return (size_t)table->ghost_sets * HL_INDEX_GHOST_WAYS * sizeof(struct hl_index_ghost);
}

static size_t slot_bytes(const struct hl_index_table *table)
{
    return hl_index_slot_count(table) * sizeof(struct hl_index_slot);
}

bool hl_index_table_open(struct hl_index_table *table, const struct hl_index_memory *memory, uint32_t limit)
{
    struct hl_index_table opened = {
        .limit = limit,
        .homes = limit + limit / 2,
        .ghost_sets = (limit + HL_INDEX_GHOST_WAYS - 1) / HL_INDEX_GHOST_WAYS,
    };
    opened.slots = hl_index_memory_get(memory, slot_bytes(&opened));
    if (!opened.slots)
        return false;
    opened.ghosts = hl_index_memory_get(memory, ghost_bytes(&opened));
    if (!opened.ghosts)
        goto err_slots;
    *table = opened;
    return true;
err_slots:
    hl_index_memory_put(memory, opened.slots, slot_bytes(&opened));
    return false;
}

void hl_index_table_close(struct hl_index_table *table, const struct hl_index_memory *memory)
{
    hl_index_memory_put(memory, table->ghosts, ghost_bytes(table));
    hl_index_memory_put(memory, table->slots, slot_bytes(table));
    memset(table, 0, sizeof *table);
}

bool hl_index_table_grow(struct hl_index *index)
{
    struct hl_index_table *from = &index->table, to;
    uint32_t limit = from->limit < index->capacity / 2 ? 2 * from->limit : index->capacity;
    if (!hl_index_table_open(&to, &index->memory, limit))
        return false;
    uint32_t left = index->live;
    for (size_t p = 0, next = 0; left > 0; p++) {
        if (!from->slots[p].entry)
            continue;
        uint32_t home = hl_index_home(&to, from->slots[p].tag);
        next = home > next ? home : next;
        to.slots[next++] = from->slots[p];
        left--;
    }
    hl_index_table_close(from, &index->memory);
    *from = to;
    return true;
}

void hl_index_table_insert(struct hl_index_table *table, uint32_t tag, uint32_t place)
{
    struct hl_index_slot *slots = table->slots;
    size_t at = hl_index_home(table, tag);
    while (slots[at].entry && slots[at].tag <= tag)
        at++;
    size_t end = at;
    while (slots[end].entry)
        end++;
    assert(end + 1 < hl_index_slot_count(table));
    memmove(slots + at + 1, slots + at, (end - at) * sizeof *slots);
    slots[at] = (struct hl_index_slot){tag, place + 1};
}

void hl_index_table_remove(struct hl_index_table *table, uint32_t tag, uint32_t place)
{
    struct hl_index_slot *slots = table->slots;
    size_t at = hl_index_home(table, tag);
    while (slots[at].entry != place + 1) {
        assert(slots[at].entry && slots[at].tag <= tag);
        at++;
    }
    size_t end = at + 1;
    while (slots[end].entry && hl_index_home(table, slots[end].tag) < end)
        end++;
    memmove(slots + at, slots + at + 1, (end - at - 1) * sizeof *slots);
    slots[end - 1] = (struct hl_index_slot){0};
}

bool hl_index_table_find(const struct hl_index *index, uint32_t tag, uint32_t space,
                         const unsigned char *hash, uint32_t *place)
{
    const struct hl_index_slot *slot = index->table.slots + hl_index_home(&index->table, tag);
    while (slot->entry && slot->tag < tag)
        slot++;
    for (; slot->entry && slot->tag == tag; slot++) {
        const struct hl_index_entry *entry = &index->entries[slot->entry - 1];
        if (entry->space == space && !memcmp(entry->hash, hash, HL_KEY_BYTES)) {
            *place = slot->entry - 1;
            return true;
        }
    }
    return false;
}
