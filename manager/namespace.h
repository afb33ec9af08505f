/* manager/namespace owns the names under which bindings share blocks: two bindings with one namespace can
 * read each other's blocks, byte for byte; a key in one namespace says nothing in another. It calls core/base
 * and core/layout. Not thread-safe: the Manager calls it under its own lock. */
#ifndef MANAGER_NAMESPACE_H
#define MANAGER_NAMESPACE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/sha256.h"
#include "core/layout/layout.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"
#include "manager/index_memory.h"

#define HL_NAMESPACE_EVERY_RANK UINT32_MAX

/* All that decides what the bytes of a block mean. */
struct hl_namespace_key {
    char model[HL_NAME_BYTES];
    unsigned char model_digest[32];         /* weights, adapters, … */
    char block_digest[HL_SHA256_HEX_BYTES]; /* hl_layout_block_digest() */
    uint32_t element_bytes;
    uint32_t rank;         /* whose blocks they are, or HL_NAMESPACE_EVERY_RANK */
    uint32_t cache_schema; /* HL_CACHE_SCHEMA of core/channel */
    /* The heads of each block that its bytes hold, where a rank fills only its slot of a stored block; both 0
     * where it fills the whole block. */
    uint32_t slot_first_head;
    uint32_t slot_heads;
};

/* Describes a binding's blocks. A layout that says which heads its blocks hold tells ranks apart, or not, by
 * its digest, and by the slot that a rank fills: ranks that replicate the same heads share a namespace; those
 * that fill different slots of one block do not, for each publishes the others' slots empty. A layout that
 * does not say keeps each rank's blocks to itself. `model` is NUL-terminated within HL_NAME_BYTES, and
 * the layout valid. HL_E_INVALID for an empty or unterminated model, for no element bytes or schema, and for
 * element bytes that the layout contradicts; HL_E_NOMEM. */
hl_status hl_namespace_describe(const char *model, const unsigned char model_digest[32],
                                uint32_t element_bytes, uint32_t rank, uint32_t cache_schema,
                                const hl_layout *layout, struct hl_namespace_key *key, hl_error *err);

typedef struct hl_namespaces hl_namespaces;

/* A set of at most `most` namespaces, 1 to HL_NAMESPACES_MOST. HL_E_INVALID, HL_E_LIMIT, HL_E_NOMEM. `memory`
 * is copied; NULL: the system's. */
hl_status hl_namespaces_create(uint32_t most, const struct hl_index_memory *memory,
                               hl_namespaces **namespaces, hl_error *err);
void hl_namespaces_destroy(hl_namespaces *namespaces); /* NULL is allowed */

/* The key's id: 1, 2, 3, … in the order of first appearance, for ever the same. The SHA-256 of the key's
 * canonical text is what is compared. HL_E_INVALID for text that is not terminated; HL_E_LIMIT when it would
 * be one namespace too many; HL_E_NOMEM. */
hl_status hl_namespaces_intern(hl_namespaces *namespaces, const struct hl_namespace_key *key, uint32_t *id,
                               hl_error *err);

/* The digest (hex) of an interned namespace, for people; NULL for an id that is none. */
const char *hl_namespaces_digest(const hl_namespaces *namespaces, uint32_t id);

uint32_t hl_namespaces_count(const hl_namespaces *namespaces);

#endif
