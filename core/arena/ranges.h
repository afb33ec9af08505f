/* The allocator's own records, in private memory: a peer can write the arena, so nothing that decides where
 * bytes go lies in it.
 *
 * A range is a piece of the space, free or allocated. All ranges form one list in address order without gaps.
 * A free range is also in a tree ordered by size and offset (free_tree.c), an allocated one in a table by id
 * (id_table.c). Two free neighbours in one chunk never exist: they are merged at once. */
#ifndef CORE_ARENA_RANGES_H
#define CORE_ARENA_RANGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena/allocator.h"

struct hl_range {
    uint64_t offset;
    uint64_t bytes;
    struct hl_range *before; /* in address order */
    struct hl_range *after;
    union {
        struct {
            struct hl_range *left;
            struct hl_range *right;
        } free;
        struct {
            uint64_t id;
            struct hl_range *chain; /* the next in this bucket of the table */
        } used;
    };
    uint8_t height; /* of the subtree below and with it; free ranges only */
    bool is_free;
};
_Static_assert(sizeof(struct hl_range) <= 64, "a range is at most a cache line");

/* --- free_tree.c: an AVL tree; every call is O(log n) --- */

void hl_free_tree_insert(struct hl_range **root, struct hl_range *range);
void hl_free_tree_remove(struct hl_range **root, struct hl_range *range);

/* The smallest range of at least `bytes`, the lowest in address among equals; NULL when none fits. */
struct hl_range *hl_free_tree_fit(struct hl_range *root, uint64_t bytes);
struct hl_range *hl_free_tree_largest(struct hl_range *root);

/* --- id_table.c: linear hashing, which grows by one bucket an insertion, so that no call ever rehashes
 * everything --- */

#define HL_ID_TABLE_SEGMENTS 40u
#define HL_ID_TABLE_FIRST 1024u /* buckets in segment 0; segment s > 0 has HL_ID_TABLE_FIRST << (s - 1) */

struct hl_id_table {
    const struct hl_allocator_memory *memory;
    struct hl_range **segments[HL_ID_TABLE_SEGMENTS];
    uint64_t buckets; /* in use; half <= buckets < 2 * half */
    uint64_t half;    /* a power of two */
    uint64_t entries;
};

/* False when there is no memory for the first segment. */
bool hl_id_table_open(struct hl_id_table *table, const struct hl_allocator_memory *memory);
void hl_id_table_close(struct hl_id_table *table);

/* Never fails: without memory for another segment the chains get longer instead. */
void hl_id_table_insert(struct hl_id_table *table, struct hl_range *range);
struct hl_range *hl_id_table_find(const struct hl_id_table *table, uint64_t id);
struct hl_range *hl_id_table_remove(struct hl_id_table *table, uint64_t id); /* NULL when it isn't there */

/* --- allocator.c --- */

#define HL_RANGE_SLAB_RANGES 1024u

struct hl_range_slab {
    struct hl_range_slab *next;
    struct hl_range ranges[HL_RANGE_SLAB_RANGES];
};

struct hl_allocator {
    pthread_mutex_t lock; /* guards everything below it */
    struct hl_allocator_memory memory;
    uint64_t bytes;
    uint64_t chunk_bytes;
    struct hl_range *first; /* in address order */
    struct hl_range *tree;
    struct hl_id_table table;
    struct hl_range_slab *slabs; /* given back when the allocator is destroyed */
    struct hl_range *spare;      /* unused records, linked through `after` */
    uint64_t used_bytes;
    uint64_t live;
    uint64_t free_ranges;
    uint64_t last_id;
};

#endif
