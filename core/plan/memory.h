/* Where the room's memory comes from: a handful of arrays a plan, never one a piece. The twin with fault
 * points can refuse the n-th allocation, so that a test reaches every clean-up. */
#ifndef CORE_PLAN_MEMORY_H
#define CORE_PLAN_MEMORY_H

#include <stddef.h>

/* An array of `count` elements, uninitialised; NULL when it does not fit. 0 elements give a pointer to free
 * as well. */
void *hl_plan_allocate(size_t count, size_t size);

#ifdef HL_FAULTS
/* Test control: 1 refuses the next allocation of this thread, 2 the one after it, 0 none. Counts down to 0.
 */
extern _Thread_local unsigned hl_plan_refuse_allocation;
#endif

#endif
