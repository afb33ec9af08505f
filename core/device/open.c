/* What both devices share: opening the default one, closing any, and the checksum that the host computes. */
#include <endian.h>
#include <string.h>

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
