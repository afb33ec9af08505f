/* Layouts, blocks and memory for the tests and the benchmark of core/plan, made by hand from a description,
 * and two ways to move the bytes: by a plan, and straight from layout and blocks. */
#ifndef CORE_PLAN_PLAN_FIXTURE_H
#define CORE_PLAN_PLAN_FIXTURE_H

#include <stdbool.h>

#include "core/base/random.h"
#include "core/plan/plan.h"

enum hl_fixture_kind {
    HL_FIXTURE_CONTIGUOUS,  /* all K pages, then all V pages of a layer's tensor */
    HL_FIXTURE_SPLIT,       /* a tensor for K, one for V */
    HL_FIXTURE_FUSED,       /* K then V inside a page */
    HL_FIXTURE_TOKEN_FUSED, /* K then V inside a token */
    HL_FIXTURE_MLA,         /* one component a layer */
    HL_FIXTURE_PAGE_FIRST,  /* all layers of a group inside a page */
    HL_FIXTURE_SHARED,      /* the n-th layers of all groups share a tensor, each page with one group */
    HL_FIXTURE_ROW_FIRST,   /* row r of all pages, then row r + 1 of all pages: pages interleave */
    HL_FIXTURE_KINDS
};

struct hl_fixture_shape {
    enum hl_fixture_kind kind;
    uint32_t layers;
    uint32_t groups; /* layer l belongs to group l % groups */
    uint32_t pages;
    uint32_t page_tokens;
    uint32_t k_bytes; /* a token */
    uint32_t v_bytes;
    bool token_major;     /* stored order */
    uint32_t slots;       /* ranks whose heads a stored token holds */
    uint32_t slot;        /* this rank's */
    uint32_t empty_layer; /* a layer without components; `layers` for none */
};

/* Fills a layout in; the caller frees it with hl_fixture_free_layout(). */
void hl_fixture_layout(const struct hl_fixture_shape *shape, hl_layout *layout);
void hl_fixture_free_layout(hl_layout *layout);

/* Where blocks lie in arenas. */
struct hl_fixture_placement {
    uint32_t arenas;
    uint64_t chunk_bytes;
    uint32_t blocks_per_allocation; /* at most */
    bool scattered;                 /* random places, gaps and pages, else one after another */
    uint64_t align;                 /* of allocations */
};

/* Memory, tables and blocks over a layout. */
struct hl_fixture_world {
    const hl_layout *layout;
    struct hl_plan_block *blocks;
    size_t block_count;
    struct hl_plan_arena *arenas;
    uint64_t *tensor_bytes;
    struct hl_plan_tables tables;
    unsigned char **arena_memory;  /* NULL where only plans are wanted */
    unsigned char **tensor_memory; /* poisoned */
};

/* `counts` blocks of each group. */
void hl_fixture_world(const hl_layout *layout, const uint32_t *counts,
                      const struct hl_fixture_placement *placement, bool memory, bool disjoint_pages,
                      hl_random *random, struct hl_fixture_world *world);
void hl_fixture_free_world(struct hl_fixture_world *world);

#define HL_FIXTURE_POISON 0xa5

/* Copies what one decoded section says. */
void hl_fixture_apply_section(const struct hl_plan_part *part, uint32_t section,
                              struct hl_fixture_world *world);

/* Copies straight from layout and blocks into `tensors`, poisoned by the caller. */
void hl_fixture_copy_naively(const struct hl_fixture_world *world, unsigned char **tensors);

/* An 8-byte aligned private copy of exactly `size` bytes, to free. */
void *hl_fixture_private(const void *bytes, size_t size);

#endif
