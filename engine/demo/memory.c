#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "engine/demo/demo.h"

#define STAGE "demo.memory"
#define ARENA_ID 1u

/* Software: small, so that tests go through several fillings of the buffer. */
static uint64_t staging_default(const hl_demo *demo)
{
    return demo->dev->info.kind == HL_DEVICE_CUDA ? 64 * HL_MIB : HL_MIB;
}

static hl_status allocate_staging(hl_demo *demo, hl_error *err)
{
    uint64_t bytes = staging_default(demo), scratch = 0;
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        uint64_t extent = hl_demo_page_extent(component), page = component->rows * component->row_bytes;
        bytes = extent > bytes ? extent : bytes;
        scratch = page > scratch ? page : scratch;
    }
    for (uint32_t g = 0; g < demo->layout->group_count; g++)
        if (demo->layout->groups[g].block_bytes > demo->scratch_bytes)
            demo->scratch_bytes = demo->layout->groups[g].block_bytes;
    demo->scratch_bytes += scratch; /* a page is generated behind the block that it is put into */
    demo->scratch = malloc(demo->scratch_bytes);
    if (!demo->scratch)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a block of %zu bytes", demo->scratch_bytes);

    bytes = hl_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    void *staging =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (staging == MAP_FAILED)
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, errno, "cannot map a staging buffer of %llu bytes",
                             (unsigned long long)bytes);
    hl_status status = demo->dev->ops->host_register(demo->dev, staging, bytes, err);
    if (status) {
        munmap(staging, bytes);
        return status;
    }
    demo->staging = staging;
    demo->staging_bytes = bytes;
    return HL_OK;
}

static hl_status allocate_tensors(hl_demo *demo, hl_error *err)
{
    demo->tensors = calloc(demo->layout->tensor_count, sizeof *demo->tensors);
    if (!demo->tensors)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u tensors", demo->layout->tensor_count);
    for (uint32_t t = 0; t < demo->layout->tensor_count; t++) {
        uint64_t bytes = demo->layout->tensors[t].bytes;
        hl_status status = demo->dev->ops->mem_alloc(demo->dev, bytes, &demo->tensors[t].base, err);
        if (status)
            return status;
        demo->tensors[t].bytes = bytes;
    }
    return HL_OK;
}

/* Lays out the units that the consumer sums, see struct hl_demo_reader. */
static hl_status plan_readers(hl_demo *demo, hl_error *err)
{
    demo->readers = calloc(demo->layout->component_count, sizeof *demo->readers);
    if (!demo->readers)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u readers", demo->layout->component_count);
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        struct hl_demo_reader *reader = &demo->readers[c];
        bool adjacent = component->rows == 1 || component->row_stride == component->row_bytes;
        reader->first = demo->unit_count;
        reader->units = adjacent ? 1 : component->rows;
        reader->unit_bytes = adjacent ? component->rows * component->row_bytes : component->row_bytes;
        uint64_t steps = component->offset | component->page_stride | (adjacent ? 0 : component->row_stride);
        if ((reader->unit_bytes | steps) % 8)
            return HL_FAIL(
                err, HL_E_UNSUPPORTED, STAGE,
                "component %u: the consumer reads 8-byte words; its unit of %llu bytes, or its place, is no "
                "multiple of 8",
                c, (unsigned long long)reader->unit_bytes);
        reader->count = reader->units * hl_demo_group_blocks(demo, component->group);
        demo->unit_count += reader->count;
    }
    return HL_OK;
}

static void write_offsets(const hl_demo *demo, uint64_t *offsets)
{
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        const struct hl_demo_reader *reader = &demo->readers[c];
        const struct hl_demo_block *blocks = &demo->blocks[demo->group_first[component->group]];
        for (uint32_t i = 0; i < reader->count; i++)
            offsets[reader->first + i] = component->offset +
                                         blocks[i / reader->units].page * component->page_stride +
                                         (i % reader->units) * component->row_stride;
    }
}

static hl_status allocate_readers(hl_demo *demo, hl_error *err)
{
    hl_status status = plan_readers(demo, err);
    if (status)
        return status;
    size_t bytes = demo->unit_count * sizeof(uint64_t);
    demo->expected = malloc(bytes);
    if (!demo->expected)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %llu checksums",
                       (unsigned long long)demo->unit_count);
    status = demo->dev->ops->mem_alloc(demo->dev, bytes, &demo->offsets, err);
    if (!status)
        status = demo->dev->ops->mem_alloc(demo->dev, bytes, &demo->sums, err);
    if (status)
        return status;
    write_offsets(demo, demo->expected); /* until the first fill the array is only this upload's source */
    return hl_demo_upload(demo, demo->offsets, demo->expected, bytes, err);
}

/* One allocation a block; scattered: in another order than that of the blocks. */
static hl_status allocate_blocks(hl_demo *demo, hl_error *err)
{
    uint32_t *order = malloc(demo->block_count * sizeof *order);
    if (!order)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the order of %u blocks", demo->block_count);
    hl_random random;
    hl_random_seed(&random, ~demo->options.seed);
    hl_random_permutation(&random, order, demo->block_count);
    hl_status status = HL_OK;
    for (uint32_t i = 0; i < demo->block_count && !status; i++) {
        struct hl_demo_block *block = &demo->blocks[demo->options.pitch == HL_DEMO_SCATTERED ? order[i] : i];
        status = hl_arena_alloc(demo->arena, demo->layout->groups[block->group].block_bytes,
                                &block->allocation, err);
    }
    free(order);
    return status;
}

uint64_t hl_demo_arena_bytes(const hl_demo *demo)
{
    uint64_t bytes = 0, largest = 0;
    for (uint32_t b = 0; b < demo->block_count; b++) {
        uint64_t block = hl_align_up(demo->layout->groups[demo->blocks[b].group].block_bytes, HL_ARENA_ALIGN);
        bytes += block;
        largest = block > largest ? block : largest;
    }
    return bytes + bytes / HL_ARENA_CHUNK_BYTES * largest;
}

static hl_status allocate_arena(hl_demo *demo, hl_error *err)
{
    struct hl_arena_options options = {.arena_id = ARENA_ID,
                                       .bytes = hl_demo_arena_bytes(demo),
                                       .pages = demo->options.huge ? HL_PAGES_2M : HL_PAGES_REGULAR,
                                       .numa_node = demo->dev->info.numa_node,
                                       .progress = demo->progress,
                                       .progress_user = demo};
    hl_status status = hl_arena_create(&options, &demo->arena, err);
    if (!status)
        status = hl_arena_register(demo->arena, demo->dev, demo->progress, demo, &demo->registration, err);
    return status ? status : allocate_blocks(demo, err);
}

hl_status hl_demo_allocate_device_memory(hl_demo *demo, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_status status = ops->stream_create(demo->dev, &demo->work, err);
    if (!status)
        status = allocate_staging(demo, err);
    if (!status)
        status = allocate_tensors(demo, err);
    return status ? status : allocate_readers(demo, err);
}

hl_status hl_demo_allocate_memory(hl_demo *demo, hl_error *err)
{
    hl_status status = hl_demo_allocate_device_memory(demo, err);
    return status ? status : allocate_arena(demo, err);
}

static void free_memory(hl_demo *demo)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    if (demo->work) { /* nothing may still read or write what is freed below; its own error was reported
                         before */
        (void)ops->stream_synchronize(demo->dev, demo->work, NULL);
        (void)ops->stream_destroy(demo->dev, demo->work, NULL);
    }
    hl_registration_release(demo->registration);
    hl_arena_destroy(demo->arena);
    for (uint32_t t = 0; demo->tensors && t < demo->layout->tensor_count; t++)
        if (demo->tensors[t].base)
            (void)ops->mem_free(demo->dev, demo->tensors[t].base, NULL);
    if (demo->offsets)
        (void)ops->mem_free(demo->dev, demo->offsets, NULL);
    if (demo->sums)
        (void)ops->mem_free(demo->dev, demo->sums, NULL);
    if (demo->ceiling_target)
        (void)ops->mem_free(demo->dev, demo->ceiling_target, NULL);
    if (demo->staging) {
        (void)ops->host_unregister(demo->dev, demo->staging, NULL);
        munmap(demo->staging, demo->staging_bytes);
    }
    free(demo->tensors);
    free(demo->readers);
    free(demo->expected);
    free(demo->scratch);
}

void hl_demo_close(hl_demo *demo)
{
    hl_demo_close_restore(demo);
    free_memory(demo);
    hl_layout_free(demo->layout);
    free(demo->blocks);
    free(demo->ceiling_ns);
    for (uint32_t r = 0; r < demo->run_count; r++)
        hl_demo_free_run(&demo->runs[r]);
    free(demo->runs);
    free(demo->spans);
}

hl_status hl_demo_upload(hl_demo *demo, hl_devptr dst, const void *src, size_t bytes, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    uint64_t staging = (uint64_t)(uintptr_t)demo->staging;
    for (size_t at = 0; at < bytes; at += demo->staging_bytes) {
        size_t some = bytes - at < demo->staging_bytes ? bytes - at : demo->staging_bytes;
        memcpy(demo->staging, (const char *)src + at, some);
        hl_status status = ops->copy(demo->dev, HL_COPY_H2D, dst + at, staging, some, demo->work, err);
        if (!status)
            status = ops->stream_synchronize(demo->dev, demo->work, err);
        if (status)
            return status;
    }
    return HL_OK;
}

hl_status hl_demo_download(hl_demo *demo, void *dst, hl_devptr src, size_t bytes, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    uint64_t staging = (uint64_t)(uintptr_t)demo->staging;
    for (size_t at = 0; at < bytes; at += demo->staging_bytes) {
        size_t some = bytes - at < demo->staging_bytes ? bytes - at : demo->staging_bytes;
        hl_status status = ops->copy(demo->dev, HL_COPY_D2H, staging, src + at, some, demo->work, err);
        if (!status)
            status = ops->stream_synchronize(demo->dev, demo->work, err);
        if (status)
            return status;
        memcpy((char *)dst + at, demo->staging, some);
    }
    return HL_OK;
}
