/* Writes sections, ranges and runs into parts; private to the room. The part in the making lies in staging
 * arrays of the encoder; a full one is copied out in wire order. Every part is self-contained: it repeats the
 * section that it continues and lists the allocations that it uses. */
#ifndef CORE_PLAN_ENCODE_H
#define CORE_PLAN_ENCODE_H

#include <stdbool.h>

#include "core/plan/compile.h"

/* A piece or merged pieces, inside the allocation of `source`. */
struct hl_plan_copy {
    uint64_t src;
    uint64_t dst;
    uint64_t bytes;
    const struct hl_plan_source *source;
};

struct hl_plan_bytes {
    void *bytes;
    size_t size;
};

struct hl_plan {
    struct hl_plan_bytes *parts;
    size_t count;
    size_t capacity;
    struct hl_plan_stats stats;
};

/* Where an allocation is in the table of the current part; any other part number means that it is not. */
struct hl_plan_place {
    uint32_t part;
    uint32_t index;
};

struct hl_plan_encoder {
    const struct hl_plan_work *work;
    struct hl_plan *plan;
    struct hl_plan_place *places; /* of each of the work's allocations */
    void *staging;                /* holds the five arrays */
    struct hl_plan_allocation *allocations;
    struct hl_plan_section *sections;
    struct hl_plan_range *ranges;
    struct hl_plan_run *runs;
    uint32_t *rows;
    struct hl_plan_header header; /* counts and payload of the part in the making */
    uint64_t used;                /* bytes of it so far */
    uint64_t bound;               /* of this part by the request */
    uint64_t room; /* what it may grow to: the part's bound or what is left of the operation's */
    uint32_t part; /* its number, from 1 */
    uint32_t layer;
    uint32_t tensor;
    bool section_open; /* the last section of the part is that of (layer, tensor) */
    bool layer_begun;  /* the layer has a section in some part */
};

/* Outputs are owned by the encoder until hl_plan_encoder_finish(); hl_plan_encoder_close() frees what is
 * left. */
hl_status hl_plan_encoder_open(struct hl_plan_encoder *encoder, const struct hl_plan_work *work,
                               hl_error *err);
void hl_plan_encoder_close(struct hl_plan_encoder *encoder);

/* What follows goes to this layer and tensor. */
void hl_plan_encode_section(struct hl_plan_encoder *encoder, uint32_t layer, uint32_t tensor);

/* At most HL_PLAN_RANGE_BYTES. */
hl_status hl_plan_encode_range(struct hl_plan_encoder *encoder, const struct hl_plan_copy *copy,
                               hl_error *err);

/* Begins a run with its first HL_PLAN_MIN_RUN_ROWS rows. */
hl_status hl_plan_encode_run(struct hl_plan_encoder *encoder, const struct hl_plan_copy *rows,
                             uint64_t src_pitch, uint64_t dst_pitch, hl_error *err);

/* Appends a row to the last run; false when the part is full, which ends the run. */
bool hl_plan_encode_row(struct hl_plan_encoder *encoder, const struct hl_plan_source *source);

/* Completes the layer: marks its last section, or writes an empty one. */
hl_status hl_plan_encode_layer_end(struct hl_plan_encoder *encoder, uint32_t layer, hl_error *err);

/* Closes the last part and seals all of them. */
hl_status hl_plan_encoder_finish(struct hl_plan_encoder *encoder, struct hl_plan **plan, hl_error *err);

#endif
