/* A seeded generator (xoshiro256**, Blackman and Vigna) for test data and the demo: the same seed gives the
 * same bytes on every machine. Not for secrets: tokens come from getrandom(2). */
#ifndef CORE_BASE_RANDOM_H
#define CORE_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct hl_random {
    uint64_t state[4];
} hl_random;

void hl_random_seed(hl_random *random, uint64_t seed);
uint64_t hl_random_next(hl_random *random);

/* Uniform in [0, bound); bound > 0. The bias is below bound / 2^64. */
uint64_t hl_random_below(hl_random *random, uint64_t bound);

void hl_random_fill(hl_random *random, void *bytes, size_t size);

/* Writes a random permutation of 0 … count - 1. */
void hl_random_permutation(hl_random *random, uint32_t *order, size_t count);

#endif
