/* The device's address space: allocations, imports and registered host memory, in one table sorted by
 * address; and its allocations. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/device/software_internal.h"

/* The index of the first region that ends after `addr`. */
static size_t region_index(const struct software_device *dev, uint64_t addr)
{
    size_t low = 0, high = dev->region_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct software_region *region = dev->regions[middle];
        if (addr - region->base < region->mapped || addr < region->base)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct software_region *hl_software_find_region(struct software_device *dev, uint64_t addr, uint64_t bytes)
{
    size_t i = region_index(dev, addr);
    if (i == dev->region_count || addr < dev->regions[i]->base)
        return NULL;
    struct software_region *region = dev->regions[i];
    return hl_within(addr - region->base, bytes, region->bytes) ? region : NULL;
}

hl_status hl_software_add_region(struct software_device *dev, struct software_region *region, hl_error *err)
{
    size_t i = region_index(dev, region->base);
    if (i < dev->region_count && dev->regions[i]->base < region->base + region->mapped)
        return HL_FAIL_DEVICE(err, HL_E_BUSY, HL_SOFTWARE_STAGE, SOFTWARE_ALREADY_REGISTERED,
                              "ptr: [%#" PRIx64 ", +%zu) overlaps memory that the device already knows",
                              region->base, region->mapped);
    if (dev->region_count == dev->region_capacity) {
        size_t capacity = dev->region_capacity ? 2 * dev->region_capacity : 64;
        struct software_region **regions = reallocarray(dev->regions, capacity, sizeof *regions);
        if (!regions)
            return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for %zu regions", capacity);
        dev->regions = regions;
        dev->region_capacity = capacity;
    }
    memmove(dev->regions + i + 1, dev->regions + i, (dev->region_count - i) * sizeof *dev->regions);
    dev->regions[i] = region;
    dev->region_count++;
    return HL_OK;
}

static bool is_unused(struct software_device *dev, const void *arg)
{
    const struct software_region *region = arg;
    return region->pins == 0 && !hl_software_uses_region(dev, region);
}

void hl_software_remove_region(struct software_device *dev, struct software_region *region)
{
    region->dying = true;
    hl_software_await(dev, is_unused, region);
    size_t i = region_index(dev, region->base);
    assert(i < dev->region_count && dev->regions[i] == region);
    dev->region_count--;
    memmove(dev->regions + i, dev->regions + i + 1, (dev->region_count - i) * sizeof *dev->regions);
    hl_software_free_region(region);
}

void hl_software_free_region(struct software_region *region)
{
    if (region->kind != REGION_HOST) {
        munmap((void *)(uintptr_t)region->base, region->mapped);
        munmap(region->view, region->mapped);
        close(region->fd);
    }
    free(region);
}

hl_status hl_software_map_region(enum region_kind kind, int fd, uint64_t bytes, struct software_region **out,
                                 hl_error *err)
{
    hl_status status;
    size_t mapped = hl_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    struct software_region *region = calloc(1, sizeof *region);
    if (!region) {
        status = HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a region");
        goto err_close;
    }
    void *view = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (view == MAP_FAILED) {
        status =
            HL_FAIL_ERRNO(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, errno, "cannot map %" PRIu64 " bytes", bytes);
        goto err_free;
    }
    void *address = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        status = HL_FAIL_ERRNO(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, errno, "cannot reserve %" PRIu64 " bytes",
                               bytes);
        goto err_unmap;
    }
    *region = (struct software_region){
        .kind = kind, .base = (uintptr_t)address, .bytes = bytes, .mapped = mapped, .view = view, .fd = fd};
    *out = region;
    return HL_OK;
err_unmap:
    munmap(view, mapped);
err_free:
    free(region);
err_close:
    close(fd);
    return status;
}

/* A memfd whose random name lets an importer tell it from whatever else its number in this process stands for
 * later. */
static hl_status create_memory(uint64_t bytes, int *out, hl_error *err)
{
    uint64_t token[2];
    char name[64];
    if (getrandom(token, sizeof token, 0) != (ssize_t)sizeof token)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SOFTWARE_STAGE, errno, "cannot draw a random name");
    snprintf(name, sizeof name, "hostlane-device-%016" PRIx64 "%016" PRIx64, token[0], token[1]);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SOFTWARE_STAGE, errno, "cannot create device memory");
    if (ftruncate(fd, (off_t)bytes)) {
        hl_status status = HL_FAIL_ERRNO(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, errno,
                                         "cannot make device memory of %" PRIu64 " bytes", bytes);
        close(fd);
        return status;
    }
    *out = fd;
    return HL_OK;
}

/* Takes `bytes` of the capacity, or fails as CUDA does. */
static hl_status take_capacity(struct software_device *dev, uint64_t bytes, hl_error *err)
{
    pthread_mutex_lock(&dev->lock);
    uint64_t free_bytes = dev->options.memory_bytes - dev->used_bytes;
    if (bytes <= free_bytes)
        dev->used_bytes += bytes;
    pthread_mutex_unlock(&dev->lock);
    if (bytes <= free_bytes)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, SOFTWARE_OUT_OF_MEMORY,
                          "bytes: %" PRIu64 " of device memory asked for, %" PRIu64 " free", bytes,
                          free_bytes);
}

hl_status hl_software_mem_alloc(hl_device *handle, size_t bytes, hl_devptr *ptr, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "mem_alloc", err);
    if (status)
        return status;
    if (!bytes)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE, "bytes: 0");
    status = take_capacity(dev, bytes, err);
    if (status)
        return status;
    int fd = -1;
    struct software_region *region = NULL;
    status = create_memory(bytes, &fd, err);
    if (!status)
        status = hl_software_map_region(REGION_DEVICE, fd, bytes, &region, err);
    pthread_mutex_lock(&dev->lock);
    if (status)
        goto err_give_back;
    status = hl_software_add_region(dev, region, err);
    if (status)
        goto err_unmap;
    dev->counts.allocations++;
    *ptr = region->base;
    pthread_mutex_unlock(&dev->lock);
    return HL_OK;
err_unmap:
    hl_software_free_region(region);
err_give_back:
    dev->used_bytes -= bytes;
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_mem_free(hl_device *handle, hl_devptr ptr, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "mem_free", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    struct software_region *region = hl_software_find_region(dev, ptr, 0);
    if (region && region->kind == REGION_DEVICE && region->base == ptr && !region->dying) {
        uint64_t bytes = region->bytes;
        hl_software_remove_region(dev, region);
        dev->used_bytes -= bytes;
        dev->counts.allocations--;
    } else {
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "ptr: %#" PRIx64 " is not the start of an allocation", ptr);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_memory_info(hl_device *handle, uint64_t *free_bytes, uint64_t *total_bytes,
                                  hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "memory_info", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    *free_bytes = dev->options.memory_bytes - dev->used_bytes;
    *total_bytes = dev->options.memory_bytes;
    pthread_mutex_unlock(&dev->lock);
    return HL_OK;
}
