/* What the files of this room share: the memory's header page and what the layout signature is made of. */
#ifndef CORE_GRANT_GRANT_MEMORY_H
#define CORE_GRANT_GRANT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "core/grant/grant.h"

#define HL_GRANT_TOKEN_BYTES 16
#define HL_GRANT_DIRTY_WORDS (HL_GRANT_RECORDS / 64)
_Static_assert(HL_GRANT_RECORDS % 64 == 0, "the bitset's words are full");

struct hl_grant_header {
    /* Manager, once, before anybody else has the fd; the engine checks a copy when it maps */
    uint32_t magic;
    uint32_t schema;
    uint64_t layout_signature;
    uint64_t epoch;
    unsigned char token[HL_GRANT_TOKEN_BYTES];
    unsigned char zero_line[88]; /* the bitset begins two lines further: the prefetcher fetches pairs */
    /* The engine sets bits (release), the Manager takes words (acquire). A peer's death leaves it valid:
     * a bit too many makes the Manager look at a record in vain. */
    _Atomic uint64_t dirty[HL_GRANT_DIRTY_WORDS];
    unsigned char zero_tail[HL_GRANT_HEADER_BYTES - 128 - 8 * HL_GRANT_DIRTY_WORDS];
};
_Static_assert(sizeof(struct hl_grant_header) == HL_GRANT_HEADER_BYTES, "the header is its page");

struct hl_grant_shared {
    struct hl_grant_header header;
    struct hl_grant_record records[HL_GRANT_RECORDS];
    unsigned char bank[HL_PLAN_PART_BYTES];
};
_Static_assert(sizeof(struct hl_grant_shared) == HL_GRANT_MEMORY_BYTES, "the three parts and nothing else");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "no lock may hide behind an atomic");

struct hl_grant_memory {
    int fd;
    struct hl_grant_shared *shared;
};

/* A word's value. `state` may be any number below 2^32 in a scribbled word. */
static inline uint64_t hl_grant_word_of(uint32_t generation, uint32_t state)
{
    return (uint64_t)generation << 32 | state;
}

/* One thing that both processes must agree on: a field's name, offset and size; a constant's name and value.
 */
struct hl_grant_shape {
    const char *name;
    uint64_t offset; /* or the constant's value */
    uint64_t size;   /* or 0 */
};

extern const struct hl_grant_shape hl_grant_shapes[];
extern const size_t hl_grant_shape_count;

/* FNV-1a (64 bits) over each shape: its name with the NUL, then offset and size as 8 little-endian bytes. */
uint64_t hl_grant_signature_of(const struct hl_grant_shape *shapes, size_t count);

#endif
