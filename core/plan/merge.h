/* Joins the walk's pieces: first neighbours that touch on both sides inside one allocation, then rows of
 * equal width at constant pitches. Private to the room. Pieces come in the order of hl_plan_compile(); a
 * flush ends a section. */
#ifndef CORE_PLAN_MERGE_H
#define CORE_PLAN_MERGE_H

#include "core/plan/encode.h"

struct hl_plan_merger {
    struct hl_plan_encoder *encoder;
    struct hl_plan_copy pending;                    /* may still grow; bytes 0: none */
    struct hl_plan_copy rows[HL_PLAN_MIN_RUN_ROWS]; /* equal rows at a constant pitch, too few for a run */
    struct hl_plan_copy last;                       /* of them, or of the encoder's open run */
    uint64_t src_pitch;
    uint64_t dst_pitch;
    uint32_t count; /* rows; from HL_PLAN_MIN_RUN_ROWS on the encoder has them */
};

/* Takes `pending` and makes `piece` the pending one. */
hl_status hl_plan_merge_next(struct hl_plan_merger *merger, const struct hl_plan_copy *piece, hl_error *err);

/* Hands everything to the encoder. */
hl_status hl_plan_merge_flush(struct hl_plan_merger *merger, hl_error *err);

static inline hl_status hl_plan_merge_push(struct hl_plan_merger *merger, const struct hl_plan_copy *piece,
                                           hl_error *err)
{
    struct hl_plan_copy *pending = &merger->pending;
    if (pending->bytes && pending->src + pending->bytes == piece->src &&
        pending->dst + pending->bytes == piece->dst &&
        pending->source->allocation == piece->source->allocation) {
        pending->bytes += piece->bytes;
        return HL_OK;
    }
    return hl_plan_merge_next(merger, piece, err);
}

#endif
