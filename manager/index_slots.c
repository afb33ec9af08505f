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
    if (!table->slots)
        return;
    hl_index_memory_put(memory, table->ghosts, ghost_bytes(table));
    hl_index_memory_put(memory, table->slots, slot_bytes(table));
    memset(table, 0, sizeof *table);
}

static void insert_into(struct hl_index_table *table, uint32_t tag, uint32_t entry)
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
    slots[at] = (struct hl_index_slot){tag, entry};
}

bool hl_index_table_grow(struct hl_index *index)
{
    struct hl_index_table *table = &index->table, larger;
    uint32_t limit = table->limit < index->capacity / 2 ? 2 * table->limit : index->capacity;
    assert(!index->former.slots && limit > table->limit);
    if (!hl_index_table_open(&larger, &index->memory, limit))
        return false;
    hl_index_memory_put(&index->memory, table->ghosts, ghost_bytes(table));
    table->ghosts = NULL;
    index->former = *table;
    index->table = larger;
    index->boundary = 0;
    return true;
}

/* Moves the run of occupied slots that starts at `at`. Moving less would cut those that stay off from their
 * homes. */
static size_t move_run(struct hl_index *index, size_t at)
{
    struct hl_index_slot *slots = index->former.slots;
    size_t first = at;
    for (; slots[at].entry; at++) {
        insert_into(&index->table, slots[at].tag, slots[at].entry);
        index->boundary = (uint64_t)slots[at].tag + 1;
        slots[at] = (struct hl_index_slot){0};
    }
    return at - first;
}

/* The first tag whose home is `home`; 2^32 behind the last one. */
static uint64_t first_tag(const struct hl_index_table *table, size_t home)
{
    return (((uint64_t)home << 32) + table->homes - 1) / table->homes;
}

void hl_index_table_move(struct hl_index *index)
{
    enum { SLOTS = 64 }; /* a table has 1.5 slots for each entry that may come before it is full */
    struct hl_index_table *former = &index->former;
    size_t seen = 0, moved = 0;
    if (!former->slots)
        return;
    while (moved == 0 || seen < SLOTS) {
        /* Not simply where the last run ended: a larger tag may have been inserted at its home, in the run.
         */
        size_t from = index->boundary < HL_INDEX_NO_MOVE ? hl_index_home(former, (uint32_t)index->boundary)
                                                         : former->homes;
        size_t at = from;
        while (at < former->homes && !former->slots[at].entry)
            at++;
        seen += at - from;
        if (at > from)
            index->boundary = first_tag(former, at);
        if (!former->slots[at].entry) { /* what lies behind the homes belongs to a run that starts in them */
            index->boundary = HL_INDEX_NO_MOVE;
            hl_index_table_close(former, &index->memory);
            return;
        }
        size_t run = move_run(index, at);
        moved += run;
        seen += run;
    }
}

void hl_index_table_insert(struct hl_index *index, uint32_t tag, uint32_t place)
{
    insert_into(tag < index->boundary ? &index->table : &index->former, tag, place + 1);
}

void hl_index_table_remove(struct hl_index *index, uint32_t tag, uint32_t place)
{
    const struct hl_index_table *table = hl_index_table_of(index, tag);
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
    const struct hl_index_table *table = hl_index_table_of(index, tag);
    const struct hl_index_slot *slot = table->slots + hl_index_home(table, tag);
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
