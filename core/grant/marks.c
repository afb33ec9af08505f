#include <assert.h>

#include "core/grant/grant_memory.h"
#include "faults/hook.h"

/* Always sets the bit, also when it looks set already: without a store of its own, what this call's caller
 * wrote before would not be published to who takes the mark. */
void hl_grant_mark(hl_grant_memory *memory, uint32_t index)
{
    assert(index < HL_GRANT_RECORDS);
    HL_FAULT_NOTIFY(grant_mark, atomic_fetch_or_explicit(&memory->shared->header.dirty[index / 64],
                                                         1ull << index % 64, memory_order_release));
}

/* Looks before it takes: a load shares the line with the engine, an exchange takes it away. Every mark is a
 * read-modify-write, so an exchange that sees the last of several acquires from all of them. */
size_t hl_grant_take_marks(hl_grant_memory *memory, uint32_t indices[HL_GRANT_RECORDS])
{
    size_t count = 0;
    for (uint32_t i = 0; i < HL_GRANT_DIRTY_WORDS; i++) {
        _Atomic uint64_t *word = &memory->shared->header.dirty[i];
        if (atomic_load_explicit(word, memory_order_relaxed) == 0)
            continue;
        uint64_t marks;
        HL_FAULT_STORE(grant_marks_take, marks = atomic_exchange_explicit(word, 0, memory_order_acquire));
        for (; marks != 0; marks &= marks - 1)
            indices[count++] = 64 * i + (uint32_t)__builtin_ctzll(marks);
    }
    return count;
}
