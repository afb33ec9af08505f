#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "engine/demo/demo.h"

#define STAGE "demo.verify"

/* A device's time stamps may be this coarse. A reader that did not wait at all is found by its sums. */
#define CLOCK_STEP_NS 1000

const char *hl_demo_role_name(enum hl_role role)
{
    switch (role) {
    case HL_ROLE_K:
        return "K";
    case HL_ROLE_V:
        return "V";
    case HL_ROLE_FUSED:
        return "K and V";
    case HL_ROLE_LATENT:
        return "latent";
    case HL_ROLE_STATE:
        return "state";
    }
    return "?";
}

static uint64_t first_difference(const unsigned char *a, const unsigned char *b, uint64_t bytes)
{
    uint64_t at = 0;
    while (at < bytes && a[at] == b[at])
        at++;
    return at;
}

/* The component whose row holds `offset` of the group's block; the first of the group where none does. */
static const struct hl_layout_component *component_at(const hl_layout *layout, uint32_t group,
                                                      uint64_t offset)
{
    const struct hl_layout_component *fallback = NULL;
    for (uint32_t c = 0; c < layout->component_count; c++) {
        const struct hl_layout_component *component = &layout->components[c];
        if (component->group != group)
            continue;
        fallback = fallback ? fallback : component;
        for (uint32_t r = 0; r < component->rows; r++) {
            uint64_t row = component->block_offset + r * component->block_row_stride;
            if (offset >= row && offset - row < component->row_bytes)
                return component;
        }
    }
    return fallback;
}

/* The whole block as it must be: this rank's rows, zero where other ranks' would be. */
static void expect_block(const hl_demo *demo, uint32_t b, unsigned char *image)
{
    const struct hl_demo_block *block = &demo->blocks[b];
    uint64_t bytes = demo->layout->groups[block->group].block_bytes;
    unsigned char *page = image + bytes;
    memset(image, 0, bytes);
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        if (component->group != block->group)
            continue;
        hl_demo_page_bytes(demo, c, b, page);
        for (uint32_t r = 0; r < component->rows; r++)
            memcpy(image + component->block_offset + r * component->block_row_stride,
                   page + r * component->row_bytes, component->row_bytes);
    }
}

hl_status hl_demo_verify_published(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    (void)err;
    mismatch->what = NULL;
    for (uint32_t b = 0; b < demo->block_count; b++) {
        const struct hl_demo_block *block = &demo->blocks[b];
        uint64_t bytes = demo->layout->groups[block->group].block_bytes;
        const unsigned char *stored =
            (const unsigned char *)hl_arena_base(demo->arena) + block->allocation.offset;
        expect_block(demo, b, demo->scratch);
        if (!memcmp(stored, demo->scratch, bytes))
            continue;
        uint64_t at = first_difference(stored, demo->scratch, bytes);
        const struct hl_layout_component *component = component_at(demo->layout, block->group, at);
        *mismatch = (struct hl_demo_mismatch){.what = "published block",
                                              .layer = component->layer,
                                              .role = component->role,
                                              .page = block->source,
                                              .offset = at,
                                              .expected = demo->scratch[at],
                                              .got = stored[at]};
        return HL_OK;
    }
    return HL_OK;
}

hl_status hl_demo_verify_sums(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    mismatch->what = NULL;
    uint64_t *sums = malloc(demo->unit_count * sizeof *sums);
    if (!sums)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %llu sums",
                       (unsigned long long)demo->unit_count);
    hl_status status = hl_demo_download(demo, sums, demo->sums, demo->unit_count * sizeof *sums, err);
    for (uint32_t c = 0; c < demo->layout->component_count && !status && !mismatch->what; c++) {
        const struct hl_demo_reader *reader = &demo->readers[c];
        const struct hl_layout_component *component = &demo->layout->components[c];
        for (uint32_t i = 0; i < reader->count && !mismatch->what; i++) {
            uint64_t unit = reader->first + i;
            uint32_t block = demo->group_first[component->group] + i / reader->units;
            if (sums[unit] != demo->expected[unit])
                *mismatch = (struct hl_demo_mismatch){.what = "consumer's checksum",
                                                      .layer = component->layer,
                                                      .role = component->role,
                                                      .page = demo->blocks[block].page,
                                                      .offset = (i % reader->units) * reader->unit_bytes,
                                                      .expected = demo->expected[unit],
                                                      .got = sums[unit]};
        }
    }
    free(sums);
    return status;
}

/* Compares one page, whose rows lie at `rows` with the device's stride, with its expected bytes (adjacent
 * rows; NULL: all poison), and returns a checksum of it. */
static uint64_t compare_page(const struct hl_layout_component *component, uint32_t page,
                             const unsigned char *rows, const unsigned char *expected, unsigned char *poison,
                             struct hl_demo_mismatch *mismatch)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < component->rows; r++) {
        const unsigned char *got = rows + r * component->row_stride;
        const unsigned char *want = expected ? expected + r * component->row_bytes : poison;
        if (!mismatch->what && memcmp(got, want, component->row_bytes) != 0) {
            uint64_t at = first_difference(got, want, component->row_bytes);
            *mismatch =
                (struct hl_demo_mismatch){.what = expected ? "restored page" : "page that is no destination",
                                          .layer = component->layer,
                                          .role = component->role,
                                          .page = page,
                                          .offset = r * component->row_bytes + at,
                                          .expected = want[at],
                                          .got = got[at]};
        }
        sum = sum * 0x9e3779b97f4a7c15ull + hl_page_checksum(got, component->row_bytes & ~7ull);
    }
    return sum;
}

struct restored_check {
    uint32_t *block_of; /* by device page of the component's group: its block, or UINT32_MAX */
    uint64_t *sums;     /* one for every page of every component */
    unsigned char *poison;
    uint64_t sum_count;
};

static void map_blocks(const hl_demo *demo, uint32_t group, uint32_t *block_of)
{
    memset(block_of, 0xff, demo->layout->groups[group].pages * sizeof *block_of);
    for (uint32_t b = demo->group_first[group]; b < demo->group_first[group + 1]; b++)
        block_of[demo->blocks[b].page] = b;
}

/* Reads a component's pages back, as many at once as the staging buffer holds, and compares them. */
static hl_status check_component(hl_demo *demo, uint32_t c, struct restored_check *check,
                                 struct hl_demo_mismatch *mismatch, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    const struct hl_layout_component *component = &demo->layout->components[c];
    uint64_t extent = hl_demo_page_extent(component);
    uint32_t pages = demo->layout->groups[component->group].pages;
    uint32_t at_once = (uint32_t)(demo->staging_bytes / extent);
    map_blocks(demo, component->group, check->block_of);
    for (uint32_t first = 0; first < pages && !mismatch->what; first += at_once) {
        uint32_t some = pages - first < at_once ? pages - first : at_once;
        hl_status status = ops->copy_rows(demo->dev, HL_COPY_D2H, (uint64_t)(uintptr_t)demo->staging, extent,
                                          hl_demo_page_address(demo, component, first),
                                          component->page_stride, extent, some, demo->work, err);
        if (!status)
            status = ops->stream_synchronize(demo->dev, demo->work, err);
        if (status)
            return status;
        for (uint32_t p = 0; p < some && !mismatch->what; p++) {
            uint32_t block = check->block_of[first + p];
            bool destination = block != UINT32_MAX;
            if (destination)
                hl_demo_page_bytes(demo, c, block, demo->scratch);
            check->sums[check->sum_count++] =
                compare_page(component, first + p, demo->staging + p * extent,
                             destination ? demo->scratch : NULL, check->poison, mismatch);
        }
    }
    return HL_OK;
}

hl_status hl_demo_verify_restored(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    mismatch->what = NULL;
    uint64_t rows = 0, most_pages = 0, widest = 0;
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        uint64_t pages = demo->layout->groups[component->group].pages;
        rows += pages;
        most_pages = pages > most_pages ? pages : most_pages;
        widest = component->row_bytes > widest ? component->row_bytes : widest;
    }
    assert(rows > 0 && most_pages > 0 && widest > 0); /* a layout has components, with pages and bytes */
    struct restored_check check = {.block_of = malloc(most_pages * sizeof *check.block_of),
                                   .sums = malloc(rows * sizeof *check.sums),
                                   .poison = malloc(widest)};
    hl_status status = HL_OK;
    if (!check.block_of || !check.sums || !check.poison) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to check %llu pages", (unsigned long long)rows);
        goto err_free;
    }
    memset(check.poison, HL_DEMO_POISON, widest);
    for (uint32_t c = 0; c < demo->layout->component_count && !status && !mismatch->what; c++)
        status = check_component(demo, c, &check, mismatch, err);
    if (!status && !mismatch->what)
        status = hl_sha256(check.sums, check.sum_count * sizeof *check.sums, demo->state_digest, err);
err_free:
    free(check.block_of);
    free(check.sums);
    free(check.poison);
    return status;
}

void hl_demo_verify_order(const hl_demo *demo, const struct hl_demo_run *run,
                          struct hl_demo_mismatch *mismatch)
{
    mismatch->what = NULL;
    int64_t step = demo->dev->info.kind == HL_DEVICE_CUDA ? CLOCK_STEP_NS : 0;
    for (uint32_t l = 0; l < demo->layout->layers && !mismatch->what; l++) {
        int64_t before = l ? run->ready[l - 1] : 0;
        if (run->ready[l] < before)
            *mismatch = (struct hl_demo_mismatch){.what = "order of layer events (ns)",
                                                  .layer = l,
                                                  .expected = (uint64_t)before,
                                                  .got = (uint64_t)run->ready[l]};
        else if (run->consumer_start[l] + step < run->ready[l])
            *mismatch = (struct hl_demo_mismatch){.what = "consumer before its layer (ns)",
                                                  .layer = l,
                                                  .expected = (uint64_t)run->ready[l],
                                                  .got = (uint64_t)run->consumer_start[l]};
    }
}
