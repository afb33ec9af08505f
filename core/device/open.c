/* What both devices share: opening the default one, closing any, the check of a launch's layers, and the
 * checksum that the host computes. */
#include <endian.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "core/device/device.h"

hl_status hl_device_open_default(hl_device **dev, hl_error *err)
{
    hl_status status = hl_device_open_cuda(0, dev, err);
    return status == HL_E_NO_DEVICE ? hl_device_open_software(dev, err) : status;
}

void hl_device_close(hl_device *dev)
{
    if (dev)
        dev->ops->close(dev);
}

hl_status hl_gather_check_layers(const struct hl_gather_launch *launch, const char *stage, int device_code,
                                 hl_error *err)
{
    uint32_t count = launch->layer_count, end = 0;
    if (count == 0)
        return HL_OK;
    if (count > HL_GATHER_LAYERS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "layer_count: %" PRIu32 ", at most %u", count,
                       HL_GATHER_LAYERS);
    if (!launch->counters || launch->counters % sizeof(uint32_t))
        return HL_FAIL_DEVICE(err, HL_E_INVALID, stage, device_code,
                              "counters: %#" PRIx64 " is not an address of 32-bit words", launch->counters);
    for (uint32_t i = 0; i < count; i++) {
        if (launch->layer_ends[i] < end)
            return HL_FAIL_DEVICE(err, HL_E_INVALID, stage, device_code,
                                  "layer_ends[%" PRIu32 "]: %" PRIu32 " is before the layer's start", i,
                                  launch->layer_ends[i]);
        end = launch->layer_ends[i];
    }
    if (launch->count == 0 || end != launch->count)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, stage, device_code,
                              "layer_ends: the last is %" PRIu32 " of %" PRIu32 " descriptors", end,
                              launch->count);
    return HL_OK;
}

uint64_t hl_page_checksum(const void *page, size_t bytes)
{
    const unsigned char *next = page;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, next + 8 * i, 8);
        sum += le64toh(word) * (2 * i + 1);
    }
    return sum;
}
