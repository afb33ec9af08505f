/* Streams and events. A handle of either is the driver's own. */
#include <inttypes.h>

#include "core/device/cuda_device.h"

#define STAGE "device.cuda_stream"

static CUstream stream_of(hl_stream stream)
{
    return (CUstream)(void *)stream;
}

static CUevent event_of(hl_event event)
{
    return (CUevent)(void *)event;
}

/* The two queries: unfinished work is an answer, not an error. */
static hl_status query_status(const struct hl_cuda_device *cuda, CUresult result, const char *function,
                              hl_error *err)
{
    if (result == CUDA_ERROR_NOT_READY)
        return HL_PENDING;
    return hl_cuda_status(cuda->driver, result, STAGE, function, err);
}

hl_status hl_cuda_stream_create(hl_device *dev, hl_stream *stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUstream created;
    hl_status status = HL_CUDA_CALL(device_stream_create, cuda, err, STAGE, stream_create, "cuStreamCreate",
                                    &created, CU_STREAM_NON_BLOCKING);
    if (!status)
        *stream = (hl_stream)(void *)created;
    return status;
}

hl_status hl_cuda_stream_destroy(hl_device *dev, hl_stream stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    if (!stream)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_HANDLE,
                              "stream: the null stream is not the caller's");
    return HL_CUDA_CALL(device_stream_destroy, cuda, err, STAGE, stream_destroy, "cuStreamDestroy",
                        stream_of(stream));
}

hl_status hl_cuda_stream_query(hl_device *dev, hl_stream stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUresult result =
        HL_FAULT_CALL(device_stream_query, cuda->driver->stream_query(stream_of(stream)), CUDA_ERROR_UNKNOWN);
    return query_status(cuda, result, "cuStreamQuery", err);
}

hl_status hl_cuda_stream_synchronize(hl_device *dev, hl_stream stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_CALL(device_stream_synchronize, cuda, err, STAGE, stream_synchronize,
                        "cuStreamSynchronize", stream_of(stream));
}

hl_status hl_cuda_stream_wait_event(hl_device *dev, hl_stream stream, hl_event event, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_SUBMIT(device_stream_wait_event, cuda, err, STAGE, stream_wait_event, "cuStreamWaitEvent",
                          stream_of(stream), event_of(event), CU_EVENT_WAIT_DEFAULT);
}

static hl_status check_word(hl_devptr addr, hl_error *err)
{
    if (addr && addr % sizeof(uint32_t) == 0)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                          "addr: %#" PRIx64 " is not the address of an aligned 32-bit word", addr);
}

hl_status hl_cuda_stream_wait_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                    hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_word(addr, err);
    if (status)
        return status;
    return HL_CUDA_SUBMIT(device_stream_wait_value, cuda, err, STAGE, stream_wait_value,
                          "cuStreamWaitValue32", stream_of(stream), addr, value, CU_STREAM_WAIT_VALUE_GEQ);
}

hl_status hl_cuda_stream_write_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                     hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_word(addr, err);
    if (status)
        return status;
    return HL_CUDA_SUBMIT(device_stream_write_value, cuda, err, STAGE, stream_write_value,
                          "cuStreamWriteValue32", stream_of(stream), addr, value,
                          CU_STREAM_WRITE_VALUE_DEFAULT);
}

hl_status hl_cuda_event_create(hl_device *dev, unsigned flags, hl_event *event, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUevent created;
    if (flags & ~(unsigned)HL_EVENT_TIMING)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE, "flags: %#x", flags);
    hl_status status =
        HL_CUDA_CALL(device_event_create, cuda, err, STAGE, event_create, "cuEventCreate", &created,
                     flags & HL_EVENT_TIMING ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
    if (!status)
        *event = (hl_event)(void *)created;
    return status;
}

hl_status hl_cuda_event_destroy(hl_device *dev, hl_event event, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_CALL(device_event_destroy, cuda, err, STAGE, event_destroy, "cuEventDestroy",
                        event_of(event));
}

hl_status hl_cuda_event_record(hl_device *dev, hl_event event, hl_stream stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_SUBMIT(device_event_record, cuda, err, STAGE, event_record, "cuEventRecord",
                          event_of(event), stream_of(stream));
}

hl_status hl_cuda_event_query(hl_device *dev, hl_event event, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUresult result =
        HL_FAULT_CALL(device_event_query, cuda->driver->event_query(event_of(event)), CUDA_ERROR_UNKNOWN);
    return query_status(cuda, result, "cuEventQuery", err);
}

hl_status hl_cuda_event_synchronize(hl_device *dev, hl_event event, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_CALL(device_event_synchronize, cuda, err, STAGE, event_synchronize, "cuEventSynchronize",
                        event_of(event));
}

/* The driver answers float milliseconds with a resolution of about 500 ns; above 4 s the float itself is
 * coarser. Since CUDA 12.8 it has a function that does not mix in errors of other pending work. */
hl_status hl_cuda_event_elapsed(hl_device *dev, hl_event start, hl_event end, int64_t *ns, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    PFN_cuEventElapsedTime_v2000 elapsed =
        cuda->driver->event_elapsed_12080 ? cuda->driver->event_elapsed_12080 : cuda->driver->event_elapsed;
    float ms;
    hl_status status = hl_cuda_status(cuda->driver, elapsed(&ms, event_of(start), event_of(end)), STAGE,
                                      "cuEventElapsedTime", err);
    if (!status)
        *ns = (int64_t)((double)ms * 1e6 + (ms < 0 ? -0.5 : 0.5));
    return status;
}
