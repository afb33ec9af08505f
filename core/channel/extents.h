/* The engine's private account of the space that its requests have in the descriptor memory: nothing of it
 * lies in shared memory, so the peer cannot lead it astray. First fit in 64-byte units; neighbours merge when
 * given back. Thread-safe. */
#ifndef CORE_CHANNEL_EXTENTS_H
#define CORE_CHANNEL_EXTENTS_H

#include <stdint.h>

#include "hostlane/status.h"

typedef struct hl_extents hl_extents;

/* Space [first, end), both multiples of 64. */
hl_status hl_extents_create(uint32_t first, uint32_t end, hl_extents **extents, hl_error *err);
void hl_extents_destroy(hl_extents *extents); /* NULL is allowed */

/* HL_E_INVALID for 0 bytes, HL_E_LIMIT for more than the whole space, HL_E_BUDGET when no gap is as large,
 * HL_E_NOMEM for the account itself. */
hl_status hl_extents_take(hl_extents *extents, uint32_t bytes, uint32_t *offset, hl_error *err);
/* Asserts that exactly this was taken; never fails. */
void hl_extents_give(hl_extents *extents, uint32_t offset, uint32_t bytes);

#endif
