#include "core/device/device_conformance.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOST_BYTES (2 * AREA_BYTES + 4096)

static hl_device *device;

static void close_device(void)
{
    hl_device_close(device);
}

hl_device *conformance_find_device(hl_error *err)
{
    const char *name = getenv("HOSTLANE_TEST_DEVICE");
    if (device)
        return device;
    if (!name || !*name || !strcmp(name, "software"))
        (void)hl_device_open_software(&device, err);
    else if (!strcmp(name, "cuda"))
        (void)hl_device_open_cuda(0, &device, err);
    else
        (void)HL_FAIL(err, HL_E_INVALID, "test", "HOSTLANE_TEST_DEVICE: %s", name);
    if (device)
        atexit(close_device);
    return device;
}

hl_device *conformance_device(void)
{
    hl_error err = {0};
    if (!conformance_find_device(&err))
        fprintf(stderr, "no device for the suite: %s\n", err.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    return device;
}

static void open_memory(struct conformance *c)
{
    hl_random random;
    c->source = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(c->source, MAP_FAILED);
    c->result = c->source + AREA_BYTES;
    c->words = (uint32_t *)(void *)(c->result + AREA_BYTES);
    hl_random_seed(&random, 20);
    hl_random_fill(&random, c->source, AREA_BYTES);
    memset(c->result, 0xee, AREA_BYTES);
    HL_REQUIRE_OK(c->ops->host_register(c->dev, c->source, HOST_BYTES, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->host_pointer(c->dev, c->source, &c->source_mapped, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->host_pointer(c->dev, c->result, &c->result_mapped, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->host_pointer(c->dev, c->words, &c->words_mapped, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->mem_alloc(c->dev, AREA_BYTES, &c->memory, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->mem_alloc(c->dev, AREA_BYTES, &c->other, &c->err), c->err);
}

void conformance_open(struct conformance *c)
{
    *c = (struct conformance){.dev = conformance_device()};
    c->ops = c->dev->ops;
    HL_REQUIRE_OK(hl_device_enter(c->dev, &c->err), c->err);
    open_memory(c);
    HL_REQUIRE_OK(c->ops->stream_create(c->dev, &c->stream, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->stream_create(c->dev, &c->second, &c->err), c->err);
    HL_REQUIRE_OK(c->ops->fill(c->dev, c->memory, 0xdd, AREA_BYTES, c->stream, &c->err), c->err);
    conformance_sync(c, c->stream);
}

void conformance_close(struct conformance *c)
{
    HL_EXPECT_OK(c->ops->stream_destroy(c->dev, c->stream, &c->err), c->err);
    HL_EXPECT_OK(c->ops->stream_destroy(c->dev, c->second, &c->err), c->err);
    HL_EXPECT_OK(c->ops->mem_free(c->dev, c->memory, &c->err), c->err);
    HL_EXPECT_OK(c->ops->mem_free(c->dev, c->other, &c->err), c->err);
    HL_EXPECT_OK(c->ops->host_unregister(c->dev, c->source, &c->err), c->err);
    munmap(c->source, HOST_BYTES);
    hl_device_leave(c->dev);
}

void conformance_hold(struct conformance *c, hl_stream stream, unsigned index, uint32_t value)
{
    HL_REQUIRE_OK(c->ops->stream_wait_value(c->dev, stream, c->words_mapped + 4 * index, value, &c->err),
                  c->err);
}

void conformance_release(struct conformance *c, unsigned index, uint32_t value)
{
    __atomic_store_n(&c->words[index], value, __ATOMIC_RELEASE);
}

void conformance_sync(struct conformance *c, hl_stream stream)
{
    HL_REQUIRE_OK(c->ops->stream_synchronize(c->dev, stream, &c->err), c->err);
}

void conformance_read(struct conformance *c, hl_devptr src, size_t bytes)
{
    HL_REQUIRE_OK(c->ops->copy(c->dev, HL_COPY_D2H, (uintptr_t)c->result, src, bytes, c->stream, &c->err),
                  c->err);
    conformance_sync(c, c->stream);
}

bool all_bytes_are(const unsigned char *at, unsigned char value, size_t bytes)
{
    return bytes == 0 || (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0);
}
