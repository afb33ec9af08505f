/* Where the index, the leases and the namespaces get their memory. Large pieces are reserved address space
 * that costs nothing until it is touched; a test passes its own source to refuse the n-th piece. */
#ifndef MANAGER_INDEX_MEMORY_H
#define MANAGER_INDEX_MEMORY_H

#include <stddef.h>

/* `get` returns zeroed memory or NULL; `put` takes back what `get` gave, with the size that was asked for. */
struct hl_index_memory {
    void *(*get)(void *user, size_t bytes);
    void (*put)(void *user, void *memory, size_t bytes);
    void *user;
};

/* The system's: calloc() below 1 MiB, mmap() without reservation above, with huge pages where allowed. */
extern const struct hl_index_memory hl_index_system_memory;

/* `memory` may be NULL, which hl_index_memory_put() then ignores. */
void *hl_index_memory_get(const struct hl_index_memory *source, size_t bytes);
void hl_index_memory_put(const struct hl_index_memory *source, void *memory, size_t bytes);

#endif
