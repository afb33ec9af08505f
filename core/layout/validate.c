#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/layout/layout.h"
#include "core/layout/overlap.h"
#include "core/layout/stored.h"

#define STAGE "layout.validate"

static hl_status check_count(const char *field, uint32_t value, uint32_t limit, hl_error *err)
{
    if (value == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s is 0", field);
    if (value > limit)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%s is %u, at most %u are allowed", field, value, limit);
    return HL_OK;
}

static hl_status check_counts(const hl_layout *layout, hl_error *err)
{
    hl_status status = check_count("layers", layout->layers, HL_LAYOUT_LAYERS, err);
    if (status == HL_OK)
        status = check_count("page_tokens", layout->page_tokens, HL_LAYOUT_PAGE_TOKENS, err);
    if (status == HL_OK)
        status = check_count("component_count", layout->component_count, HL_LAYOUT_COMPONENTS, err);
    if (status == HL_OK)
        status = check_count("tensor_count", layout->tensor_count, HL_LAYOUT_TENSORS, err);
    if (status == HL_OK)
        status = check_count("group_count", layout->group_count, HL_LAYOUT_GROUPS, err);
    if (status == HL_OK && layout->components == NULL)
        status = HL_FAIL(err, HL_E_INVALID, STAGE, "components is NULL");
    if (status == HL_OK && layout->tensors == NULL)
        status = HL_FAIL(err, HL_E_INVALID, STAGE, "tensors is NULL");
    return status;
}

static hl_status check_owners(const hl_layout *layout, hl_error *err)
{
    bool used[HL_LAYOUT_GROUPS] = {false};
    for (uint32_t i = 0; i < layout->tensor_count; i++)
        if (memchr(layout->tensors[i].name, '\0', HL_NAME_BYTES) == NULL)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %u: name has no NUL", i);
    for (uint32_t i = 0; i < layout->component_count; i++)
        used[layout->components[i].group] = true;
    for (uint32_t i = 0; i < layout->group_count; i++) {
        if (layout->groups[i].pages == 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "group %u: pages is 0", i);
        if (!used[i])
            return HL_FAIL(err, HL_E_INVALID, STAGE, "group %u has no component", i);
    }
    return HL_OK;
}

static hl_status check_index(uint32_t component, const char *field, uint64_t value, uint32_t count,
                             hl_error *err)
{
    if (value < count)
        return HL_OK;
    return HL_FAIL(err, HL_E_RANGE, STAGE, "component %u: %s is %llu and must be below %u", component, field,
                   (unsigned long long)value, count);
}

/* Indices and order; afterwards a component may be used to look things up. */
static hl_status check_indices(const hl_layout *layout, uint32_t i, hl_error *err)
{
    const struct hl_layout_component *c = &layout->components[i], *before = i > 0 ? c - 1 : NULL;
    hl_status status = check_index(i, "layer", c->layer, layout->layers, err);
    if (status == HL_OK)
        status = check_index(i, "group", c->group, layout->group_count, err);
    if (status == HL_OK)
        status = check_index(i, "tensor", c->tensor, layout->tensor_count, err);
    if (status != HL_OK)
        return status;
    if ((unsigned)c->role > HL_ROLE_STATE)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: role %u is unknown", i, (unsigned)c->role);
    if (c->rows == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: rows is 0", i);
    if (c->row_bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: row_bytes is 0", i);
    if (before == NULL || before->layer < c->layer)
        return HL_OK;
    if (before->layer > c->layer || before->role > c->role)
        return HL_FAIL(
            err, HL_E_INVALID, STAGE,
            "component %u: %s of layer %u comes after %s of layer %u, which is not the consuming order", i,
            hl_layout_role_name(c->role), c->layer, hl_layout_role_name(before->role), before->layer);
    if (before->group != c->group)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: group is %u, layer %u is in group %u", i,
                       c->group, c->layer, before->group);
    return HL_OK;
}

/* Adds the way from the first to the last of `count` steps to *place; false when it passes 2^64. */
static bool advance(uint32_t count, uint64_t stride, uint64_t *place)
{
    uint64_t way;
    return count == 1 || (hl_mul_u64(count - 1, stride, &way) && hl_add_u64(*place, way, place));
}

static hl_status check_device_range(const hl_layout *layout, uint32_t i, hl_error *err)
{
    const struct hl_layout_component *c = &layout->components[i];
    const struct hl_layout_tensor *tensor = &layout->tensors[c->tensor];
    uint32_t pages = layout->groups[c->group].pages;
    const char *field = "offset";
    uint64_t place = c->offset;
    if (!hl_within(place, c->row_bytes, tensor->bytes))
        goto outside;
    field = "row_stride";
    if (!advance(c->rows, c->row_stride, &place) || !hl_within(place, c->row_bytes, tensor->bytes))
        goto outside;
    field = "page_stride";
    if (!advance(pages, c->page_stride, &place) || !hl_within(place, c->row_bytes, tensor->bytes))
        goto outside;
    return HL_OK;
outside:
    return HL_FAIL(
        err, HL_E_RANGE, STAGE,
        "component %u: %s takes a row of %llu bytes out of tensor %u (%.40s) of %llu bytes, %u pages", i,
        field, (unsigned long long)c->row_bytes, c->tensor, tensor->name, (unsigned long long)tensor->bytes,
        pages);
}

static hl_status check_block_range(const hl_layout *layout, uint32_t i, hl_error *err)
{
    const struct hl_layout_component *c = &layout->components[i];
    uint64_t block_bytes = layout->groups[c->group].block_bytes;
    const char *field = "block_offset";
    uint64_t place = c->block_offset;
    if (!hl_within(place, c->row_bytes, block_bytes))
        goto outside;
    field = "block_row_stride";
    if (!advance(c->rows, c->block_row_stride, &place) || !hl_within(place, c->row_bytes, block_bytes))
        goto outside;
    return HL_OK;
outside:
    return HL_FAIL(err, HL_E_RANGE, STAGE,
                   "component %u: %s takes a row of %llu bytes out of group %u's block of %llu", i, field,
                   (unsigned long long)c->row_bytes, c->group, (unsigned long long)block_bytes);
}

static hl_status check_content(const hl_layout *layout, hl_error *err)
{
    const struct hl_layout_content *content = &layout->content;
    struct hl_layout_stored stored;
    if (!hl_layout_has_content(layout))
        return HL_OK;
    if (content->element_bytes == 0 || content->heads == 0 || content->rank_heads == 0 ||
        content->head_major > 1)
        return HL_FAIL(
            err, HL_E_INVALID, STAGE,
            "content: element_bytes %u, heads %u and rank_heads %u must not be 0, head_major %u at most 1",
            content->element_bytes, content->heads, content->rank_heads, content->head_major);
    if (!hl_within(content->first_head, content->heads, content->model_heads))
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "content: heads %u from first_head %u are not in model_heads %u", content->heads,
                       content->first_head, content->model_heads);
    if (content->rank_first_head < content->first_head ||
        !hl_within(content->rank_first_head - content->first_head, content->rank_heads, content->heads))
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "content: rank_heads %u from rank_first_head %u are not in the block's %u from %u",
                       content->rank_heads, content->rank_first_head, content->heads, content->first_head);
    for (uint32_t i = 0; i < layout->component_count; i++)
        if (!hl_layout_stored_rows(layout, &layout->components[i], &stored))
            return HL_FAIL(
                err, HL_E_INVALID, STAGE,
                "component %u: rows, row_bytes and block_offset are no slot of %u in %u heads of a block", i,
                content->rank_heads, content->heads);
    return HL_OK;
}

static hl_status refuse_pair(const hl_layout *layout, uint32_t first, uint32_t second, const char *where,
                             uint32_t owner, hl_error *err)
{
    const struct hl_layout_component *a = &layout->components[first], *b = &layout->components[second];
    return HL_FAIL(
        err, HL_E_OVERLAP, STAGE,
        "components %u (%s of layer %u) and %u (%s of layer %u) overlap %s %u or cannot be told apart", first,
        hl_layout_role_name(a->role), a->layer, second, hl_layout_role_name(b->role), b->layer, where, owner);
}

static hl_status check_overlaps(const hl_layout *layout, hl_error *err)
{
    hl_status status = HL_OK;
    uint32_t count = layout->component_count, first, second;
    struct hl_layout_nest *nests = calloc(count, sizeof *nests);
    if (nests == NULL)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u components", count);
    for (uint32_t i = 0; i < count && status == HL_OK; i++)
        if (!hl_layout_nest_pages(layout, i, &nests[i]))
            status = HL_FAIL(err, HL_E_OVERLAP, STAGE,
                             "component %u: page_stride and row_stride make its rows overlap or weave", i);
    if (status == HL_OK && hl_layout_nests_meet(nests, count, &first, &second))
        status = refuse_pair(layout, first, second, "in tensor", layout->components[first].tensor, err);
    for (uint32_t i = 0; i < count && status == HL_OK; i++)
        if (!hl_layout_nest_rows(layout, i, &nests[i]))
            status =
                HL_FAIL(err, HL_E_OVERLAP, STAGE, "component %u: block_row_stride is below row_bytes", i);
    if (status == HL_OK && hl_layout_nests_meet(nests, count, &first, &second))
        status =
            refuse_pair(layout, first, second, "in the block of group", layout->components[first].group, err);
    free(nests);
    return status;
}

hl_status hl_layout_validate(const hl_layout *layout, hl_error *err)
{
    if (layout == NULL)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout is NULL");
    hl_status status = check_counts(layout, err);
    for (uint32_t i = 0; status == HL_OK && i < layout->component_count; i++)
        status = check_indices(layout, i, err);
    if (status == HL_OK)
        status = check_owners(layout, err);
    for (uint32_t i = 0; status == HL_OK && i < layout->component_count; i++) {
        status = check_device_range(layout, i, err);
        if (status == HL_OK)
            status = check_block_range(layout, i, err);
    }
    if (status == HL_OK)
        status = check_overlaps(layout, err);
    if (status == HL_OK)
        status = check_content(layout, err);
    return status;
}
