/* Arithmetic on sizes that come from a file, a peer or a caller: the functions return false instead of
 * wrapping. */
#ifndef CORE_BASE_CHECKED_H
#define CORE_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool hl_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool hl_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Whether [offset, offset + bytes) lies inside [0, size), for any values. */
static inline bool hl_within(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return bytes <= size && offset <= size - bytes;
}

static inline bool hl_is_pow2(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* `value` rounded up to a multiple of `alignment` (a power of two); the caller has checked that it fits. */
static inline uint64_t hl_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

#endif
