/* Registered host memory. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/device/software_internal.h"

/* One line of a map, "BEGIN-END rwxp …"; false for what is left of a long one. */
static bool read_mapping(const char *line, uint64_t *first, uint64_t *end, const char **permissions)
{
    char *at = NULL;
    *first = strtoull(line, &at, 16);
    if (at == line || *at != '-')
        return false;
    const char *second = at + 1;
    *end = strtoull(second, &at, 16);
    *permissions = at + 1;
    return at != second && *at == ' ' && strlen(*permissions) >= 4;
}

/* Whether every page of [begin, begin + bytes) is mapped with the permission, as a driver finds when it pins
 * them. A mapping that changes meanwhile is the caller's mistake. */
static bool is_mapped(uint64_t begin, uint64_t bytes, char permission)
{
    char line[512];
    const char *permissions;
    uint64_t first, end, covered = begin;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return false;
    while (covered < begin + bytes && fgets(line, sizeof line, maps)) {
        if (!read_mapping(line, &first, &end, &permissions) || end <= covered)
            continue;
        if (first > covered || permissions[permission == 'w'] != permission)
            break;
        covered = end;
    }
    fclose(maps);
    return covered >= begin + bytes;
}

static hl_status check_host_range(const void *ptr, size_t bytes, bool written, hl_error *err)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;
    if (!ptr || (uintptr_t)ptr % page)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "ptr: %p is not a multiple of the page size", ptr);
    if (!bytes || bytes % page || !hl_add_u64((uintptr_t)ptr, bytes, &end))
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "bytes: %zu is not a positive multiple of the page size", bytes);
    if (!is_mapped((uintptr_t)ptr, bytes, written ? 'w' : 'r'))
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "ptr: [%p, +%zu) is not mapped in this process to be %s", ptr, bytes,
                              written ? "written" : "read");
    return HL_OK;
}

/* Lock held. Whether this call is the one that hl_software_fail_register() chose. */
static int chosen_to_fail(struct software_device *dev)
{
    return dev->fail_register && --dev->fail_register == 0 ? dev->fail_register_code : 0;
}

static hl_status register_range(hl_device *handle, void *ptr, size_t bytes, bool written, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = check_host_range(ptr, bytes, written, err);
    if (status)
        return status;
    struct software_region *region = calloc(1, sizeof *region);
    if (!region)
        return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a registration");
    *region = (struct software_region){
        .kind = REGION_HOST, .base = (uintptr_t)ptr, .bytes = bytes, .mapped = bytes, .view = ptr, .fd = -1};
    pthread_mutex_lock(&dev->lock);
    int code = chosen_to_fail(dev);
    if (code) {
        status = HL_FAIL_DEVICE(err, hl_software_status(code), HL_SOFTWARE_STAGE, code,
                                "registering [%p, +%zu) failed, as the test asked", ptr, bytes);
        assert(status); /* hl_software_status() gives every code of a failure a failure */
    } else {
        status = hl_software_add_region(dev, region, err);
    }
    if (status) {
        hl_software_free_region(region);
    } else {
        dev->counts.registrations++;
        dev->counts.registered_bytes += bytes;
        if (dev->counts.registered_bytes > dev->counts.registered_bytes_peak)
            dev->counts.registered_bytes_peak = dev->counts.registered_bytes;
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_host_register(hl_device *handle, void *ptr, size_t bytes, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "host_register", err);
    return status ? status : register_range(handle, ptr, bytes, true, err);
}

/* That the device does not write there needs no check: a mapping that is only read would fault. */
hl_status hl_software_host_register_read(hl_device *handle, const void *ptr, size_t bytes, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "host_register_read", err);
    if (status)
        return status;
    if (!handle->info.read_only_registration)
        return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, HL_SOFTWARE_STAGE, SOFTWARE_NOT_SUPPORTED,
                              "this device cannot register memory that is only read");
    return register_range(handle, (void *)(uintptr_t)ptr, bytes, false, err);
}

hl_status hl_software_host_unregister(hl_device *handle, void *ptr, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "host_unregister", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    struct software_region *region = hl_software_find_region(dev, (uintptr_t)ptr, 0);
    if (region && region->kind == REGION_HOST && region->base == (uintptr_t)ptr && !region->dying) {
        uint64_t bytes = region->bytes;
        hl_software_remove_region(dev, region);
        dev->counts.registrations--;
        dev->counts.registered_bytes -= bytes;
    } else {
        status = HL_FAIL_DEVICE(err, HL_E_NOT_FOUND, HL_SOFTWARE_STAGE, SOFTWARE_NOT_REGISTERED,
                                "ptr: %p is not the start of a registration", ptr);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_host_pointer(hl_device *handle, void *ptr, hl_devptr *mapped, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "host_pointer", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    const struct software_region *region = hl_software_find_region(dev, (uintptr_t)ptr, 1);
    if (region && region->kind == REGION_HOST)
        *mapped = (uintptr_t)ptr;
    else
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "ptr: %p is not registered", ptr);
    pthread_mutex_unlock(&dev->lock);
    return status;
}
