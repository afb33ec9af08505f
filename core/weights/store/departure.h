/* How entries leave artifacts/ and quarantine/, and who stands in the way: shared by building, publishing and
 * cleaning. Private to the writing side of the store. */
#ifndef CORE_WEIGHTS_STORE_DEPARTURE_H
#define CORE_WEIGHTS_STORE_DEPARTURE_H

#include "core/weights/store/store.h"

#define HL_REASON_INVALID "validation_failure"
#define HL_REASON_PUBLICATION "publication_failure"
#define HL_REASON_COLLISION "identity-collision"
#define HL_REASON_TOMBSTONE "cleanup" /* on its way out: never shown as quarantined for long */

enum { HL_STORE_NAME_BYTES = 192 };

/* KEY.REASON.UUID */
hl_status hl_departure_name(const char *key, const char *reason, char name[HL_STORE_NAME_BYTES],
                            hl_error *err);

/* Moves artifacts/KEY to quarantine/NAME and synchronises; the folder ends as 0555, a tombstone as 01555. On
 * a failure before the move its mode is as before; behind it the folder stays where it is now, and what the
 * call could not do the next one for KEY does. HL_E_NOT_FOUND; HL_E_CORRUPT when the entry is no folder;
 * HL_E_SYSTEM, HL_E_NOSPACE. */
hl_status hl_departure_move(hl_weight_store *store, const char *key, const char *name, bool tombstone,
                            hl_error *err);

/* Whether artifacts/KEY is that folder, as far as is known: a rename that reported a failure may have
 * happened, and only an entry that is certainly another or gone says so. */
bool hl_departure_is_at(hl_weight_store *store, const char *key, const struct stat *folder);

/* Removes deny/KEY.json durably; a missing one is success. */
hl_status hl_departure_allow(hl_weight_store *store, const char *key, hl_error *err);

/* hl_store_sweep_remains(), which also says whether there was a tombstone or a build. */
hl_status hl_departure_sweep(hl_weight_store *store, const char *key, bool *removed, hl_error *err);

/* The tombstones alone. */
hl_status hl_departure_sweep_tombstones(hl_weight_store *store, const char *key, bool *removed,
                                        hl_error *err);

/* Calls visit() with each name in an open folder that begins with KEY and a dot, until it fails. */
hl_status hl_departure_each(int folder, const char *key,
                            hl_status (*visit)(void *context, const char *name, hl_error *err), void *context,
                            hl_error *err);

/* What a lock that could not be taken means: `code`, retryable, with {"holder_pids":[…]}, when somebody has
 * it; else trouble of the system. */
hl_status hl_departure_blocked(hl_weight_store *store, enum hl_lock_kind kind, const char *key,
                               hl_weight_stage stage, hl_weight_code code, const hl_error *err,
                               hl_weight_failure *failure);

#endif
