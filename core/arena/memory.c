#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <numaif.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/arena/arena_private.h"
#include "core/arena/host_memory.h"
#include "core/arena/touch.h"
#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/base/memfd.h"
#include "hostlane/limits.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef MFD_HUGE_1GB
#define MFD_HUGE_1GB (30u << 26)
#endif

static const char root[] = ""; /* the real machine */

hl_status hl_arena_check_chunk(uint64_t *chunk_bytes, uint64_t page_bytes, const char *stage, hl_error *err)
{
    if (*chunk_bytes == 0)
        *chunk_bytes = HL_ARENA_CHUNK_BYTES;
    if (*chunk_bytes > HL_ARENA_CHUNK_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, stage,
                       "chunk_bytes is %" PRIu64 ", at most %llu are registered at once", *chunk_bytes,
                       HL_ARENA_CHUNK_BYTES);
    if (*chunk_bytes % page_bytes != 0)
        return HL_FAIL(err, HL_E_INVALID, stage,
                       "chunk_bytes is %" PRIu64 ", not a multiple of the page size %" PRIu64, *chunk_bytes,
                       page_bytes);
    return HL_OK;
}

static hl_status check_options(const struct hl_arena_options *options, hl_error *err)
{
    static const char stage[] = "arena.options";
    if (options->arena_id == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "arena_id is 0");
    if (options->bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is 0");
    if (options->bytes > HL_ARENA_MAX_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, stage, "bytes is %" PRIu64 ", at most %llu are allowed",
                       options->bytes, HL_ARENA_MAX_BYTES);
    if (options->pages != HL_PAGES_REGULAR && options->pages != HL_PAGES_2M && options->pages != HL_PAGES_1G)
        return HL_FAIL(err, HL_E_INVALID, stage, "pages is %d, no page size", (int)options->pages);
    if (options->numa_node < -1)
        return HL_FAIL(err, HL_E_INVALID, stage, "numa_node is %d", options->numa_node);
    if (options->numa_node >= 0 && !hl_host_has_node(root, options->numa_node))
        return HL_FAIL(err, HL_E_RANGE, stage, "numa_node is %d, which this machine does not have",
                       options->numa_node);
    if (options->threads > HL_ARENA_TOUCH_THREADS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "threads is %u, at most %u touch one arena", options->threads,
                       HL_ARENA_TOUCH_THREADS);
    return HL_OK;
}

/* Asks first, because a kernel that finds no regular page while populating kills a process instead of failing
 * the call. */
static hl_status check_memory(uint64_t bytes, uint64_t page_bytes, const struct hl_arena_options *options,
                              hl_error *err)
{
    static const char stage[] = "arena.memory";
    if (options->pages != HL_PAGES_REGULAR) {
        uint64_t needed = bytes / page_bytes;
        uint64_t available = hl_host_free_huge_pages(root, page_bytes, options->numa_node);
        if (needed > available)
            return HL_FAIL(err, HL_E_NOMEM, stage,
                           "%" PRIu64 " huge pages of %" PRIu64 " KiB are needed and %" PRIu64
                           " are free (reserve them through nr_hugepages)",
                           needed, (uint64_t)(page_bytes / HL_KIB), available);
        return HL_OK;
    }
    uint64_t available = hl_host_available_bytes(root, options->numa_node);
    if (bytes > available)
        return HL_FAIL(err, HL_E_NOMEM, stage,
                       "%" PRIu64 " bytes are needed and %" PRIu64
                       " are available (memory, numa_node %d or cgroup)",
                       bytes, available, options->numa_node);
    return HL_OK;
}

static hl_status status_of(int system_error)
{
    return system_error == ENOMEM || system_error == ENOSPC ? HL_E_NOMEM : HL_E_SYSTEM;
}

static unsigned huge_page_flags(enum hl_page_size pages)
{
    if (pages == HL_PAGES_2M)
        return MFD_HUGETLB | MFD_HUGE_2MB;
    return pages == HL_PAGES_1G ? MFD_HUGETLB | MFD_HUGE_1GB : 0;
}

/* No MADV_DONTFORK: a shared mapping is never copied on write, so a child cannot move the pages under a
 * running DMA (as it can with private memory), fork copies no page tables for it, and a child that goes on as
 * an engine keeps its arena. MADV_DONTDUMP: a core file would be as large as the arena and hold users' data;
 * failing to ask for it loses nothing. No mlock: a page of a registered range is pinned by its driver, and
 * RLIMIT_MEMLOCK is small in containers. */
hl_status hl_arena_map(struct hl_arena *arena, const char *stage, hl_error *err)
{
    void *base = NULL;
    hl_status status = hl_memfd_map(arena->fd, arena->bytes, stage, &base, err);
    if (status != HL_OK)
        return status;
    madvise(base, arena->bytes, MADV_DONTDUMP);
    arena->base = base;
    return HL_OK;
}

/* Makes pages come from `node` whoever touches them. Where containers forbid mbind (EPERM) or the kernel has
 * no NUMA (ENOSYS), the touching threads' place decides instead, which is the same as long as the node has
 * free memory. */
static hl_status bind_to_node(const struct hl_arena *arena, int node, hl_error *err)
{
    enum { WORD_BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[HL_HOST_NODES / WORD_BITS] = {0};
    mask[node / WORD_BITS] = 1ul << (node % WORD_BITS);
    /* The kernel reads one bit less than it is told. */
    if (mbind(arena->base, arena->bytes, MPOL_BIND, mask, HL_HOST_NODES + 1, 0) != 0 && errno != EPERM &&
        errno != ENOSYS)
        return HL_FAIL_ERRNO(err, status_of(errno), "arena.bind", errno,
                             "cannot bind the arena to numa_node %d", node);
    return HL_OK;
}

static hl_status populate(const struct hl_arena *arena, const struct hl_arena_options *options,
                          uint64_t page_bytes, hl_error *err)
{
    cpu_set_t cpus;
    hl_host_node_cpus(root, options->numa_node, &cpus);
    unsigned threads = options->threads;
    if (threads == 0) {
        long count = CPU_COUNT(&cpus) > 0 ? CPU_COUNT(&cpus) : sysconf(_SC_NPROCESSORS_ONLN);
        threads = count < 1 ? 1 : count > HL_ARENA_TOUCH_THREADS ? HL_ARENA_TOUCH_THREADS : (unsigned)count;
    }
    struct hl_touch touch = {
        .fd = arena->fd,
        .base = arena->base,
        .bytes = arena->bytes,
        .page_bytes = page_bytes,
        .threads = threads,
        .cpus = &cpus,
        .progress = options->progress,
        .progress_user = options->progress_user,
    };
    return hl_touch_pages(&touch, err);
}

hl_status hl_arena_create(const struct hl_arena_options *options, hl_arena **out, hl_error *err)
{
    hl_status status = check_options(options, err);
    if (status != HL_OK)
        return status;
    uint64_t page_bytes = hl_host_page_bytes(options->pages), chunk_bytes = options->chunk_bytes;
    uint64_t bytes = hl_align_up(options->bytes, page_bytes);
    status = hl_arena_check_chunk(&chunk_bytes, page_bytes, "arena.options", err);
    if (status == HL_OK)
        status = check_memory(bytes, page_bytes, options, err);
    if (status != HL_OK)
        return status;

    hl_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return HL_FAIL(err, HL_E_NOMEM, "arena.create", "no memory for an arena");
    arena->id = options->arena_id;
    arena->bytes = bytes;
    arena->chunk_bytes = chunk_bytes;
    status = hl_allocator_create(bytes, chunk_bytes, NULL, &arena->allocator, err);
    if (status != HL_OK)
        goto err_free;
    status = hl_memfd_create("hostlane-arena", huge_page_flags(options->pages), bytes, "arena.memfd",
                             &arena->fd, err);
    if (status != HL_OK)
        goto err_destroy_allocator;
    status = hl_arena_map(arena, "arena.map", err);
    if (status != HL_OK)
        goto err_close;
    if (options->numa_node >= 0)
        status = bind_to_node(arena, options->numa_node, err);
    if (status == HL_OK)
        status = populate(arena, options, page_bytes, err);
    if (status != HL_OK)
        goto err_unmap;
    *out = arena;
    return HL_OK;

err_unmap:
    munmap(arena->base, arena->bytes);
err_close:
    close(arena->fd);
err_destroy_allocator:
    hl_allocator_destroy(arena->allocator);
err_free:
    free(arena);
    return status;
}

void hl_arena_destroy(hl_arena *arena)
{
    if (!arena)
        return;
    assert(atomic_load(&arena->registrations) == 0);
    munmap(arena->base, arena->bytes);
    close(arena->fd);
    hl_allocator_destroy(arena->allocator);
    free(arena);
}

uint64_t hl_arena_id(const hl_arena *arena)
{
    return arena->id;
}

uint64_t hl_arena_bytes(const hl_arena *arena)
{
    return arena->bytes;
}

uint64_t hl_arena_chunk_bytes(const hl_arena *arena)
{
    return arena->chunk_bytes;
}

int hl_arena_fd(const hl_arena *arena)
{
    return arena->fd;
}

void *hl_arena_base(const hl_arena *arena)
{
    return arena->base;
}
