/* The one host clock: CLOCK_MONOTONIC in nanoseconds. Never compared across processes. */
#ifndef CORE_BASE_CLOCK_H
#define CORE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define HL_NS_PER_S 1000000000ll

static inline int64_t hl_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * HL_NS_PER_S + now.tv_nsec;
}

#endif
