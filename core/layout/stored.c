#include "core/layout/stored.h"

#include <string.h>

#include "core/base/checked.h"

bool hl_layout_has_content(const hl_layout *layout)
{
    static const struct hl_layout_content none;
    return memcmp(&layout->content, &none, sizeof none) != 0;
}

/* With fewer heads on the rank than in the block, a row must be what lies together in both: the rank's heads
 * of one token, or with head-major pages all of the rank's heads. */
static bool widen(const hl_layout *layout, const struct hl_layout_component *component,
                  struct hl_layout_stored *stored)
{
    const struct hl_layout_content *content = &layout->content;
    uint64_t head_bytes = component->row_bytes / content->rank_heads, slot;
    if (component->row_bytes % content->rank_heads != 0)
        return false;
    if (component->rows != (content->head_major ? 1 : layout->page_tokens))
        return false;
    if (!hl_mul_u64(head_bytes, content->rank_first_head - content->first_head, &slot) ||
        !hl_mul_u64(head_bytes, content->heads, &stored->row_bytes) || slot > component->block_offset)
        return false;
    stored->offset = component->block_offset - slot;
    return true;
}

bool hl_layout_stored_rows(const hl_layout *layout, const struct hl_layout_component *component,
                           struct hl_layout_stored *stored)
{
    struct hl_layout_stored rows = {.offset = component->block_offset,
                                    .row_bytes = component->row_bytes,
                                    .row_stride = component->block_row_stride,
                                    .rows = component->rows};
    if (component->role != HL_ROLE_STATE && layout->content.rank_heads != layout->content.heads &&
        !widen(layout, component, &rows))
        return false;
    if (rows.rows > 1 && rows.row_bytes > rows.row_stride)
        return false;
    uint64_t last = 0, end;
    if (rows.rows > 1 && !hl_mul_u64(rows.rows - 1, rows.row_stride, &last))
        return false;
    if (!hl_add_u64(rows.offset, last, &end) ||
        !hl_within(end, rows.row_bytes, layout->groups[component->group].block_bytes))
        return false;
    if (rows.rows > 1 && rows.row_bytes == rows.row_stride) {
        rows.row_bytes *= rows.rows; /* cannot wrap: it lies in the block */
        rows.rows = 1;
    }
    if (rows.rows == 1)
        rows.row_stride = 0;
    *stored = rows;
    return true;
}
