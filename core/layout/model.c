#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/layout/layout.h"

#define STAGE "layout.model"

/* One component of a layer. */
struct part {
    enum hl_role role;
    uint64_t row_bytes;        /* the rank's heads of one token */
    uint64_t page_bytes;       /* the same of a page, contiguous on the device */
    uint64_t stored_row_bytes; /* the stored heads of one token */
    uint64_t slot;             /* of the rank's heads among the stored ones */
};

/* What all layers share, and how far the walk over them has come. */
struct shape {
    const struct hl_model_geometry *geometry;
    const struct hl_layout_options *options;
    struct hl_layout_content content;
    uint32_t part_count;
    struct part parts[2];
    uint64_t layer_page_bytes;  /* device bytes of a layer's page */
    uint64_t layer_token_bytes; /* stored bytes of a layer's token */
    uint32_t group_count;
    uint32_t group_layers[2];  /* layers of each group */
    uint32_t layers_before[2]; /* of the group, walked so far */
};

static hl_status check_geometry(const struct hl_model_geometry *g, hl_error *err)
{
    if (g->layers == 0 || g->layers > HL_LAYOUT_LAYERS)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layers is %u and must be 1 to %u", g->layers,
                       HL_LAYOUT_LAYERS);
    if (g->kv_heads == 0 || (g->mla && g->kv_heads != 1))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "kv_heads is %u and must be 1 or, without MLA, more",
                       g->kv_heads);
    if (g->head_dim == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "head_dim is 0");
    if (g->mla && g->value_head_dim != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "value_head_dim is %u and must be 0 with MLA",
                       g->value_head_dim);
    for (uint32_t layer = 0; layer < g->layers; layer++) {
        if (g->sliding[layer] > 1)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "sliding[%u] is %u and must be 0 or 1", layer,
                           g->sliding[layer]);
        if (g->sliding[layer] && g->window_tokens == 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "window_tokens is 0 and layer %u slides", layer);
    }
    return HL_OK;
}

static hl_status check_kind(const struct hl_model_geometry *geometry, const struct hl_layout_options *options,
                            hl_error *err)
{
    if ((unsigned)options->kind > HL_LAYOUT_PAGE_FIRST)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "kind %u is unknown", (unsigned)options->kind);
    bool fits =
        options->kind == HL_LAYOUT_PAGE_FIRST || (options->kind == HL_LAYOUT_MLA) == (geometry->mla != 0);
    if (!fits)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "kind is %s, but the model %s MLA",
                       hl_layout_kind_name(options->kind), geometry->mla ? "uses" : "does not use");
    return HL_OK;
}

static hl_status check_options(const struct hl_model_geometry *geometry,
                               const struct hl_layout_options *options, hl_error *err)
{
    uint32_t element = options->element_bytes != 0 ? options->element_bytes : geometry->element_bytes;
    uint32_t ranks = options->tp_size != 0 ? options->tp_size : 1, heads = geometry->kv_heads;
    if ((unsigned)options->order > HL_BLOCK_TOKEN_MAJOR)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "order %u is unknown", (unsigned)options->order);
    if (options->page_tokens == 0 || options->page_tokens > HL_LAYOUT_PAGE_TOKENS)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "page_tokens is %u and must be 1 to %u",
                       options->page_tokens, HL_LAYOUT_PAGE_TOKENS);
    if (options->pages == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "pages is 0");
    if (element == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "element_bytes is 0 and the model has neither dtype nor torch_dtype");
    if (element != 1 && element != 2 && element != 4)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "element_bytes is %u and must be 1, 2 or 4", element);
    if (options->tp_rank >= ranks)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tp_rank is %u and must be below tp_size %u",
                       options->tp_rank, ranks);
    assert(heads != 0); /* check_geometry() */
    if (heads >= ranks ? heads % ranks != 0 : ranks % heads != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "tp_size %u neither divides the %u KV heads nor is a multiple of them", ranks, heads);
    return HL_OK;
}

static void set_content(struct shape *shape)
{
    const struct hl_model_geometry *geometry = shape->geometry;
    const struct hl_layout_options *options = shape->options;
    uint32_t ranks = options->tp_size != 0 ? options->tp_size : 1, heads = geometry->kv_heads;
    struct hl_layout_content *content = &shape->content;
    content->element_bytes = options->element_bytes != 0 ? options->element_bytes : geometry->element_bytes;
    content->model_heads = heads;
    if (heads >= ranks) {
        content->rank_heads = heads / ranks;
        content->rank_first_head = options->tp_rank * content->rank_heads;
    } else {
        content->rank_heads = 1;
        content->rank_first_head = options->tp_rank / (ranks / heads);
    }
    content->heads = options->store_full_heads ? heads : content->rank_heads;
    content->first_head = options->store_full_heads ? 0 : content->rank_first_head;
}

static void count_groups(struct shape *shape)
{
    uint32_t sliding = 0, layers = shape->geometry->layers;
    for (uint32_t layer = 0; layer < layers; layer++)
        sliding += shape->geometry->sliding[layer];
    shape->group_count = sliding != 0 && sliding != layers ? 2 : 1;
    shape->group_layers[0] = shape->group_count == 2 ? layers - sliding : layers;
    shape->group_layers[1] = shape->group_count == 2 ? sliding : 0;
}

static uint32_t group_of(const struct shape *shape, uint32_t layer)
{
    return shape->group_count == 2 ? shape->geometry->sliding[layer] : 0;
}

static uint64_t value_dim(const struct hl_model_geometry *geometry)
{
    if (geometry->mla)
        return 0;
    return geometry->value_head_dim != 0 ? geometry->value_head_dim : geometry->head_dim;
}

/* Every size and place of the layout is at most that of all layers' pages with all heads: when this product
 * fits, nothing after it can wrap. */
static hl_status check_total(const struct shape *shape, hl_error *err)
{
    uint64_t total = (shape->geometry->head_dim + value_dim(shape->geometry)) * shape->content.element_bytes;
    if (!hl_mul_u64(total, shape->content.model_heads, &total) ||
        !hl_mul_u64(total, shape->options->page_tokens, &total) ||
        !hl_mul_u64(total, shape->geometry->layers, &total) ||
        !hl_mul_u64(total, shape->options->pages, &total))
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE,
                       "%u layers of %u heads of head_dim %u and %u pages of %u tokens exceed 2^64 bytes",
                       shape->geometry->layers, shape->content.model_heads, shape->geometry->head_dim,
                       shape->options->pages, shape->options->page_tokens);
    return HL_OK;
}

static void add_part(struct shape *shape, enum hl_role role, uint64_t dim)
{
    const struct hl_layout_content *content = &shape->content;
    uint64_t head_bytes = dim * content->element_bytes;
    struct part *part = &shape->parts[shape->part_count++];
    part->role = role;
    part->row_bytes = content->rank_heads * head_bytes;
    part->page_bytes = part->row_bytes * shape->options->page_tokens;
    part->stored_row_bytes = content->heads * head_bytes;
    part->slot = (content->rank_first_head - content->first_head) * head_bytes;
    shape->layer_page_bytes += part->page_bytes;
    shape->layer_token_bytes += part->stored_row_bytes;
}

static void set_parts(struct shape *shape)
{
    uint64_t key_dim = shape->geometry->head_dim;
    if (shape->geometry->mla) {
        add_part(shape, HL_ROLE_LATENT, key_dim);
    } else if (shape->options->kind == HL_LAYOUT_FUSED) {
        add_part(shape, HL_ROLE_FUSED, key_dim + value_dim(shape->geometry));
    } else {
        add_part(shape, HL_ROLE_K, key_dim);
        add_part(shape, HL_ROLE_V, value_dim(shape->geometry));
    }
}

/* Where the part's pages are. `before` is the device bytes of the layer's page that precede the part. */
static void place_on_device(const struct shape *shape, const struct part *part, uint32_t layer,
                            uint64_t before, struct hl_layout_component *c)
{
    switch (shape->options->kind) {
    case HL_LAYOUT_CONTIGUOUS:
        c->tensor = layer;
        c->offset = before * shape->options->pages;
        c->page_stride = part->page_bytes;
        break;
    case HL_LAYOUT_SPLIT:
        c->tensor = layer * 2 + (part->role == HL_ROLE_V);
        c->page_stride = part->page_bytes;
        break;
    case HL_LAYOUT_FUSED:
    case HL_LAYOUT_MLA:
        c->tensor = layer;
        c->page_stride = part->page_bytes;
        break;
    case HL_LAYOUT_PAGE_FIRST:
        c->tensor = c->group;
        c->offset = shape->layers_before[c->group] * shape->layer_page_bytes + before;
        c->page_stride = shape->group_layers[c->group] * shape->layer_page_bytes;
        break;
    }
}

/* Where the part's rows are in the block. `before` is the stored bytes of the layer's token that precede the
 * part. */
static void place_in_block(const struct shape *shape, const struct part *part, uint64_t before,
                           struct hl_layout_component *c)
{
    uint64_t tokens = shape->options->page_tokens;
    uint64_t first = shape->layers_before[c->group] * shape->layer_token_bytes + before;
    uint64_t stride;
    if (shape->options->order == HL_BLOCK_TOKEN_MAJOR) {
        c->block_offset = first + part->slot;
        stride = shape->group_layers[c->group] * shape->layer_token_bytes;
    } else {
        c->block_offset = first * tokens + part->slot;
        stride = part->stored_row_bytes;
    }
    bool one_row = stride == part->row_bytes || tokens == 1;
    c->rows = one_row ? 1 : (uint32_t)tokens;
    c->row_bytes = one_row ? part->page_bytes : part->row_bytes;
    c->row_stride = c->row_bytes;
    c->block_row_stride = one_row ? c->row_bytes : stride;
}

static void place_layers(struct shape *shape, hl_layout *layout)
{
    uint32_t next = 0;
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        uint64_t device_before = 0, stored_before = 0;
        uint32_t group = group_of(shape, layer);
        for (uint32_t i = 0; i < shape->part_count; i++) {
            const struct part *part = &shape->parts[i];
            struct hl_layout_component *c = &layout->components[next++];
            c->layer = layer;
            c->group = group;
            c->role = part->role;
            place_on_device(shape, part, layer, device_before, c);
            place_in_block(shape, part, stored_before, c);
            device_before += part->page_bytes;
            stored_before += part->stored_row_bytes;
        }
        shape->layers_before[group]++;
    }
    assert(next == layout->component_count);
}

static void set_tensors(const struct shape *shape, hl_layout *layout)
{
    uint64_t pages = shape->options->pages;
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        struct hl_layout_tensor *tensor = &layout->tensors[i];
        if (shape->options->kind == HL_LAYOUT_PAGE_FIRST) {
            tensor->bytes = shape->group_layers[i] * shape->layer_page_bytes * pages;
            snprintf(tensor->name, sizeof tensor->name, "model.group.%u.kv", i);
        } else if (shape->options->kind == HL_LAYOUT_SPLIT) {
            tensor->bytes = shape->parts[i % 2].page_bytes * pages;
            snprintf(tensor->name, sizeof tensor->name, "model.layers.%u.%s", i / 2,
                     hl_layout_role_name(shape->parts[i % 2].role));
        } else {
            tensor->bytes = shape->layer_page_bytes * pages;
            snprintf(tensor->name, sizeof tensor->name, "model.layers.%u.%s", i,
                     shape->geometry->mla ? "latent" : "kv");
        }
    }
}

static void set_groups(const struct shape *shape, hl_layout *layout)
{
    layout->group_count = shape->group_count;
    for (uint32_t i = 0; i < shape->group_count; i++) {
        bool slides = i == 1 || (shape->group_count == 1 && shape->geometry->sliding[0]);
        layout->groups[i] = (struct hl_layout_group){
            .pages = shape->options->pages,
            .window_tokens = slides ? shape->geometry->window_tokens : 0,
            .block_bytes = shape->group_layers[i] * shape->layer_token_bytes * shape->options->page_tokens};
    }
}

static hl_status build(struct shape *shape, hl_layout **layout, hl_error *err)
{
    hl_layout built = {.layers = shape->geometry->layers,
                       .page_tokens = shape->options->page_tokens,
                       .component_count = shape->geometry->layers * shape->part_count,
                       .content = shape->content};
    if (shape->options->kind == HL_LAYOUT_PAGE_FIRST)
        built.tensor_count = shape->group_count;
    else
        built.tensor_count = built.layers * (shape->options->kind == HL_LAYOUT_SPLIT ? 2 : 1);
    built.components = calloc(built.component_count, sizeof *built.components);
    built.tensors = calloc(built.tensor_count, sizeof *built.tensors);
    hl_status status;
    if (built.components == NULL || built.tensors == NULL) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u components", built.component_count);
        goto err_free;
    }
    set_groups(shape, &built);
    set_tensors(shape, &built);
    place_layers(shape, &built);
    status = hl_layout_from_components(&built, layout, err);
err_free:
    free(built.tensors);
    free(built.components);
    return status;
}

hl_status hl_layout_from_model(const struct hl_model_geometry *geometry,
                               const struct hl_layout_options *options, hl_layout **layout, hl_error *err)
{
    hl_status status = check_geometry(geometry, err);
    if (status == HL_OK)
        status = check_kind(geometry, options, err);
    if (status == HL_OK)
        status = check_options(geometry, options, err);
    if (status != HL_OK)
        return status;
    struct shape shape = {.geometry = geometry, .options = options};
    set_content(&shape);
    status = check_total(&shape, err);
    if (status != HL_OK)
        return status;
    count_groups(&shape);
    set_parts(&shape);
    return build(&shape, layout, err);
}
