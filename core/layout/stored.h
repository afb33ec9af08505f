/* The rows of a stored block as all ranks together see them: a binding's rows widened from its own heads to
 * all heads that the block holds. */
#ifndef CORE_LAYOUT_STORED_H
#define CORE_LAYOUT_STORED_H

#include <stdbool.h>

#include "core/layout/layout.h"

struct hl_layout_stored {
    uint64_t offset; /* in the block */
    uint64_t row_bytes;
    uint64_t row_stride; /* 0 with one row */
    uint32_t rows;       /* 1 when the rows follow each other without a gap */
};

/* Whether the layout's content says anything. */
bool hl_layout_has_content(const hl_layout *layout);

/* False when the content contradicts the component: the rank's slot is no whole heads of a token, or the
 * widened rows do not fit the block. The component's own rows are known to fit. */
bool hl_layout_stored_rows(const hl_layout *layout, const struct hl_layout_component *component,
                           struct hl_layout_stored *stored);

#endif
