/* The CUDA device's own decisions, with a driver that only answers: which errors it passes on and how, what
 * it undoes, and what it refuses before the driver sees it. FAKE_CUDA_VERSION (13000 unless set) is how new
 * the driver is. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/cuda_fake_driver.h"
#include "core/device/device.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

#define OUT_OF_MEMORY 2
#define STREAM ((hl_stream)(void *)fake)
#define EVENT ((hl_event)(void *)fake)
#define ADDRESS 0x7f0000000040ull

static struct fake_driver *fake;

static int fake_version(void)
{
    const char *version = getenv("FAKE_CUDA_VERSION");
    return version ? (int)strtol(version, NULL, 10) : 13000;
}

/* A fresh Hopper behind the fake driver. */
static void reset(void)
{
    const char *folder = getenv("FAKE_DRIVERS");
    char path[512];
    snprintf(path, sizeof path, "%s/libfake_cuda.so", folder ? folder : "core/device");
    setenv("HOSTLANE_CUDA_LIBRARY", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(library);
    union {
        void *object;
        struct fake_driver *(*function)(void);
    } settings = {dlsym(library, "fake_driver")};
    CU_ASSERT_PTR_NOT_NULL_FATAL(settings.object);
    fake = settings.function();
    *fake = (struct fake_driver){
        .version = fake_version(), .device_count = 2, .compute_major = 9, .virtual_arch = 90, .numa_node = 1};
    fake->read_only_register = 1;
}

static hl_device *open_device(void)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    reset();
    HL_REQUIRE_OK(hl_device_open_cuda(1, &dev, &err), err);
    return dev;
}

/* Closes it; what was taken from the driver has been given back. */
static void close_device(hl_device *dev)
{
    hl_device_close(dev);
    CU_ASSERT_EQUAL(fake->retained, 0);
    CU_ASSERT_EQUAL(fake->entered, 0);
    CU_ASSERT_EQUAL(fake->modules, 0);
    CU_ASSERT_EQUAL(fake->imports, 0);
}

static void open_describes_the_device(void)
{
    hl_device *dev = open_device();
    CU_ASSERT_EQUAL(dev->info.kind, HL_DEVICE_CUDA);
    CU_ASSERT_STRING_EQUAL(dev->info.name, "NVIDIA fake");
    CU_ASSERT_STRING_EQUAL(dev->info.pci_id, "0000:ab:00.0");
    CU_ASSERT_EQUAL(dev->info.uuid[0], 7);
    CU_ASSERT_EQUAL(dev->info.uuid[15], 7);
    CU_ASSERT_EQUAL(dev->info.numa_node, 1);
    CU_ASSERT_EQUAL(dev->info.compute_major, 9);
    CU_ASSERT_EQUAL(dev->info.sm_count, 132);
    CU_ASSERT_EQUAL(dev->info.driver_version, 13000);
    CU_ASSERT_EQUAL(dev->info.memory_bytes, 1ull << 40);
    CU_ASSERT_TRUE(dev->info.bulk_copy);
    CU_ASSERT_TRUE(dev->info.read_only_registration);
    CU_ASSERT_EQUAL(fake->retained, 1);
    CU_ASSERT_EQUAL(fake->entered, 0);
    CU_ASSERT_EQUAL(fake->modules, 1);
    close_device(dev);
}

static void an_unknown_numa_node_is_minus_one(void)
{
    hl_device *dev;
    hl_error err = {0};
    reset();
    fake->numa_node = -1; /* and /sys has no such PCI device */
    HL_REQUIRE_OK(hl_device_open_cuda(0, &dev, &err), err);
    CU_ASSERT_EQUAL(dev->info.numa_node, -1);
    close_device(dev);
}

static void an_ordinal_outside_is_refused_with_the_count(void)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    reset();
    HL_EXPECT_STATUS(hl_device_open_cuda(2, &dev, &err), HL_E_NO_DEVICE, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "ordinal: 2, the CUDA driver shows 2"));
    HL_EXPECT_STATUS(hl_device_open_cuda(-1, &dev, &err), HL_E_NO_DEVICE, err);
    CU_ASSERT_PTR_NULL(dev);
}

static void each_failing_call_of_open_is_named_and_undone(void)
{
    static const char *const calls[] = {
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetUuid",
        "cuDeviceGetPCIBusId",
        "cuDriverGetVersion",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncGetAttribute",
        "cuFuncSetAttribute",
    };
    reset();
    fake->code = OUT_OF_MEMORY;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        hl_device *dev = NULL;
        hl_error err = {0};
        fake->failing = calls[i];
        HL_EXPECT_STATUS(hl_device_open_cuda(0, &dev, &err), HL_E_NOMEM, err);
        CU_ASSERT_PTR_NULL(dev);
        CU_ASSERT_EQUAL(err.device_code, OUT_OF_MEMORY);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, calls[i]));
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY (2)"));
        CU_ASSERT_EQUAL(fake->retained, 0);
        CU_ASSERT_EQUAL(fake->entered, 0);
        CU_ASSERT_EQUAL(fake->modules, 0);
    }
}

static void a_device_without_code_copies_but_refuses_kernels(void)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    reset();
    fake->failing = "cuModuleLoadData";
    fake->code = 209;
    HL_REQUIRE_OK(hl_device_open_cuda(0, &dev, &err), err);
    CU_ASSERT_FALSE(dev->info.bulk_copy);
    struct hl_gather_launch gather = {.descriptors = ADDRESS, .count = 1, .blocks = 1};
    HL_EXPECT_STATUS(dev->ops->gather(dev, &gather, STREAM, &err), HL_E_UNSUPPORTED, err);
    struct hl_checksum_launch checksum = {
        .base = ADDRESS, .offsets = ADDRESS, .sums = ADDRESS, .page_bytes = 8};
    HL_EXPECT_STATUS(dev->ops->checksum(dev, &checksum, STREAM, &err), HL_E_UNSUPPORTED, err);
    HL_EXPECT_OK(dev->ops->copy(dev, HL_COPY_H2D, ADDRESS, 1, 1, STREAM, &err), err);
    close_device(dev);
}

static void bulk_copies_need_the_device_and_the_code(void)
{
    static const struct {
        int compute_major, virtual_arch;
        bool bulk;
    } rows[] = {{9, 90, true}, {10, 100, true}, {8, 80, false}, {12, 80, false}, {8, 90, false}};
    struct hl_gather_launch launch = {
        .descriptors = ADDRESS, .count = 1, .blocks = 1, .method = HL_GATHER_BULK};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hl_device *dev = NULL;
        hl_error err = {0};
        reset();
        fake->compute_major = rows[i].compute_major;
        fake->virtual_arch = rows[i].virtual_arch;
        HL_REQUIRE_OK(hl_device_open_cuda(0, &dev, &err), err);
        CU_ASSERT_EQUAL(dev->info.bulk_copy, rows[i].bulk);
        HL_EXPECT_STATUS(dev->ops->gather(dev, &launch, STREAM, &err),
                         rows[i].bulk ? HL_OK : HL_E_UNSUPPORTED, err);
        close_device(dev);
    }
}

static void enter_and_leave_nest(void)
{
    hl_device *dev = open_device();
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_enter(dev, &err), err);
    HL_REQUIRE_OK(hl_device_enter(dev, &err), err);
    CU_ASSERT_EQUAL(fake->entered, 2);
    hl_device_leave(dev);
    hl_device_leave(dev);
    fake->failing = "cuCtxPushCurrent";
    fake->code = OUT_OF_MEMORY;
    HL_EXPECT_STATUS(hl_device_enter(dev, &err), HL_E_NOMEM, err);
    CU_ASSERT_EQUAL(fake->entered, 0);
    fake->failing = NULL;
    close_device(dev);
}

/* Each operation once, by number; false after the last. *function is the driver function that it ends in. */
static bool call(hl_device *dev, unsigned number, const char **function, hl_status *status, hl_error *err)
{
    static unsigned char page[8192] __attribute__((aligned(4096)));
    const struct hl_device_ops *ops = dev->ops;
    const struct hl_copy piece = {.dst = ADDRESS, .src = ADDRESS, .bytes = 8};
    const struct hl_gather_launch gather = {.descriptors = ADDRESS, .count = 1, .blocks = 1};
    const struct hl_checksum_launch checksum = {
        .base = ADDRESS, .offsets = ADDRESS, .sums = ADDRESS, .page_bytes = 8, .count = 1};
    const struct hl_ipc_export foreign = {.offset = 8, .allocation_bytes = 16};
    struct hl_ipc_export exported;
    uint64_t a, b;
    int64_t ns;
    size_t accepted;
    hl_stream stream;
    hl_event event;
#define CALL(name, result)                                                                                   \
    do {                                                                                                     \
        *function = (name);                                                                                  \
        *status = (result);                                                                                  \
        return true;                                                                                         \
    } while (0)
    switch (number) {
    case 0:
        CALL("cuMemGetInfo", ops->memory_info(dev, &a, &b, err));
    case 1:
        CALL("cuMemAlloc", ops->mem_alloc(dev, 8, &a, err));
    case 2:
        CALL("cuMemFree", ops->mem_free(dev, ADDRESS, err));
    case 3:
        CALL("cuMemsetD8Async", ops->fill(dev, ADDRESS, 1, 8, STREAM, err));
    case 4:
        CALL("cuMemHostRegister", ops->host_register(dev, page, 4096, err));
    case 5:
        CALL("cuMemHostUnregister", ops->host_unregister(dev, page, err));
    case 6:
        CALL("cuMemHostGetDevicePointer", ops->host_pointer(dev, page, &a, err));
    case 7:
        CALL("cuMemGetAddressRange", ops->ipc_export(dev, ADDRESS, &exported, err));
    case 8:
        CALL("cuIpcGetMemHandle", ops->ipc_export(dev, ADDRESS, &exported, err));
    case 9:
        CALL("cuIpcOpenMemHandle", ops->ipc_import(dev, &foreign, &a, err));
    case 10:
        CALL("cuStreamCreate", ops->stream_create(dev, &stream, err));
    case 11:
        CALL("cuStreamDestroy", ops->stream_destroy(dev, STREAM, err));
    case 12:
        CALL("cuStreamQuery", ops->stream_query(dev, STREAM, err));
    case 13:
        CALL("cuStreamSynchronize", ops->stream_synchronize(dev, STREAM, err));
    case 14:
        CALL("cuStreamWaitEvent", ops->stream_wait_event(dev, STREAM, EVENT, err));
    case 15:
        CALL("cuStreamWaitValue32", ops->stream_wait_value(dev, STREAM, ADDRESS, 1, err));
    case 16:
        CALL("cuStreamWriteValue32", ops->stream_write_value(dev, STREAM, ADDRESS, 1, err));
    case 17:
        CALL("cuEventCreate", ops->event_create(dev, 0, &event, err));
    case 18:
        CALL("cuEventDestroy", ops->event_destroy(dev, EVENT, err));
    case 19:
        CALL("cuEventRecord", ops->event_record(dev, EVENT, STREAM, err));
    case 20:
        CALL("cuEventQuery", ops->event_query(dev, EVENT, err));
    case 21:
        CALL("cuEventSynchronize", ops->event_synchronize(dev, EVENT, err));
    case 22:
        CALL("cuEventElapsedTime", ops->event_elapsed(dev, EVENT, EVENT, &ns, err));
    case 23:
        CALL("cuMemcpyHtoDAsync", ops->copy(dev, HL_COPY_H2D, ADDRESS, ADDRESS, 8, STREAM, err));
    case 24:
        CALL("cuMemcpyDtoHAsync", ops->copy(dev, HL_COPY_D2H, ADDRESS, ADDRESS, 8, STREAM, err));
    case 25:
        CALL("cuMemcpyDtoDAsync", ops->copy(dev, HL_COPY_D2D, ADDRESS, ADDRESS, 8, STREAM, err));
    case 26:
        CALL("cuMemcpy2DAsync", ops->copy_rows(dev, HL_COPY_H2D, ADDRESS, 8, ADDRESS, 8, 8, 2, STREAM, err));
    case 27:
        CALL(fake_version() < 12080 ? "cuMemcpyAsync" : "cuMemcpyBatchAsync",
             ops->copy_batch(dev, HL_COPY_H2D, &piece, 1, STREAM, &accepted, err));
    case 28:
        CALL("cuLaunchKernel", ops->gather(dev, &gather, STREAM, err));
    case 29:
        CALL("cuLaunchKernel", ops->checksum(dev, &checksum, STREAM, err));
    case 30:
        CALL("cuMemHostRegister", ops->host_register_read(dev, page, 4096, err));
    default:
        return false;
    }
#undef CALL
}

static void each_failing_operation_is_named(void)
{
    hl_device *dev = open_device();
    const char *function;
    hl_status status;
    unsigned operations = 0;
    for (;; operations++) {
        hl_error err = {0};
        fake->failing = NULL;
        if (!call(dev, operations, &function, &status, &err))
            break;
        CU_ASSERT_EQUAL(status, HL_OK);
        if (!strcmp(function, "cuIpcOpenMemHandle"))
            HL_EXPECT_OK(dev->ops->ipc_close(dev, 0x7f0000000008ull, &err), err);
        fake->failing = function;
        fake->code = OUT_OF_MEMORY;
        call(dev, operations, &function, &status, &err);
        CU_ASSERT_EQUAL(status, HL_E_NOMEM);
        CU_ASSERT_EQUAL(err.device_code, OUT_OF_MEMORY);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, function));
    }
    CU_ASSERT_EQUAL(operations, 31);
    fake->failing = NULL;
    close_device(dev);
}

static void driver_codes_map_to_statuses(void)
{
    static const struct {
        int code;
        hl_status status;
    } rows[] = {{1, HL_E_INVALID},  {2, HL_E_NOMEM},     {100, HL_E_NO_DEVICE}, {101, HL_E_NO_DEVICE},
                {201, HL_E_STATE},  {400, HL_E_INVALID}, {500, HL_E_NOT_FOUND}, {600, HL_E_STATE},
                {700, HL_E_DEVICE}, {712, HL_E_BUSY},    {713, HL_E_NOT_FOUND}, {801, HL_E_UNSUPPORTED},
                {999, HL_E_DEVICE}};
    hl_device *dev = open_device();
    fake->failing = "cuStreamSynchronize";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hl_error err = {0};
        fake->code = rows[i].code;
        HL_EXPECT_STATUS(dev->ops->stream_synchronize(dev, STREAM, &err), rows[i].status, err);
        CU_ASSERT_EQUAL(err.device_code, rows[i].code);
    }
    hl_error err = {0};
    (void)dev->ops->stream_synchronize(dev, STREAM, &err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "an unknown code (999)"));
    close_device(dev);
}

static void unfinished_work_is_pending_in_queries_only(void)
{
    hl_device *dev = open_device();
    hl_error err = {0};
    int64_t ns;
    fake->code = 600;
    fake->failing = "cuStreamQuery";
    HL_EXPECT_STATUS(dev->ops->stream_query(dev, STREAM, &err), HL_PENDING, err);
    fake->failing = "cuEventQuery";
    HL_EXPECT_STATUS(dev->ops->event_query(dev, EVENT, &err), HL_PENDING, err);
    fake->failing = "cuEventElapsedTime";
    HL_EXPECT_STATUS(dev->ops->event_elapsed(dev, EVENT, EVENT, &ns, &err), HL_E_STATE, err);
    close_device(dev);
}

static void flags_are_what_the_interface_promises(void)
{
    static unsigned char page[8192] __attribute__((aligned(4096)));
    hl_device *dev = open_device();
    hl_error err = {0};
    hl_stream stream;
    hl_event event;
    HL_EXPECT_OK(dev->ops->host_register(dev, page, 8192, &err), err);
    CU_ASSERT_EQUAL(fake->flags, 0x3); /* portable, mapped */
    HL_EXPECT_OK(dev->ops->host_register_read(dev, page, 8192, &err), err);
    CU_ASSERT_EQUAL(fake->flags, 0xb); /* and only read */
    HL_EXPECT_OK(dev->ops->stream_create(dev, &stream, &err), err);
    CU_ASSERT_EQUAL(fake->flags, 0x1); /* does not wait on the null stream */
    HL_EXPECT_OK(dev->ops->event_create(dev, 0, &event, &err), err);
    CU_ASSERT_EQUAL(fake->flags, 0x2); /* no timing */
    HL_EXPECT_OK(dev->ops->event_create(dev, HL_EVENT_TIMING, &event, &err), err);
    CU_ASSERT_EQUAL(fake->flags, 0x0);
    HL_EXPECT_STATUS(dev->ops->event_create(dev, 2, &event, &err), HL_E_INVALID, err);
    close_device(dev);
}

static void a_device_that_cannot_register_read_only_memory_says_so(void)
{
    static const unsigned char page[8192] __attribute__((aligned(4096)));
    hl_device *dev;
    hl_error err = {0};
    reset();
    fake->read_only_register = 0;
    HL_REQUIRE_OK(hl_device_open_cuda(0, &dev, &err), err);
    CU_ASSERT_FALSE(dev->info.read_only_registration);
    fake->failing = "cuMemHostRegister"; /* is not asked */
    fake->code = OUT_OF_MEMORY;
    HL_EXPECT_STATUS(dev->ops->host_register_read(dev, page, 4096, &err), HL_E_UNSUPPORTED, err);
    CU_ASSERT_EQUAL(err.device_code, 801);
    close_device(dev);
}

static void bad_arguments_do_not_reach_the_driver(void)
{
    static unsigned char page[8192] __attribute__((aligned(4096)));
    hl_device *dev = open_device();
    const struct hl_device_ops *ops = dev->ops;
    hl_error err = {0};
    HL_EXPECT_STATUS(ops->host_register(dev, page + 8, 4096, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->host_register(dev, page, 4000, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->host_register_read(dev, page, 4000, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->host_register(dev, page, 0, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->mem_free(dev, 0, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->stream_destroy(dev, NULL, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->stream_wait_value(dev, STREAM, ADDRESS + 2, 0, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->stream_write_value(dev, STREAM, 0, 0, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->copy(dev, (enum hl_copy_kind)7, 1, 1, 1, STREAM, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(ops->copy_rows(dev, HL_COPY_D2D, 1, 7, 1, 8, 8, 1, STREAM, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "dst_pitch: 7"));
    HL_EXPECT_STATUS(ops->copy_rows(dev, HL_COPY_D2D, 1, 8, 1, 1ull << 31, 8, 1, STREAM, &err),
                     HL_E_UNSUPPORTED, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "src_pitch"));
    CU_ASSERT_EQUAL(fake->copies, 0);
    CU_ASSERT_EQUAL(fake->flags, 0);
    close_device(dev);
}

static void empty_work_is_done_at_once(void)
{
    hl_device *dev = open_device();
    const struct hl_device_ops *ops = dev->ops;
    const struct hl_gather_launch gather = {.blocks = 1};
    const struct hl_checksum_launch checksum = {.page_bytes = 8};
    hl_error err = {0};
    size_t accepted = 9;
    HL_EXPECT_OK(ops->fill(dev, 0, 1, 0, STREAM, &err), err);
    HL_EXPECT_OK(ops->copy(dev, HL_COPY_H2D, 0, 0, 0, STREAM, &err), err);
    HL_EXPECT_OK(ops->copy_rows(dev, HL_COPY_H2D, 0, 8, 0, 8, 8, 0, STREAM, &err), err);
    HL_EXPECT_OK(ops->copy_batch(dev, HL_COPY_H2D, NULL, 0, STREAM, &accepted, &err), err);
    CU_ASSERT_EQUAL(accepted, 0);
    HL_EXPECT_OK(ops->gather(dev, &gather, STREAM, &err), err);
    HL_EXPECT_OK(ops->checksum(dev, &checksum, STREAM, &err), err);
    CU_ASSERT_EQUAL(fake->copies + fake->batched + fake->blocks, 0);
    close_device(dev);
}

static void strided_copies_say_which_side_is_host_memory(void)
{
    hl_device *dev = open_device();
    hl_error err = {0};
    HL_EXPECT_OK(dev->ops->copy_rows(dev, HL_COPY_H2D, ADDRESS, 8, 64, 8, 8, 2, STREAM, &err), err);
    CU_ASSERT_TRUE(fake->host_source && !fake->host_destination);
    HL_EXPECT_OK(dev->ops->copy_rows(dev, HL_COPY_D2H, 64, 8, ADDRESS, 8, 8, 2, STREAM, &err), err);
    CU_ASSERT_TRUE(!fake->host_source && fake->host_destination);
    HL_EXPECT_OK(dev->ops->copy_rows(dev, HL_COPY_D2D, ADDRESS, 8, ADDRESS, 8, 8, 2, STREAM, &err), err);
    CU_ASSERT_TRUE(!fake->host_source && !fake->host_destination);
    close_device(dev);
}

/* 2500 copies, every fifth empty: more than two driver calls take, and none with an empty copy. */
static void batches_are_cut_and_empty_copies_left_out(void)
{
    static struct hl_copy copies[2500];
    hl_device *dev = open_device();
    hl_error err = {0};
    size_t accepted = 0;
    for (size_t i = 0; i < 2500; i++)
        copies[i] = (struct hl_copy){.dst = ADDRESS, .src = ADDRESS, .bytes = i % 5 ? 16 : 0};
    HL_EXPECT_OK(dev->ops->copy_batch(dev, HL_COPY_H2D, copies, 2500, STREAM, &accepted, &err), err);
    CU_ASSERT_EQUAL(accepted, 2500);
    CU_ASSERT_EQUAL(fake_version() < 12080 ? fake->copies : fake->batched, 2000);
    HL_EXPECT_STATUS(dev->ops->copy_batch(dev, HL_COPY_H2D, copies, 2500, NULL, &accepted, &err),
                     HL_E_INVALID, err);
    CU_ASSERT_EQUAL(accepted, 0);
    fake->failing = fake_version() < 12080 ? "cuMemcpyAsync" : "cuMemcpyBatchAsync";
    fake->code = 700;
    HL_EXPECT_STATUS(dev->ops->copy_batch(dev, HL_COPY_H2D, copies, 2500, STREAM, &accepted, &err),
                     HL_E_DEVICE, err);
    CU_ASSERT_TRUE(accepted > 0 && accepted < 2500);
    close_device(dev);
}

static void kernel_launches_have_the_kernels_shape(void)
{
    hl_device *dev = open_device();
    struct hl_gather_launch gather = {
        .descriptors = ADDRESS, .count = 3, .blocks = 4, .method = HL_GATHER_BULK};
    const struct hl_checksum_launch checksum = {
        .base = ADDRESS, .offsets = ADDRESS, .sums = ADDRESS, .page_bytes = 8, .count = 5};
    hl_error err = {0};
    HL_EXPECT_OK(dev->ops->gather(dev, &gather, STREAM, &err), err);
    CU_ASSERT_TRUE(fake->blocks == 4 && fake->threads == 32 && fake->shared == 192 * 1024);
    gather.method = HL_GATHER_LOADS;
    HL_EXPECT_OK(dev->ops->gather(dev, &gather, STREAM, &err), err);
    CU_ASSERT_TRUE(fake->blocks == 4 && fake->threads == 512 && fake->shared == 0);
    const uint32_t ends[] = {1, 1, 3};
    gather.layer_count = 3;
    gather.layer_ends = ends;
    gather.counters = ADDRESS;
    gather.blocks = 2;
    HL_EXPECT_OK(dev->ops->gather(dev, &gather, STREAM, &err), err);
    CU_ASSERT_TRUE(fake->blocks == 2 && fake->threads == 512 && fake->shared == 0);
    HL_EXPECT_OK(dev->ops->checksum(dev, &checksum, STREAM, &err), err);
    CU_ASSERT_TRUE(fake->blocks == 5 && fake->threads == 256 && fake->shared == 0);
    close_device(dev);
}

static void bad_launches_are_refused(void)
{
    hl_device *dev = open_device();
    const struct hl_gather_launch gather = {.descriptors = ADDRESS, .count = 1, .blocks = 1};
    const struct hl_checksum_launch checksum = {
        .base = ADDRESS, .offsets = ADDRESS, .sums = ADDRESS, .page_bytes = 8, .count = 1};
    struct hl_gather_launch g;
    struct hl_checksum_launch c;
    hl_error err = {0};
#define REFUSED(launch, good, op, field, value, status)                                                      \
    launch = good;                                                                                           \
    launch.field = (value);                                                                                  \
    HL_EXPECT_STATUS(dev->ops->op(dev, &launch, STREAM, &err), status, err);                                 \
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, #field))
    REFUSED(g, gather, gather, blocks, 0, HL_E_INVALID);
    REFUSED(g, gather, gather, blocks, HL_TRANSFER_MAX_SMS + 1, HL_E_LIMIT);
    REFUSED(g, gather, gather, method, (enum hl_gather_method)5, HL_E_INVALID);
    REFUSED(g, gather, gather, descriptors, 0, HL_E_INVALID);
    REFUSED(g, gather, gather, descriptors, ADDRESS + 4, HL_E_INVALID);
    REFUSED(g, gather, gather, layer_count, HL_GATHER_LAYERS + 1, HL_E_LIMIT);
    const uint32_t ends[] = {2};
    struct hl_gather_launch counted = {.descriptors = ADDRESS, .count = 2, .blocks = 1};
    counted.layer_count = 1;
    counted.layer_ends = ends;
    counted.counters = ADDRESS + 4;
    REFUSED(g, counted, gather, counters, 0, HL_E_INVALID);
    REFUSED(g, counted, gather, counters, ADDRESS + 2, HL_E_INVALID);
    REFUSED(g, counted, gather, layer_ends, (const uint32_t[]){3}, HL_E_INVALID);
    REFUSED(c, checksum, checksum, page_bytes, 12, HL_E_INVALID);
    REFUSED(c, checksum, checksum, offsets, 0, HL_E_INVALID);
    REFUSED(c, checksum, checksum, sums, ADDRESS + 1, HL_E_INVALID);
    REFUSED(c, checksum, checksum, count, UINT32_MAX, HL_E_INVALID);
#undef REFUSED
    CU_ASSERT_EQUAL(fake->blocks, 0);
    close_device(dev);
}

static void an_export_says_where_in_the_allocation_it_points(void)
{
    hl_device *dev = open_device();
    struct hl_ipc_export exported = {0};
    hl_error err = {0};
    HL_EXPECT_OK(dev->ops->ipc_export(dev, ADDRESS, &exported, &err), err);
    CU_ASSERT_EQUAL(exported.offset, 0x40);
    CU_ASSERT_EQUAL(exported.allocation_bytes, 1 << 20);
    CU_ASSERT_EQUAL(exported.handle[63], 5);
    close_device(dev);
}

static void imports_are_closed_by_the_address_they_returned(void)
{
    hl_device *dev = open_device();
    struct hl_ipc_export in = {.allocation_bytes = 1 << 20};
    hl_devptr mapped[40];
    hl_error err = {0};
    for (unsigned i = 0; i < 40; i++) { /* two of each address */
        in.offset = i / 2 * 64;
        HL_REQUIRE_OK(dev->ops->ipc_import(dev, &in, &mapped[i], &err), err);
        CU_ASSERT_EQUAL(mapped[i], 0x7f0000000000ull + in.offset);
    }
    CU_ASSERT_EQUAL(fake->imports, 40);
    fake->failing = "cuIpcCloseMemHandle";
    fake->code = OUT_OF_MEMORY;
    HL_EXPECT_STATUS(dev->ops->ipc_close(dev, mapped[0], &err), HL_E_NOMEM, err);
    fake->failing = NULL;
    for (unsigned i = 0; i < 40; i++)
        HL_EXPECT_OK(dev->ops->ipc_close(dev, mapped[i], &err), err);
    HL_EXPECT_STATUS(dev->ops->ipc_close(dev, mapped[0], &err), HL_E_INVALID, err);
    in.offset = in.allocation_bytes;
    HL_EXPECT_STATUS(dev->ops->ipc_import(dev, &in, &mapped[0], &err), HL_E_RANGE, err);
    close_device(dev);
}

static void elapsed_milliseconds_become_nanoseconds(void)
{
    hl_device *dev = open_device();
    hl_error err = {0};
    int64_t ns = 0;
    fake->elapsed_ms = 1.5f;
    HL_EXPECT_OK(dev->ops->event_elapsed(dev, EVENT, EVENT, &ns, &err), err);
    CU_ASSERT_EQUAL(ns, 1500000);
    fake->elapsed_ms = -0.25f;
    HL_EXPECT_OK(dev->ops->event_elapsed(dev, EVENT, EVENT, &ns, &err), err);
    CU_ASSERT_EQUAL(ns, -250000);
    close_device(dev);
}

HL_TESTS(cuda, HL_CASE(open_describes_the_device), HL_CASE(an_unknown_numa_node_is_minus_one),
         HL_CASE(an_ordinal_outside_is_refused_with_the_count),
         HL_CASE(each_failing_call_of_open_is_named_and_undone),
         HL_CASE(a_device_without_code_copies_but_refuses_kernels),
         HL_CASE(bulk_copies_need_the_device_and_the_code), HL_CASE(enter_and_leave_nest),
         HL_CASE(each_failing_operation_is_named), HL_CASE(driver_codes_map_to_statuses),
         HL_CASE(unfinished_work_is_pending_in_queries_only), HL_CASE(flags_are_what_the_interface_promises),
         HL_CASE(a_device_that_cannot_register_read_only_memory_says_so),
         HL_CASE(bad_arguments_do_not_reach_the_driver), HL_CASE(empty_work_is_done_at_once),
         HL_CASE(strided_copies_say_which_side_is_host_memory),
         HL_CASE(batches_are_cut_and_empty_copies_left_out), HL_CASE(kernel_launches_have_the_kernels_shape),
         HL_CASE(bad_launches_are_refused), HL_CASE(an_export_says_where_in_the_allocation_it_points),
         HL_CASE(imports_are_closed_by_the_address_they_returned),
         HL_CASE(elapsed_milliseconds_become_nanoseconds));
