/* The Manager of a run, in this process. */
#ifndef QUALIFICATION_DEATHS_HOUSE_H
#define QUALIFICATION_DEATHS_HOUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "hostlane/manager.h"
#include "qualification/deaths/stage.h"

/* Both hold less than what pressure publishes (script.c). One script's blocks fit into the first, so that
 * where sources lie does not depend on what is in quarantine; the second is too small for them, and evicts.
 */
#define HOUSE_ARENA_BYTES 24576u
#define HOUSE_SMALL_ARENA_BYTES 16384u
/* Bound on a plan's part, so that a restore of a few blocks has several. */
#define HOUSE_PART_BYTES 512u

struct house {
    hl_manager *manager;
    bool frozen;
    uint64_t filled; /* the session whose bank is full; 0: none */
};

/* Says why not on standard error. */
bool house_open(struct house *house, uint64_t arena_bytes);
/* While it is frozen the Manager looks at nothing. By one thread. */
void house_freeze(struct house *house);
void house_thaw(struct house *house);

/* All of the plan bank of the engine that is connected, so that what is prepared next is deferred; false
 * while some of it is in use. */
bool house_fill_bank(struct house *house);
void house_empty_bank(struct house *house);
/* Whether an operation waits for space in a bank. */
bool house_has_deferred(const struct house *house);
/* Lets every lease's time be up now. */
void house_expire_leases(const struct house *house);

/* Does what an engine asks for, and gives the answer. */
enum stage_word house_serve(struct house *house, enum stage_word word);

hl_manager_snapshot house_stats(const struct house *house);
/* Waits until no engine is connected or detached any more. */
bool house_await_no_sessions(const struct house *house);
/* Ends every session as when its engine has broken the protocol, and waits until no record of theirs is
 * granted to an engine that has not claimed it. */
void house_refuse_sessions(const struct house *house);
/* I2, as the Manager asserts it itself. */
bool house_is_sound(const struct house *house);
/* Every credit has come back. */
bool house_is_home(const struct house *house);
/* As an operator would, all of them; returns how many there were. */
uint32_t house_release_quarantine(const struct house *house);
/* Operations in quarantine whose record does not say ACTIVE: there must be none. */
uint32_t house_strange_quarantine(const struct house *house);
/* What the sources of all operations in quarantine hold, as one number; 0: there are none. */
uint64_t house_quarantined_bytes(const struct house *house);
/* Stops it; whether nothing is left in it. */
bool house_close(struct house *house);

#endif
