#include "core/plan/memory.h"

#include <stdlib.h>

#include "faults/hook.h"

void *hl_plan_allocate(size_t count, size_t size)
{
    size_t bytes;
    if (HL_FAULT(plan_memory_take) || __builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return malloc(bytes ? bytes : 1);
}
