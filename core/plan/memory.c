#include "core/plan/memory.h"

#include <stdlib.h>

#ifdef HL_FAULTS
_Thread_local unsigned hl_plan_refuse_allocation;
#endif

void *hl_plan_allocate(size_t count, size_t size)
{
    size_t bytes;
#ifdef HL_FAULTS
    if (hl_plan_refuse_allocation && --hl_plan_refuse_allocation == 0)
        return NULL;
#endif
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return malloc(bytes ? bytes : 1);
}
