/* A part resolved to addresses: what the plan named by arena, allocation and tensor, as the pointers that the
 * device takes. Everything here has passed hl_plan_validate() and the registration look-up, so that
 * submitting it can fail only in the device. The arrays are scratch of one executor, reused from part to
 * part. */
#ifndef CORE_TRANSFER_WORK_H
#define CORE_TRANSFER_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena/arena.h"
#include "core/device/device.h"
#include "core/plan/plan.h"

/* The executor's own tables: `plan` for the validator, and what its indices stand for. */
struct hl_work_tables {
    struct hl_plan_tables plan;
    struct hl_plan_arena *arenas;    /* plan.arenas; owned */
    hl_registration **registrations; /* beside arenas; owned array */
    uint64_t *tensor_bytes;          /* plan.tensor_bytes; owned */
    hl_devptr *tensor_bases;         /* beside tensor_bytes; owned */
};

/* One contiguous copy. A copy engine takes the host address, the gather kernel the mapped one. */
struct hl_work_range {
    hl_devptr dst;
    uint64_t host;
    hl_devptr mapped;
    uint64_t bytes;
};

/* Rows of equal width at constant pitches. */
struct hl_work_run {
    hl_devptr dst;
    uint64_t host;
    hl_devptr mapped;
    uint64_t dst_pitch;
    uint64_t src_pitch;
    uint64_t row_bytes;
    uint32_t rows;
};

/* What this part has of one layer: neighbouring sections of the plan, taken together. */
struct hl_work_layer {
    uint32_t layer;
    bool last; /* the layer is complete after it, over all parts */
    uint32_t first_range;
    uint32_t range_count;
    uint32_t first_run;
    uint32_t run_count;
    uint64_t bytes;
};

/* One registration chunk: inside it addresses are linear, so that a look-up serves all ranges in it. */
struct hl_work_window {
    uint64_t offset; /* in the arena */
    uint64_t bytes;  /* 0: not looked up */
    uint64_t host;
    hl_devptr mapped;
};

struct hl_work {
    struct hl_work_window windows[HL_ARENA_IMPORTS]; /* the chunk last used of each arena of the tables */
    struct hl_work_range *ranges;
    struct hl_work_run *runs;
    struct hl_work_layer *layers;
    uint32_t *arena_of; /* allocation index of the part -> arena index of the tables */
    uint32_t range_count;
    uint32_t run_count;
    uint32_t layer_count;
    size_t range_capacity;
    size_t run_capacity;
    size_t layer_capacity;
    size_t allocation_capacity;
};

/* Row `index` of a run, as a range. */
static inline struct hl_work_range hl_work_row(const struct hl_work_run *run, uint32_t index)
{
    return (struct hl_work_range){.dst = run->dst + index * run->dst_pitch,
                                  .host = run->host + index * run->src_pitch,
                                  .mapped = run->mapped + index * run->src_pitch,
                                  .bytes = run->row_bytes};
}

/* Resolves a part that hl_plan_decode() and hl_plan_validate() accepted against `tables->plan`. On failure
 * the work holds nothing.
 */
hl_status hl_work_resolve(struct hl_work *work, const struct hl_work_tables *tables,
                          const struct hl_plan_part *part, hl_error *err);

void hl_work_free(struct hl_work *work);

#endif
