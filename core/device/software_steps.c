/* The software device's operations as steps of faults/points.h, which a CUDA device has at its driver's
 * calls. In production this file is empty and the device has its operations as they are. An injected error is
 * what a driver answers that knows no better: HL_E_DEVICE with code 999. */
#include "core/device/software_internal.h"

#if defined(HL_FAULTS) && HL_FAULTS

#include <stdatomic.h>

#define SOFTWARE_UNKNOWN 999

static _Atomic(const struct hl_device_ops *) real;

static const struct hl_device_ops *taken(void)
{
    return atomic_load_explicit(&real, memory_order_acquire);
}

static hl_status fail(const char *operation, hl_error *err)
{
    return HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, SOFTWARE_UNKNOWN,
                          "%s failed with code %d, as the test asked", operation, SOFTWARE_UNKNOWN);
}

/* STEP(operation, point, form, parameters, arguments) */
#define PACK(...) __VA_ARGS__
#define STEP(operation, point, form, parameters, arguments)                                                  \
    static hl_status step_##operation(hl_device *dev, parameters, hl_error *err)                             \
    {                                                                                                        \
        return form(point, taken()->operation(dev, arguments, err), fail(#operation, err));                  \
    }

static hl_status step_enter(hl_device *dev, hl_error *err)
{
    return HL_FAULT_CALL(device_enter, taken()->enter(dev, err), fail("enter", err));
}

STEP(mem_alloc, device_mem_alloc, HL_FAULT_CALL, PACK(size_t bytes, hl_devptr *ptr), PACK(bytes, ptr))
STEP(mem_free, device_mem_free, HL_FAULT_CALL, PACK(hl_devptr ptr), PACK(ptr))
STEP(host_register, device_host_register, HL_FAULT_CALL, PACK(void *ptr, size_t bytes), PACK(ptr, bytes))
STEP(host_register_read, device_host_register, HL_FAULT_CALL, PACK(const void *ptr, size_t bytes),
     PACK(ptr, bytes))
STEP(host_unregister, device_host_unregister, HL_FAULT_CALL, PACK(void *ptr), PACK(ptr))
STEP(host_pointer, device_host_pointer, HL_FAULT_CALL, PACK(void *ptr, hl_devptr *mapped), PACK(ptr, mapped))
STEP(ipc_export, device_ipc_export, HL_FAULT_CALL, PACK(hl_devptr ptr, struct hl_ipc_export *out),
     PACK(ptr, out))
STEP(ipc_import, device_ipc_import, HL_FAULT_CALL, PACK(const struct hl_ipc_export *in, hl_devptr *ptr),
     PACK(in, ptr))
STEP(ipc_close, device_ipc_close, HL_FAULT_CALL, PACK(hl_devptr ptr), PACK(ptr))
STEP(stream_create, device_stream_create, HL_FAULT_CALL, PACK(hl_stream *stream), PACK(stream))
STEP(stream_destroy, device_stream_destroy, HL_FAULT_CALL, PACK(hl_stream stream), PACK(stream))
STEP(stream_query, device_stream_query, HL_FAULT_CALL, PACK(hl_stream stream), PACK(stream))
STEP(stream_synchronize, device_stream_synchronize, HL_FAULT_CALL, PACK(hl_stream stream), PACK(stream))
STEP(stream_wait_event, device_stream_wait_event, HL_FAULT_SUBMIT, PACK(hl_stream stream, hl_event event),
     PACK(stream, event))
STEP(stream_wait_value, device_stream_wait_value, HL_FAULT_SUBMIT,
     PACK(hl_stream stream, hl_devptr addr, uint32_t value), PACK(stream, addr, value))
STEP(stream_write_value, device_stream_write_value, HL_FAULT_SUBMIT,
     PACK(hl_stream stream, hl_devptr addr, uint32_t value), PACK(stream, addr, value))
STEP(event_create, device_event_create, HL_FAULT_CALL, PACK(unsigned flags, hl_event *event),
     PACK(flags, event))
STEP(event_destroy, device_event_destroy, HL_FAULT_CALL, PACK(hl_event event), PACK(event))
STEP(event_record, device_event_record, HL_FAULT_SUBMIT, PACK(hl_event event, hl_stream stream),
     PACK(event, stream))
STEP(event_query, device_event_query, HL_FAULT_CALL, PACK(hl_event event), PACK(event))
STEP(event_synchronize, device_event_synchronize, HL_FAULT_CALL, PACK(hl_event event), PACK(event))
STEP(fill, device_fill, HL_FAULT_SUBMIT, PACK(hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream),
     PACK(dst, value, bytes, stream))
STEP(copy, device_copy, HL_FAULT_SUBMIT,
     PACK(enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes, hl_stream stream),
     PACK(kind, dst, src, bytes, stream))
STEP(copy_rows, device_copy_rows, HL_FAULT_SUBMIT,
     PACK(enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch, uint64_t src, size_t src_pitch,
          size_t width, size_t rows, hl_stream stream),
     PACK(kind, dst, dst_pitch, src, src_pitch, width, rows, stream))
STEP(gather, device_gather, HL_FAULT_SUBMIT, PACK(const struct hl_gather_launch *launch, hl_stream stream),
     PACK(launch, stream))
STEP(checksum, device_checksum, HL_FAULT_SUBMIT,
     PACK(const struct hl_checksum_launch *launch, hl_stream stream), PACK(launch, stream))

/* Nothing is accepted when the call never came; all of it when it came and reports a failure. */
static hl_status step_copy_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                                 size_t count, hl_stream stream, size_t *accepted, hl_error *err)
{
    *accepted = 0;
    return HL_FAULT_SUBMIT(device_copy_batch,
                           taken()->copy_batch(dev, kind, copies, count, stream, accepted, err),
                           fail("copy_batch", err));
}

static struct hl_device_ops steps;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_steps(void)
{
    steps = *taken();
    steps.enter = step_enter;
    steps.mem_alloc = step_mem_alloc;
    steps.mem_free = step_mem_free;
    steps.host_register = step_host_register;
    steps.host_register_read = step_host_register_read;
    steps.host_unregister = step_host_unregister;
    steps.host_pointer = step_host_pointer;
    steps.ipc_export = step_ipc_export;
    steps.ipc_import = step_ipc_import;
    steps.ipc_close = step_ipc_close;
    steps.stream_create = step_stream_create;
    steps.stream_destroy = step_stream_destroy;
    steps.stream_query = step_stream_query;
    steps.stream_synchronize = step_stream_synchronize;
    steps.stream_wait_event = step_stream_wait_event;
    steps.stream_wait_value = step_stream_wait_value;
    steps.stream_write_value = step_stream_write_value;
    steps.event_create = step_event_create;
    steps.event_destroy = step_event_destroy;
    steps.event_record = step_event_record;
    steps.event_query = step_event_query;
    steps.event_synchronize = step_event_synchronize;
    steps.fill = step_fill;
    steps.copy = step_copy;
    steps.copy_rows = step_copy_rows;
    steps.gather = step_gather;
    steps.checksum = step_checksum;
    steps.copy_batch = step_copy_batch;
}

/* There is one table of operations, which never changes. */
const struct hl_device_ops *hl_software_steps(const struct hl_device_ops *ops)
{
    atomic_store_explicit(&real, ops, memory_order_release);
    pthread_once(&once, make_steps);
    return &steps;
}

#endif
