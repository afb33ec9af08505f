#include "qualification/restore/world.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/random.h"
#include "core/device/software.h"

bool world_wants_cuda(void)
{
    const char *wanted = getenv("HOSTLANE_TEST_DEVICE");
    return wanted && strcmp(wanted, "cuda") == 0;
}

static void make_layout(struct world *world, const struct world_options *options)
{
    struct hl_model_geometry geometry = {.name = "small",
                                         .layers = options->layers,
                                         .kv_heads = 1,
                                         .head_dim = options->head_dim,
                                         .element_bytes = 2};
    const struct hl_layout_options layout = {
        .kind = HL_LAYOUT_SPLIT, .page_tokens = options->page_tokens, .pages = options->pages};
    for (uint32_t i = options->layers / 2; options->sliding && i < options->layers; i++)
        geometry.sliding[i] = 1;
    geometry.window_tokens = options->sliding ? 64 : 0;
    MUST_OK(hl_layout_from_model(&geometry, &layout, &world->layout, &world->err), world->err);
}

static void make_memory(struct world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    hl_error *err = &world->err;
    world->tensors = calloc(world->layout->tensor_count, sizeof *world->tensors);
    MUST(world->tensors != NULL);
    for (uint32_t i = 0; i < world->layout->tensor_count; i++) {
        world->tensors[i] = (hl_tensor){.device_ptr = world->bytes, .bytes = world->layout->tensors[i].bytes};
        world->bytes = hl_align_up(world->bytes + world->tensors[i].bytes, 256);
    }
    MUST_OK(ops->mem_alloc(world->dev, world->bytes, &world->memory, err), *err);
    for (uint32_t i = 0; i < world->layout->tensor_count; i++)
        world->tensors[i].device_ptr += world->memory;
    world->staging_bytes = hl_align_up(world->bytes, page) + page;
    world->staging = mmap(NULL, world->staging_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    world->expected = malloc(world->bytes);
    MUST(world->staging != MAP_FAILED && world->expected != NULL);
    MUST_OK(ops->host_register(world->dev, world->staging, world->staging_bytes, err), *err);
    hl_devptr mapped;
    MUST_OK(ops->host_pointer(world->dev, world->staging, &mapped, err), *err);
    world->word = (_Atomic uint32_t *)(void *)(world->staging + world->staging_bytes - page);
    world->word_ptr = mapped + world->staging_bytes - page;
}

void world_open(struct world *world, const struct world_options *options)
{
    *world = (struct world){.dev = options->dev, .own_dev = !options->dev};
    if (world->own_dev && world_wants_cuda())
        MUST_OK(hl_device_open_cuda(0, &world->dev, &world->err), world->err);
    else if (world->own_dev)
        MUST_OK(hl_device_open_software(&world->dev, &world->err), world->err);
    world->cuda = world->dev->info.kind == HL_DEVICE_CUDA;
    make_layout(world, options);
    world->events = calloc(world->layout->layers, sizeof *world->events);
    MUST(world->events != NULL);
    MUST_OK(hl_device_enter(world->dev, &world->err), world->err);
    make_memory(world);
    MUST_OK(world->dev->ops->stream_create(world->dev, &world->stream, &world->err), world->err);
    for (uint32_t i = 0; i < world->layout->layers; i++)
        MUST_OK(world->dev->ops->event_create(world->dev, 0, &world->events[i], &world->err), world->err);
    hl_device_leave(world->dev);
    world_poison(world);
}

static void expect_empty(struct world *world)
{
    struct hl_software_counts counts;
    hl_software_counts(world->dev, &counts);
    MUST(counts.violations == 0);
    MUST(counts.streams + counts.events + counts.registrations + counts.allocations + counts.imports == 0);
}

void world_close(struct world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    hl_error *err = &world->err;
    MUST_OK(hl_device_enter(world->dev, err), *err);
    for (uint32_t i = 0; i < world->layout->layers; i++)
        MUST_OK(ops->event_destroy(world->dev, world->events[i], err), *err);
    MUST_OK(ops->stream_destroy(world->dev, world->stream, err), *err);
    MUST_OK(ops->host_unregister(world->dev, world->staging, err), *err);
    MUST_OK(ops->mem_free(world->dev, world->memory, err), *err);
    hl_device_leave(world->dev);
    munmap(world->staging, world->staging_bytes);
    free(world->expected);
    free(world->events);
    free(world->tensors);
    hl_layout_free(world->layout);
    if (!world->own_dev)
        return;
    if (!world->cuda)
        expect_empty(world);
    hl_device_close(world->dev);
}

void world_block(uint64_t key, void *bytes, size_t size)
{
    hl_random random;
    hl_random_seed(&random, key + 1);
    hl_random_fill(&random, bytes, size);
}

/* Row by row, as layout.h says. */
void world_expect(struct world *world, uint32_t group, uint64_t key, uint32_t page)
{
    const hl_layout *layout = world->layout;
    const size_t size = layout->groups[group].block_bytes;
    unsigned char *block = malloc(size);
    MUST(block != NULL && page < layout->groups[group].pages);
    world_block(key, block, size);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        unsigned char *tensor = world->expected + (world->tensors[c->tensor].device_ptr - world->memory);
        for (uint32_t row = 0; c->group == group && row < c->rows; row++)
            memcpy(tensor + c->offset + page * c->page_stride + row * c->row_stride,
                   block + c->block_offset + row * c->block_row_stride, c->row_bytes);
    }
    free(block);
}

void world_upload(struct world *world)
{
    hl_error *err = &world->err;
    memcpy(world->staging, world->expected, world->bytes);
    MUST_OK(hl_device_enter(world->dev, err), *err);
    MUST_OK(world->dev->ops->copy(world->dev, HL_COPY_H2D, world->memory, (uintptr_t)world->staging,
                                  world->bytes, world->stream, err),
            *err);
    MUST_OK(world->dev->ops->stream_synchronize(world->dev, world->stream, err), *err);
    hl_device_leave(world->dev);
}

void world_poison(struct world *world)
{
    memset(world->expected, WORLD_POISON, world->bytes);
    world_upload(world);
}

void world_read_on(struct world *world, hl_stream stream, uint64_t offset, void *to, size_t size)
{
    hl_error *err = &world->err;
    MUST_OK(hl_device_enter(world->dev, err), *err);
    MUST_OK(world->dev->ops->copy(world->dev, HL_COPY_D2H, (uintptr_t)world->staging + offset,
                                  world->memory + offset, size, stream, err),
            *err);
    MUST_OK(world->dev->ops->stream_synchronize(world->dev, stream, err), *err);
    hl_device_leave(world->dev);
    memcpy(to, world->staging + offset, size);
}

bool world_matches(struct world *world)
{
    unsigned char *now = malloc(world->bytes);
    MUST(now != NULL);
    world_read_on(world, world->stream, 0, now, world->bytes);
    bool matches = memcmp(now, world->expected, world->bytes) == 0;
    for (uint64_t i = 0; !matches && i < world->bytes; i++)
        if (now[i] != world->expected[i]) {
            fprintf(stderr, "byte %llu of the tensors is %#x, expected %#x\n", (unsigned long long)i, now[i],
                    world->expected[i]);
            break;
        }
    free(now);
    return matches;
}

void world_hold(struct world *world, hl_stream stream)
{
    MUST_OK(hl_device_enter(world->dev, &world->err), world->err);
    MUST_OK(
        world->dev->ops->stream_wait_value(world->dev, stream, world->word_ptr, ++world->holds, &world->err),
        world->err);
    hl_device_leave(world->dev);
}

/* On the software device a write of another stream is what wakes the waiting one. */
void world_let_go(struct world *world)
{
    MUST_OK(hl_device_enter(world->dev, &world->err), world->err);
    MUST_OK(world->dev->ops->stream_write_value(world->dev, world->stream, world->word_ptr, world->holds,
                                                &world->err),
            world->err);
    MUST_OK(world->dev->ops->stream_synchronize(world->dev, world->stream, &world->err), world->err);
    hl_device_leave(world->dev);
}

hl_stream world_stream_new(struct world *world)
{
    hl_stream stream;
    MUST_OK(hl_device_enter(world->dev, &world->err), world->err);
    MUST_OK(world->dev->ops->stream_create(world->dev, &stream, &world->err), world->err);
    hl_device_leave(world->dev);
    return stream;
}

void world_stream_end(struct world *world, hl_stream stream)
{
    MUST_OK(hl_device_enter(world->dev, &world->err), world->err);
    MUST_OK(world->dev->ops->stream_synchronize(world->dev, stream, &world->err), world->err);
    MUST_OK(world->dev->ops->stream_destroy(world->dev, stream, &world->err), world->err);
    hl_device_leave(world->dev);
}

/* The software device says so itself; on CUDA, whether the thread has a context at all. */
bool world_is_entered(struct world *world)
{
    if (!world->cuda)
        return world->dev->ops->stream_query(world->dev, NULL, NULL) != HL_E_STATE;
    void *current = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    MUST(driver != NULL);
    int (*get_current)(void **) = (int (*)(void **))(uintptr_t)dlsym(driver, "cuCtxGetCurrent");
    MUST(get_current != NULL && get_current(&current) == 0);
    dlclose(driver);
    return current != NULL;
}
