#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/layout/layout.h"
#include "core/layout/stored.h"

#define STAGE "layout.digest"

/* One line a fact, in one order, with no spelling that a build or a locale could change. The rank's own slot
 * is left out: it decides which bytes of a block a rank touches, not where the block's bytes are. */
static void write_block_text(FILE *text, const hl_layout *layout)
{
    const struct hl_layout_content *content = &layout->content;
    fprintf(text, "hostlane block 1\nlayers %" PRIu32 "\npage_tokens %" PRIu32 "\n", layout->layers,
            layout->page_tokens);
    fprintf(text, "element_bytes %" PRIu32 "\nheads %" PRIu32 " first %" PRIu32 " of %" PRIu32 " %s\n",
            content->element_bytes, content->heads, content->first_head, content->model_heads,
            content->head_major ? "head-major" : "token-major");
    for (uint32_t i = 0; i < layout->group_count; i++)
        fprintf(text, "group %" PRIu32 " bytes %" PRIu64 "\n", i, layout->groups[i].block_bytes);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        struct hl_layout_stored stored;
        bool valid = hl_layout_stored_rows(layout, c, &stored);
        assert(valid);
        fprintf(text,
                "layer %" PRIu32 " group %" PRIu32 " role %s offset %" PRIu64 " rows %" PRIu32
                " bytes %" PRIu64 " stride %" PRIu64 "\n",
                c->layer, c->group, hl_layout_role_name(c->role), stored.offset, stored.rows,
                stored.row_bytes, stored.row_stride);
    }
}

hl_status hl_layout_block_digest(const hl_layout *layout, char hex[65], hl_error *err)
{
    _Static_assert(HL_SHA256_HEX_BYTES == 65, "the header spells it out");
    char *bytes = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&bytes, &size);
    if (text == NULL)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the block's text");
    write_block_text(text, layout);
    int failed = ferror(text);
    failed |= fclose(text);
    hl_status status;
    if (failed != 0)
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the block's text");
    else
        status = hl_sha256(bytes, size, hex, err);
    free(bytes);
    return status;
}
