#include "manager/index.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/error.h"
#include "manager/index_private.h"

/* --- life --- */

static size_t entries_bytes(uint64_t capacity)
{
    return (size_t)capacity * sizeof(struct hl_index_entry);
}

static size_t links_bytes(uint64_t capacity)
{
    return (size_t)capacity * sizeof(struct hl_index_link);
}

static hl_status choose_seed(const uint64_t *given, uint64_t seed[2], hl_error *err)
{
    if (given) {
        memcpy(seed, given, 2 * sizeof *seed);
        return HL_OK;
    }
    ssize_t got;
    do
        got = getrandom(seed, 2 * sizeof *seed, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)(2 * sizeof *seed))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_INDEX_STAGE, errno, "no random bytes for the hash");
    return HL_OK;
}

static hl_status open_arrays(hl_index *index, hl_error *err)
{
    const struct hl_index_memory *memory = &index->memory;
    uint32_t limit = index->capacity < HL_INDEX_FIRST_LIMIT ? index->capacity : HL_INDEX_FIRST_LIMIT;
    index->entries = hl_index_memory_get(memory, entries_bytes(index->capacity));
    if (!index->entries)
        goto err_none;
    index->links = hl_index_memory_get(memory, links_bytes(index->capacity));
    if (!index->links)
        goto err_entries;
    if (!hl_index_table_open(&index->table, memory, limit))
        goto err_links;
    return HL_OK;
err_links:
    hl_index_memory_put(memory, index->links, links_bytes(index->capacity));
err_entries:
    hl_index_memory_put(memory, index->entries, entries_bytes(index->capacity));
err_none:
    return HL_FAIL(err, HL_E_NOMEM, HL_INDEX_STAGE, "no memory for an index of %" PRIu32 " blocks",
                   index->capacity);
}

hl_status hl_index_create(const struct hl_index_options *options, hl_index **index, hl_error *err)
{
    const struct hl_index_memory *memory = options->memory ? options->memory : &hl_index_system_memory;
    hl_status status;
    if (options->capacity == 0)
        return HL_FAIL(err, HL_E_INVALID, HL_INDEX_STAGE, "capacity is 0 blocks");
    if (options->capacity > HL_INDEX_BLOCKS)
        return HL_FAIL(err, HL_E_LIMIT, HL_INDEX_STAGE,
                       "capacity is %" PRIu64 " blocks, at most %u are allowed", options->capacity,
                       HL_INDEX_BLOCKS);
    hl_index *made = hl_index_memory_get(memory, sizeof *made);
    if (!made)
        return HL_FAIL(err, HL_E_NOMEM, HL_INDEX_STAGE, "no memory for an index");
    made->memory = *memory;
    made->capacity = (uint32_t)options->capacity;
    made->boundary = HL_INDEX_NO_MOVE;
    if ((status = choose_seed(options->seed, made->seed, err)) != HL_OK)
        goto err_put;
    if ((status = open_arrays(made, err)) != HL_OK)
        goto err_put;
    *index = made;
    return HL_OK;
err_put:
    hl_index_memory_put(memory, made, sizeof *made);
    return status;
}

void hl_index_destroy(hl_index *index)
{
    if (!index)
        return;
    struct hl_index_memory memory = index->memory;
    hl_index_table_close(&index->former, &memory);
    hl_index_table_close(&index->table, &memory);
    hl_index_memory_put(&memory, index->links, links_bytes(index->capacity));
    hl_index_memory_put(&memory, index->entries, entries_bytes(index->capacity));
    hl_index_memory_put(&memory, index, sizeof *index);
}

/* --- places --- */

static uint32_t take_place(hl_index *index)
{
    uint32_t place;
    if (index->free_head) {
        place = index->free_head - 1;
        index->free_head = index->links[place].newer;
    } else {
        place = index->fresh++;
    }
    if (index->entries[place].generation == 0)
        index->entries[place].generation = 1;
    index->live++;
    return place;
}

/* The place's ids turn stale. An id outlives its entry only by mistake, so 2^32 generations are enough. */
static void free_place(hl_index *index, uint32_t place)
{
    struct hl_index_entry *entry = &index->entries[place];
    uint32_t generation = entry->generation + 1;
    memset(entry, 0, sizeof *entry);
    entry->generation = generation ? generation : 1;
    index->links[place] = (struct hl_index_link){.newer = index->free_head};
    index->free_head = place + 1;
    index->live--;
}

static hl_status stale(hl_entry_id id, hl_error *err)
{
    return HL_FAIL(err, HL_E_NOT_FOUND, HL_INDEX_STAGE, "no entry has the id %#" PRIx64, id);
}

static hl_status entry_of(const hl_index *index, hl_entry_id id, uint32_t *place, hl_error *err)
{
    uint32_t at = (uint32_t)id;
    if (at >= index->fresh || index->entries[at].generation != id >> 32 ||
        index->entries[at].state == HL_INDEX_FREE)
        return stale(id, err);
    *place = at;
    return HL_OK;
}

/* The same, and in `state`. */
static hl_status entry_in(const hl_index *index, hl_entry_id id, enum hl_index_state state, uint32_t *place,
                          hl_error *err)
{
    uint32_t at;
    hl_status status = entry_of(index, id, &at, err);
    if (status != HL_OK)
        return status;
    if (index->entries[at].state != state)
        return HL_FAIL(err, HL_E_STATE, HL_INDEX_STAGE, "the entry %#" PRIx64 " is %s", id,
                       state == HL_INDEX_PRESENT ? "still being written" : "complete already");
    *place = at;
    return HL_OK;
}

static struct hl_index_source source_of(const struct hl_index_entry *entry)
{
    return (struct hl_index_source){.allocation = entry->allocation,
                                    .offset = entry->offset,
                                    .bytes = entry->bytes,
                                    .arena = (uint32_t)entry->arena,
                                    .residency = (uint32_t)entry->residency};
}

static struct hl_index_key key_of(const struct hl_index_entry *entry)
{
    struct hl_index_key key = {.space = entry->space >> 8, .group = entry->space & (HL_INDEX_GROUPS - 1)};
    memcpy(key.hash, entry->hash, HL_KEY_BYTES);
    return key;
}

void hl_index_describe(const hl_index *index, uint32_t place, struct hl_index_info *info)
{
    const struct hl_index_entry *entry = &index->entries[place];
    *info = (struct hl_index_info){.key = key_of(entry),
                                   .id = hl_index_id_of(index, place),
                                   .source = source_of(entry),
                                   .pins = (uint32_t)entry->pins,
                                   .state = (enum hl_index_state)entry->state};
}

static void leave_table(hl_index *index, uint32_t place)
{
    const struct hl_index_entry *entry = &index->entries[place];
    uint64_t hash = hl_index_hash(index->seed, entry->space, entry->hash);
    hl_index_table_remove(index, (uint32_t)(hash >> 32), place);
}

void hl_index_take_out(hl_index *index, uint32_t place, struct hl_index_victim *victim)
{
    struct hl_index_entry *entry = &index->entries[place];
    assert(entry->state == HL_INDEX_PRESENT && entry->pins == 0);
    *victim = (struct hl_index_victim){key_of(entry), hl_index_id_of(index, place), source_of(entry)};
    hl_index_queue_drop(index, place);
    leave_table(index, place);
    index->present--;
    index->present_bytes -= entry->bytes;
    free_place(index, place);
}

/* --- publishing --- */

static hl_status check_key(const struct hl_index_key *key, hl_error *err)
{
    if (key->space >= HL_INDEX_NAMESPACES)
        return HL_FAIL(err, HL_E_RANGE, HL_INDEX_STAGE, "namespace %" PRIu32 " is not below %u", key->space,
                       HL_INDEX_NAMESPACES);
    if (key->group >= HL_INDEX_GROUPS)
        return HL_FAIL(err, HL_E_RANGE, HL_INDEX_STAGE, "group %" PRIu32 " is not below %u", key->group,
                       HL_INDEX_GROUPS);
    return HL_OK;
}

static hl_status make_room(hl_index *index, hl_error *err)
{
    if (index->live == index->capacity)
        return HL_FAIL(err, HL_E_NOSPACE, HL_INDEX_STAGE, "all %" PRIu32 " places of the index are taken",
                       index->capacity);
    if (index->live == index->table.limit && !hl_index_table_grow(index))
        return HL_FAIL(err, HL_E_NOMEM, HL_INDEX_STAGE,
                       "no memory for the slots of more than %" PRIu32 " blocks", index->live);
    hl_index_table_move(index);
    return HL_OK;
}

hl_status hl_index_reserve(hl_index *index, const struct hl_index_key *key, hl_entry_id *id, bool *present,
                           hl_error *err)
{
    uint32_t place;
    hl_status status = check_key(key, err);
    if (status != HL_OK)
        return status;
    uint32_t space = key->space << 8 | key->group;
    uint32_t tag = (uint32_t)(hl_index_hash(index->seed, space, key->hash) >> 32);
    if (hl_index_table_find(index, tag, space, key->hash, &place)) {
        if (index->entries[place].state == HL_INDEX_WRITING)
            return HL_FAIL(err, HL_E_BUSY, HL_INDEX_STAGE, "the block is being written by another publish");
        *id = hl_index_id_of(index, place);
        *present = true;
        return HL_OK;
    }
    if ((status = make_room(index, err)) != HL_OK)
        return status;
    place = take_place(index);
    struct hl_index_entry *entry = &index->entries[place];
    memcpy(entry->hash, key->hash, HL_KEY_BYTES);
    entry->space = space;
    entry->state = HL_INDEX_WRITING;
    hl_index_table_insert(index, tag, place);
    *id = hl_index_id_of(index, place);
    *present = false;
    return HL_OK;
}

static hl_status check_source(const struct hl_index_source *source, hl_error *err)
{
    const char *field = source->allocation == 0                                      ? "allocation"
                        : source->offset >> 48 != 0                                  ? "offset"
                        : source->bytes == 0 || source->bytes > HL_INDEX_BLOCK_BYTES ? "bytes"
                        : source->arena >= HL_INDEX_ARENAS                           ? "arena"
                        : source->residency == 0 || source->residency > 3            ? "residency"
                                                                                     : NULL;
    if (!field)
        return HL_OK;
    return HL_FAIL(err, HL_E_RANGE, HL_INDEX_STAGE,
                   "%s is out of range in a source of allocation %" PRIu64 ", offset %" PRIu64
                   ", bytes %" PRIu64 ", arena %" PRIu32 ", residency %" PRIu32,
                   field, source->allocation, source->offset, source->bytes, source->arena,
                   source->residency);
}

hl_status hl_index_complete(hl_index *index, hl_entry_id id, const struct hl_index_source *source,
                            hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_WRITING, &place, err);
    if (status != HL_OK)
        return status;
    if ((status = check_source(source, err)) != HL_OK)
        return status;
    struct hl_index_entry *entry = &index->entries[place];
    entry->allocation = source->allocation;
    entry->offset = source->offset & ((1ull << 48) - 1);
    entry->bytes = source->bytes & HL_INDEX_BLOCK_BYTES;
    entry->arena = source->arena & (HL_INDEX_ARENAS - 1);
    entry->residency = source->residency & 3;
    entry->state = HL_INDEX_PRESENT;
    bool came_back = hl_index_ghost_take(index, hl_index_hash(index->seed, entry->space, entry->hash));
    hl_index_queue_push(index, place, came_back ? HL_QUEUE_MAIN : HL_QUEUE_SMALL);
    index->ghost_hits += came_back;
    index->present++;
    index->present_bytes += source->bytes;
    return HL_OK;
}

hl_status hl_index_abandon(hl_index *index, hl_entry_id id, hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_WRITING, &place, err);
    if (status != HL_OK)
        return status;
    leave_table(index, place);
    free_place(index, place);
    return HL_OK;
}

/* --- by id --- */

hl_status hl_index_source(const hl_index *index, hl_entry_id id, struct hl_index_source *source,
                          hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_PRESENT, &place, err);
    if (status == HL_OK)
        *source = source_of(&index->entries[place]);
    return status;
}

hl_status hl_index_get(const hl_index *index, hl_entry_id id, struct hl_index_info *info, hl_error *err)
{
    uint32_t place;
    hl_status status = entry_of(index, id, &place, err);
    if (status == HL_OK)
        hl_index_describe(index, place, info);
    return status;
}

hl_status hl_index_pin(hl_index *index, hl_entry_id id, hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_PRESENT, &place, err);
    if (status != HL_OK)
        return status;
    struct hl_index_entry *entry = &index->entries[place];
    if (entry->pins == HL_INDEX_PINS)
        return HL_FAIL(err, HL_E_LIMIT, HL_INDEX_STAGE, "the entry %#" PRIx64 " has %u pins already", id,
                       HL_INDEX_PINS);
    if (entry->pins++ == 0) {
        index->pinned++;
        index->pinned_bytes += entry->bytes;
    }
    index->pins++;
    if (entry->uses < HL_INDEX_USES_MOST)
        entry->uses++;
    return HL_OK;
}

hl_status hl_index_unpin(hl_index *index, hl_entry_id id, hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_PRESENT, &place, err);
    if (status != HL_OK)
        return status;
    struct hl_index_entry *entry = &index->entries[place];
    if (entry->pins == 0)
        return HL_FAIL(err, HL_E_STATE, HL_INDEX_STAGE, "the entry %#" PRIx64 " has no pin", id);
    index->pins--;
    if (--entry->pins > 0)
        return HL_OK;
    index->pinned--;
    index->pinned_bytes -= entry->bytes;
    if (entry->queue == HL_QUEUE_SET_ASIDE) {
        hl_index_queue_drop(index, place);
        hl_index_queue_push(index, place, HL_QUEUE_MAIN);
    }
    return HL_OK;
}

hl_status hl_index_remove(hl_index *index, hl_entry_id id, struct hl_index_victim *victim, hl_error *err)
{
    uint32_t place;
    hl_status status = entry_in(index, id, HL_INDEX_PRESENT, &place, err);
    if (status != HL_OK)
        return status;
    if (index->entries[place].pins > 0)
        return HL_FAIL(err, HL_E_BUSY, HL_INDEX_STAGE, "the entry %#" PRIx64 " has %u pins", id,
                       (unsigned)index->entries[place].pins);
    hl_index_take_out(index, place, victim);
    return HL_OK;
}
