#include "manager/index_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "hostlane/limits.h"

#define MAPPED_FROM HL_MIB
#define HUGE_FROM (8 * HL_MIB)

static void *get_from_system(void *user, size_t bytes)
{
    (void)user;
    if (bytes < MAPPED_FROM)
        return calloc(1, bytes ? bytes : 1);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_FROM)
        (void)madvise(memory, bytes, MADV_HUGEPAGE); /* fewer TLB misses; everything works without */
    return memory;
}

static void put_to_system(void *user, void *memory, size_t bytes)
{
    (void)user;
    if (bytes < MAPPED_FROM)
        free(memory);
    else
        munmap(memory, bytes);
}

const struct hl_index_memory hl_index_system_memory = {.get = get_from_system, .put = put_to_system};

void *hl_index_memory_get(const struct hl_index_memory *source, size_t bytes)
{
    return source->get(source->user, bytes);
}

void hl_index_memory_put(const struct hl_index_memory *source, void *memory, size_t bytes)
{
    if (memory)
        source->put(source->user, memory, bytes);
}
