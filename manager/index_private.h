/* The index's structures, for its own sources and for the test that breaks them on purpose. */
#ifndef MANAGER_INDEX_PRIVATE_H
#define MANAGER_INDEX_PRIVATE_H

#include "manager/index.h"

#define HL_INDEX_STAGE "manager.index"
#define HL_INDEX_NO_MOVE (1ull << 32)
#define HL_INDEX_FIRST_LIMIT 4096u /* entries that the first slot table holds */

enum hl_index_queue_name { HL_QUEUE_NONE, HL_QUEUE_SMALL, HL_QUEUE_MAIN, HL_QUEUE_SET_ASIDE };
enum { HL_INDEX_USES_MOST = 3, HL_INDEX_QUEUES = 4 };

/* All that a look-up, a pin and a preparation read, in one cache line. */
struct hl_index_entry {
    unsigned char hash[HL_KEY_BYTES];
    uint32_t space;      /* namespace << 8 | group */
    uint32_t generation; /* of the place; never 0 in an id */
    uint64_t allocation;
    uint64_t arena : 16, offset : 48;
    uint64_t bytes : 36, pins : 20, state : 2, residency : 2, queue : 2, uses : 2;
};
_Static_assert(sizeof(struct hl_index_entry) == 64, "an entry is one cache line");
_Static_assert(HL_INDEX_BLOCKS < UINT32_MAX, "places are 32 bits");

/* Neighbours in a queue, or the next free place; place + 1, 0 for none. */
struct hl_index_link {
    uint32_t older, newer;
};

struct hl_index_queue {
    uint32_t oldest, newest; /* place + 1 */
    uint64_t count, bytes;
};

struct hl_index_slot {
    uint32_t tag;   /* the high half of the key's hash */
    uint32_t entry; /* place + 1; 0: empty */
};

/* A slot table is sorted: a tag's home, tag × homes / 2^32, grows with the tag, entries of a run of occupied
 * slots are in the order of their tags, and nothing wraps: behind the last home there is room for all
 * entries, which costs address space only. So a search ends at the first larger tag, and a removal shifts the
 * rest of the run back.
 *
 *   for every occupied slot p: home(tag[p]) <= p, every slot from home(tag[p]) to p is occupied, and
 *   tag[p - 1] <= tag[p] when p - 1 is occupied
 *
 * A table that has become too small is moved to a larger one run by run, in the order of the tags, some with
 * each new entry, so that no publish pays for all: tags below `boundary` are in `table`, all others in
 * `former`. Without a move, `former` is empty and the boundary is 2^32. */
struct hl_index_table {
    struct hl_index_slot *slots;
    uint32_t homes;
    uint32_t limit; /* entries that it may hold: two thirds of homes */
    struct hl_index_ghost *ghosts;
    uint32_t ghost_sets;
};

enum { HL_INDEX_GHOST_WAYS = 8 };
struct hl_index_ghost {
    uint32_t tag;
    uint32_t stamp; /* of the ghost clock; 0: empty */
};

struct hl_index {
    struct hl_index_memory memory;
    uint64_t seed[2];
    uint32_t capacity;
    uint32_t fresh;     /* places below it have been used */
    uint32_t free_head; /* place + 1 */
    uint32_t live;      /* WRITING and PRESENT entries */
    uint32_t ghost_clock;
    struct hl_index_entry *entries;
    struct hl_index_link *links;
    struct hl_index_table table, former;
    uint64_t boundary;
    struct hl_index_queue queues[HL_INDEX_QUEUES]; /* of HL_QUEUE_NONE and SET_ASIDE, the counts only */
    uint64_t present, present_bytes, pinned, pinned_bytes, pins, evicted, ghost_hits;
};

static inline hl_entry_id hl_index_id_of(const struct hl_index *index, uint32_t place)
{
    return (uint64_t)index->entries[place].generation << 32 | place;
}

/* --- index_slots.c --- */
uint64_t hl_index_hash(const uint64_t seed[2], uint32_t space, const unsigned char hash[HL_KEY_BYTES]);
bool hl_index_table_open(struct hl_index_table *table, const struct hl_index_memory *memory, uint32_t limit);
void hl_index_table_close(struct hl_index_table *table, const struct hl_index_memory *memory);
/* Starts the move to a table of twice the limit, at most the capacity; none may be under way. Ghosts are
 * dropped: a cache that grows evicts nothing for want of room, and what it forgot before then is of little
 * use. False, and nothing changed, without memory. */
bool hl_index_table_grow(struct hl_index *index);
/* Goes on with a move, if there is one. At least one entry leaves the former table, which thus never holds
 * more than its limit, and enough are looked at that the move ends before the next one has to start. */
void hl_index_table_move(struct hl_index *index);
void hl_index_table_insert(struct hl_index *index, uint32_t tag, uint32_t place);
void hl_index_table_remove(struct hl_index *index, uint32_t tag, uint32_t place);
/* True with *place when the key is there, in any state. */
bool hl_index_table_find(const struct hl_index *index, uint32_t tag, uint32_t space,
                         const unsigned char *hash, uint32_t *place);

static inline uint32_t hl_index_home(const struct hl_index_table *table, uint32_t tag)
{
    return (uint32_t)((uint64_t)tag * table->homes >> 32);
}
static inline size_t hl_index_slot_count(const struct hl_index_table *table)
{
    return (size_t)table->homes + table->limit + 1; /* the last one is always empty */
}
static inline const struct hl_index_table *hl_index_table_of(const struct hl_index *index, uint32_t tag)
{
    return tag < index->boundary ? &index->table : &index->former;
}

/* --- index_queue.c --- */
void hl_index_queue_push(struct hl_index *index, uint32_t place, enum hl_index_queue_name name);
void hl_index_queue_drop(struct hl_index *index, uint32_t place);
void hl_index_ghost_add(struct hl_index *index, uint64_t hash);
bool hl_index_ghost_take(struct hl_index *index, uint64_t hash);

/* --- index.c --- */
/* Takes a PRESENT, unpinned entry out and frees its place. */
void hl_index_take_out(struct hl_index *index, uint32_t place, struct hl_index_victim *victim);
void hl_index_describe(const struct hl_index *index, uint32_t place, struct hl_index_info *info);

#endif
