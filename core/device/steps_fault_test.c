/* Every step of core/device on the software device: an injected error is reported as a driver's would be,
 * takes nothing, and leaves the next call able to work. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/device/software_testing.h"
#include "faults/testing.h"

enum { UNKNOWN = 999, PAGE = 4096 };

static unsigned char *spare; /* a page that is not registered */
static hl_event event;

/* --- one call each, undone when it succeeded --- */

static hl_status run_enter(struct bench *b)
{
    hl_status status = hl_device_enter(b->dev, &b->err);
    if (status == HL_OK)
        hl_device_leave(b->dev);
    return status;
}

static hl_status run_mem_alloc(struct bench *b)
{
    hl_devptr ptr;
    hl_status status = b->ops->mem_alloc(b->dev, PAGE, &ptr, &b->err);
    if (status == HL_OK)
        HL_EXPECT_OK(b->ops->mem_free(b->dev, ptr, &b->err), b->err);
    return status;
}

static hl_status run_mem_free(struct bench *b)
{
    hl_devptr ptr;
    HL_REQUIRE_OK(b->ops->mem_alloc(b->dev, PAGE, &ptr, &b->err), b->err);
    hl_status status = b->ops->mem_free(b->dev, ptr, &b->err);
    hl_error err = {0};
    if (status != HL_OK) /* it is still there */
        HL_EXPECT_OK(b->ops->mem_free(b->dev, ptr, &err), err);
    return status;
}

static hl_status run_host_register(struct bench *b)
{
    hl_status status = b->ops->host_register(b->dev, spare, PAGE, &b->err);
    if (status == HL_OK)
        HL_EXPECT_OK(b->ops->host_unregister(b->dev, spare, &b->err), b->err);
    return status;
}

static hl_status run_host_register_read(struct bench *b)
{
    hl_status status = b->ops->host_register_read(b->dev, spare, PAGE, &b->err);
    if (status == HL_OK)
        HL_EXPECT_OK(b->ops->host_unregister(b->dev, spare, &b->err), b->err);
    return status;
}

static hl_status run_host_unregister(struct bench *b)
{
    HL_REQUIRE_OK(b->ops->host_register(b->dev, spare, PAGE, &b->err), b->err);
    hl_status status = b->ops->host_unregister(b->dev, spare, &b->err);
    hl_error err = {0};
    if (status != HL_OK)
        HL_EXPECT_OK(b->ops->host_unregister(b->dev, spare, &err), err);
    return status;
}

static hl_status run_host_pointer(struct bench *b)
{
    hl_devptr mapped;
    return b->ops->host_pointer(b->dev, b->host, &mapped, &b->err);
}

static hl_status run_ipc_export(struct bench *b)
{
    struct hl_ipc_export exported;
    return b->ops->ipc_export(b->dev, b->memory, &exported, &b->err);
}

/* Its own export, which it may not import: what matters is who answers. */
static hl_status run_ipc_import(struct bench *b)
{
    struct hl_ipc_export exported;
    hl_devptr ptr;
    HL_REQUIRE_OK(b->ops->ipc_export(b->dev, b->memory, &exported, &b->err), b->err);
    return b->ops->ipc_import(b->dev, &exported, &ptr, &b->err);
}

static hl_status run_ipc_close(struct bench *b)
{
    return b->ops->ipc_close(b->dev, b->memory, &b->err);
}

static hl_status run_stream_create(struct bench *b)
{
    hl_stream stream;
    hl_status status = b->ops->stream_create(b->dev, &stream, &b->err);
    if (status == HL_OK)
        HL_EXPECT_OK(b->ops->stream_destroy(b->dev, stream, &b->err), b->err);
    return status;
}

static hl_status run_stream_destroy(struct bench *b)
{
    hl_stream stream;
    hl_error err = {0};
    HL_REQUIRE_OK(b->ops->stream_create(b->dev, &stream, &b->err), b->err);
    hl_status status = b->ops->stream_destroy(b->dev, stream, &b->err);
    if (status != HL_OK)
        HL_EXPECT_OK(b->ops->stream_destroy(b->dev, stream, &err), err);
    return status;
}

static hl_status run_stream_query(struct bench *b)
{
    return b->ops->stream_query(b->dev, b->a, &b->err);
}

static hl_status run_stream_synchronize(struct bench *b)
{
    return b->ops->stream_synchronize(b->dev, b->a, &b->err);
}

static hl_status run_stream_wait_event(struct bench *b)
{
    return b->ops->stream_wait_event(b->dev, b->a, event, &b->err);
}

static hl_status run_stream_wait_value(struct bench *b)
{
    const uint32_t word = 5;
    hl_software_poke(b->dev, b->memory, &word, sizeof word);
    return b->ops->stream_wait_value(b->dev, b->a, b->memory, word, &b->err);
}

static hl_status run_stream_write_value(struct bench *b)
{
    return b->ops->stream_write_value(b->dev, b->a, b->memory, 5, &b->err);
}

static hl_status run_event_create(struct bench *b)
{
    hl_event created;
    hl_status status = b->ops->event_create(b->dev, 0, &created, &b->err);
    if (status == HL_OK)
        HL_EXPECT_OK(b->ops->event_destroy(b->dev, created, &b->err), b->err);
    return status;
}

static hl_status run_event_destroy(struct bench *b)
{
    hl_event created;
    hl_error err = {0};
    HL_REQUIRE_OK(b->ops->event_create(b->dev, 0, &created, &b->err), b->err);
    hl_status status = b->ops->event_destroy(b->dev, created, &b->err);
    if (status != HL_OK)
        HL_EXPECT_OK(b->ops->event_destroy(b->dev, created, &err), err);
    return status;
}

static hl_status run_event_record(struct bench *b)
{
    return b->ops->event_record(b->dev, event, b->a, &b->err);
}

static hl_status run_event_query(struct bench *b)
{
    return b->ops->event_query(b->dev, event, &b->err);
}

static hl_status run_event_synchronize(struct bench *b)
{
    return b->ops->event_synchronize(b->dev, event, &b->err);
}

static hl_status run_fill(struct bench *b)
{
    return b->ops->fill(b->dev, b->memory, 0x11, 64, b->a, &b->err);
}

static hl_status run_copy(struct bench *b)
{
    return bench_copy(b, b->a, 0, 256);
}

static hl_status run_copy_rows(struct bench *b)
{
    return b->ops->copy_rows(b->dev, HL_COPY_H2D, b->memory, 64, (uintptr_t)b->host, 64, 32, 4, b->a,
                             &b->err);
}

static hl_status run_copy_batch(struct bench *b)
{
    const struct hl_copy copies[2] = {{b->memory, (uintptr_t)b->host, 64},
                                      {b->memory + 64, (uintptr_t)b->host + 64, 64}};
    size_t accepted = 77;
    hl_status status = b->ops->copy_batch(b->dev, HL_COPY_H2D, copies, 2, b->a, &accepted, &b->err);
    CU_ASSERT_TRUE(accepted == (status == HL_OK ? 2 : 0) || accepted == 2);
    return status;
}

static hl_status run_gather(struct bench *b)
{
    struct hl_gather *list = (struct hl_gather *)(void *)(b->host + PAGE);
    unsigned char kept[sizeof *list];
    memcpy(kept, list, sizeof kept);
    *list = (struct hl_gather){.dst = b->memory, .src = (uintptr_t)b->host, .bytes = 64};
    const struct hl_gather_launch launch = {
        .descriptors = (uintptr_t)list, .count = 1, .blocks = 1, .method = HL_GATHER_LOADS};
    hl_status status = b->ops->gather(b->dev, &launch, b->a, &b->err);
    hl_error err = {0};
    HL_EXPECT_OK(b->ops->stream_synchronize(b->dev, b->a, &err), err);
    memcpy(list, kept, sizeof kept);
    return status;
}

static hl_status run_checksum(struct bench *b)
{
    const uint64_t zero = 0;
    hl_software_poke(b->dev, b->memory + PAGE, &zero, sizeof zero);
    const struct hl_checksum_launch launch = {.base = b->memory,
                                              .offsets = b->memory + PAGE,
                                              .sums = b->memory + 2 * PAGE,
                                              .page_bytes = 64,
                                              .count = 1};
    return b->ops->checksum(b->dev, &launch, b->a, &b->err);
}

static const struct step {
    const char *name;
    hl_status (*run)(struct bench *b);
    bool submits;     /* may also fail after the device has got it */
    hl_status second; /* what the call answers by itself */
} steps[] = {
    {"device_enter", run_enter, false, HL_OK},
    {"device_mem_alloc", run_mem_alloc, false, HL_OK},
    {"device_mem_free", run_mem_free, false, HL_OK},
    {"device_host_register", run_host_register, false, HL_OK},
    {"device_host_register", run_host_register_read, false, HL_OK},
    {"device_host_unregister", run_host_unregister, false, HL_OK},
    {"device_host_pointer", run_host_pointer, false, HL_OK},
    {"device_ipc_export", run_ipc_export, false, HL_OK},
    {"device_ipc_import", run_ipc_import, false, HL_E_INVALID},
    {"device_ipc_close", run_ipc_close, false, HL_E_INVALID},
    {"device_stream_create", run_stream_create, false, HL_OK},
    {"device_stream_destroy", run_stream_destroy, false, HL_OK},
    {"device_stream_query", run_stream_query, false, HL_OK},
    {"device_stream_synchronize", run_stream_synchronize, false, HL_OK},
    {"device_stream_wait_event", run_stream_wait_event, true, HL_OK},
    {"device_stream_wait_value", run_stream_wait_value, true, HL_OK},
    {"device_stream_write_value", run_stream_write_value, true, HL_OK},
    {"device_event_create", run_event_create, false, HL_OK},
    {"device_event_destroy", run_event_destroy, false, HL_OK},
    {"device_event_record", run_event_record, true, HL_OK},
    {"device_event_query", run_event_query, false, HL_OK},
    {"device_event_synchronize", run_event_synchronize, false, HL_OK},
    {"device_fill", run_fill, true, HL_OK},
    {"device_copy", run_copy, true, HL_OK},
    {"device_copy_rows", run_copy_rows, true, HL_OK},
    {"device_copy_batch", run_copy_batch, true, HL_OK},
    {"device_gather", run_gather, true, HL_OK},
    {"device_checksum", run_checksum, true, HL_OK},
};

static void settle(struct bench *b)
{
    hl_error err = {0};
    HL_EXPECT_OK(b->ops->stream_synchronize(b->dev, b->a, &err), err);
}

/* Arms one point, runs the step into it, and says whether the device has executed anything for it. */
static bool fail_once(hl_fault_board *board, struct bench *b, const struct step *step, const char *end)
{
    char point[64];
    struct hl_software_counts before, after;
    snprintf(point, sizeof point, "%s_%s", step->name, end);
    settle(b);
    hl_software_counts(b->dev, &before);
    const unsigned rule = hl_fault_arm(board, point, 1, HL_FAULT_ERROR, EIO);
    b->err = (hl_error){0};
    HL_EXPECT_STATUS(step->run(b), HL_E_DEVICE, b->err);
    CU_ASSERT_EQUAL(b->err.device_code, UNKNOWN);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    hl_fault_disarm(board, rule);
    settle(b);
    hl_software_counts(b->dev, &after);
    CU_ASSERT_EQUAL(after.allocations, before.allocations);
    CU_ASSERT_EQUAL(after.registrations, before.registrations);
    CU_ASSERT_EQUAL(after.streams, before.streams);
    CU_ASSERT_EQUAL(after.events, before.events);
    CU_ASSERT_EQUAL(after.imports, before.imports);
    HL_EXPECT_STATUS(step->run(b), step->second, b->err);
    return after.executed > before.executed;
}

static void an_injected_error_is_a_drivers_and_the_next_call_works(void)
{
    const struct hl_software_options options = {0};
    struct bench bench;
    hl_fault_board *board = hl_fault_board_create();
    spare = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(spare, MAP_FAILED);
    bench_open(&bench, &options);
    HL_REQUIRE_OK(bench.ops->event_create(bench.dev, 0, &event, &bench.err), bench.err);
    hl_fault_use_board(board);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        CU_ASSERT_FALSE(fail_once(board, &bench, &steps[i], "before"));
        if (steps[i].submits)
            CU_ASSERT_TRUE(fail_once(board, &bench, &steps[i], "after"));
    }
    hl_fault_use_board(NULL);
    HL_EXPECT_OK(bench.ops->event_destroy(bench.dev, event, &bench.err), bench.err);
    bench_close(&bench);
    munmap(spare, PAGE);
    hl_fault_board_free(board);
}

static void a_device_that_cannot_be_opened_is_an_error(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_device *dev = NULL;
    hl_error err = {0};
    hl_fault_use_board(board);
    hl_fault_arm(board, "device_open_before", 1, HL_FAULT_ERROR, ENOMEM);
    HL_EXPECT_STATUS(hl_device_open_software(&dev, &err), HL_E_NOMEM, err);
    CU_ASSERT_PTR_NULL(dev);
    HL_REQUIRE_OK(hl_device_open_software(&dev, &err), err);
    hl_device_close(dev);
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

/* Every point of the list's device part has an error here, so that none is added without a test. */
static void every_device_point_is_among_them(void)
{
    for (uint32_t i = 0; i < hl_fault_point_count(); i++) {
        const char *name = hl_fault_point_name(i), *end = strrchr(name, '_');
        bool known = strncmp(name, "device_", 7) != 0 || !strncmp(name, "device_open_", 12);
        for (size_t j = 0; j < sizeof steps / sizeof steps[0] && !known; j++)
            known = strlen(steps[j].name) == (size_t)(end - name) &&
                    !strncmp(steps[j].name, name, (size_t)(end - name));
        CU_ASSERT_TRUE(known);
    }
}

HL_TESTS(device_steps, HL_CASE(an_injected_error_is_a_drivers_and_the_next_call_works),
         HL_CASE(a_device_that_cannot_be_opened_is_an_error), HL_CASE(every_device_point_is_among_them));
