#include "core/plan/merge.h"

/* Whether `next` can be a row after `last`. The bytes between rows belong to nobody: each keeps its own
 * allocation. */
static bool can_follow(const struct hl_plan_copy *last, const struct hl_plan_copy *next)
{
    return next->bytes == last->bytes && next->src > last->src && next->src - last->src >= next->bytes &&
           next->dst > last->dst && next->dst - last->dst >= next->bytes &&
           next->source->arena_id == last->source->arena_id && next->source->chunk == last->source->chunk;
}

static void begin_rows(struct hl_plan_merger *m, const struct hl_plan_copy *first)
{
    m->rows[0] = m->last = *first;
    m->count = 1;
}

/* Rows that did not become a run are single ranges; `keep` of them, from the end, may still begin another. */
static hl_status drop_rows(struct hl_plan_merger *m, uint32_t keep, hl_error *err)
{
    if (m->count < HL_PLAN_MIN_RUN_ROWS) {
        for (uint32_t i = 0; i + keep < m->count; i++) {
            hl_status status = hl_plan_encode_range(m->encoder, &m->rows[i], err);
            if (status != HL_OK)
                return status;
        }
    }
    m->count = 0;
    return HL_OK;
}

static hl_status add_row(struct hl_plan_merger *m, const struct hl_plan_copy *next, hl_error *err)
{
    if (m->count == 1) {
        m->src_pitch = next->src - m->last.src;
        m->dst_pitch = next->dst - m->last.dst;
    }
    m->last = *next;
    if (m->count >= HL_PLAN_MIN_RUN_ROWS) {
        if (hl_plan_encode_row(m->encoder, next->source))
            m->count++;
        else
            begin_rows(m, next);
        return HL_OK;
    }
    m->rows[m->count++] = *next;
    if (m->count < HL_PLAN_MIN_RUN_ROWS)
        return HL_OK;
    return hl_plan_encode_run(m->encoder, m->rows, m->src_pitch, m->dst_pitch, err);
}

static hl_status add_copy(struct hl_plan_merger *m, const struct hl_plan_copy *next, hl_error *err)
{
    if (m->count == 0) {
        begin_rows(m, next);
        return HL_OK;
    }
    bool follows = can_follow(&m->last, next);
    if (follows && (m->count == 1 ||
                    (next->src - m->last.src == m->src_pitch && next->dst - m->last.dst == m->dst_pitch)))
        return add_row(m, next, err);

    bool restart =
        follows && m->count < HL_PLAN_MIN_RUN_ROWS; /* the last row begins other rows with this one */
    struct hl_plan_copy last = m->last;
    hl_status status = drop_rows(m, restart, err);
    if (status != HL_OK)
        return status;
    if (restart) {
        begin_rows(m, &last);
        return add_row(m, next, err);
    }
    begin_rows(m, next);
    return HL_OK;
}

static hl_status end_pending(struct hl_plan_merger *m, hl_error *err)
{
    struct hl_plan_copy rest = m->pending;
    while (rest.bytes > HL_PLAN_RANGE_BYTES) {
        struct hl_plan_copy cut = rest;
        cut.bytes = HL_PLAN_RANGE_BYTES;
        rest.src += cut.bytes;
        rest.dst += cut.bytes;
        rest.bytes -= cut.bytes;
        hl_status status = add_copy(m, &cut, err);
        if (status != HL_OK)
            return status;
    }
    return rest.bytes ? add_copy(m, &rest, err) : HL_OK;
}

hl_status hl_plan_merge_next(struct hl_plan_merger *m, const struct hl_plan_copy *piece, hl_error *err)
{
    hl_status status = end_pending(m, err);
    m->pending = *piece;
    return status;
}

hl_status hl_plan_merge_flush(struct hl_plan_merger *m, hl_error *err)
{
    hl_status status = end_pending(m, err);
    m->pending.bytes = 0;
    return status == HL_OK ? drop_rows(m, 0, err) : status;
}
