/* SipHash-1-3 (Aumasson and Bernstein) of whole 64-bit words. Keys come from engines: the hash is keyed with
 * random bits, so that nobody can choose keys that meet in one place of a table. */
#ifndef MANAGER_INDEX_HASH_H
#define MANAGER_INDEX_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t hl_index_rotate(uint64_t value, int bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static inline void hl_index_sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = hl_index_rotate(v[1], 13) ^ v[0];
    v[3] = hl_index_rotate(v[3], 16) ^ v[2];
    v[0] = hl_index_rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = hl_index_rotate(v[1], 17) ^ v[2];
    v[3] = hl_index_rotate(v[3], 21) ^ v[0];
    v[2] = hl_index_rotate(v[2], 32);
}

static inline uint64_t hl_index_sip(const uint64_t seed[2], const uint64_t *words, size_t count)
{
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575ull, seed[1] ^ 0x646f72616e646f6dull,
                     seed[0] ^ 0x6c7967656e657261ull, seed[1] ^ 0x7465646279746573ull};
    for (size_t i = 0; i <= count; i++) {
        uint64_t word = i < count ? words[i] : (uint64_t)(count * 8) << 56;
        v[3] ^= word;
        hl_index_sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    hl_index_sip_round(v);
    hl_index_sip_round(v);
    hl_index_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
