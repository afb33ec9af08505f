#include "core/transfer/transfer_testing.h"

#include <sys/mman.h>

static bool in_an_arena(const struct rig *rig, const struct hl_software_access *access)
{
    for (uint32_t i = 0; i < RIG_ARENAS; i++) {
        uint64_t first = (uint64_t)(uintptr_t)hl_arena_base(rig->arenas[i]);
        if (access->src >= first && access->src + access->bytes <= first + hl_arena_bytes(rig->arenas[i]))
            return true;
    }
    return false;
}

static int check_access(void *user, const struct hl_software_access *access)
{
    struct rig *rig = user;
    bool source = false, destination = false;
    if (access->kind != HL_COPY_H2D)
        return 0; /* the rig reading tensors back */
    pthread_mutex_lock(&rig->lock);
    source = rig->whole_arenas && in_an_arena(rig, access);
    for (uint32_t i = 0; !source && i < rig->block_count; i++) {
        const struct hl_plan_block *block = &rig->blocks[i];
        if (!rig->allowed[i])
            continue;
        const hl_arena *arena = rig->arenas[block->arena_id - 1];
        uint64_t first = (uint64_t)(uintptr_t)hl_arena_base(arena) + block->allocation_offset;
        source = access->src >= first && access->src + access->bytes <= first + block->allocation_bytes;
    }
    pthread_mutex_unlock(&rig->lock);
    for (uint32_t i = 0; !destination && i < rig->layout->tensor_count; i++)
        destination = access->dst >= rig->tensors[i].base &&
                      access->dst + access->bytes <= rig->tensors[i].base + rig->tensors[i].bytes;
    return source && destination ? 0 : 1;
}

static hl_device *open_device(struct rig *rig, const struct rig_options *options)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    const char *name = getenv("HOSTLANE_TEST_DEVICE");
    if (!options->software && name && !strcmp(name, "cuda")) {
        HL_REQUIRE_OK(hl_device_open_cuda(0, &dev, &err), err);
        return dev;
    }
    struct hl_software_options software = {.checker = check_access,
                                           .checker_user = rig,
                                           .single_step = options->single_step,
                                           .seed = options->seed};
    HL_REQUIRE_OK(hl_device_open_software_with(&software, &dev, &err), err);
    return dev;
}

/* --- layout --- */

static uint32_t components_of_group(const struct rig_shape *shape, uint32_t group)
{
    return 2 * ((shape->layers - group + shape->groups - 1) / shape->groups);
}

static uint32_t tensor_of(const struct rig_shape *shape, uint32_t layer, uint32_t value)
{
    switch (shape->tensors) {
    case RIG_SPLIT:
        return 2 * layer + value;
    case RIG_CONTIGUOUS:
        return layer;
    case RIG_PAGE_FIRST:
        break;
    }
    return layer % shape->groups;
}

/* Where component `index` of its group begins in its tensor, and how far its pages lie apart. */
static void place_component(const struct rig_shape *shape, uint32_t value, uint32_t index,
                            struct hl_layout_component *component)
{
    uint64_t page = (uint64_t)shape->tokens * shape->row_bytes;
    component->page_stride = page + shape->gap;
    component->offset = shape->skew;
    if (shape->tensors == RIG_CONTIGUOUS)
        component->offset += value * shape->pages * component->page_stride;
    if (shape->tensors == RIG_PAGE_FIRST) {
        component->page_stride = components_of_group(shape, component->group) * page + shape->gap;
        component->offset += index * page;
    }
}

static void make_layout(struct rig *rig)
{
    const struct rig_shape *shape = &rig->shape;
    uint64_t page = (uint64_t)shape->tokens * shape->row_bytes;
    struct hl_layout_component components[128] = {0};
    struct hl_layout_tensor tensors[128] = {0};
    hl_layout description = {.layers = shape->layers,
                             .page_tokens = shape->tokens,
                             .component_count = 2 * shape->layers,
                             .group_count = shape->groups,
                             .components = components,
                             .tensors = tensors};
    CU_ASSERT_FATAL(2 * shape->layers <= 128 && shape->groups > 0);
    for (uint32_t group = 0; group < shape->groups; group++)
        description.groups[group] = (struct hl_layout_group){
            .pages = shape->pages, .block_bytes = components_of_group(shape, group) * page};
    for (uint32_t i = 0; i < 2 * shape->layers; i++) {
        uint32_t layer = i / 2, value = i % 2, group = layer % shape->groups;
        uint32_t index = 2 * (layer / shape->groups) + value;
        struct hl_layout_component *component = &components[i];
        *component = (struct hl_layout_component){.layer = layer,
                                                  .group = group,
                                                  .tensor = tensor_of(shape, layer, value),
                                                  .role = value ? HL_ROLE_V : HL_ROLE_K,
                                                  .row_bytes = page,
                                                  .row_stride = page,
                                                  .rows = 1,
                                                  .block_offset = index * page,
                                                  .block_row_stride = page};
        if (shape->token_major) {
            component->row_bytes = component->row_stride = shape->row_bytes;
            component->rows = shape->tokens;
            component->block_offset = (uint64_t)index * shape->row_bytes;
            component->block_row_stride = (uint64_t)components_of_group(shape, group) * shape->row_bytes;
        }
        place_component(shape, value, index, component);
        uint64_t end = component->offset + (shape->pages - 1) * component->page_stride + page;
        struct hl_layout_tensor *tensor = &tensors[component->tensor];
        if (end + 64 > tensor->bytes)
            tensor->bytes = end + 64; /* bytes after the last page that nothing may touch */
        snprintf(tensor->name, sizeof tensor->name, "tensor.%u", component->tensor);
        if (component->tensor >= description.tensor_count)
            description.tensor_count = component->tensor + 1;
    }
    hl_error err = {0};
    HL_REQUIRE_OK(hl_layout_from_components(&description, &rig->layout, &err), err);
}

/* --- memory --- */

static void make_arenas(struct rig *rig, uint64_t chunk_bytes)
{
    hl_error err = {0};
    uint64_t chunk = 64 * HL_KIB, bytes = 0, per_arena = rig->shape.groups * rig->shape.blocks + 1;
    uint64_t block = rig->layout->groups[0].block_bytes + HL_ARENA_ALIGN;
    while (chunk < 4 * block || chunk < chunk_bytes)
        chunk *= 2;
    while (bytes < 2 * per_arena * block)
        bytes += 64 * HL_KIB;
    for (uint32_t i = 0; i < RIG_ARENAS; i++) {
        struct hl_arena_options options = {
            .arena_id = i + 1, .bytes = bytes, .numa_node = -1, .threads = 1, .chunk_bytes = chunk};
        HL_REQUIRE_OK(hl_arena_create(&options, &rig->arenas[i], &err), err);
        hl_random_fill(&rig->random, hl_arena_base(rig->arenas[i]), bytes);
        HL_REQUIRE_OK(hl_arena_register(rig->arenas[i], rig->dev, NULL, NULL, &rig->registrations[i], &err),
                      err);
    }
}

static void make_blocks(struct rig *rig)
{
    hl_error err = {0};
    rig->block_count = rig->shape.groups * rig->shape.blocks;
    rig->blocks = calloc(rig->block_count, sizeof *rig->blocks);
    rig->allowed = calloc(rig->block_count, sizeof *rig->allowed);
    for (uint32_t i = 0; i < rig->block_count; i++) {
        struct hl_plan_block *block = &rig->blocks[i];
        uint32_t arena = (uint32_t)hl_random_below(&rig->random, RIG_ARENAS);
        struct hl_allocation allocation;
        block->group = i / rig->shape.blocks;
        HL_REQUIRE_OK(hl_arena_alloc(rig->arenas[arena], rig->layout->groups[block->group].block_bytes,
                                     &allocation, &err),
                      err);
        block->arena_id = arena + 1;
        block->allocation_id = allocation.id;
        block->allocation_offset = allocation.offset;
        block->allocation_bytes = allocation.bytes;
        block->block_offset = allocation.offset;
    }
}

static void make_tensors(struct rig *rig)
{
    hl_error err = {0};
    uint32_t count = rig->layout->tensor_count;
    const struct hl_device_ops *ops = rig->dev->ops;
    rig->tensors = calloc(count, sizeof *rig->tensors);
    rig->expected = calloc(count, sizeof *rig->expected);
    rig->events = calloc(rig->shape.layers, sizeof *rig->events);
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    for (uint32_t i = 0; i < count; i++) {
        rig->tensors[i].bytes = rig->layout->tensors[i].bytes;
        rig->expected[i] = malloc(rig->tensors[i].bytes);
        HL_REQUIRE_OK(ops->mem_alloc(rig->dev, rig->tensors[i].bytes, &rig->tensors[i].base, &err), err);
    }
    for (uint32_t i = 0; i < rig->shape.layers; i++)
        HL_REQUIRE_OK(ops->event_create(rig->dev, 0, &rig->events[i], &err), err);
    hl_device_leave(rig->dev);
    rig_poison(rig);
}

void rig_poison(struct rig *rig)
{
    hl_error err = {0};
    hl_stream stream = NULL;
    const struct hl_device_ops *ops = rig->dev->ops;
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    HL_REQUIRE_OK(ops->stream_create(rig->dev, &stream, &err), err);
    for (uint32_t i = 0; i < rig->layout->tensor_count; i++) {
        memset(rig->expected[i], RIG_POISON, rig->tensors[i].bytes);
        HL_REQUIRE_OK(
            ops->fill(rig->dev, rig->tensors[i].base, RIG_POISON, rig->tensors[i].bytes, stream, &err), err);
    }
    HL_REQUIRE_OK(ops->stream_synchronize(rig->dev, stream, &err), err);
    HL_REQUIRE_OK(ops->stream_destroy(rig->dev, stream, &err), err);
    hl_device_leave(rig->dev);
}

void rig_open(struct rig *rig, const struct rig_options *options)
{
    *rig = (struct rig){.shape = options->shape,
                        .identity = {.epoch = 77, .record = 5, .generation = 1, .token = "token of a rig"}};
    pthread_mutex_init(&rig->lock, NULL);
    hl_random_seed(&rig->random, options->seed);
    rig->dev = open_device(rig, options);
    make_layout(rig);
    make_arenas(rig, options->chunk_bytes);
    make_blocks(rig);
    make_tensors(rig);
}

void rig_close(struct rig *rig)
{
    hl_error err = {0};
    rig_close_transfer(rig);
    hl_plan_free(rig->plan);
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    for (uint32_t i = 0; i < rig->shape.layers; i++)
        rig->dev->ops->event_destroy(rig->dev, rig->events[i], NULL);
    for (uint32_t i = 0; i < rig->layout->tensor_count; i++) {
        rig->dev->ops->mem_free(rig->dev, rig->tensors[i].base, NULL);
        free(rig->expected[i]);
    }
    hl_device_leave(rig->dev);
    for (uint32_t i = 0; i < RIG_ARENAS; i++) {
        hl_registration_release(rig->registrations[i]);
        hl_arena_destroy(rig->arenas[i]);
    }
    if (rig->dev->info.kind == HL_DEVICE_SOFTWARE) {
        struct hl_software_counts counts = rig_counts(rig);
        CU_ASSERT_EQUAL(counts.streams + counts.events + counts.registrations + counts.allocations, 0);
    }
    hl_device_close(rig->dev);
    hl_layout_free(rig->layout);
    free(rig->tensors);
    free(rig->expected);
    free(rig->events);
    free(rig->blocks);
    free(rig->allowed);
    pthread_mutex_destroy(&rig->lock);
}

/* --- executor and plan --- */

struct hl_transfer_options rig_transfer_options(struct rig *rig, enum hl_route route)
{
    return (struct hl_transfer_options){.dev = rig->dev,
                                        .tensors = rig->tensors,
                                        .tensor_count = rig->layout->tensor_count,
                                        .registrations = rig->registrations,
                                        .registration_count = RIG_ARENAS,
                                        .layers = rig->shape.layers,
                                        .route = route};
}

void rig_open_transfer(struct rig *rig, enum hl_route route)
{
    hl_error err = {0};
    struct hl_transfer_options options = rig_transfer_options(rig, route);
    HL_REQUIRE_OK(hl_transfer_open(&options, &rig->transfer, &err), err);
}

void rig_close_transfer(struct rig *rig)
{
    hl_transfer_close(rig->transfer);
    rig->transfer = NULL;
}

/* The naive copier: row by row, as layout.h says. */
static void expect_block(struct rig *rig, const struct hl_plan_block *block)
{
    const unsigned char *arena = hl_arena_base(rig->arenas[block->arena_id - 1]);
    for (uint32_t i = 0; i < rig->layout->component_count; i++) {
        const struct hl_layout_component *component = &rig->layout->components[i];
        if (component->group != block->group)
            continue;
        for (uint32_t row = 0; row < component->rows; row++)
            memcpy(rig->expected[component->tensor] + component->offset +
                       block->page * component->page_stride + row * component->row_stride,
                   arena + block->block_offset + component->block_offset + row * component->block_row_stride,
                   component->row_bytes);
    }
}

/* Gives `count` of the group's blocks a page each and appends them to `chosen`. */
static uint32_t choose_blocks(struct rig *rig, uint32_t group, uint32_t count, bool ordered,
                              struct hl_plan_block *chosen)
{
    uint32_t *pages = malloc(rig->shape.pages * sizeof *pages);
    uint32_t *order = malloc(rig->shape.blocks * sizeof *order);
    hl_random_permutation(&rig->random, pages, rig->shape.pages);
    hl_random_permutation(&rig->random, order, rig->shape.blocks);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = group * rig->shape.blocks + (ordered ? i : order[i]);
        struct hl_plan_block *block = &rig->blocks[index];
        block->page = ordered ? i : pages[i];
        chosen[i] = *block;
        rig->allowed[index] = true;
        expect_block(rig, block);
    }
    free(pages);
    free(order);
    return count;
}

void rig_compile(struct rig *rig, uint32_t groups, uint32_t count, bool ordered, uint64_t part_bytes)
{
    hl_error err = {0};
    struct hl_plan_block *chosen = calloc(rig->block_count + 1, sizeof *chosen);
    uint32_t chosen_count = 0;
    CU_ASSERT_FATAL(count <= rig->shape.blocks);
    pthread_mutex_lock(&rig->lock);
    if (!rig->keep_allowed)
        memset(rig->allowed, 0, rig->block_count * sizeof *rig->allowed);
    for (uint32_t group = 0; group < rig->shape.groups; group++)
        if (groups & (1u << group))
            chosen_count += choose_blocks(rig, group, count, ordered, chosen + chosen_count);
    pthread_mutex_unlock(&rig->lock);
    rig->identity.generation++;
    struct hl_plan_request request = {.layout = rig->layout,
                                      .identity = rig->identity,
                                      .blocks = chosen,
                                      .block_count = chosen_count,
                                      .chunk_bytes = hl_arena_chunk_bytes(rig->arenas[0]),
                                      .part_bytes = part_bytes};
    hl_plan_free(rig->plan);
    rig->plan = NULL;
    HL_REQUIRE_OK(hl_plan_compile(&request, &rig->plan, &err), err);
    free(chosen);
}

hl_operation *rig_start(struct rig *rig)
{
    hl_error err = {0};
    hl_operation *operation = NULL;
    struct hl_operation_options options = {.identity = rig->identity, .layer_events = rig->events};
    HL_REQUIRE_OK(hl_operation_start(rig->transfer, &options, &operation, &err), err);
    return operation;
}

void *rig_copy_part(struct rig *rig, size_t part, size_t *size)
{
    const void *bytes = hl_plan_part_bytes(rig->plan, part, size);
    void *copy = malloc(*size);
    memcpy(copy, bytes, *size);
    return copy;
}

hl_status rig_submit_part(struct rig *rig, hl_operation *operation, size_t part, hl_error *err)
{
    size_t size;
    void *copy = rig_copy_part(rig, part, &size);
    hl_status status = hl_operation_submit(operation, copy, size, err);
    memset(copy, 0xee, size);
    free(copy);
    return status;
}

void rig_restore(struct rig *rig)
{
    hl_error err = {0};
    struct hl_operation_result result = {0};
    hl_operation *operation = rig_start(rig);
    for (size_t i = 0; i < hl_plan_part_count(rig->plan); i++)
        HL_EXPECT_OK(rig_submit_part(rig, operation, i, &err), err);
    HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
    CU_ASSERT_TRUE(result.drained && result.submitted);
    hl_operation_close(operation);
}

/* --- looking --- */

bool rig_tensors_match(struct rig *rig)
{
    hl_error err = {0};
    hl_stream stream = NULL;
    const struct hl_device_ops *ops = rig->dev->ops;
    bool match = true;
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    HL_REQUIRE_OK(ops->stream_create(rig->dev, &stream, &err), err);
    for (uint32_t i = 0; i < rig->layout->tensor_count; i++) {
        size_t bytes = rig->tensors[i].bytes, mapped = (bytes + 4095) / 4096 * 4096;
        void *host = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        HL_REQUIRE_OK(ops->host_register(rig->dev, host, mapped, &err), err);
        HL_REQUIRE_OK(ops->copy(rig->dev, HL_COPY_D2H, (uint64_t)(uintptr_t)host, rig->tensors[i].base, bytes,
                                stream, &err),
                      err);
        HL_REQUIRE_OK(ops->stream_synchronize(rig->dev, stream, &err), err);
        HL_REQUIRE_OK(ops->host_unregister(rig->dev, host, &err), err);
        match = match && memcmp(host, rig->expected[i], bytes) == 0;
        munmap(host, mapped);
    }
    HL_REQUIRE_OK(ops->stream_destroy(rig->dev, stream, &err), err);
    hl_device_leave(rig->dev);
    return match;
}

void rig_peek(struct rig *rig, uint32_t tensor, unsigned char *bytes)
{
    hl_software_peek(rig->dev, bytes, rig->tensors[tensor].base, rig->tensors[tensor].bytes);
}

struct hl_software_counts rig_counts(struct rig *rig)
{
    struct hl_software_counts counts;
    hl_software_counts(rig->dev, &counts);
    return counts;
}

bool rig_is_entered(struct rig *rig)
{
    uint64_t free_bytes, total_bytes;
    return rig->dev->ops->stream_query(rig->dev, NULL, NULL) != HL_E_STATE &&
           rig->dev->ops->memory_info(rig->dev, &free_bytes, &total_bytes, NULL) != HL_E_STATE;
}
