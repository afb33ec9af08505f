#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/layout/layout.h"
#include "core/testing/cunit.h"

#define CONFIGS "engine/demo/configs/"

static hl_layout *lay_out(const struct hl_model_geometry *geometry, const struct hl_layout_options *options)
{
    hl_layout *layout = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_from_model(geometry, options, &layout, &err), err);
    return layout;
}

static hl_layout *lay_out_file(const char *path, const struct hl_layout_options *options)
{
    struct hl_model_geometry geometry;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_load_config(path, &geometry, &err), err);
    return lay_out(&geometry, options);
}

static uint64_t token_bytes(const hl_layout *layout)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < layout->layers; layer++)
        bytes += hl_layout_layer_page_bytes(layout, layer);
    return bytes / layout->page_tokens;
}

static void qwen3_8b_has_32_kib_of_k_and_of_v_a_page(void)
{
    struct hl_layout_options options = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 16, .pages = 100};
    hl_layout *layout = lay_out_file(CONFIGS "qwen3-8b.json", &options);
    CU_ASSERT_EQUAL(layout->component_count, 72);
    CU_ASSERT_EQUAL(layout->tensor_count, 72);
    CU_ASSERT_EQUAL(layout->group_count, 1);
    CU_ASSERT_EQUAL(token_bytes(layout), 147456);
    CU_ASSERT_EQUAL(layout->groups[0].block_bytes, 147456 * 16);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        CU_ASSERT_EQUAL(c->layer, i / 2);
        CU_ASSERT_EQUAL(c->role, i % 2 ? HL_ROLE_V : HL_ROLE_K);
        CU_ASSERT_EQUAL(c->rows, 1);
        CU_ASSERT_EQUAL(c->row_bytes, 32 * HL_KIB);
        CU_ASSERT_EQUAL(c->page_stride, 32 * HL_KIB);
        CU_ASSERT_EQUAL(c->block_offset, i * 32 * HL_KIB);
        CU_ASSERT_EQUAL(layout->tensors[c->tensor].bytes, 100 * 32 * HL_KIB);
    }
    CU_ASSERT_STRING_EQUAL(layout->tensors[15].name, "model.layers.7.v");
    hl_layout_free(layout);
}

static void the_published_models_have_their_known_bytes_a_token(void)
{
    struct hl_layout_options options = {.kind = HL_LAYOUT_FUSED, .page_tokens = 16, .pages = 10};
    hl_layout *layout = lay_out_file(CONFIGS "llama-3.1-8b.json", &options);
    CU_ASSERT_EQUAL(token_bytes(layout), 131072);
    CU_ASSERT_EQUAL(hl_layout_layer_page_bytes(layout, 31), 64 * HL_KIB);
    CU_ASSERT_EQUAL(hl_layout_layer_page_bytes(layout, 32), 0);
    hl_layout_free(layout);
    options.element_bytes = 1; /* an FP8 cache of the same model */
    layout = lay_out_file(CONFIGS "llama-3.1-8b.json", &options);
    CU_ASSERT_EQUAL(token_bytes(layout), 65536);
    hl_layout_free(layout);
    options = (struct hl_layout_options){.kind = HL_LAYOUT_MLA, .page_tokens = 64, .pages = 10};
    layout = lay_out_file(CONFIGS "deepseek-mla.json", &options);
    CU_ASSERT_EQUAL(token_bytes(layout), 70272);
    CU_ASSERT_EQUAL(layout->components[60].row_bytes, 576 * 2 * 64);
    hl_layout_free(layout);
}

static void gpt_oss_has_a_group_for_each_sort_of_layer(void)
{
    struct hl_layout_options options = {.kind = HL_LAYOUT_CONTIGUOUS, .page_tokens = 16, .pages = 10};
    hl_layout *layout = lay_out_file(CONFIGS "gpt-oss-20b.json", &options);
    CU_ASSERT_EQUAL(token_bytes(layout), 24 * 8 * 64 * 2 * 2);
    CU_ASSERT_EQUAL(layout->group_count, 2);
    for (uint32_t g = 0; g < 2; g++) {
        CU_ASSERT_EQUAL(layout->groups[g].window_tokens, g == 1 ? 128 : 0);
        CU_ASSERT_EQUAL(layout->groups[g].block_bytes, 12 * 8 * 64 * 2 * 2 * 16);
    }
    for (uint32_t i = 0; i < layout->component_count; i++)
        CU_ASSERT_EQUAL(layout->components[i].group, layout->components[i].layer % 2 == 0);
    hl_layout_free(layout);
}

static void a_tensor_parallel_rank_selects_rows_of_a_token(void)
{
    struct hl_layout_options options = {.kind = HL_LAYOUT_SPLIT,
                                        .page_tokens = 16,
                                        .pages = 4,
                                        .tp_size = 4,
                                        .tp_rank = 3,
                                        .store_full_heads = 1};
    hl_layout *layout = lay_out_file(CONFIGS "qwen3-8b.json", &options);
    const struct hl_layout_component *c = &layout->components[1]; /* V of layer 0 */
    CU_ASSERT_EQUAL(c->rows, 16);
    CU_ASSERT_EQUAL(c->row_bytes, 2 * 128 * 2);
    CU_ASSERT_EQUAL(c->row_stride, 2 * 128 * 2);
    CU_ASSERT_EQUAL(c->page_stride, 16 * 2 * 128 * 2);
    CU_ASSERT_EQUAL(c->block_row_stride, 8 * 128 * 2);
    CU_ASSERT_EQUAL(c->block_offset, 32 * HL_KIB + 6 * 128 * 2);
    CU_ASSERT_EQUAL(layout->groups[0].block_bytes, 147456 * 16);
    hl_layout_free(layout);
    options.store_full_heads = 0;
    layout = lay_out_file(CONFIGS "qwen3-8b.json", &options);
    CU_ASSERT_EQUAL(layout->components[1].rows, 1);
    CU_ASSERT_EQUAL(layout->components[1].block_offset, 8 * HL_KIB);
    CU_ASSERT_EQUAL(layout->groups[0].block_bytes, 147456 * 4);
    hl_layout_free(layout);
}

/* --- a reference that places every byte by its own formula --- */

struct scenario {
    struct hl_model_geometry geometry;
    struct hl_layout_options options;
    uint32_t ranks, local, first, stored, stored_first; /* heads */
    uint32_t key, value;                                /* bytes a head; value 0 with MLA */
    uint32_t groups, group_layers[2];
};

enum { MAP_TENSORS = 8, MAP_BYTES = 1 << 13, OUTSIDE = UINT32_MAX };

/* What each tensor byte corresponds to: group, page, block offset + 1; 0 for a byte that nothing covers. */
struct map {
    uint32_t bytes[MAP_TENSORS][MAP_BYTES];
};

static void derive(struct scenario *s)
{
    const struct hl_model_geometry *g = &s->geometry;
    uint32_t heads = g->kv_heads, sliding = 0;
    s->ranks = s->options.tp_size ? s->options.tp_size : 1;
    s->local = heads > s->ranks ? heads / s->ranks : 1;
    s->first = s->options.tp_rank * heads / s->ranks;
    s->stored = s->options.store_full_heads ? heads : s->local;
    s->stored_first = s->options.store_full_heads ? 0 : s->first;
    s->key = g->head_dim * g->element_bytes;
    s->value = g->mla ? 0 : g->value_head_dim * g->element_bytes;
    for (uint32_t l = 0; l < g->layers; l++)
        sliding += g->sliding[l];
    s->groups = sliding > 0 && sliding < g->layers ? 2 : 1;
    s->group_layers[0] = s->groups == 2 ? g->layers - sliding : g->layers;
    s->group_layers[1] = sliding;
}

static uint32_t group_of(const struct scenario *s, uint32_t layer)
{
    return s->groups == 2 && s->geometry.sliding[layer];
}

static uint32_t index_in_group(const struct scenario *s, uint32_t layer)
{
    uint32_t index = 0;
    for (uint32_t l = 0; l < layer; l++)
        index += group_of(s, l) == group_of(s, layer);
    return index;
}

/* Where byte d of (layer, page, token, local head, K or V) is. */
static uint32_t device_place(const struct scenario *s, uint32_t l, uint32_t p, uint32_t t, uint32_t h, int v,
                             uint32_t d, uint32_t *tensor)
{
    uint32_t T = s->options.page_tokens, H = s->local, K = s->key, V = s->value, D = v ? V : K;
    uint32_t token = p * T + t;
    *tensor = l;
    switch (s->options.kind) {
    case HL_LAYOUT_CONTIGUOUS:
        return (v ? s->options.pages * T * H * K : 0) + (token * H + h) * D + d;
    case HL_LAYOUT_SPLIT:
        *tensor = 2 * l + (uint32_t)v;
        return (token * H + h) * D + d;
    case HL_LAYOUT_FUSED:
        return (token * H + h) * (K + V) + (v ? K : 0) + d;
    case HL_LAYOUT_MLA:
        return token * K + d;
    case HL_LAYOUT_PAGE_FIRST:
        *tensor = group_of(s, l);
        return (p * s->group_layers[*tensor] + index_in_group(s, l)) * T * H * (K + V) + (v ? T * H * K : 0) +
               (t * H + h) * D + d;
    }
    return OUTSIDE;
}

static uint32_t block_place(const struct scenario *s, uint32_t l, uint32_t t, uint32_t h, int v, uint32_t d)
{
    uint32_t T = s->options.page_tokens, H = s->stored, K = s->key, V = s->value, D = v ? V : K;
    uint32_t head = s->first + h - s->stored_first, i = index_in_group(s, l),
             L = s->group_layers[group_of(s, l)];
    bool fused = s->options.kind == HL_LAYOUT_FUSED;
    uint32_t in_token = fused ? head * (K + V) + (v ? K : 0) + d : head * D + d;
    if (s->options.order == HL_BLOCK_TOKEN_MAJOR)
        return (t * L + i) * H * (K + V) + (v && !fused ? H * K : 0) + in_token;
    return i * T * H * (K + V) + (v && !fused ? T * H * K : 0) + t * H * (fused ? K + V : D) + in_token;
}

static uint32_t mark(uint32_t group, uint32_t page, uint32_t block_offset)
{
    return group << 30 | page << 24 | (block_offset + 1);
}

static uint32_t fill_by_formula(const struct scenario *s, struct map *map)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < s->geometry.layers; l++)
        for (uint32_t p = 0; p < s->options.pages; p++)
            for (uint32_t t = 0; t < s->options.page_tokens; t++)
                for (uint32_t h = 0; h < s->local; h++)
                    for (int v = 0; v < (s->value ? 2 : 1); v++)
                        for (uint32_t d = 0; d < (v ? s->value : s->key); d++, count++) {
                            uint32_t tensor, at = device_place(s, l, p, t, h, v, d, &tensor);
                            CU_ASSERT_TRUE_FATAL(tensor < MAP_TENSORS && at < MAP_BYTES);
                            CU_ASSERT_TRUE_FATAL(map->bytes[tensor][at] == 0);
                            map->bytes[tensor][at] = mark(group_of(s, l), p, block_place(s, l, t, h, v, d));
                        }
    return count;
}

static uint32_t fill_by_layout(const hl_layout *layout, struct map *map)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        for (uint32_t p = 0; p < layout->groups[c->group].pages; p++)
            for (uint32_t r = 0; r < c->rows; r++)
                for (uint64_t d = 0; d < c->row_bytes; d++, count++) {
                    uint64_t at = c->offset + p * c->page_stride + r * c->row_stride + d;
                    uint64_t block = c->block_offset + r * c->block_row_stride + d;
                    CU_ASSERT_TRUE_FATAL(c->tensor < MAP_TENSORS && at < layout->tensors[c->tensor].bytes);
                    CU_ASSERT_TRUE_FATAL(block < layout->groups[c->group].block_bytes);
                    map->bytes[c->tensor][at] = mark(c->group, p, (uint32_t)block);
                }
    }
    return count;
}

static bool row_is_whole_page(const struct scenario *s, const struct hl_layout_component *c)
{
    uint32_t head = c->role == HL_ROLE_FUSED ? s->key + s->value : c->role == HL_ROLE_V ? s->value : s->key;
    uint64_t page = (uint64_t)s->options.page_tokens * s->local * head;
    bool together = s->options.page_tokens == 1 ||
                    (s->local == s->stored &&
                     (s->options.order == HL_BLOCK_COMPONENT_MAJOR ||
                      s->group_layers[c->group] * s->stored * (s->key + s->value) == s->local * head));
    return together ? c->rows == 1 && c->row_bytes == page && c->block_row_stride == page
                    : c->rows == s->options.page_tokens && c->row_bytes * c->rows == page;
}

static void compare(struct scenario *s)
{
    static struct map expected, got;
    derive(s);
    memset(&expected, 0, sizeof expected);
    memset(&got, 0, sizeof got);
    hl_layout *layout = lay_out(&s->geometry, &s->options);
    uint32_t count = fill_by_formula(s, &expected);
    CU_ASSERT_EQUAL_FATAL(fill_by_layout(layout, &got), count);
    CU_ASSERT_EQUAL_FATAL(memcmp(&expected, &got, sizeof got), 0);
    uint64_t tensor_bytes = 0;
    for (uint32_t i = 0; i < layout->tensor_count; i++)
        tensor_bytes += layout->tensors[i].bytes;
    CU_ASSERT_EQUAL_FATAL(tensor_bytes, count); /* no byte of a tensor is left out */
    CU_ASSERT_EQUAL_FATAL(layout->group_count, s->groups);
    for (uint32_t g = 0; g < s->groups; g++) {
        uint64_t bytes =
            (uint64_t)s->group_layers[g] * s->options.page_tokens * s->stored * (s->key + s->value);
        CU_ASSERT_EQUAL_FATAL(layout->groups[g].block_bytes, bytes);
        CU_ASSERT_EQUAL_FATAL(layout->groups[g].pages, s->options.pages);
    }
    for (uint32_t i = 0; i < layout->component_count; i++)
        CU_ASSERT_TRUE_FATAL(row_is_whole_page(s, &layout->components[i]));
    hl_layout_free(layout);
}

static unsigned compare_ranks(struct scenario *s)
{
    static const uint32_t sizes[] = {0, 1, 2, 4, 8};
    unsigned count = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        s->options.tp_size = sizes[i];
        for (uint32_t rank = 0; rank < (sizes[i] ? sizes[i] : 1); rank++, count++) {
            s->options.tp_rank = rank;
            compare(s);
        }
    }
    return count;
}

static unsigned compare_options(struct scenario *s)
{
    static const char *const windows[] = {"\0\0\0", "\1\1\1", "\1\0\1", "\0\0\1"};
    unsigned count = 0;
    for (int order = 0; order < 2; order++)
        for (int full = 0; full < 2; full++)
            for (uint32_t tokens = 1; tokens <= 3; tokens += 2)
                for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
                    s->options.order = order ? HL_BLOCK_TOKEN_MAJOR : HL_BLOCK_COMPONENT_MAJOR;
                    s->options.store_full_heads = full;
                    s->options.page_tokens = tokens;
                    memcpy(s->geometry.sliding, windows[w], 3);
                    s->geometry.window_tokens = w != 0 ? 5 : 0;
                    count += compare_ranks(s);
                }
    return count;
}

static void every_byte_is_where_the_formula_says(void)
{
    static const enum hl_layout_kind kinds[] = {HL_LAYOUT_CONTIGUOUS, HL_LAYOUT_SPLIT, HL_LAYOUT_FUSED,
                                                HL_LAYOUT_PAGE_FIRST};
    unsigned count = 0;
    struct scenario s = {.geometry = {.name = "m", .layers = 3, .element_bytes = 2}, .options = {.pages = 2}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (uint32_t heads = 1; heads <= 4; heads *= 2)
            for (uint32_t value = 2; value <= 3; value++) {
                s.options.kind = kinds[k];
                s.geometry.kv_heads = heads;
                s.geometry.head_dim = 3;
                s.geometry.value_head_dim = value;
                count += compare_options(&s);
            }
    CU_ASSERT_EQUAL(count, 4 * 3 * 2 * 32 * 16);
}

static void every_latent_byte_is_where_the_formula_says(void)
{
    struct scenario s = {
        .geometry = {.layers = 3, .kv_heads = 1, .head_dim = 5, .element_bytes = 1, .mla = 1},
        .options = {.pages = 3, .kind = HL_LAYOUT_MLA}};
    unsigned count = compare_options(&s);
    s.options.kind = HL_LAYOUT_PAGE_FIRST;
    count += compare_options(&s);
    CU_ASSERT_EQUAL(count, 2 * 32 * 16);
}

static void one_layer_in_token_order_is_one_row(void)
{
    struct scenario s = {
        .geometry = {.layers = 1, .kv_heads = 2, .head_dim = 4, .value_head_dim = 4, .element_bytes = 2},
        .options = {.pages = 3, .page_tokens = 4, .kind = HL_LAYOUT_FUSED, .order = HL_BLOCK_TOKEN_MAJOR}};
    compare(&s);
}

/* --- refusals --- */

static const struct hl_model_geometry small = {
    .name = "small", .layers = 4, .kv_heads = 4, .head_dim = 8, .value_head_dim = 8, .element_bytes = 2};
static const struct hl_layout_options plain = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 16, .pages = 8};

static void refuse(const struct hl_model_geometry *geometry, const struct hl_layout_options *options,
                   hl_status status, const char *word)
{
    hl_layout *layout = (hl_layout *)&small;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_layout_from_model(geometry, options, &layout, &err), status, err);
    if (strstr(err.text, word) == NULL)
        fprintf(stderr, "\"%s\" does not name %s\n", err.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    CU_ASSERT_PTR_EQUAL(layout, &small);
}

#define REFUSE_OPTION(assignment, word)                                                                      \
    do {                                                                                                     \
        struct hl_layout_options o = plain;                                                                  \
        o.assignment;                                                                                        \
        refuse(&small, &o, HL_E_INVALID, word);                                                              \
    } while (0)

#define REFUSE_GEOMETRY(assignment, word)                                                                    \
    do {                                                                                                     \
        struct hl_model_geometry g = small;                                                                  \
        g.assignment;                                                                                        \
        refuse(&g, &plain, HL_E_INVALID, word);                                                              \
    } while (0)

static void a_wrong_option_is_named(void)
{
    REFUSE_OPTION(kind = HL_LAYOUT_MLA, "kind is mla");
    REFUSE_OPTION(kind = (enum hl_layout_kind)77, "kind 77");
    REFUSE_OPTION(order = (enum hl_block_order)5, "order 5");
    REFUSE_OPTION(page_tokens = 0, "page_tokens");
    REFUSE_OPTION(page_tokens = HL_LAYOUT_PAGE_TOKENS + 1, "page_tokens");
    REFUSE_OPTION(pages = 0, "pages");
    REFUSE_OPTION(element_bytes = 3, "element_bytes");
    REFUSE_OPTION(element_bytes = UINT32_MAX, "element_bytes");
    REFUSE_OPTION(tp_rank = 1, "tp_rank");
    REFUSE_OPTION(tp_size = 3, "tp_size 3");
    REFUSE_OPTION(tp_size = 6, "tp_size 6");
}

static void a_wrong_geometry_is_named(void)
{
    REFUSE_GEOMETRY(layers = 0, "layers");
    REFUSE_GEOMETRY(layers = HL_LAYOUT_LAYERS + 1, "layers");
    REFUSE_GEOMETRY(kv_heads = 0, "kv_heads");
    REFUSE_GEOMETRY(head_dim = 0, "head_dim");
    REFUSE_GEOMETRY(sliding[2] = 1, "window_tokens is 0 and layer 2");
    REFUSE_GEOMETRY(sliding[2] = 2, "sliding[2]");
    REFUSE_GEOMETRY(element_bytes = 0, "element_bytes");
    REFUSE_GEOMETRY(mla = 1, "kv_heads");
    struct hl_model_geometry latent = {
        .layers = 2, .kv_heads = 1, .head_dim = 8, .element_bytes = 2, .mla = 1};
    refuse(&latent, &plain, HL_E_INVALID, "kind is split");
    latent.value_head_dim = 4;
    refuse(&latent, &plain, HL_E_INVALID, "value_head_dim");
}

static void a_cache_beyond_64_bits_is_refused(void)
{
    struct hl_model_geometry g = small;
    struct hl_layout_options o = plain;
    g.kv_heads = g.head_dim = 1u << 31;
    refuse(&g, &o, HL_E_OVERFLOW, "2^64");
    g = small;
    g.layers = 1024;
    g.head_dim = UINT32_MAX;
    o.page_tokens = HL_LAYOUT_PAGE_TOKENS;
    o.pages = UINT32_MAX;
    refuse(&g, &o, HL_E_OVERFLOW, "2^64");
    g = small; /* 2^62 bytes are no error: whether a device has them is not asked here */
    o = plain;
    g.kv_heads = 1u << 20;
    g.head_dim = g.value_head_dim = 1u << 20;
    o.page_tokens = o.pages = 1u << 9;
    hl_layout_free(lay_out(&g, &o));
}

static void a_value_dim_of_0_means_that_of_k(void)
{
    struct hl_model_geometry g = small;
    g.value_head_dim = 0;
    hl_layout *layout = lay_out(&g, &plain);
    CU_ASSERT_EQUAL(layout->components[1].row_bytes, layout->components[0].row_bytes);
    hl_layout_free(layout);
}

HL_TESTS(layout_model, HL_CASE(qwen3_8b_has_32_kib_of_k_and_of_v_a_page),
         HL_CASE(the_published_models_have_their_known_bytes_a_token),
         HL_CASE(gpt_oss_has_a_group_for_each_sort_of_layer),
         HL_CASE(a_tensor_parallel_rank_selects_rows_of_a_token),
         HL_CASE(every_byte_is_where_the_formula_says), HL_CASE(every_latent_byte_is_where_the_formula_says),
         HL_CASE(one_layer_in_token_order_is_one_row), HL_CASE(a_wrong_option_is_named),
         HL_CASE(a_wrong_geometry_is_named), HL_CASE(a_cache_beyond_64_bits_is_refused),
         HL_CASE(a_value_dim_of_0_means_that_of_k));
