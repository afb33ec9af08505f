/* Where a test may stop an engine's worker, to force one side of a race: the engine moves its records by
 * hl_grant_move(), which the linker leads through here (-Wl,--wrap), so that the engine itself has no seam.
 * Any thread. */
#ifndef QUALIFICATION_RESTORE_GATE_H
#define QUALIFICATION_RESTORE_GATE_H

#include "core/grant/grant.h"

enum engine_point {
    ENGINE_BEFORE_CLAIM,  /* GRANTED was seen, the claim has not been tried */
    ENGINE_AFTER_CLAIM,   /* ACTIVE, nothing submitted */
    ENGINE_BEFORE_DRAINED /* the outcome is written, DRAINED is not */
};

typedef void (*gate_visitor)(void *user, enum engine_point point, uint32_t record);

/* From now on `visit` is called for moves in this mapping of a grant memory, in place of who watched it, or
 * was watched by `user`, before. */
void gate_watch(const hl_grant_memory *grants, gate_visitor visit, void *user);
void gate_unwatch(const void *user);

#endif
