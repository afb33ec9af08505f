/* Two sides of one session and a device, as steps that a search may take in any order: the record, the plan
 * bank and the copies are the real ones (core/grant, core/device in single-step mode); what each side
 * remembers is here.
 *
 * A step is one load or one compare-and-swap of the word, or one other act that the other side can see.
 * Released sources are overwritten at once, as another block's would be: a copy that comes late brings wrong
 * bytes. */
#ifndef QUALIFICATION_INTERLEAVING_STAGE_H
#define QUALIFICATION_INTERLEAVING_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/device/software.h"
#include "core/grant/grant.h"

enum { STAGE_RECORDS = 2, STAGE_PARTS = 2, STAGE_PART_BYTES = 64 };

/* What may happen. */
struct scenario {
    unsigned records;    /* that operations run in at once: 1 or 2 */
    unsigned operations; /* of each record */
    unsigned parts;      /* of each operation: 1 or 2 */
    bool cancel;         /* the engine may take back or ask to cancel */
    bool revoke;         /* the Manager may revoke what is granted */
    bool death;          /* the engine may die */
};

/* What an implementation might get wrong. */
enum defect {
    NO_DEFECT,
    EARLY_DRAIN,        /* the engine reports a part before the device has finished it */
    BLIND_REVOKE,       /* stores REVOKED, without a comparison */
    STALE_CLAIM,        /* the Manager claims what is there now, not what it looked at */
    BANK_AT_CLAIM,      /* takes bank space back once it sees ACTIVE, not once the part has been copied out */
    RELEASE_ON_DEATH,   /* takes the engine's death for the end of its copies */
    RELEASE_AFTER_PART, /* gives the sources away when the first part has drained */
    OWNER_AFTER_GRANT,
    DEFECTS
};

enum engine_at { E_IDLE, E_RESERVED, E_WAITING, E_CLAIMING, E_ACTIVE, E_COPYING, E_WRITTEN, E_RETIRING };
enum manager_at {
    M_IDLE,
    M_CLAIMING,
    M_PREPARING,
    M_OWNING,
    M_GRANTED,
    M_REVOKING,
    M_BETWEEN,
    M_CLOSING,
    M_KEPT
};

/* All that decides what can happen next, besides the record. 32 bits each: worlds are compared as bytes. */
struct memory_of_sides {
    /* the engine */
    uint32_t engine_at, engine_generation, operations, parts, asked;
    /* the Manager */
    uint32_t manager_at, manager_generation, part, owner, bank_held, bank_offset, closes_from;
    /* the device: parts queued and not copied yet, and which is the first of them */
    uint32_t in_flight, first_in_flight;
    uint32_t drained; /* the operation has reported success: its pages hold its bytes until the next one */
};

struct stage {
    struct scenario scenario;
    enum defect defect;
    hl_device *dev;
    hl_stream streams[STAGE_RECORDS];
    hl_grant_memory *memory;
    hl_bank *bank;
    unsigned char *sources; /* registered: STAGE_PARTS pieces a record */
    hl_devptr pages;        /* likewise */
    uint32_t engine_dead, death_seen;
    struct memory_of_sides sides[STAGE_RECORDS];
    const char *violation; /* found while a step ran */
};

struct step {
    const char *name;
    bool (*enabled)(const struct stage *stage, unsigned record);
    void (*run)(struct stage *stage, unsigned record);
};

extern const struct step engine_steps[], manager_steps[], world_steps[];
extern const unsigned engine_step_count, manager_step_count, world_step_count;

void stage_open(struct stage *stage, const struct scenario *scenario, enum defect defect);
void stage_close(struct stage *stage);
/* As it was after stage_open(). */
void stage_reset(struct stage *stage);
/* What does not hold now, or NULL. */
const char *stage_violation(struct stage *stage);

/* The bytes that part `part` of this generation's sources have. */
unsigned char stage_pattern(unsigned record, uint32_t generation, uint32_t part);
unsigned char *stage_source(const struct stage *stage, unsigned record, uint32_t part);
hl_devptr stage_page(const struct stage *stage, unsigned record, uint32_t part);
enum hl_grant_state stage_state(const struct stage *stage, unsigned record);

#endif
