/* The fake Manager's device, tensors, arenas and blocks, and what must arrive where. */
#include "engine/fake_peer.h"

static int check_access(void *user, const struct hl_software_access *access)
{
    struct fake *fake = user;
    bool allowed = false;
    if (access->kind != HL_COPY_H2D)
        return 0; /* a test looking at the tensors */
    pthread_mutex_lock(&fake->lock);
    for (uint32_t i = 0; !allowed && i < FAKE_BLOCKS; i++) {
        const struct hl_plan_block *block = &fake->blocks[i];
        if (fake->pinned[i] == 0)
            continue;
        /* The engine's mapping of the arena is elsewhere: compare the bytes' place by content. */
        const unsigned char *bytes = (const unsigned char *)(uintptr_t)access->src;
        const unsigned char *mine = hl_arena_base(fake->arenas[block->arena_id - 1]);
        mine += block->block_offset;
        for (uint64_t at = 0; !allowed && at + access->bytes <= block->allocation_bytes; at += 64)
            allowed = memcmp(bytes, mine + at, access->bytes) == 0;
    }
    pthread_mutex_unlock(&fake->lock);
    return allowed ? 0 : 1;
}

static void make_blocks(struct fake *fake)
{
    hl_error err = {0};
    for (uint32_t i = 0; i < FAKE_ARENAS; i++) {
        struct hl_arena_options options = {.arena_id = i + 1,
                                           .bytes = 256 * HL_KIB,
                                           .numa_node = -1,
                                           .threads = 1,
                                           .chunk_bytes = 128 * HL_KIB};
        HL_REQUIRE_OK(hl_arena_create(&options, &fake->arenas[i], &err), err);
        hl_random_fill(&fake->random, hl_arena_base(fake->arenas[i]), hl_arena_bytes(fake->arenas[i]));
    }
    for (uint32_t i = 0; i < FAKE_BLOCKS; i++) {
        struct hl_allocation allocation;
        uint32_t arena = i % FAKE_ARENAS;
        HL_REQUIRE_OK(
            hl_arena_alloc(fake->arenas[arena], fake->layout->groups[0].block_bytes, &allocation, &err), err);
        fake->blocks[i] = (struct hl_plan_block){.arena_id = arena + 1,
                                                 .allocation_id = allocation.id,
                                                 .allocation_offset = allocation.offset,
                                                 .allocation_bytes = allocation.bytes,
                                                 .block_offset = allocation.offset};
    }
}

static void make_tensors(struct fake *fake)
{
    const struct hl_device_ops *ops = fake->dev->ops;
    hl_error err = {0};
    hl_stream stream = fake_stream(fake);
    CU_ASSERT_EQUAL_FATAL(fake->layout->tensor_count, FAKE_TENSORS);
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    for (uint32_t i = 0; i < FAKE_TENSORS; i++) {
        hl_tensor *tensor = &fake->tensors[i];
        tensor->bytes = fake->layout->tensors[i].bytes;
        HL_REQUIRE_OK(ops->mem_alloc(fake->dev, tensor->bytes, &tensor->device_ptr, &err), err);
        HL_REQUIRE_OK(ops->fill(fake->dev, tensor->device_ptr, FAKE_POISON, tensor->bytes, stream, &err),
                      err);
        fake->expected[i] = malloc(tensor->bytes);
        memset(fake->expected[i], FAKE_POISON, tensor->bytes);
    }
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        HL_REQUIRE_OK(ops->event_create(fake->dev, 0, &fake->events[i], &err), err);
    HL_REQUIRE_OK(ops->stream_synchronize(fake->dev, stream, &err), err);
    hl_device_leave(fake->dev);
    fake_stream_end(fake, stream);
}

void fake_world_open(struct fake *fake, const struct hl_software_options *software)
{
    struct hl_software_options options = *software;
    struct hl_model_geometry geometry = {
        .name = "small", .layers = FAKE_LAYERS, .kv_heads = 1, .head_dim = 32, .element_bytes = 2};
    const struct hl_layout_options layout = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 4, .pages = FAKE_PAGES};
    hl_error err = {0};
    options.checker = check_access;
    options.checker_user = fake;
    HL_REQUIRE_OK(hl_device_open_software_with(&options, &fake->dev, &err), err);
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &layout, &fake->layout, &err), err);
    make_blocks(fake);
    make_tensors(fake);
}

void fake_world_close(struct fake *fake)
{
    struct hl_software_counts counts;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        fake->dev->ops->event_destroy(fake->dev, fake->events[i], NULL);
    for (uint32_t i = 0; i < FAKE_TENSORS; i++) {
        fake->dev->ops->mem_free(fake->dev, fake->tensors[i].device_ptr, NULL);
        free(fake->expected[i]);
    }
    hl_device_leave(fake->dev);
    hl_software_counts(fake->dev, &counts);
    CU_ASSERT_EQUAL(counts.violations, 0);
    CU_ASSERT_EQUAL(counts.streams + counts.events + counts.registrations + counts.allocations, 0);
    for (uint32_t i = 0; i < FAKE_ARENAS; i++)
        hl_arena_destroy(fake->arenas[i]);
    hl_layout_free(fake->layout);
    hl_device_close(fake->dev);
}

/* Row by row, as layout.h says. */
void fake_expect(struct fake *fake, uint32_t index, uint32_t page)
{
    const struct hl_plan_block *block = &fake->blocks[index];
    const unsigned char *bytes = hl_arena_base(fake->arenas[block->arena_id - 1]);
    bytes += block->block_offset;
    for (uint32_t i = 0; i < fake->layout->component_count; i++) {
        const struct hl_layout_component *component = &fake->layout->components[i];
        for (uint32_t row = 0; row < component->rows; row++)
            memcpy(fake->expected[component->tensor] + component->offset + page * component->page_stride +
                       row * component->row_stride,
                   bytes + component->block_offset + row * component->block_row_stride, component->row_bytes);
    }
}

bool fake_tensors_match(struct fake *fake)
{
    bool match = true;
    for (uint32_t i = 0; i < FAKE_TENSORS; i++) {
        unsigned char *bytes = malloc(fake->tensors[i].bytes);
        hl_software_peek(fake->dev, bytes, fake->tensors[i].device_ptr, fake->tensors[i].bytes);
        match = match && memcmp(bytes, fake->expected[i], fake->tensors[i].bytes) == 0;
        free(bytes);
    }
    return match;
}

hl_status fake_event_query(struct fake *fake, hl_event event)
{
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    hl_status status = fake->dev->ops->event_query(fake->dev, event, &err);
    hl_device_leave(fake->dev);
    return status;
}

hl_stream fake_stream(struct fake *fake)
{
    hl_error err = {0};
    hl_stream stream = NULL;
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    HL_REQUIRE_OK(fake->dev->ops->stream_create(fake->dev, &stream, &err), err);
    hl_device_leave(fake->dev);
    return stream;
}

void fake_stream_end(struct fake *fake, hl_stream stream)
{
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    fake->dev->ops->stream_destroy(fake->dev, stream, NULL);
    hl_device_leave(fake->dev);
}

/* One byte of poison over poison: work that changes nothing. */
hl_stream fake_busy_stream(struct fake *fake)
{
    hl_error err = {0};
    hl_stream stream = fake_stream(fake);
    hl_software_hold(fake->dev, stream, 0);
    HL_REQUIRE_OK(hl_device_enter(fake->dev, &err), err);
    HL_REQUIRE_OK(fake->dev->ops->fill(fake->dev, fake->tensors[0].device_ptr + fake->tensors[0].bytes - 1,
                                       FAKE_POISON, 1, stream, &err),
                  err);
    hl_device_leave(fake->dev);
    return stream;
}

bool fake_is_entered(struct fake *fake)
{
    return fake->dev->ops->stream_query(fake->dev, NULL, NULL) != HL_E_STATE;
}
