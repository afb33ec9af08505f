/* The CUDA back end of a build made without a CUDA toolkit: it says so. */
#include "core/base/error.h"
#include "core/device/device.h"

hl_status hl_device_open_cuda(int ordinal, hl_device **dev, hl_error *err)
{
    (void)ordinal;
    (void)dev;
    return HL_FAIL(err, HL_E_NO_DEVICE, "device.open_cuda", "built without a CUDA toolkit");
}
