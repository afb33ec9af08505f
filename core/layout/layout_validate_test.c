#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/layout/layout.h"
#include "core/testing/cunit.h"

/* A valid layout in static storage: two layers of K and V in groups 0 and 1, each with four pages of two
 * rows. */
struct sample {
    hl_layout layout;
    struct hl_layout_component components[4];
    struct hl_layout_tensor tensors[2];
};

static void make_sample(struct sample *s)
{
    memset(s, 0, sizeof *s);
    s->layout = (hl_layout){.layers = 2,
                            .page_tokens = 2,
                            .component_count = 4,
                            .tensor_count = 2,
                            .group_count = 2,
                            .components = s->components,
                            .tensors = s->tensors,
                            .groups = {{.pages = 4, .block_bytes = 64}, {.pages = 4, .block_bytes = 64}}};
    for (uint32_t i = 0; i < 4; i++)
        s->components[i] = (struct hl_layout_component){.layer = i / 2,
                                                        .group = i / 2,
                                                        .tensor = i / 2,
                                                        .role = i % 2 ? HL_ROLE_V : HL_ROLE_K,
                                                        .offset = i % 2 * 32,
                                                        .page_stride = 64,
                                                        .row_bytes = 16,
                                                        .row_stride = 16,
                                                        .rows = 2,
                                                        .block_offset = i % 2 * 16,
                                                        .block_row_stride = 32};
    for (uint32_t i = 0; i < 2; i++) {
        s->tensors[i].bytes = 256;
        snprintf(s->tensors[i].name, HL_NAME_BYTES, "tensor.%u", i);
    }
}

static void expect(const hl_layout *layout, hl_status status, const char *word)
{
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_layout_validate(layout, &err), status, err);
    if (strstr(err.text, word) == NULL)
        fprintf(stderr, "\"%s\" does not name %s\n", err.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    hl_layout *copy = (hl_layout *)layout;
    CU_ASSERT_EQUAL(hl_layout_from_components(layout, &copy, &err), status);
    if (status == HL_OK)
        hl_layout_free(copy);
    else
        CU_ASSERT_PTR_EQUAL(copy, layout);
}

#define WITH(assignment, status, word)                                                                       \
    do {                                                                                                     \
        struct sample s;                                                                                     \
        make_sample(&s);                                                                                     \
        hl_layout *l = &s.layout;                                                                            \
        struct hl_layout_component *c = s.components;                                                        \
        (void)l, (void)c;                                                                                    \
        assignment;                                                                                          \
        expect(&s.layout, status, word);                                                                     \
    } while (0)

/* Member by member: what lies between them is nobody's. */
static bool same_component(const struct hl_layout_component *a, const struct hl_layout_component *b)
{
    return a->layer == b->layer && a->group == b->group && a->tensor == b->tensor && a->role == b->role &&
           a->offset == b->offset && a->page_stride == b->page_stride && a->row_bytes == b->row_bytes &&
           a->row_stride == b->row_stride && a->rows == b->rows && a->block_offset == b->block_offset &&
           a->block_row_stride == b->block_row_stride;
}

static void the_sample_is_valid_and_copied_whole(void)
{
    struct sample s;
    make_sample(&s);
    hl_layout *copy;
    hl_error err;
    expect(&s.layout, HL_OK, "");
    HL_REQUIRE_OK(hl_layout_from_components(&s.layout, &copy, &err), err);
    CU_ASSERT_PTR_NOT_EQUAL(copy->components, s.components);
    for (size_t i = 0; i < sizeof s.components / sizeof s.components[0]; i++)
        CU_ASSERT(same_component(&copy->components[i], &s.components[i]));
    CU_ASSERT_EQUAL(memcmp(copy->tensors, s.tensors, sizeof s.tensors), 0);
    CU_ASSERT_EQUAL(memcmp(copy->groups, s.layout.groups, sizeof copy->groups), 0);
    CU_ASSERT_EQUAL(hl_layout_layer_page_bytes(copy, 1), 64);
    hl_layout_free(copy);
    hl_layout_free(NULL);
    CU_ASSERT_EQUAL(hl_layout_validate(NULL, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_layout_from_components(NULL, &copy, &err), HL_E_INVALID);
}

static void counts_outside_the_limits_are_named(void)
{
    WITH(l->layers = 0, HL_E_INVALID, "layers");
    WITH(l->layers = HL_LAYOUT_LAYERS + 1, HL_E_LIMIT, "layers");
    WITH(l->page_tokens = 0, HL_E_INVALID, "page_tokens");
    WITH(l->page_tokens = UINT32_MAX, HL_E_LIMIT, "page_tokens");
    WITH(l->group_count = 0, HL_E_INVALID, "group_count");
    WITH(l->group_count = HL_LAYOUT_GROUPS + 1, HL_E_LIMIT, "group_count");
    WITH(l->component_count = 0, HL_E_INVALID, "component");
    WITH(l->component_count = UINT32_MAX, HL_E_LIMIT, "component_count");
    WITH(l->tensor_count = 0, HL_E_INVALID, "tensor");
    WITH(l->tensor_count = HL_LAYOUT_TENSORS + 1, HL_E_LIMIT, "tensor_count");
    WITH(l->components = NULL, HL_E_INVALID, "components");
    WITH(l->tensors = NULL, HL_E_INVALID, "tensors");
}

static void indices_outside_their_tables_are_named(void)
{
    WITH(c[3].layer = 2, HL_E_RANGE, "component 3: layer is 2");
    WITH(c[3].layer = UINT32_MAX, HL_E_RANGE, "component 3: layer");
    WITH(c[2].group = 2, HL_E_RANGE, "component 2: group is 2");
    WITH(c[1].tensor = 2, HL_E_RANGE, "component 1: tensor is 2");
    WITH(c[1].role = (enum hl_role)5, HL_E_INVALID, "component 1: role 5");
    WITH(c[1].role = (enum hl_role) - 1, HL_E_INVALID, "component 1: role");
    WITH(c[0].rows = 0, HL_E_INVALID, "component 0: rows is 0");
    WITH(c[0].row_bytes = 0, HL_E_INVALID, "component 0: row_bytes is 0");
}

static void what_is_not_in_consuming_order_is_refused(void)
{
    WITH(c[0].layer = 1, HL_E_INVALID, "component 1: v of layer 0 comes after k of layer 1");
    WITH((c[0].role = HL_ROLE_V, c[1].role = HL_ROLE_K), HL_E_INVALID,
         "component 1: k of layer 0 comes after v");
    WITH(c[1].group = 1, HL_E_INVALID, "component 1: group is 1, layer 0 is in group 0");
    WITH((l->component_count = 2, l->layers = 2), HL_E_INVALID, "group 1 has no component");
    WITH((l->component_count = 2, l->group_count = 1), HL_OK, ""); /* a layer without a cache is allowed */
}

static void groups_and_tensors_are_checked(void)
{
    WITH(l->groups[1].pages = 0, HL_E_INVALID, "group 1: pages is 0");
    WITH(memset(s.tensors[1].name, 'x', HL_NAME_BYTES), HL_E_INVALID, "tensor 1: name");
    WITH(l->groups[0].block_bytes = 63, HL_E_RANGE, "component 1: block_row_stride");
    WITH(l->groups[0].block_bytes = 0, HL_E_RANGE, "component 0: block_offset");
    WITH(s.tensors[0].bytes = 255, HL_E_RANGE, "component 1: page_stride");
    WITH(s.tensors[0].bytes = 15, HL_E_RANGE, "component 0: offset");
    WITH(l->groups[0].pages = 5, HL_E_RANGE, "component 0: page_stride");
    WITH(c[0].row_stride = 300, HL_E_RANGE, "component 0: row_stride");
}

static void overlaps_on_the_device_are_refused(void)
{
    WITH(c[0].row_stride = 15, HL_E_OVERLAP, "component 0: page_stride and row_stride");
    WITH(c[0].page_stride = 31, HL_E_OVERLAP, "component 0: page_stride and row_stride");
    WITH(c[0].page_stride = 0, HL_E_OVERLAP, "component 0");
    WITH(c[0].row_stride = 0, HL_E_OVERLAP, "component 0");
    WITH(c[1].offset = 31, HL_E_OVERLAP,
         "components 0 (k of layer 0) and 1 (v of layer 0) overlap in tensor 0");
    WITH((c[0].offset = 1), HL_E_OVERLAP, "in tensor 0");
    WITH((l->groups[1].pages = 1, c[2].row_stride = 15), HL_E_OVERLAP, "component 2");
}

static void overlaps_in_the_block_are_refused(void)
{
    WITH(c[2].block_row_stride = 15, HL_E_OVERLAP, "component 2: block_row_stride");
    WITH(c[3].block_offset = 15, HL_E_OVERLAP,
         "components 2 (k of layer 1) and 3 (v of layer 1) overlap in the block");
    WITH(c[3].block_offset = 0, HL_E_OVERLAP, "in the block of group 1");
    WITH((c[2].block_row_stride = 16, c[3].block_row_stride = 16, c[3].block_offset = 32), HL_OK, "");
}

/* Sets component i's device place. */
static void place(struct sample *s, uint32_t i, uint64_t offset, uint64_t page_stride, uint64_t row_stride)
{
    s->components[i].offset = offset;
    s->components[i].page_stride = page_stride;
    s->components[i].row_stride = row_stride;
}

static void real_interleavings_are_accepted(void)
{
    WITH((place(&s, 0, 0, 32, 16), place(&s, 1, 128, 32, 16)), HL_OK, ""); /* [2][pages][page] */
    WITH((place(&s, 0, 128, 32, 16), place(&s, 1, 0, 32, 16)), HL_OK, ""); /* the same, V first */
    WITH((place(&s, 0, 0, 64, 32), place(&s, 1, 16, 64, 32)), HL_OK, ""); /* [pages][rows][2]: fused halves */
    WITH((place(&s, 0, 0, 63, 32), place(&s, 1, 16, 63, 32)), HL_E_OVERLAP, "tensor 0");
    WITH((s.tensors[0].bytes = 300, place(&s, 0, 5, 71, 32), place(&s, 1, 21, 71, 32)), HL_OK,
         "");                                                               /* padded pages */
    WITH((place(&s, 0, 0, 16, 64), place(&s, 1, 128, 16, 64)), HL_OK, "");  /* [2][rows][pages] */
    WITH((place(&s, 0, 0, 16, 128), place(&s, 1, 64, 16, 128)), HL_OK, ""); /* [rows][2][pages] */
    WITH((place(&s, 0, 64, 32, 16), place(&s, 1, 80, 32, 16)), HL_E_OVERLAP, "tensor 0");
    WITH((s.tensors[0].bytes = 320, place(&s, 0, 0, 64, 16), place(&s, 1, 96, 64, 16)), HL_OK,
         ""); /* a page ahead */
}

static void groups_may_share_a_tensor_page_for_page(void)
{
    WITH((c[2].tensor = 0, c[3].tensor = 0), HL_OK, "");
    WITH((c[2].tensor = 0, c[3].tensor = 0, l->groups[1].pages = 2), HL_OK, "");
    WITH((c[2].tensor = 0, c[2].offset = 16), HL_OK, ""); /* elsewhere in the same page */
    WITH((s.tensors[0].bytes = 320, c[2].tensor = 0, c[2].offset = 64), HL_E_OVERLAP,
         "and 2"); /* a page ahead */
    WITH((s.tensors[0].bytes = 512, c[2].tensor = 0, c[2].page_stride = 96), HL_E_OVERLAP, "and 2");
    WITH((s.tensors[0].bytes = 320, c[2].tensor = 0, c[2].offset = 40), HL_E_OVERLAP,
         "and 2"); /* reaches into the next page of 0 */
}

static void content_must_agree_with_the_rows(void)
{
    const struct hl_layout_content half = {.element_bytes = 2, .model_heads = 4, .heads = 2, .rank_heads = 1};
    WITH((l->content = half, l->groups[0].block_bytes = l->groups[1].block_bytes = 80), HL_OK, "");
    WITH((l->content = half, l->content.rank_first_head = 1, c[0].block_offset = 32, c[1].block_offset = 16,
          l->groups[0].block_bytes = 96),
         HL_E_INVALID, "component 2: rows, row_bytes and block_offset are no slot");
    WITH(
        (l->content = half, l->content.heads = 4, l->groups[0].block_bytes = l->groups[1].block_bytes = 1000),
        HL_E_INVALID, "component 0: rows"); /* widened, its rows overlap */
    WITH((l->content = half, l->content.head_major = 1,
          c[0].role = c[1].role = c[2].role = c[3].role = HL_ROLE_STATE),
         HL_OK, "");                                            /* state has no heads to widen */
    WITH(l->content = half, HL_E_INVALID, "component 1: rows"); /* widened, its last row leaves the block */
    WITH((l->content = half, l->content.head_major = 1), HL_E_INVALID, "component 0: rows");
    WITH((l->content = half, l->content.rank_heads = 0), HL_E_INVALID, "rank_heads");
    WITH((l->content = half, l->content.element_bytes = 0), HL_E_INVALID, "element_bytes");
    WITH((l->content = half, l->content.heads = 0), HL_E_INVALID, "heads");
    WITH((l->content = half, l->content.head_major = 2), HL_E_INVALID, "head_major");
    WITH((l->content = half, l->content.first_head = 3), HL_E_INVALID, "model_heads");
    WITH((l->content = half, l->content.first_head = UINT32_MAX), HL_E_INVALID, "model_heads");
    WITH((l->content = half, l->content.first_head = 1), HL_E_INVALID, "rank_first_head");
    WITH((l->content = half, l->content.rank_first_head = 2), HL_E_INVALID, "rank_first_head");
    WITH((l->content = half, l->content.heads = l->content.model_heads = 3, l->content.rank_heads = 3), HL_OK,
         "");
    WITH((l->content = half, l->content.model_heads = l->content.heads = UINT32_MAX), HL_E_INVALID,
         "component 0");
    WITH((l->content = half, l->content.rank_heads = 3, l->content.heads = 4), HL_E_INVALID, "component 0");
}

/* --- values near the ends of their types --- */

/* Whether the sample is in range, in 128-bit arithmetic. */
static bool in_range(const hl_layout *layout)
{
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        const struct hl_layout_group *group = &layout->groups[c->group];
        __extension__ typedef unsigned __int128 wide;
        wide rows = c->rows - 1, pages = group->pages - 1;
        if (c->offset + pages * c->page_stride + rows * c->row_stride + c->row_bytes >
            layout->tensors[c->tensor].bytes)
            return false;
        if (c->block_offset + rows * c->block_row_stride + c->row_bytes > group->block_bytes)
            return false;
    }
    return true;
}

static uint64_t *field_of(struct sample *s, unsigned field)
{
    struct hl_layout_component *c = &s->components[1];
    uint64_t *const fields[] = {
        &c->offset,       &c->page_stride,      &c->row_bytes,        &c->row_stride,
        &c->block_offset, &c->block_row_stride, &s->tensors[0].bytes, &s->layout.groups[0].block_bytes};
    return field < sizeof fields / sizeof fields[0] ? fields[field] : NULL;
}

static const uint64_t extremes[] = {1,
                                    2,
                                    15,
                                    1ull << 31,
                                    UINT32_MAX,
                                    1ull << 32,
                                    1ull << 62,
                                    1ull << 63,
                                    0x5555555555555556ull,
                                    UINT64_MAX - 63,
                                    UINT64_MAX - 15,
                                    UINT64_MAX - 1,
                                    UINT64_MAX};

/* Every pair of fields with every pair of extreme values, with few and with very many rows and pages. */
static void extreme_values_never_wrap_into_range(void)
{
    enum { VALUES = sizeof extremes / sizeof extremes[0] };
    unsigned outside = 0, inside = 0;
    for (unsigned a = 0; a < 8; a++)
        for (unsigned b = a + 1; b < 8; b++)
            for (unsigned n = 0; n < VALUES * VALUES * 4; n++) {
                struct sample s;
                hl_error err = {0};
                make_sample(&s);
                *field_of(&s, a) = extremes[n % VALUES];
                *field_of(&s, b) = extremes[n / VALUES % VALUES];
                s.components[1].rows = n / VALUES / VALUES & 1 ? UINT32_MAX : 2;
                s.layout.groups[0].pages = n / VALUES / VALUES & 2 ? UINT32_MAX : 4;
                hl_status status = hl_layout_validate(&s.layout, &err);
                if (in_range(&s.layout)) {
                    CU_ASSERT_TRUE_FATAL(status == HL_OK || status == HL_E_OVERLAP);
                    inside++;
                } else {
                    CU_ASSERT_EQUAL_FATAL(status, HL_E_RANGE);
                    outside++;
                }
            }
    CU_ASSERT_TRUE(inside > 1000 && outside > 1000);
}

static void a_tensor_that_ends_at_2_to_the_64_is_allowed(void)
{
    WITH((s.tensors[0].bytes = UINT64_MAX, place(&s, 1, UINT64_MAX - 32 - 3 * 64, 64, 16)), HL_OK, "");
    WITH((s.tensors[0].bytes = UINT64_MAX, place(&s, 1, UINT64_MAX - 31 - 3 * 64, 64, 16)), HL_E_RANGE,
         "page_stride");
    WITH((s.tensors[0].bytes = UINT64_MAX, place(&s, 1, 32, 1ull << 62, 16)), HL_E_OVERLAP, "tensor 0");
    WITH((s.tensors[0].bytes = UINT64_MAX, l->groups[0].pages = 1, place(&s, 1, 16, UINT64_MAX, 16)),
         HL_E_OVERLAP, "tensor 0");
    WITH((s.tensors[0].bytes = UINT64_MAX, l->groups[0].pages = 1, place(&s, 1, 32, UINT64_MAX, 16)), HL_OK,
         "");
}

/* As many components as the limits allow, all woven into one tensor and one block, so that every pair is
 * compared. */
static void the_largest_layout_is_decided(void)
{
    enum { N = HL_LAYOUT_COMPONENTS };
    struct hl_layout_component *components = calloc(N, sizeof *components);
    CU_ASSERT_PTR_NOT_NULL_FATAL(components);
    struct hl_layout_tensor tensor = {.bytes = 8ull * N * 16 * 4, .name = "all"};
    hl_layout layout = {.layers = HL_LAYOUT_LAYERS,
                        .page_tokens = 4,
                        .component_count = N,
                        .tensor_count = 1,
                        .group_count = 1,
                        .components = components,
                        .tensors = &tensor,
                        .groups = {{.pages = 8, .block_bytes = 16ull * N * 4}}};
    for (uint32_t i = 0; i < N; i++)
        components[i] = (struct hl_layout_component){.layer = i / 4,
                                                     .role = HL_ROLE_STATE,
                                                     .offset = i * 16ull,
                                                     .page_stride = 16ull * N * 4,
                                                     .row_bytes = 16,
                                                     .row_stride = 16ull * N,
                                                     .rows = 4,
                                                     .block_offset = i * 16ull,
                                                     .block_row_stride = 16ull * N};
    expect(&layout, HL_OK, "");
    components[N - 1].row_bytes = 17;
    tensor.bytes += 16;
    layout.groups[0].block_bytes += 16;
    expect(&layout, HL_E_OVERLAP, "components 0 ");
    free(components);
}

HL_TESTS(layout_validate, HL_CASE(the_sample_is_valid_and_copied_whole),
         HL_CASE(counts_outside_the_limits_are_named), HL_CASE(indices_outside_their_tables_are_named),
         HL_CASE(what_is_not_in_consuming_order_is_refused), HL_CASE(groups_and_tensors_are_checked),
         HL_CASE(overlaps_on_the_device_are_refused), HL_CASE(overlaps_in_the_block_are_refused),
         HL_CASE(real_interleavings_are_accepted), HL_CASE(groups_may_share_a_tensor_page_for_page),
         HL_CASE(content_must_agree_with_the_rows), HL_CASE(extreme_values_never_wrap_into_range),
         HL_CASE(a_tensor_that_ends_at_2_to_the_64_is_allowed), HL_CASE(the_largest_layout_is_decided));
