#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/memfd.h"
#include "core/channel/channel.h"
#include "core/channel/extents.h"
#include "core/channel/message.h"
#include "faults/hook.h"

struct hl_descriptors {
    int fd;
    unsigned char *base;
    hl_extents *extents; /* NULL on the Manager's side, which gives no space out */
};

static hl_status open_memory(int fd, hl_descriptors **out, const char *stage, hl_error *err)
{
    hl_descriptors *descriptors = calloc(1, sizeof *descriptors);
    if (!descriptors)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for descriptors");
    void *base;
    hl_status status = hl_memfd_map(fd, HL_DESCRIPTOR_BYTES, stage, &base, err);
    if (status != HL_OK) {
        free(descriptors);
        return status;
    }
    descriptors->fd = fd;
    descriptors->base = base;
    *out = descriptors;
    return HL_OK;
}

hl_status hl_descriptors_create(hl_descriptors **out, hl_error *err)
{
    static const char stage[] = "channel.descriptors_create";
    int fd;
    hl_status status =
        HL_FAULT_CALL(channel_descriptors_create,
                      hl_memfd_create("hostlane-descriptors", 0, HL_DESCRIPTOR_BYTES, stage, &fd, err),
                      HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot create a descriptor memory"));
    if (status != HL_OK)
        return status;
    status = open_memory(fd, out, stage, err);
    if (status != HL_OK)
        close(fd);
    return status;
}

hl_status hl_descriptors_map(int fd, hl_descriptors **out, hl_error *err)
{
    static const char stage[] = "channel.descriptors_map";
    hl_descriptors *descriptors;
    int own;
    hl_status status = hl_memfd_import(fd, HL_DESCRIPTOR_BYTES, stage, &own, err);
    if (status != HL_OK)
        return status;
    status = HL_FAULT_CALL(channel_descriptors_map, open_memory(own, &descriptors, stage, err),
                           HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "cannot map a descriptor memory"));
    if (status != HL_OK) {
        close(own);
        return status;
    }
    status = hl_extents_create(HL_DESCRIPTOR_HEADER_BYTES, HL_DESCRIPTOR_BYTES, &descriptors->extents, err);
    if (status != HL_OK) {
        hl_descriptors_close(descriptors);
        return status;
    }
    *out = descriptors;
    return HL_OK;
}

void hl_descriptors_close(hl_descriptors *descriptors)
{
    if (!descriptors)
        return;
    hl_extents_destroy(descriptors->extents);
    munmap(descriptors->base, HL_DESCRIPTOR_BYTES);
    close(descriptors->fd);
    free(descriptors);
}

int hl_descriptors_fd(const hl_descriptors *descriptors)
{
    return descriptors->fd;
}

struct hl_publish_slot *hl_descriptors_slot(hl_descriptors *descriptors, uint32_t slot)
{
    assert(slot < HL_PUBLISH_SLOTS);
    return (struct hl_publish_slot *)(void *)descriptors->base + slot;
}

hl_status hl_descriptors_take(hl_descriptors *descriptors, uint32_t bytes, struct hl_extent *extent,
                              void **at, hl_error *err)
{
    if (!descriptors->extents)
        return HL_FAIL(err, HL_E_STATE, "channel.extents", "the Manager's side gives no space out");
    uint32_t offset;
    hl_status status = HL_FAULT_CALL(
        channel_extent_take, hl_extents_take(descriptors->extents, bytes, &offset, err),
        HL_FAIL_ERRNO(err, HL_E_BUDGET, "channel.extents", errno, "no space for %u bytes", bytes));
    if (status != HL_OK)
        return status;
    *extent = (struct hl_extent){.offset = offset, .bytes = bytes};
    *at = descriptors->base + offset;
    return HL_OK;
}

void hl_descriptors_give(hl_descriptors *descriptors, struct hl_extent extent)
{
    assert(descriptors->extents);
    HL_FAULT_STORE(channel_extent_give, hl_extents_give(descriptors->extents, extent.offset, extent.bytes));
}

hl_status hl_descriptors_copy(const hl_descriptors *descriptors, struct hl_extent extent, size_t max_bytes,
                              void **copy, hl_error *err)
{
    static const char stage[] = "channel.descriptors_copy";
    hl_status status = hl_extent_check(extent, "the extent", stage, err);
    if (status != HL_OK)
        return status;
    if (extent.bytes > max_bytes)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the extent has bytes %u, at most %zu are allowed",
                       extent.bytes, max_bytes);
    void *fresh = HL_FAULT_CALL(channel_extent_copy, malloc(extent.bytes), NULL);
    if (!fresh)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory to copy %u bytes", extent.bytes);
    memcpy(fresh, descriptors->base + extent.offset, extent.bytes);
    *copy = fresh;
    return HL_OK;
}

hl_status hl_descriptors_write(hl_descriptors *descriptors, struct hl_extent extent, const void *bytes,
                               size_t size, hl_error *err)
{
    static const char stage[] = "channel.descriptors_write";
    hl_status status = hl_extent_check(extent, "the extent", stage, err);
    if (status != HL_OK)
        return status;
    if (size > extent.bytes)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the extent has bytes %u, %zu are to be written",
                       extent.bytes, size);
    HL_FAULT_STORE(channel_extent_write, memcpy(descriptors->base + extent.offset, bytes, size));
    return HL_OK;
}
