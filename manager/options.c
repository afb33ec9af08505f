#include "manager/options.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena/host_memory.h"
#include "core/base/checked.h"
#include "core/base/error.h"

static const char stage[] = "manager.options";

HL_API void hl_manager_options_init(hl_manager_options *options)
{
    *options = (hl_manager_options){
        .size = sizeof *options,
        .arena_bytes = HL_GIB,
        .arena_count = 1,
        .numa_node = -1,
        .index_blocks = HL_INDEX_BLOCKS,
        .lease_ttl_ms = HL_LEASE_TTL_MS,
        .spin_us = 20,
    };
}

static hl_status check_arenas(const hl_manager_options *options, hl_error *err)
{
    uint64_t total;
    if (options->arena_bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "arena_bytes is 0");
    if (options->arena_bytes > HL_ARENA_MAX_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, stage, "arena_bytes is %" PRIu64 ", at most %llu are allowed",
                       options->arena_bytes, HL_ARENA_MAX_BYTES);
    if (options->arena_count == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "arena_count is 0");
    if (options->arena_count > HL_ARENA_IMPORTS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "arena_count is %u, at most %u are allowed",
                       options->arena_count, HL_ARENA_IMPORTS);
    if (!hl_mul_u64(options->arena_bytes, options->arena_count, &total))
        return HL_FAIL(err, HL_E_OVERFLOW, stage, "arena_bytes * arena_count does not fit 64 bits");
    if (options->page_size < HL_PAGES_REGULAR || options->page_size > HL_PAGES_1G)
        return HL_FAIL(err, HL_E_INVALID, stage,
                       "page_size is %d; 0 is regular pages, 1 is 2 MiB, 2 is 1 GiB", options->page_size);
    if (options->numa_node < -2)
        return HL_FAIL(err, HL_E_INVALID, stage, "numa_node is %d", options->numa_node);
    if (options->numa_node >= 0 && !hl_host_has_node("", options->numa_node))
        return HL_FAIL(err, HL_E_INVALID, stage, "numa_node is %d, which this machine does not have",
                       options->numa_node);
    if (options->touch_threads > HL_ARENA_TOUCH_THREADS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "touch_threads is %u, at most %u are allowed",
                       options->touch_threads, HL_ARENA_TOUCH_THREADS);
    return HL_OK;
}

static hl_status check_service(const hl_manager_options *options, hl_error *err)
{
    if (!options->socket_path || options->socket_path[0] == '\0')
        return HL_FAIL(err, HL_E_INVALID, stage, "socket_path is not set");
    if (options->index_blocks == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "index_blocks is 0");
    if (options->index_blocks > HL_INDEX_BLOCKS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "index_blocks is %u, at most %u are allowed",
                       options->index_blocks, HL_INDEX_BLOCKS);
    if (options->lease_ttl_ms == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "lease_ttl_ms is 0");
    if (options->spin_us > HL_MANAGER_SPIN_US)
        return HL_FAIL(err, HL_E_LIMIT, stage, "spin_us is %u, at most %u are allowed", options->spin_us,
                       HL_MANAGER_SPIN_US);
    return HL_OK;
}

hl_status manager_options_read(const hl_manager_options *given, hl_manager_options *out, hl_error *err)
{
    hl_manager_options options;
    if (!given)
        return HL_FAIL(err, HL_E_INVALID, stage, "options is NULL");
    if (given->size < offsetof(hl_manager_options, arena_bytes) || given->size > sizeof options)
        return HL_FAIL(err, HL_E_INVALID, stage,
                       "size is %zu, this library knows up to %zu (hl_manager_options_init() sets it)",
                       given->size, sizeof options);
    hl_manager_options_init(&options);
    memcpy(&options, given, given->size);
    options.size = sizeof options;
    hl_status status = check_service(&options, err);
    if (status == HL_OK)
        status = check_arenas(&options, err);
    if (status == HL_OK)
        *out = options;
    return status;
}

/* "Max locked memory         8388608              8388608              bytes", or "unlimited". */
static bool parse_memlock(const char *line, uint64_t *memlock)
{
    static const char name[] = "Max locked memory";
    char *end;
    if (strncmp(line, name, sizeof name - 1) != 0)
        return false;
    const char *value = line + sizeof name - 1;
    value += strspn(value, " ");
    if (strncmp(value, "unlimited", 9) == 0) {
        *memlock = UINT64_MAX;
        return true;
    }
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (errno || end == value)
        return false;
    *memlock = number;
    return true;
}

hl_status manager_options_check_host(const char *root, uint64_t pinned_bytes, uint64_t *memlock,
                                     bool *short_memlock, hl_error *err)
{
    static const char host[] = "manager.host";
    char path[PATH_MAX], line[256];
    uint64_t limit = 0;
    bool found = false;
    if (snprintf(path, sizeof path, "%s/proc/self/limits", root) >= (int)sizeof path)
        return HL_FAIL(err, HL_E_INVALID, host, "the path to the limits is too long");
    FILE *file = fopen(path, "re");
    if (!file)
        return HL_FAIL_ERRNO(
            err, HL_E_SYSTEM, host, errno,
            "cannot read %.120s, hence not how much memory may be pinned (is /proc mounted?)", path);
    while (!found && fgets(line, sizeof line, file))
        found = parse_memlock(line, &limit);
    fclose(file);
    if (!found)
        return HL_FAIL(err, HL_E_SYSTEM, host, "%.120s does not say \"Max locked memory\"", path);
    *memlock = limit;
    *short_memlock = limit < pinned_bytes;
    return HL_OK;
}
