#include <assert.h>

#include "core/base/error.h"
#include "manager/index_private.h"

/* Queues, ghosts and the choice of the next victim, as index.h describes them. */

void hl_index_queue_push(struct hl_index *index, uint32_t place, enum hl_index_queue_name name)
{
    struct hl_index_queue *queue = &index->queues[name];
    struct hl_index_entry *entry = &index->entries[place];
    assert(entry->queue == HL_QUEUE_NONE && entry->state == HL_INDEX_PRESENT);
    entry->queue = name;
    queue->count++;
    queue->bytes += entry->bytes;
    if (name == HL_QUEUE_SET_ASIDE)
        return;
    index->links[place] = (struct hl_index_link){.older = queue->newest, .newer = 0};
    if (queue->newest)
        index->links[queue->newest - 1].newer = place + 1;
    else
        queue->oldest = place + 1;
    queue->newest = place + 1;
}

void hl_index_queue_drop(struct hl_index *index, uint32_t place)
{
    struct hl_index_entry *entry = &index->entries[place];
    struct hl_index_queue *queue = &index->queues[entry->queue];
    assert(entry->queue != HL_QUEUE_NONE && queue->count > 0 && queue->bytes >= entry->bytes);
    queue->count--;
    queue->bytes -= entry->bytes;
    if (entry->queue != HL_QUEUE_SET_ASIDE) {
        struct hl_index_link link = index->links[place];
        *(link.older ? &index->links[link.older - 1].newer : &queue->oldest) = link.newer;
        *(link.newer ? &index->links[link.newer - 1].older : &queue->newest) = link.older;
    }
    entry->queue = HL_QUEUE_NONE;
}

static struct hl_index_ghost *ghost_set(struct hl_index *index, uint64_t hash)
{
    uint64_t set = (hash & UINT32_MAX) * index->table.ghost_sets >> 32;
    return index->table.ghosts + set * HL_INDEX_GHOST_WAYS;
}

/* Ghosts made since; the clock wraps. */
static uint32_t ghost_age(const struct hl_index *index, const struct hl_index_ghost *ghost)
{
    return ghost->stamp ? index->ghost_clock - ghost->stamp : UINT32_MAX;
}

void hl_index_ghost_add(struct hl_index *index, uint64_t hash)
{
    struct hl_index_ghost *set = ghost_set(index, hash), *chosen = set;
    for (unsigned i = 1; i < HL_INDEX_GHOST_WAYS; i++)
        if (ghost_age(index, &set[i]) > ghost_age(index, chosen))
            chosen = &set[i];
    if (++index->ghost_clock == 0)
        index->ghost_clock = 1; /* 0 marks an empty one */
    *chosen = (struct hl_index_ghost){(uint32_t)(hash >> 32), index->ghost_clock};
}

bool hl_index_ghost_take(struct hl_index *index, uint64_t hash)
{
    struct hl_index_ghost *set = ghost_set(index, hash);
    for (unsigned i = 0; i < HL_INDEX_GHOST_WAYS; i++)
        if (set[i].stamp && set[i].tag == (uint32_t)(hash >> 32)) {
            bool remembered = ghost_age(index, &set[i]) < index->present;
            set[i] = (struct hl_index_ghost){0};
            return remembered;
        }
    return false;
}

/* Takes the oldest entry of the queue whose turn it is and either keeps it in some other way (false) or
 * leaves it in no queue, as the victim (true). */
static bool try_oldest(struct hl_index *index, enum hl_index_queue_name name, uint32_t *victim)
{
    uint32_t place = index->queues[name].oldest - 1;
    struct hl_index_entry *entry = &index->entries[place];
    bool small = name == HL_QUEUE_SMALL;
    if (!entry->pins && entry->uses <= (small ? 1 : 0)) {
        *victim = place;
        return true;
    }
    hl_index_queue_drop(index, place);
    if (small)
        entry->uses = 0;
    else if (entry->uses > 0)
        entry->uses--;
    hl_index_queue_push(index, place, entry->pins ? HL_QUEUE_SET_ASIDE : HL_QUEUE_MAIN);
    return false;
}

hl_status hl_index_evict_next(hl_index *index, struct hl_index_victim *victim, hl_error *err)
{
    const struct hl_index_queue *small = &index->queues[HL_QUEUE_SMALL],
                                *main = &index->queues[HL_QUEUE_MAIN];
    uint32_t place;
    enum hl_index_queue_name name;
    do {
        if (!small->count && !main->count)
            return HL_FAIL(err, HL_E_NOSPACE, HL_INDEX_STAGE,
                           "nothing to evict: %llu blocks are present, %llu of them pinned, %u being written",
                           (unsigned long long)index->present, (unsigned long long)index->pinned,
                           index->live - (uint32_t)index->present);
        bool small_is_due = small->count && (!main->count || small->bytes >= index->present_bytes / 10);
        name = small_is_due ? HL_QUEUE_SMALL : HL_QUEUE_MAIN;
    } while (!try_oldest(index, name, &place));
    if (name == HL_QUEUE_SMALL) {
        const struct hl_index_entry *entry = &index->entries[place];
        hl_index_ghost_add(index, hl_index_hash(index->seed, entry->space, entry->hash));
    }
    hl_index_take_out(index, place, victim);
    index->evicted++;
    return HL_OK;
}
