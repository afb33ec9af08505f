#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/base/random.h"
#include "core/layout/layout.h"
#include "core/testing/cunit.h"

enum { SPACE = 512, MOST = 6 };

/* A small explicit layout, and a byte map that decides by trying. */
struct trial {
    hl_layout layout;
    struct hl_layout_component components[MOST];
    struct hl_layout_tensor tensors[2];
};

enum verdict { DISJOINT, OUTSIDE, MEETING };

/* What wrote a byte: 0 for nothing. */
struct writer {
    uint32_t component, group, page;
};

static bool may_share(const struct writer *a, const struct writer *b)
{
    return a->group != b->group && a->page == b->page;
}

/* Adds a writer to a byte; false when it may not share the byte with one that is there. */
static bool write_byte(struct writer *writers, const struct writer *writer)
{
    for (unsigned i = 0; i < MOST; i++) {
        if (writers[i].component == 0) {
            writers[i] = *writer;
            return true;
        }
        if (!may_share(&writers[i], writer))
            return false;
    }
    return false;
}

static bool try_device(const hl_layout *layout, enum verdict *verdict)
{
    static struct writer bytes[2][SPACE][MOST];
    memset(bytes, 0, sizeof bytes);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        for (uint32_t p = 0; p < layout->groups[c->group].pages; p++)
            for (uint32_t r = 0; r < c->rows; r++)
                for (uint64_t d = 0; d < c->row_bytes; d++) {
                    struct writer writer = {.component = i + 1, .group = c->group, .page = p};
                    uint64_t at = c->offset + p * c->page_stride + r * c->row_stride + d;
                    if (at >= layout->tensors[c->tensor].bytes)
                        *verdict = OUTSIDE;
                    else if (!write_byte(bytes[c->tensor][at], &writer) && *verdict != OUTSIDE)
                        *verdict = MEETING;
                }
    }
    return *verdict == DISJOINT;
}

static enum verdict try_all(const hl_layout *layout)
{
    enum verdict verdict = DISJOINT;
    bool used[2][SPACE] = {{false}};
    try_device(layout, &verdict);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        for (uint32_t r = 0; r < c->rows; r++)
            for (uint64_t d = 0; d < c->row_bytes; d++) {
                uint64_t at = c->block_offset + r * c->block_row_stride + d;
                if (at >= layout->groups[c->group].block_bytes)
                    verdict = OUTSIDE;
                else if (used[c->group][at] && verdict != OUTSIDE)
                    verdict = MEETING;
                else
                    used[c->group][at] = true;
            }
    }
    return verdict;
}

static uint32_t below(hl_random *random, uint32_t bound)
{
    return (uint32_t)hl_random_below(random, bound);
}

/* One to four components with independent small numbers. */
static void draw_anything(hl_random *random, struct trial *t)
{
    uint32_t groups = 1 + below(random, 2), tensors = 1 + below(random, 2), count = groups + below(random, 3);
    memset(t, 0, sizeof *t);
    t->layout = (hl_layout){.layers = count,
                            .page_tokens = 1,
                            .component_count = count,
                            .tensor_count = tensors,
                            .group_count = groups,
                            .components = t->components,
                            .tensors = t->tensors};
    for (uint32_t i = 0; i < 2; i++) {
        t->tensors[i].bytes = 40 + below(random, 200);
        t->layout.groups[i] =
            (struct hl_layout_group){.pages = 1 + below(random, 4), .block_bytes = 20 + below(random, 40)};
    }
    uint32_t page_stride = below(random, 40), row_stride = below(random, 12);
    for (uint32_t i = 0; i < count; i++) {
        struct hl_layout_component *c = &t->components[i];
        bool own = below(random, 4) == 0;
        c->layer = i;
        c->group = i < groups ? i : below(random, groups);
        c->tensor = below(random, tensors);
        c->rows = 1 + below(random, 4);
        c->row_bytes = 1 + below(random, 6);
        c->offset = below(random, 60);
        c->page_stride = own ? below(random, 40) : page_stride;
        c->row_stride = own ? below(random, 40) : row_stride;
        c->block_offset = below(random, 30);
        c->block_row_stride = below(random, 20);
    }
}

static void a_random_layout_is_never_accepted_wrongly(void)
{
    unsigned accepted = 0, outside = 0, meeting = 0, cautious = 0;
    hl_random random;
    hl_random_seed(&random, 20);
    for (unsigned n = 0; n < 200000; n++) {
        struct trial t;
        hl_error err = {0};
        draw_anything(&random, &t);
        hl_status status = hl_layout_validate(&t.layout, &err);
        switch (try_all(&t.layout)) {
        case OUTSIDE:
            CU_ASSERT_EQUAL_FATAL(status, HL_E_RANGE);
            outside++;
            break;
        case MEETING:
            CU_ASSERT_EQUAL_FATAL(status, HL_E_OVERLAP);
            meeting++;
            break;
        case DISJOINT:
            CU_ASSERT_TRUE_FATAL(status == HL_OK || status == HL_E_OVERLAP);
            accepted += status == HL_OK;
            cautious += status != HL_OK;
            break;
        }
    }
    CU_ASSERT_TRUE(accepted > 5000 && outside > 5000 && meeting > 5000);
    CU_ASSERT_TRUE(cautious > 0 && cautious < accepted); /* the documented refusals, and no more than those */
}

/* [pages][slots][rows][components of the slot], with gaps everywhere: what engines do. Returns the bytes of a
 * page. */
static uint32_t draw_page(hl_random *random, struct trial *t)
{
    uint32_t at = below(random, 3), next = 0;
    while (next < t->layout.component_count) {
        uint32_t woven = 1 + below(random, 3), rows = 1 + below(random, 3), width = 0;
        if (woven > t->layout.component_count - next)
            woven = t->layout.component_count - next;
        for (uint32_t i = 0; i < woven; i++) {
            struct hl_layout_component *c = &t->components[next + i];
            c->rows = rows;
            c->row_bytes = 1 + below(random, 4);
            c->offset = at + width;
            width += (uint32_t)c->row_bytes + below(random, 2);
        }
        for (uint32_t i = 0; i < woven; i++)
            t->components[next + i].row_stride = width;
        next += woven;
        at += rows * width + below(random, 3);
    }
    return at;
}

/* The same nest in the block without gaps between rows of a component. */
static void place_block(struct trial *t)
{
    uint64_t at[2] = {0, 0};
    for (uint32_t i = 0; i < t->layout.component_count; i++) {
        struct hl_layout_component *c = &t->components[i];
        c->block_offset = at[c->group];
        c->block_row_stride = c->row_bytes;
        at[c->group] += c->rows * c->row_bytes;
    }
    t->layout.groups[0].block_bytes = at[0];
    t->layout.groups[1].block_bytes = at[1];
}

static void draw_engine_like(hl_random *random, struct trial *t)
{
    uint32_t count = 2 + below(random, MOST - 1);
    memset(t, 0, sizeof *t);
    t->layout = (hl_layout){.layers = count,
                            .page_tokens = 1,
                            .component_count = count,
                            .tensor_count = 1,
                            .group_count = 2,
                            .components = t->components,
                            .tensors = t->tensors};
    t->layout.groups[0].pages = 1 + below(random, 4);
    t->layout.groups[1].pages = 1 + below(random, 4);
    for (uint32_t i = 0; i < count; i++) {
        t->components[i].layer = i;
        t->components[i].group = i < 2 ? i : below(random, 2);
    }
    uint32_t page = draw_page(random, t), shift = below(random, 8);
    for (uint32_t i = 0; i < count; i++) {
        t->components[i].page_stride = page;
        t->components[i].offset += shift;
    }
    t->tensors[0].bytes = shift + page * 4;
    place_block(t);
}

static void nested_layouts_with_gaps_are_accepted(void)
{
    hl_random random;
    hl_random_seed(&random, 21);
    for (unsigned n = 0; n < 50000; n++) {
        struct trial t;
        hl_error err = {0};
        draw_engine_like(&random, &t);
        CU_ASSERT_EQUAL_FATAL(try_all(&t.layout), DISJOINT);
        hl_status status = hl_layout_validate(&t.layout, &err);
        if (status != HL_OK)
            fprintf(stderr, "trial %u: %s\n", n, err.text);
        CU_ASSERT_EQUAL_FATAL(status, HL_OK);
    }
}

/* One field of a good layout made a little wrong: the validator agrees with the byte map on what is wrong. */
static void a_slip_in_a_good_layout_is_found(void)
{
    unsigned found = 0, harmless = 0;
    hl_random random;
    hl_random_seed(&random, 22);
    for (unsigned n = 0; n < 100000; n++) {
        struct trial t;
        hl_error err = {0};
        draw_engine_like(&random, &t);
        struct hl_layout_component *c = &t.components[below(&random, t.layout.component_count)];
        uint64_t *const fields[] = {&c->offset,     &c->page_stride,  &c->row_bytes,
                                    &c->row_stride, &c->block_offset, &c->block_row_stride};
        uint64_t *field = fields[below(&random, 6)];
        *field += *field > 1 && below(&random, 2) ? UINT64_MAX : 1;
        hl_status status = hl_layout_validate(&t.layout, &err);
        enum verdict verdict = try_all(&t.layout);
        if (verdict == DISJOINT) {
            CU_ASSERT_TRUE_FATAL(status == HL_OK || status == HL_E_OVERLAP);
            harmless++;
        } else {
            CU_ASSERT_EQUAL_FATAL(status, verdict == OUTSIDE ? HL_E_RANGE : HL_E_OVERLAP);
            found++;
        }
    }
    CU_ASSERT_TRUE(found > 10000 && harmless > 10000);
}

HL_TESTS(layout_overlap, HL_CASE(a_random_layout_is_never_accepted_wrongly),
         HL_CASE(nested_layouts_with_gaps_are_accepted), HL_CASE(a_slip_in_a_good_layout_is_found));
