#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "engine/demo/demo.h"

#define STAGE "demo.geometry"

enum { CUDA_PAGES = 455, SOFTWARE_PAGES = 32 }; /* 455 pages of 16 tokens of Qwen3-8B are 1 GiB */

hl_status hl_demo_open_device(const struct hl_demo_options *options, hl_device **dev, hl_error *err)
{
    switch (options->device) {
    case HL_DEMO_DEVICE_CUDA:
        return hl_device_open_cuda(0, dev, err);
    case HL_DEMO_DEVICE_SOFTWARE:
        return hl_device_open_software(dev, err);
    case HL_DEMO_DEVICE_AUTO:
        break;
    }
    return hl_device_open_default(dev, err);
}

/* Joins into `path` when the file can be read there. */
static bool readable(char *path, size_t size, const char *folder, const char *rest)
{
    int used = snprintf(path, size, "%s%s", folder, rest);
    return used > 0 && (size_t)used < size && access(path, R_OK) == 0;
}

hl_status hl_demo_find_config(char *path, size_t size, hl_error *err)
{
    const char *configured = getenv("HOSTLANE_CONFIGS");
    if (configured && readable(path, size, configured, "/qwen3-8b.json"))
        return HL_OK;
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read /proc/self/exe");
    program[length] = '\0';
    if (readable(path, size, program, ".runfiles/hostlane/engine/demo/configs/qwen3-8b.json"))
        return HL_OK;
    *strrchr(program, '/') = '\0';
    if (readable(path, size, program, "/configs/qwen3-8b.json") ||
        readable(path, size, program, "/../configs/qwen3-8b.json"))
        return HL_OK;
    return HL_FAIL(
        err, HL_E_NOT_FOUND, STAGE,
        "no qwen3-8b.json in $HOSTLANE_CONFIGS, the program's runfiles, or configs/ beside the program");
}

/* A sliding-window group needs the pages that its window can touch, whatever the length of the sequence. */
static uint32_t group_blocks(const hl_demo *demo, const struct hl_layout_group *group)
{
    uint64_t window = (uint64_t)group->window_tokens;
    if (!window)
        return demo->options.pages;
    uint64_t touched = (window + demo->options.page_tokens - 1) / demo->options.page_tokens + 1;
    return touched < demo->options.pages ? (uint32_t)touched : demo->options.pages;
}

uint32_t hl_demo_group_blocks(const hl_demo *demo, uint32_t group)
{
    return demo->group_first[group + 1] - demo->group_first[group];
}

/* Each group has twice as many device pages as blocks at least. Scattered: both sides come from one
 * permutation, from its two ends, so that no page is both a source and a destination. */
static hl_status choose_pages(hl_demo *demo, hl_error *err)
{
    uint32_t device_pages = 2 * demo->options.pages;
    uint32_t *order = malloc(device_pages * sizeof *order);
    demo->blocks = calloc(demo->block_count, sizeof *demo->blocks);
    if (!order || !demo->blocks) {
        free(order);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u blocks", demo->block_count);
    }
    hl_random random;
    hl_random_seed(&random, demo->options.seed);
    for (uint32_t g = 0; g < demo->layout->group_count; g++) {
        hl_random_permutation(&random, order, device_pages);
        uint32_t first = demo->group_first[g];
        for (uint32_t i = 0; i < hl_demo_group_blocks(demo, g); i++) {
            bool scattered = demo->options.pitch == HL_DEMO_SCATTERED;
            demo->blocks[first + i].group = g;
            demo->blocks[first + i].source = scattered ? order[i] : i;
            demo->blocks[first + i].page = scattered ? order[device_pages - 1 - i] : demo->options.pages + i;
        }
    }
    free(order);
    return HL_OK;
}

static void count_payload(hl_demo *demo)
{
    demo->payload_bytes = 0;
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        demo->payload_bytes +=
            component->rows * component->row_bytes * hl_demo_group_blocks(demo, component->group);
    }
}

hl_status hl_demo_plan_pages(hl_demo *demo, hl_error *err)
{
    struct hl_demo_options *options = &demo->options;
    if (!options->layout_given)
        options->layout = demo->geometry.mla ? HL_LAYOUT_MLA : HL_LAYOUT_SPLIT;
    if (!options->pages)
        options->pages = demo->dev->info.kind == HL_DEVICE_CUDA ? CUDA_PAGES : SOFTWARE_PAGES;
    struct hl_layout_options layout = {.kind = options->layout,
                                       .order = options->order,
                                       .page_tokens = options->page_tokens,
                                       .pages = 2 * options->pages,
                                       .element_bytes = options->element_bytes,
                                       .tp_size = options->tp_size,
                                       .tp_rank = options->tp_rank,
                                       .store_full_heads = options->store_full_heads};
    hl_status status = hl_layout_from_model(&demo->geometry, &layout, &demo->layout, err);
    if (status)
        return status;
    for (uint32_t g = 0; g < demo->layout->group_count; g++)
        demo->group_first[g + 1] = demo->group_first[g] + group_blocks(demo, &demo->layout->groups[g]);
    demo->block_count = demo->group_first[demo->layout->group_count];
    count_payload(demo);
    return choose_pages(demo, err);
}

hl_status hl_demo_read_model(hl_demo *demo, hl_error *err)
{
    hl_status status = HL_OK;
    if (!demo->options.model_config)
        status = hl_demo_find_config(demo->config_path, sizeof demo->config_path, err);
    else if (strlen(demo->options.model_config) >= sizeof demo->config_path)
        status = HL_FAIL(err, HL_E_LIMIT, STAGE, "--model-config is longer than %zu bytes",
                         sizeof demo->config_path);
    else
        snprintf(demo->config_path, sizeof demo->config_path, "%s", demo->options.model_config);
    return status ? status : hl_layout_load_config(demo->config_path, &demo->geometry, err);
}

hl_status hl_demo_plan_geometry(hl_demo *demo, hl_error *err)
{
    hl_status status = hl_demo_read_model(demo, err);
    return status ? status : hl_demo_plan_pages(demo, err);
}

uint64_t hl_demo_page_extent(const struct hl_layout_component *component)
{
    return (component->rows - 1) * component->row_stride + component->row_bytes;
}

hl_devptr hl_demo_page_address(const hl_demo *demo, const struct hl_layout_component *component,
                               uint32_t page)
{
    return demo->tensors[component->tensor].base + component->offset + page * component->page_stride;
}
