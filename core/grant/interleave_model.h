/* One record, its engine, its Manager and the device as rules that each do one atomic step, so that every
 * interleaving can be enumerated without a thread. The steps on the record are the real hl_grant_move. */
#ifndef CORE_GRANT_INTERLEAVE_MODEL_H
#define CORE_GRANT_INTERLEAVE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/grant/grant_memory.h"

enum { MODEL_OPERATIONS = 2, MODEL_PARTS = 2 };

enum engine_at { E_IDLE, E_RESERVED, E_WAITING, E_CLAIMING, E_ACTIVE, E_COPYING, E_WRITTEN, E_RETIRING };
enum manager_at {
    M_IDLE,
    M_CLAIMING,
    M_PREPARING,
    M_REJECTING,
    M_OWNING,
    M_GRANTING,
    M_WORKING,
    M_WORKED,
    M_RUNNING,
    M_REVOKING,
    M_REVOKING_PART,
    M_REAPING,
};

/* What an implementation might get wrong; each must be found. */
enum model_defect {
    NO_DEFECT,
    OWNER_AFTER_GRANT,   /* I5 */
    RELEASE_AFTER_DEATH, /* I5, I7: the engine's death taken for a fence */
    REASON_IN_GRANTED,   /* the Manager writes why it revokes when it decides to, not before it grants */
    CURRENT_GENERATION,  /* I4: claims what is there now, not what was looked at */
    CANCEL_NOT_CLEARED,  /* an old request meets its number again after 2^32 generations */
    FORGOTTEN_REAP,      /* sources released, and nobody told */
    MODEL_DEFECTS
};

/* Everything that decides what can happen next. All fields are 32 bits wide: worlds are compared as bytes. */
struct world {
    /* the record */
    uint32_t generation, state, submitted, cancel, consumed, part_index, part_count, bank_bytes;
    int32_t status;
    /* the engine */
    uint32_t engine_at, engine_generation, engine_dead, operations, asked_cancel, holds_pages, last_part;
    int32_t engine_result;
    /* the Manager: what it knows privately */
    uint32_t manager_at, manager_generation, manager_dead, owner, credit, quarantined;
    /* the device */
    uint32_t in_flight;
};

struct model {
    hl_grant_memory *memory;
    struct hl_grant_record *record;
    enum model_defect defect;
    struct world w;
};

struct rule {
    const char *name;
    bool (*enabled)(const struct world *w);
    void (*run)(struct model *m);
};

extern const struct rule model_rules[];
extern const unsigned model_rule_count;

#endif
