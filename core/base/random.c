#include "core/base/random.h"

#include <string.h>

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t value, int bits)
{
    return (value << bits) | (value >> (64 - bits));
}

void hl_random_seed(hl_random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        random->state[i] = splitmix64(&seed);
}

uint64_t hl_random_next(hl_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t hl_random_below(hl_random *random, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)hl_random_next(random) * bound) >> 64);
}

void hl_random_fill(hl_random *random, void *bytes, size_t size)
{
    unsigned char *out = bytes;
    for (; size >= 8; out += 8, size -= 8) {
        uint64_t word = hl_random_next(random);
        memcpy(out, &word, 8);
    }
    if (size) {
        uint64_t word = hl_random_next(random);
        memcpy(out, &word, size);
    }
}

void hl_random_permutation(hl_random *random, uint32_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t j = (size_t)hl_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}
