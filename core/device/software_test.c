/* What the software device refuses, and its test controls. */
#include <sys/mman.h>

#include "core/device/software_testing.h"

static const struct hl_software_options plain;

static void every_operation_outside_the_device_is_refused(void)
{
    struct bench t;
    struct hl_ipc_export export = {0};
    uint64_t number;
    int64_t ns;
    size_t accepted = 5;
    hl_stream stream;
    hl_event event;
    const struct hl_gather_launch gather = {.count = 1, .blocks = 1};
    const struct hl_checksum_launch checksum = {.count = 1, .page_bytes = 8};
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    hl_device_leave(t.dev);
    const hl_status got[] = {
        t.ops->memory_info(t.dev, &number, &number, &t.err),
        t.ops->mem_alloc(t.dev, 1, &number, &t.err),
        t.ops->mem_free(t.dev, t.memory, &t.err),
        t.ops->fill(t.dev, t.memory, 0, 1, t.a, &t.err),
        t.ops->host_register(t.dev, t.host, BENCH_BYTES, &t.err),
        t.ops->host_register_read(t.dev, t.host, BENCH_BYTES, &t.err),
        t.ops->host_unregister(t.dev, t.host, &t.err),
        t.ops->host_pointer(t.dev, t.host, &number, &t.err),
        t.ops->ipc_export(t.dev, t.memory, &export, &t.err),
        t.ops->ipc_import(t.dev, &export, &number, &t.err),
        t.ops->ipc_close(t.dev, t.memory, &t.err),
        t.ops->stream_create(t.dev, &stream, &t.err),
        t.ops->stream_destroy(t.dev, t.a, &t.err),
        t.ops->stream_query(t.dev, t.a, &t.err),
        t.ops->stream_synchronize(t.dev, t.a, &t.err),
        t.ops->stream_wait_event(t.dev, t.a, event, &t.err),
        t.ops->stream_wait_value(t.dev, t.a, t.memory, 0, &t.err),
        t.ops->stream_write_value(t.dev, t.a, t.memory, 0, &t.err),
        t.ops->event_create(t.dev, 0, &event, &t.err),
        t.ops->event_destroy(t.dev, event, &t.err),
        t.ops->event_record(t.dev, event, t.a, &t.err),
        t.ops->event_query(t.dev, event, &t.err),
        t.ops->event_synchronize(t.dev, event, &t.err),
        t.ops->event_elapsed(t.dev, event, event, &ns, &t.err),
        bench_copy(&t, t.a, 0, 1),
        t.ops->copy_rows(t.dev, HL_COPY_H2D, t.memory, 1, (uintptr_t)t.host, 1, 1, 1, t.a, &t.err),
        t.ops->copy_batch(t.dev, HL_COPY_H2D, NULL, 0, t.a, &accepted, &t.err),
        t.ops->gather(t.dev, &gather, t.a, &t.err),
        t.ops->checksum(t.dev, &checksum, t.a, &t.err),
    };
    for (unsigned i = 0; i < sizeof got / sizeof got[0]; i++)
        CU_ASSERT_EQUAL(got[i], HL_E_STATE);
    CU_ASSERT_EQUAL(accepted, 0);
    HL_REQUIRE_OK(hl_device_enter(t.dev, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

static void the_device_entered_last_is_the_current_one(void)
{
    struct bench t;
    hl_device *other;
    uint64_t number;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(hl_device_open_software(&other, &t.err), t.err);
    HL_REQUIRE_OK(hl_device_enter(other, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->memory_info(t.dev, &number, &number, &t.err), HL_E_STATE, t.err);
    HL_EXPECT_OK(other->ops->memory_info(other, &number, &number, &t.err), t.err);
    hl_device_leave(other);
    HL_EXPECT_OK(t.ops->memory_info(t.dev, &number, &number, &t.err), t.err);
    hl_device_close(other);
    bench_close(&t);
}

static void contexts_nest_up_to_a_bound(void)
{
    struct bench t;
    unsigned depth = 1; /* the bench is inside */
    bench_open(&t, &plain);
    while (hl_device_enter(t.dev, &t.err) == HL_OK && depth < 1000)
        depth++;
    CU_ASSERT_EQUAL(t.err.status, HL_E_LIMIT);
    CU_ASSERT_EQUAL(depth, 32);
    while (--depth)
        hl_device_leave(t.dev);
    bench_close(&t);
}

static void allocations_stop_at_the_capacity(void)
{
    const struct hl_software_options small = {.memory_bytes = 2 * BENCH_BYTES};
    struct bench t;
    hl_devptr ptr = 0, unset = 7;
    uint64_t free_bytes, total_bytes;
    bench_open(&t, &small);
    HL_REQUIRE_OK(t.ops->mem_alloc(t.dev, BENCH_BYTES, &ptr, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->mem_alloc(t.dev, 1, &unset, &t.err), HL_E_NOMEM, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 2);
    CU_ASSERT_EQUAL(unset, 7);
    HL_EXPECT_OK(t.ops->memory_info(t.dev, &free_bytes, &total_bytes, &t.err), t.err);
    CU_ASSERT_EQUAL(free_bytes, 0);
    CU_ASSERT_EQUAL(total_bytes, 2 * BENCH_BYTES);
    HL_EXPECT_STATUS(t.ops->mem_free(t.dev, ptr + 1, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_OK(t.ops->mem_free(t.dev, ptr, &t.err), t.err);
    HL_EXPECT_OK(t.ops->mem_alloc(t.dev, 1, &ptr, &t.err), t.err);
    HL_EXPECT_OK(t.ops->mem_free(t.dev, ptr, &t.err), t.err);
    bench_close(&t);
}

static void memory_that_the_system_cannot_map_gives_its_capacity_back(void)
{
    const struct hl_software_options huge = {.memory_bytes = UINT64_MAX};
    struct bench t;
    hl_devptr ptr = 7;
    uint64_t before, after, total;
    bench_open(&t, &huge);
    HL_EXPECT_OK(t.ops->memory_info(t.dev, &before, &total, &t.err), t.err);
    const size_t refused[] = {
        SIZE_MAX - 4096, /* no file is so long */
        (size_t)1 << 47, /* more than a process can map */
        (size_t)70 << 40 /* can be mapped once, not twice */
    };
    for (unsigned i = 0; i < 3; i++)
        HL_EXPECT_STATUS(t.ops->mem_alloc(t.dev, refused[i], &ptr, &t.err), HL_E_NOMEM, t.err);
    HL_EXPECT_OK(t.ops->memory_info(t.dev, &after, &total, &t.err), t.err);
    CU_ASSERT_EQUAL(before, after);
    CU_ASSERT_EQUAL(ptr, 7);
    bench_close(&t);
}

static void registrations_are_whole_mapped_pages(void)
{
    struct bench t;
    unsigned char *p;
    bench_open(&t, &plain);
    p = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(p, MAP_FAILED);
    /* Not unmapped: another thread's memory could come to lie there. */
    CU_ASSERT_EQUAL_FATAL(mprotect(p + 8192, 4096, PROT_NONE), 0);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, NULL, 4096, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p + 1, 4096, &t.err), HL_E_INVALID, t.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.err.text, "ptr"));
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p, 0, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p, 100, &t.err), HL_E_INVALID, t.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.err.text, "bytes"));
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p, SIZE_MAX & ~4095ul, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p, 4 * 4096, &t.err), HL_E_INVALID, t.err); /* has a hole */
    CU_ASSERT_EQUAL(t.err.device_code, 1);
    HL_EXPECT_OK(t.ops->host_register(t.dev, p, 8192, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, p + 4096, 4096, &t.err), HL_E_BUSY, t.err);
    HL_EXPECT_STATUS(t.ops->host_unregister(t.dev, p + 4096, &t.err), HL_E_NOT_FOUND, t.err);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, p, &t.err), t.err);
    munmap(p, 4 * 4096);
    bench_close(&t);
}

static void registered_bytes_are_counted_with_their_peak(void)
{
    struct bench t;
    struct hl_software_counts counts;
    bench_open(&t, &plain);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.registered_bytes, 0);
    CU_ASSERT_EQUAL(counts.registered_bytes_peak, BENCH_BYTES);
    HL_EXPECT_OK(t.ops->host_register_read(t.dev, t.host, BENCH_BYTES, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->host_register_read(t.dev, t.host, 4096, &t.err), HL_E_BUSY, t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.registered_bytes, BENCH_BYTES);
    CU_ASSERT_EQUAL(counts.registered_bytes_peak, BENCH_BYTES);
    bench_close(&t);
}

static void a_device_that_cannot_register_read_only_memory_refuses(void)
{
    const struct hl_software_options options = {.no_read_only_registration = true};
    struct bench t;
    bench_open(&t, &options);
    CU_ASSERT_FALSE(t.dev->info.read_only_registration);
    HL_EXPECT_STATUS(t.ops->host_register_read(t.dev, t.host, 4096, &t.err), HL_E_UNSUPPORTED, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 801);
    bench_close(&t);
}

static void the_nth_registration_fails_as_armed(void)
{
    struct bench t;
    bench_open(&t, &plain);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host, &t.err), t.err);
    hl_software_fail_register(t.dev, 2, 2);
    HL_EXPECT_OK(t.ops->host_register(t.dev, t.host, 4096, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, t.host + 4096, 4096, &t.err), HL_E_NOMEM, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 2);
    hl_software_fail_register(t.dev, 1, 304);
    HL_EXPECT_STATUS(t.ops->host_register(t.dev, t.host + 4096, 4096, &t.err), HL_E_DEVICE, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 304);
    const struct {
        int code;
        hl_status status;
    } others[] = {{1, HL_E_INVALID}, {400, HL_E_INVALID}, {712, HL_E_BUSY}, {713, HL_E_NOT_FOUND}};
    for (unsigned i = 0; i < 4; i++) {
        hl_software_fail_register(t.dev, 1, others[i].code);
        HL_EXPECT_STATUS(t.ops->host_register(t.dev, t.host + 4096, 4096, &t.err), others[i].status, t.err);
    }
    hl_software_fail_register(t.dev, 1, 2);
    hl_software_fail_register(t.dev, 0, 0);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host, &t.err), t.err);
    HL_EXPECT_OK(t.ops->host_register(t.dev, t.host, BENCH_BYTES, &t.err), t.err);
    bench_close(&t);
}

static void expect_refused(struct bench *t, hl_status got, const char *field)
{
    CU_ASSERT_EQUAL(got, HL_E_INVALID);
    CU_ASSERT_EQUAL(t->err.device_code, 1);
    if (!strstr(t->err.text, field))
        fprintf(stderr, "%s does not name %s\n", t->err.text, field);
    CU_ASSERT_PTR_NOT_NULL(strstr(t->err.text, field));
}

static void copies_outside_known_memory_are_refused_at_submission(void)
{
    struct bench t;
    struct hl_software_counts counts;
    static unsigned char loose[64];
    bench_open(&t, &plain);
    const uint64_t host = (uintptr_t)t.host, end = t.memory + BENCH_BYTES;
    const struct {
        enum hl_copy_kind kind;
        uint64_t dst, src, bytes;
        const char *field;
    } cases[] = {
        {HL_COPY_H2D, t.memory, (uintptr_t)loose, 64, "src"},
        {HL_COPY_D2H, (uintptr_t)loose, t.memory, 64, "dst"},
        {HL_COPY_H2D, end - 63, host, 64, "dst"},
        {HL_COPY_H2D, t.memory, host + BENCH_BYTES - 63, 64, "src"},
        {HL_COPY_D2D, t.memory, host, 64, "src"},
        {HL_COPY_D2H, t.memory, t.memory, 64, "dst"},
        {HL_COPY_H2D, 0, host, 64, "dst"},
        {HL_COPY_H2D, t.memory, host, UINT64_MAX, "dst"},
        {HL_COPY_H2D, UINT64_MAX, host, 64, "dst"},
        {(enum hl_copy_kind)9, t.memory, host, 64, "kind"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hl_copy batch[] = {{t.memory, host, 0}, {cases[i].dst, cases[i].src, cases[i].bytes}};
        size_t accepted = 5;
        expect_refused(
            &t, t.ops->copy(t.dev, cases[i].kind, cases[i].dst, cases[i].src, cases[i].bytes, t.a, &t.err),
            cases[i].field);
        expect_refused(&t, t.ops->copy_batch(t.dev, cases[i].kind, batch, 2, t.a, &accepted, &t.err),
                       cases[i].field);
        CU_ASSERT_EQUAL(accepted, 0);
        expect_refused(&t,
                       t.ops->copy_rows(t.dev, cases[i].kind, cases[i].dst, cases[i].bytes, cases[i].src,
                                        cases[i].bytes, cases[i].bytes, 1, t.a, &t.err),
                       cases[i].field);
    }
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.submitted, 0);
    bench_close(&t);
}

static void other_bad_arguments_are_refused_at_submission(void)
{
    struct bench t;
    struct hl_software_counts counts;
    size_t accepted = 5;
    hl_event event;
    bench_open(&t, &plain);
    const uint64_t host = (uintptr_t)t.host;
    const struct hl_copy one = {t.memory, host, 8};
    const struct hl_gather_launch no_blocks = {.count = 1};
    const struct hl_checksum_launch odd = {.count = 1, .page_bytes = 12};
#define ROWS(dst_pitch, src_pitch, width, rows)                                                              \
    t.ops->copy_rows(t.dev, HL_COPY_H2D, t.memory, dst_pitch, host, src_pitch, width, rows, t.a, &t.err)
    expect_refused(&t, ROWS(7, 8, 8, 1), "dst_pitch");
    expect_refused(&t, ROWS(8, 7, 8, 1), "src_pitch");
    expect_refused(&t, ROWS(SIZE_MAX, 8, 8, 3), "dst_pitch");
    expect_refused(&t, ROWS(8, SIZE_MAX - 2, 8, 2), "src_pitch");
    expect_refused(&t, ROWS(8, BENCH_BYTES, 8, 2), "src");
    HL_EXPECT_OK(ROWS(8, 8, 0, 1000000), t.err);
#undef ROWS
    expect_refused(&t, t.ops->copy_batch(t.dev, HL_COPY_H2D, &one, 1, NULL, &accepted, &t.err), "stream");
    CU_ASSERT_EQUAL(accepted, 0);
    expect_refused(&t, t.ops->fill(t.dev, t.memory + 1, 0, BENCH_BYTES, t.a, &t.err), "dst");
    expect_refused(&t, t.ops->stream_wait_value(t.dev, t.a, t.memory + 2, 0, &t.err), "addr");
    expect_refused(&t, t.ops->stream_write_value(t.dev, t.a, t.memory + BENCH_BYTES, 0, &t.err), "addr");
    expect_refused(&t, t.ops->gather(t.dev, &no_blocks, t.a, &t.err), "blocks");
    expect_refused(&t, t.ops->checksum(t.dev, &odd, t.a, &t.err), "page_bytes");
    expect_refused(&t, t.ops->event_create(t.dev, 2, &event, &t.err), "flags");
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.submitted, 1);
    bench_close(&t);
}

static void a_copy_may_not_cross_two_registrations(void)
{
    struct bench t;
    bench_open(&t, &plain);
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host, &t.err), t.err);
    HL_EXPECT_OK(t.ops->host_register(t.dev, t.host + 4096, BENCH_BYTES - 4096, &t.err), t.err);
    HL_EXPECT_OK(t.ops->host_register(t.dev, t.host, 4096, &t.err), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 0, 4096), t.err);
    HL_EXPECT_OK(bench_copy(&t, t.a, 4096, 4096), t.err);
    expect_refused(&t, bench_copy(&t, t.a, 4095, 2), "src");
    HL_EXPECT_OK(t.ops->host_unregister(t.dev, t.host + 4096, &t.err), t.err);
    bench_close(&t);
}

static void dead_handles_are_refused(void)
{
    struct bench t;
    hl_stream stream;
    hl_event event;
    int64_t ns;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->stream_create(t.dev, &stream, &t.err), t.err);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, HL_EVENT_TIMING, &event, &t.err), t.err);
    HL_EXPECT_OK(t.ops->stream_destroy(t.dev, stream, &t.err), t.err);
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    const hl_status got[] = {
        t.ops->stream_destroy(t.dev, stream, &t.err),
        t.ops->stream_destroy(t.dev, NULL, &t.err),
        t.ops->stream_query(t.dev, stream, &t.err),
        t.ops->stream_synchronize(t.dev, stream, &t.err),
        bench_copy(&t, stream, 0, 1),
        t.ops->event_destroy(t.dev, event, &t.err),
        t.ops->event_record(t.dev, event, t.a, &t.err),
        t.ops->event_query(t.dev, event, &t.err),
        t.ops->event_synchronize(t.dev, event, &t.err),
        t.ops->event_elapsed(t.dev, event, event, &ns, &t.err),
        t.ops->stream_wait_event(t.dev, t.a, event, &t.err),
    };
    for (unsigned i = 0; i < sizeof got / sizeof got[0]; i++)
        CU_ASSERT_EQUAL(got[i], HL_E_INVALID);
    CU_ASSERT_EQUAL(t.err.device_code, 400);
    HL_REQUIRE_OK(t.ops->event_create(t.dev, 0, &event, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->event_record(t.dev, event, stream, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_OK(t.ops->event_query(t.dev, event, &t.err), t.err); /* as if never recorded */
    HL_EXPECT_OK(t.ops->event_destroy(t.dev, event, &t.err), t.err);
    bench_close(&t);
}

static void the_default_device_opens_and_closes(void)
{
    hl_device *dev = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_device_open_default(&dev, &err), err);
    CU_ASSERT_PTR_NOT_NULL(dev->ops->copy);
    CU_ASSERT_NOT_EQUAL(dev->info.name[0], 0);
    hl_device_close(dev);
    hl_device_close(NULL);
}

static void the_page_checksum_finds_swapped_and_shifted_words(void)
{
    const uint64_t words[4] = {1, 2, 3, 4}, swapped[4] = {1, 3, 2, 4}, shifted[4] = {2, 3, 4, 0};
    CU_ASSERT_EQUAL(hl_page_checksum(words, 32), 1 * 1 + 2 * 3 + 3 * 5 + 4 * 7);
    CU_ASSERT_NOT_EQUAL(hl_page_checksum(words, 32), hl_page_checksum(swapped, 32));
    CU_ASSERT_NOT_EQUAL(hl_page_checksum(words, 32), hl_page_checksum(shifted, 32));
    CU_ASSERT_EQUAL(hl_page_checksum(words, 0), 0);
}

HL_TESTS(software, HL_CASE(every_operation_outside_the_device_is_refused),
         HL_CASE(the_device_entered_last_is_the_current_one), HL_CASE(contexts_nest_up_to_a_bound),
         HL_CASE(allocations_stop_at_the_capacity),
         HL_CASE(memory_that_the_system_cannot_map_gives_its_capacity_back),
         HL_CASE(registrations_are_whole_mapped_pages), HL_CASE(registered_bytes_are_counted_with_their_peak),
         HL_CASE(a_device_that_cannot_register_read_only_memory_refuses),
         HL_CASE(the_nth_registration_fails_as_armed),
         HL_CASE(copies_outside_known_memory_are_refused_at_submission),
         HL_CASE(other_bad_arguments_are_refused_at_submission),
         HL_CASE(a_copy_may_not_cross_two_registrations), HL_CASE(dead_handles_are_refused),
         HL_CASE(the_default_device_opens_and_closes),
         HL_CASE(the_page_checksum_finds_swapped_and_shifted_words));
