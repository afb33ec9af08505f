/* Where the room's memory comes from: a handful of arrays a plan, never one a piece. */
#ifndef CORE_PLAN_MEMORY_H
#define CORE_PLAN_MEMORY_H

#include <stddef.h>

/* An array of `count` elements, uninitialised; NULL when it does not fit. 0 elements give a pointer to free
 * as well. */
void *hl_plan_allocate(size_t count, size_t size);

#endif
