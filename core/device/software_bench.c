#include <sys/mman.h>

#include "core/device/software_testing.h"

void bench_open(struct bench *bench, const struct hl_software_options *options)
{
    *bench = (struct bench){0};
    hl_error *err = &bench->err;
    HL_REQUIRE_OK(hl_device_open_software_with(options, &bench->dev, err), *err);
    bench->ops = bench->dev->ops;
    HL_REQUIRE_OK(hl_device_enter(bench->dev, err), *err);
    bench->host = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(bench->host, MAP_FAILED);
    for (size_t i = 0; i < BENCH_BYTES; i++)
        bench->host[i] = (unsigned char)(i * 7);
    HL_REQUIRE_OK(bench->ops->host_register(bench->dev, bench->host, BENCH_BYTES, err), *err);
    HL_REQUIRE_OK(bench->ops->mem_alloc(bench->dev, BENCH_BYTES, &bench->memory, err), *err);
    HL_REQUIRE_OK(bench->ops->stream_create(bench->dev, &bench->a, err), *err);
    HL_REQUIRE_OK(bench->ops->stream_create(bench->dev, &bench->b, err), *err);
}

void bench_close(struct bench *bench)
{
    struct hl_software_counts counts;
    HL_EXPECT_OK(bench->ops->stream_destroy(bench->dev, bench->a, &bench->err), bench->err);
    HL_EXPECT_OK(bench->ops->stream_destroy(bench->dev, bench->b, &bench->err), bench->err);
    HL_EXPECT_OK(bench->ops->mem_free(bench->dev, bench->memory, &bench->err), bench->err);
    HL_EXPECT_OK(bench->ops->host_unregister(bench->dev, bench->host, &bench->err), bench->err);
    hl_software_counts(bench->dev, &counts);
    CU_ASSERT_EQUAL(
        counts.allocations + counts.registrations + counts.streams + counts.events + counts.imports, 0);
    hl_device_leave(bench->dev);
    hl_device_close(bench->dev);
    munmap(bench->host, BENCH_BYTES);
}

hl_status bench_copy(struct bench *bench, hl_stream stream, size_t offset, size_t bytes)
{
    return bench->ops->copy(bench->dev, HL_COPY_H2D, bench->memory + offset, (uintptr_t)bench->host + offset,
                            bytes, stream, &bench->err);
}

bool bench_arrived(struct bench *bench, size_t offset, size_t bytes)
{
    static unsigned char seen[BENCH_BYTES];
    hl_software_peek(bench->dev, seen, bench->memory + offset, bytes);
    return memcmp(seen, bench->host + offset, bytes) == 0;
}
