/* manager/index owns what the Manager knows of published blocks: which keys exist, where each block's bytes
 * lie, who may not be evicted, and who goes next. It never touches the bytes, an arena or a clock. It calls
 * core/base. The Manager calls it under its own lock: nothing here is thread-safe.
 *
 * An entry is WRITING from its reservation until its bytes are complete, and PRESENT from then until it is
 * evicted or removed. Only PRESENT entries are found, pinned and evicted; one that is pinned is never evicted
 * or removed (I1).
 *
 * Memory, for each block of a full index: 64 bytes entry, 8 links, 12 slots, 8 ghosts. It is committed as the
 * index fills. Slots double; while they are moved, a little with each new key, they take half as much again.
 *
 * Eviction is S3-FIFO (Yang et al., SOSP 2023), counted in bytes, with their parameters: a new block enters
 * the small queue, which holds a tenth of the bytes; its oldest block moves to the main queue when it was
 * used more than once since it came, and else is evicted and leaves a ghost; the main queue's oldest block
 * goes round again as often as it was used, at most three times. A key with a ghost enters the main queue at
 * once. There are as many ghosts as present blocks; a ghost is 32 bits of the key's hash in a set of eight.
 * A use is a pin. A pinned block that comes up for eviction is set aside and enters the main queue when its
 * last pin goes. The order depends on the calls and the seed alone. */
#ifndef MANAGER_INDEX_H
#define MANAGER_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"
#include "manager/index_memory.h"

typedef struct hl_index hl_index;

/* Names one entry for as long as it lives: its place (low 32 bits) and the place's generation. An id whose
 * entry has gone is refused with HL_E_NOT_FOUND. 0 is never one. */
typedef uint64_t hl_entry_id;

_Static_assert(HL_LAYOUT_GROUPS <= HL_INDEX_GROUPS, "every group has a key");

struct hl_index_key {
    uint32_t space; /* namespace id */
    uint32_t group; /* storage group */
    unsigned char hash[HL_KEY_BYTES];
};

/* Where a block's bytes are. */
struct hl_index_source {
    uint64_t allocation; /* id in the arena; never 0 */
    uint64_t offset;     /* of the allocation in the arena, below 2^48 */
    uint64_t bytes;      /* of the block, 1 to HL_INDEX_BLOCK_BYTES */
    uint32_t arena;      /* the Manager's index of it */
    uint32_t residency;  /* 1 to 3: enum hl_residency of core/channel */
};

enum hl_index_state { HL_INDEX_FREE, HL_INDEX_WRITING, HL_INDEX_PRESENT };

struct hl_index_info {
    struct hl_index_key key;
    hl_entry_id id;
    struct hl_index_source source; /* all zero while WRITING */
    uint32_t pins;
    enum hl_index_state state;
};

struct hl_index_stats {
    uint64_t capacity;
    uint64_t present, writing; /* entries */
    uint64_t present_bytes;
    uint64_t pinned, pinned_bytes;   /* entries with a pin */
    uint64_t pins;                   /* of all entries */
    uint64_t small, main, set_aside; /* present entries by queue */
    uint64_t small_bytes;            /* of the small queue */
    uint64_t evicted, ghost_hits;    /* ever */
    uint64_t memory_bytes;           /* that entries, links, slots and ghosts take up now, by computation */
    uint64_t most_bytes;             /* the same when the index is full */
};

struct hl_index_options {
    uint64_t capacity;                    /* entries, 1 to HL_INDEX_BLOCKS */
    const uint64_t *seed;                 /* two words that key the hash; NULL: from getrandom(2) */
    const struct hl_index_memory *memory; /* copied; NULL: the system's */
};

/* HL_E_INVALID or HL_E_LIMIT for the capacity, HL_E_NOMEM, HL_E_SYSTEM without random bytes. */
hl_status hl_index_create(const struct hl_index_options *options, hl_index **index, hl_error *err);
void hl_index_destroy(hl_index *index); /* NULL is allowed; sources and pins are forgotten */

/* --- publishing --- */

/* Reserves a key: the caller alone may write it, and then completes or abandons it. HL_OK with *present true
 * when the block is there already (nothing is reserved; *id is its entry), false when it is now WRITING.
 * HL_E_BUSY while another reservation of the key is open, HL_E_NOSPACE when the index is full (evict one and
 * call again), HL_E_RANGE for a namespace or group that no key can hold, HL_E_NOMEM. */
hl_status hl_index_reserve(hl_index *index, const struct hl_index_key *key, hl_entry_id *id, bool *present,
                           hl_error *err);

/* WRITING → PRESENT: the bytes are complete at `source`, which the index now owns until it hands it back
 * through an eviction or a removal. HL_E_NOT_FOUND, HL_E_STATE when it is PRESENT already, HL_E_RANGE naming
 * the field of the source. */
hl_status hl_index_complete(hl_index *index, hl_entry_id id, const struct hl_index_source *source,
                            hl_error *err);

/* Gives a reservation up. HL_E_NOT_FOUND, or HL_E_STATE when it is PRESENT. */
hl_status hl_index_abandon(hl_index *index, hl_entry_id id, hl_error *err);

/* --- looking up --- */

/* HL_E_MISS when the key is unknown or still being written. */
hl_status hl_index_find(const hl_index *index, const struct hl_index_key *key, hl_entry_id *id,
                        hl_error *err);

/* Looks `count` keys of HL_KEY_BYTES each up, in order, and stops at the first that is not PRESENT. Writes
 * the ids of those before it and returns how many they are. */
size_t hl_index_find_prefix(const hl_index *index, uint32_t space, uint32_t group, const unsigned char *keys,
                            size_t count, hl_entry_id *ids);

/* HL_E_NOT_FOUND for a stale id; HL_E_STATE while WRITING. */
hl_status hl_index_source(const hl_index *index, hl_entry_id id, struct hl_index_source *source,
                          hl_error *err);

/* HL_E_NOT_FOUND for a stale id. */
hl_status hl_index_get(const hl_index *index, hl_entry_id id, struct hl_index_info *info, hl_error *err);

/* --- pinning --- */

/* Keeps a PRESENT entry, until as many unpins. Counts as a use. HL_E_NOT_FOUND, HL_E_STATE while WRITING,
 * HL_E_LIMIT. */
hl_status hl_index_pin(hl_index *index, hl_entry_id id, hl_error *err);

/* HL_E_NOT_FOUND, or HL_E_STATE when it has no pin. */
hl_status hl_index_unpin(hl_index *index, hl_entry_id id, hl_error *err);

/* --- leaving --- */

struct hl_index_victim {
    struct hl_index_key key;
    hl_entry_id id;                /* stale from now on */
    struct hl_index_source source; /* the caller's to free */
};

/* Removes the entry that is worth least. HL_E_NOSPACE when every PRESENT entry is pinned, or there is none.
 * Amortised O(1): what it passes over was used, or pinned, since it was last passed over. */
hl_status hl_index_evict_next(hl_index *index, struct hl_index_victim *victim, hl_error *err);

/* Removes one PRESENT entry. HL_E_NOT_FOUND, HL_E_STATE while WRITING, HL_E_BUSY while pinned. */
hl_status hl_index_remove(hl_index *index, hl_entry_id id, struct hl_index_victim *victim, hl_error *err);

/* A walk over all entries, in places' order; start it at {0}. Entries that come or go between two calls may
 * be seen or not; all others are seen once. */
struct hl_index_cursor {
    uint64_t place;
    uint64_t kept; /* by hl_index_remove_namespace(): entries that were pinned or WRITING */
};

/* Removes what it can of a namespace: looks at up to HL_INDEX_SWEEP places and returns up to `most` (at least
 * 1) victims. *done says that the walk has ended. The caller repeats the walk while cursor.kept is not 0. */
size_t hl_index_remove_namespace(hl_index *index, uint32_t space, struct hl_index_cursor *cursor,
                                 struct hl_index_victim *victims, size_t most, bool *done);

/* The next WRITING or PRESENT entry; false at the end. */
bool hl_index_next(const hl_index *index, struct hl_index_cursor *cursor, struct hl_index_info *info);

void hl_index_get_stats(const hl_index *index, struct hl_index_stats *stats);

/* Checks every invariant; O(entries). HL_E_CORRUPT says which does not hold, and where. */
hl_status hl_index_check(const hl_index *index, hl_error *err);

#endif
