#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/arena/arena_private.h"
#include "core/base/error.h"
#include "core/base/memfd.h"
#include "hostlane/limits.h"

static const char stage[] = "arena.import";

static hl_status check_arguments(uint64_t arena_id, uint64_t bytes, hl_error *err)
{
    if (arena_id == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "arena_id is 0");
    if (bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is 0");
    if (bytes > HL_ARENA_MAX_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, stage, "bytes is %" PRIu64 ", at most %llu are allowed", bytes,
                       HL_ARENA_MAX_BYTES);
    return HL_OK;
}

static hl_status check_page_size(int fd, uint64_t bytes, uint64_t *page_bytes, hl_error *err)
{
    struct statfs file_system;
    if (fstatfs(fd, &file_system) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot look at the memfd");
    *page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    if (file_system.f_type == HUGETLBFS_MAGIC)
        *page_bytes = (uint64_t)file_system.f_bsize;
    if (bytes % *page_bytes != 0)
        return HL_FAIL(err, HL_E_INVALID, stage,
                       "bytes is %" PRIu64 ", not a multiple of the page size %" PRIu64, bytes, *page_bytes);
    return HL_OK;
}

hl_status hl_arena_import(int fd, uint64_t arena_id, uint64_t bytes, uint64_t chunk_bytes, hl_arena **out,
                          hl_error *err)
{
    uint64_t page_bytes = 0;
    hl_status status = check_arguments(arena_id, bytes, err);
    if (status != HL_OK)
        return status;
    hl_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an arena");
    arena->id = arena_id;
    arena->bytes = bytes;
    status = hl_memfd_import(fd, bytes, stage, &arena->fd, err);
    if (status != HL_OK)
        goto err_free;
    status = check_page_size(arena->fd, bytes, &page_bytes, err);
    if (status == HL_OK)
        status = hl_arena_check_chunk(&chunk_bytes, page_bytes, stage, err);
    if (status != HL_OK)
        goto err_close;
    arena->chunk_bytes = chunk_bytes;
    status = hl_arena_map(arena, stage, err);
    if (status != HL_OK)
        goto err_close;
    *out = arena;
    return HL_OK;

err_close:
    close(arena->fd);
err_free:
    free(arena);
    return status;
}
