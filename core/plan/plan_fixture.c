#include "core/plan/plan_fixture.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *pointer)
{
    assert(pointer);
    return pointer;
}

/* The components of one layer, with rows of one token, and where the device puts them. */
struct placer {
    const struct hl_fixture_shape *shape;
    hl_layout *layout;
    uint64_t page_first_at[HL_LAYOUT_GROUPS]; /* offset of the next component in a page-first page */
    uint64_t stored_at[HL_LAYOUT_GROUPS];     /* offset of the next component in the block */
    uint64_t stored_token[HL_LAYOUT_GROUPS];  /* bytes of a token over all components, in token-major order */
};

static uint32_t sides_of(const struct hl_fixture_shape *shape)
{
    return shape->kind == HL_FIXTURE_MLA ? 1 : 2;
}

static uint32_t token_bytes(const struct hl_fixture_shape *shape, uint32_t side)
{
    return side ? shape->v_bytes : shape->k_bytes;
}

static uint64_t layer_page_bytes(const struct hl_fixture_shape *shape)
{
    return (uint64_t)shape->page_tokens * (shape->k_bytes + (sides_of(shape) == 2 ? shape->v_bytes : 0));
}

static uint32_t tensor_of(const struct hl_fixture_shape *shape, uint32_t layer, uint32_t side)
{
    switch (shape->kind) {
    case HL_FIXTURE_SPLIT:
        return 2 * layer + side;
    case HL_FIXTURE_PAGE_FIRST:
        return layer % shape->groups;
    case HL_FIXTURE_SHARED:
        return layer / shape->groups;
    default:
        return layer;
    }
}

static void place_on_device(struct placer *placer, struct hl_layout_component *c, uint32_t side)
{
    const struct hl_fixture_shape *shape = placer->shape;
    uint64_t page = (uint64_t)shape->page_tokens * c->row_bytes,
             k_page = (uint64_t)shape->page_tokens * shape->k_bytes;
    c->row_stride = c->row_bytes;
    c->page_stride = page;
    switch (shape->kind) {
    case HL_FIXTURE_CONTIGUOUS:
        c->offset = side * shape->pages * k_page;
        break;
    case HL_FIXTURE_FUSED:
    case HL_FIXTURE_SHARED:
        c->page_stride = layer_page_bytes(shape);
        c->offset = side * k_page;
        break;
    case HL_FIXTURE_TOKEN_FUSED:
        c->page_stride = layer_page_bytes(shape);
        c->row_stride = shape->k_bytes + shape->v_bytes;
        c->offset = side * (uint64_t)shape->k_bytes;
        break;
    case HL_FIXTURE_PAGE_FIRST: /* page_stride follows when the page's size is known */
        c->offset = placer->page_first_at[c->group];
        placer->page_first_at[c->group] += page;
        break;
    case HL_FIXTURE_ROW_FIRST:
        c->page_stride = c->row_bytes;
        c->row_stride = shape->pages * c->row_bytes;
        c->offset = side * shape->pages * k_page;
        break;
    default:
        break;
    }
}

static void place_in_block(struct placer *placer, struct hl_layout_component *c)
{
    const struct hl_fixture_shape *shape = placer->shape;
    uint64_t stored_row = c->row_bytes * shape->slots;
    c->block_offset = placer->stored_at[c->group] + shape->slot * c->row_bytes;
    c->block_row_stride = shape->token_major ? placer->stored_token[c->group] : stored_row;
    placer->stored_at[c->group] += shape->token_major ? stored_row : stored_row * shape->page_tokens;
}

static void finish_layout(struct placer *placer)
{
    const struct hl_fixture_shape *shape = placer->shape;
    hl_layout *layout = placer->layout;
    for (uint32_t g = 0; g < shape->groups; g++) {
        uint64_t page = placer->stored_token[g] * shape->page_tokens;
        layout->groups[g] = (struct hl_layout_group){.pages = shape->pages, .block_bytes = page ? page : 1};
    }
    for (uint32_t i = 0; i < layout->component_count; i++) {
        struct hl_layout_component *c = &layout->components[i];
        if (shape->kind == HL_FIXTURE_PAGE_FIRST)
            c->page_stride = placer->page_first_at[c->group];
        uint64_t end =
            c->offset + (shape->pages - 1) * c->page_stride + (c->rows - 1) * c->row_stride + c->row_bytes;
        struct hl_layout_tensor *tensor = &layout->tensors[c->tensor];
        if (tensor->bytes < end)
            tensor->bytes = end;
    }
}

void hl_fixture_layout(const struct hl_fixture_shape *shape, hl_layout *layout)
{
    uint32_t sides = sides_of(shape);
    struct placer placer = {.shape = shape, .layout = layout};
    *layout = (hl_layout){.layers = shape->layers,
                          .page_tokens = shape->page_tokens,
                          .tensor_count = sides * shape->layers,
                          .group_count = shape->groups};
    layout->components = must(calloc(sides * shape->layers, sizeof *layout->components));
    layout->tensors = must(calloc(sides * shape->layers, sizeof *layout->tensors));
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint32_t side = 0; side < sides && layer != shape->empty_layer; side++)
            placer.stored_token[layer % shape->groups] += token_bytes(shape, side) * (uint64_t)shape->slots;
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint32_t side = 0; side < sides && layer != shape->empty_layer; side++) {
            struct hl_layout_component *c = &layout->components[layout->component_count++];
            *c = (struct hl_layout_component){.layer = layer,
                                              .group = layer % shape->groups,
                                              .tensor = tensor_of(shape, layer, side),
                                              .role = sides == 1 ? HL_ROLE_LATENT
                                                      : side     ? HL_ROLE_V
                                                                 : HL_ROLE_K,
                                              .row_bytes = token_bytes(shape, side),
                                              .rows = shape->page_tokens};
            place_on_device(&placer, c, side);
            place_in_block(&placer, c);
        }
    finish_layout(&placer);
}

void hl_fixture_free_layout(hl_layout *layout)
{
    free(layout->components);
    free(layout->tensors);
}

/* Places allocations one after another in the arenas, never across a chunk. */
static void place_blocks(struct hl_fixture_world *world, const struct hl_fixture_placement *p,
                         hl_random *random)
{
    uint64_t ends[HL_ARENA_IMPORTS] = {0}, allocation_id = 0;
    for (size_t i = 0; i < world->block_count;) {
        uint32_t arena = p->scattered ? (uint32_t)hl_random_below(random, p->arenas) : 0;
        size_t n =
            p->scattered ? 1 + hl_random_below(random, p->blocks_per_allocation) : p->blocks_per_allocation;
        uint64_t bytes = 0, size = world->layout->groups[world->blocks[i].group].block_bytes;
        for (size_t k = 0;
             k < n && i + k < world->block_count && world->blocks[i + k].group == world->blocks[i].group; k++)
            bytes += size;
        uint64_t at = ends[arena];
        if (p->scattered)
            at += hl_random_below(random, 3) * p->align;
        at = (at + p->align - 1) / p->align * p->align;
        if (at % p->chunk_bytes + bytes > p->chunk_bytes)
            at = (at / p->chunk_bytes + 1) * p->chunk_bytes;
        allocation_id++;
        for (uint64_t offset = 0; offset < bytes; offset += size, i++) {
            struct hl_plan_block *b = &world->blocks[i];
            b->arena_id = 100 + arena;
            b->allocation_id = allocation_id;
            b->allocation_offset = at;
            b->allocation_bytes = bytes;
            b->block_offset = at + offset;
        }
        ends[arena] = at + bytes;
    }
    for (uint32_t a = 0; a < p->arenas; a++)
        world->arenas[a] =
            (struct hl_plan_arena){.arena_id = 100 + a, .bytes = ends[a], .chunk_bytes = p->chunk_bytes};
}

/* Shuffles the pages among the blocks of each group, so that places and pages do not go together. */
static void choose_pages(struct hl_fixture_world *world, const uint32_t *counts, bool scattered,
                         bool disjoint, hl_random *random)
{
    size_t at = 0;
    uint32_t pages = world->layout->groups[0].pages, taken = 0;
    uint32_t *order = must(malloc(pages * sizeof *order));
    for (uint32_t g = 0; g < world->layout->group_count; g++) {
        if (scattered && (g == 0 || !disjoint))
            hl_random_permutation(random, order, pages);
        for (uint32_t i = 0; i < counts[g]; i++, at++) {
            uint32_t index = disjoint ? taken++ : i;
            assert(index < pages);
            world->blocks[at].group = g;
            world->blocks[at].page = scattered ? order[index] : index;
        }
    }
    free(order);
}

static unsigned char **allocate_memory(size_t count)
{
    return must(calloc(count ? count : 1, sizeof(unsigned char *)));
}

void hl_fixture_world(const hl_layout *layout, const uint32_t *counts,
                      const struct hl_fixture_placement *placement, bool memory, bool disjoint_pages,
                      hl_random *random, struct hl_fixture_world *world)
{
    *world = (struct hl_fixture_world){.layout = layout};
    for (uint32_t g = 0; g < layout->group_count; g++)
        world->block_count += counts[g];
    world->blocks = must(calloc(world->block_count + 1, sizeof *world->blocks));
    world->arenas = must(calloc(placement->arenas, sizeof *world->arenas));
    world->tensor_bytes = must(calloc(layout->tensor_count, sizeof *world->tensor_bytes));
    choose_pages(world, counts, placement->scattered, disjoint_pages, random);
    place_blocks(world, placement, random);
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        world->tensor_bytes[t] = layout->tensors[t].bytes;
    world->tables = (struct hl_plan_tables){.arenas = world->arenas,
                                            .arena_count = placement->arenas,
                                            .tensor_bytes = world->tensor_bytes,
                                            .tensor_count = layout->tensor_count,
                                            .layers = layout->layers};
    if (!memory)
        return;
    world->arena_memory = allocate_memory(placement->arenas);
    world->tensor_memory = allocate_memory(layout->tensor_count);
    for (uint32_t a = 0; a < placement->arenas; a++) {
        world->arena_memory[a] = must(malloc(world->arenas[a].bytes + 1));
        hl_random_fill(random, world->arena_memory[a], world->arenas[a].bytes);
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        world->tensor_memory[t] = must(malloc(world->tensor_bytes[t] + 1));
        memset(world->tensor_memory[t], HL_FIXTURE_POISON, world->tensor_bytes[t]);
    }
}

void hl_fixture_free_world(struct hl_fixture_world *world)
{
    for (size_t a = 0; world->arena_memory && a < world->tables.arena_count; a++)
        free(world->arena_memory[a]);
    for (size_t t = 0; world->tensor_memory && t < world->tables.tensor_count; t++)
        free(world->tensor_memory[t]);
    free(world->arena_memory);
    free(world->tensor_memory);
    free(world->tensor_bytes);
    free(world->arenas);
    free(world->blocks);
}

static const unsigned char *arena_of(const struct hl_fixture_world *world, uint64_t arena_id)
{
    for (size_t a = 0; a < world->tables.arena_count; a++)
        if (world->arenas[a].arena_id == arena_id)
            return world->arena_memory[a];
    assert(!"no such arena");
    return NULL;
}

void hl_fixture_apply_section(const struct hl_plan_part *part, uint32_t section,
                              struct hl_fixture_world *world)
{
    const struct hl_plan_section *s = &part->sections[section];
    unsigned char *tensor = world->tensor_memory[s->tensor];
    for (uint32_t i = s->first_range; i < s->first_range + s->range_count; i++) {
        const struct hl_plan_range *r = &part->ranges[i];
        memcpy(tensor + r->dst, arena_of(world, part->allocations[r->allocation].arena_id) + r->src,
               r->bytes);
    }
    for (uint32_t i = s->first_run; i < s->first_run + s->run_count; i++) {
        const struct hl_plan_run *r = &part->runs[i];
        for (uint32_t row = 0; row < r->rows; row++)
            memcpy(tensor + r->dst + row * r->dst_pitch,
                   arena_of(world, part->allocations[part->rows[r->first_row + row]].arena_id) + r->src +
                       row * r->src_pitch,
                   r->row_bytes);
    }
}

void hl_fixture_copy_naively(const struct hl_fixture_world *world, unsigned char **tensors)
{
    for (size_t i = 0; i < world->block_count; i++) {
        const struct hl_plan_block *b = &world->blocks[i];
        for (uint32_t k = 0; k < world->layout->component_count; k++) {
            const struct hl_layout_component *c = &world->layout->components[k];
            for (uint32_t row = 0; c->group == b->group && row < c->rows; row++)
                memcpy(tensors[c->tensor] + c->offset + b->page * c->page_stride + row * c->row_stride,
                       arena_of(world, b->arena_id) + b->block_offset + c->block_offset +
                           row * c->block_row_stride,
                       c->row_bytes);
        }
    }
}

void *hl_fixture_private(const void *bytes, size_t size)
{
    void *copy = must(malloc(size ? size : 1));
    memcpy(copy, bytes, size);
    return copy;
}
