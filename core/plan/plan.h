/* core/plan owns the raw plan: which bytes go from arena allocations to which places of registered tensors,
 * as data without a pointer in it. The Manager compiles and encodes; the engine copies a part out of shared
 * memory, decodes and validates it against its own tables, and hands it to core/transfer. It calls core/base
 * and core/layout.
 *
 * The way of a plan: compile (sort pages, walk components, merge neighbours, find row runs, refuse overlaps)
 * → parts of at most HL_PLAN_PART_BYTES, each self-contained → decode (structure and checksum) → validate
 * (every range against the reader's own arenas, tensors and layers). A part from a peer is hostile: it may
 * have been built to pass the checksum.
 *
 * Wire format, version 2, little-endian, no padding that is not a named zero field. A part is one header,
 * then arrays in this order: allocations, sections, ranges, runs, run rows. */
#ifndef CORE_PLAN_PLAN_H
#define CORE_PLAN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "core/layout/layout.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"

#define HL_PLAN_MAGIC 0x4e4c5048u /* "HPLN" */
#define HL_PLAN_VERSION 2u
#define HL_PLAN_MIN_RUN_ROWS 4u /* fewer equal rows stay single ranges */

/* What a part belongs to; a reader compares it with the operation it claimed. */
struct hl_plan_identity {
    uint64_t epoch;          /* the Manager session's */
    unsigned char token[16]; /* the client's */
    uint32_t record;         /* index of the grant record */
    uint32_t generation;
};

struct hl_plan_header {
    uint32_t magic;
    uint32_t version;
    uint64_t checksum; /* XXH3-64 of the part with this field zero */
    struct hl_plan_identity identity;
    uint32_t part_bytes; /* header and arrays */
    uint32_t part_index; /* 0 … part_count - 1 */
    uint32_t part_count;
    uint32_t layers; /* registered layers of the binding */
    uint32_t allocation_count;
    uint32_t section_count;
    uint32_t range_count;
    uint32_t run_count;
    uint32_t row_count;
    uint32_t zero;
    uint64_t payload_bytes; /* that this part copies */
};
_Static_assert(sizeof(struct hl_plan_header) == 96, "wire layout");

/* A source allocation, with the bounds that the Manager vouches for. */
struct hl_plan_allocation {
    uint64_t arena_id;
    uint64_t allocation_id;
    uint64_t offset; /* in the arena */
    uint64_t bytes;
};
_Static_assert(sizeof(struct hl_plan_allocation) == 32, "wire layout");

enum {
    HL_PLAN_LAYER_LAST = 1
}; /* section flag: after it the layer is complete, over all parts; its event follows */

/* Ranges and runs of one layer into one tensor. A layer without bytes has one section with both counts 0. */
struct hl_plan_section {
    uint32_t layer;
    uint32_t tensor;
    uint32_t first_range;
    uint32_t range_count;
    uint32_t first_run;
    uint32_t run_count;
    uint32_t flags;
    uint32_t zero;
};
_Static_assert(sizeof(struct hl_plan_section) == 32, "wire layout");

/* One contiguous copy inside one allocation. */
struct hl_plan_range {
    uint32_t allocation; /* index into the part's allocations */
    uint32_t bytes;
    uint64_t src; /* absolute arena offset */
    uint64_t dst; /* offset in the section's tensor */
};
_Static_assert(sizeof(struct hl_plan_range) == 24, "wire layout");

/* Rows of equal width at constant pitches. All rows lie in one arena and one registration chunk; each row
 * keeps its own allocation, in rows[first_row + i], and must lie inside it. */
struct hl_plan_run {
    uint64_t src; /* absolute arena offset of row 0 */
    uint64_t dst; /* of row 0 in the section's tensor */
    uint64_t src_pitch;
    uint64_t dst_pitch;
    uint32_t row_bytes;
    uint32_t rows;
    uint32_t first_row;
    uint32_t zero;
};
_Static_assert(sizeof(struct hl_plan_run) == 48, "wire layout");

/* --- compile (Manager) --- */

/* One stored block and where it goes. */
struct hl_plan_block {
    uint64_t arena_id;
    uint64_t allocation_id;
    uint64_t allocation_offset; /* in the arena */
    uint64_t allocation_bytes;
    uint64_t block_offset; /* absolute arena offset of the block's first byte, inside the allocation */
    uint32_t group;        /* storage group, which fixes the block's size */
    uint32_t page;         /* destination page */
};

struct hl_plan_request {
    const hl_layout *layout; /* validated */
    struct hl_plan_identity identity;
    const struct hl_plan_block *blocks; /* any order */
    size_t block_count;
    uint64_t chunk_bytes;      /* registration chunks of every arena: no run crosses a multiple; 0:
                                  HL_ARENA_CHUNK_BYTES */
    uint64_t part_bytes;       /* bound on a part; 0: HL_PLAN_PART_BYTES */
    uint64_t first_part_bytes; /* bound on part 0, doubled from part to part until it is part_bytes: a small
                                  first part lets copying begin while the next is decoded; 0: part_bytes */
    uint64_t metadata_bytes;   /* bound on all parts; 0: HL_PLAN_OPERATION_BYTES */
};

struct hl_plan_stats {
    uint64_t payload_bytes;
    uint64_t pieces; /* rows of pages before merging */
    uint64_t ranges; /* single ranges after merging */
    uint64_t runs;
    uint64_t run_rows; /* rows in runs */
    uint64_t metadata_bytes;
};

typedef struct hl_plan hl_plan;

/* Compiles; nothing is written on failure. HL_E_RANGE (page or block out of bounds), HL_E_OVERLAP (two blocks
 * write the same page, or components overlap), HL_E_LIMIT (metadata, blocks), HL_E_OVERFLOW, HL_E_INVALID,
 * HL_E_NOMEM: the text names block or component index and field. Cost is linear in pieces apart from the sort
 * of the pages. A plan of 0 blocks has one part that completes every layer. */
hl_status hl_plan_compile(const struct hl_plan_request *request, hl_plan **plan, hl_error *err);
size_t hl_plan_part_count(const hl_plan *plan);
/* The encoded part; owned by the plan. */
const void *hl_plan_part_bytes(const hl_plan *plan, size_t part, size_t *size);
void hl_plan_get_stats(const hl_plan *plan, struct hl_plan_stats *stats);
void hl_plan_free(hl_plan *plan); /* NULL is allowed */

/* --- decode and validate (engine) --- */

/* A decoded part: pointers into the caller's private copy of it. */
struct hl_plan_part {
    const struct hl_plan_header *header;
    const struct hl_plan_allocation *allocations;
    const struct hl_plan_section *sections;
    const struct hl_plan_range *ranges;
    const struct hl_plan_run *runs;
    const uint32_t *rows; /* allocation index of each run row */
};

/* Checks structure, bounds of every index, and the checksum. `bytes` is a private, 8-byte aligned copy that
 * no peer can write (HL_E_INVALID otherwise). HL_E_VERSION for another version (both in the text),
 * HL_E_CHECKSUM, else HL_E_CORRUPT naming the field.
 *
 * A decoded part has: sections that take up ranges and runs in order, each once, and runs that do so with
 * rows; no end that overflows; layers without a gap, each with its one LAYER_LAST section before the next
 * begins; in part 0 a section of layer 0 first; in the last part the last layer's LAYER_LAST section last. */
hl_status hl_plan_decode(const void *bytes, size_t size, struct hl_plan_part *part, hl_error *err);

struct hl_plan_arena {
    uint64_t arena_id;
    uint64_t bytes;
    uint64_t chunk_bytes; /* 0: HL_ARENA_CHUNK_BYTES */
};

/* The reader's own tables. */
struct hl_plan_tables {
    const struct hl_plan_arena *arenas; /* as the reader mapped and registered them */
    size_t arena_count;
    const uint64_t *tensor_bytes; /* as the reader registered them */
    size_t tensor_count;
    uint32_t layers;
};

/* Checks a decoded part against the tables: every range inside its allocation, every allocation inside its
 * arena and chunk, every run inside one chunk, every destination inside its tensor, no two destinations of
 * the part overlapping, the layer count equal. HL_E_RANGE, HL_E_OVERLAP, HL_E_NOT_FOUND (arena or tensor),
 * HL_E_INVALID (layer count), naming the element; HL_E_NOMEM. */
hl_status hl_plan_validate(const struct hl_plan_part *part, const struct hl_plan_tables *tables,
                           hl_error *err);

/* For tests and tools: sets part_bytes' checksum after the bytes have been edited. `bytes` has at least a
 * header. */
void hl_plan_seal(void *bytes, size_t size);

#endif
