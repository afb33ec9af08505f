/* core/grant owns the memory that a Manager and one engine share for restores, and the state machine in it:
 * 1024 records, the plan bank, the dirty bitset; and the private bookkeeping that goes with it: bank space
 * and budgets. It calls core/base only. manager and engine call it, each for its own half of the transitions.
 * Nothing here takes a lock in shared memory.
 *
 * One session is one size-sealed memfd of HL_GRANT_MEMORY_BYTES:
 *
 *     0         header, one page: magic, schema, layout signature, epoch, token, dirty bitset
 *     4096      1024 records of 192 bytes
 *     200704    the plan bank, 1 MiB
 *
 * A record's word holds its generation (high 32 bits) and its state (low 8 bits; the rest is zero). Every
 * transition is one compare-and-swap on the word, acquire and release; every other field has one writer in
 * each state, named beside the field, who writes it before the transition that publishes it. The peer is
 * another process: it may die after any instruction, or scribble over the whole memory. What is read from
 * here is copied once and then validated; an index, a size or an owner is never believed without a check
 * against private state.
 *
 *     from          to            by       when
 *     FREE          RESERVED      engine   before it writes the descriptor
 *     RESERVED      FREE          engine   given up before the Manager claimed it; generation + 1
 *     RESERVED      PREPARING     Manager  before it decodes the descriptor or consumes a lease
 *     PREPARING     GRANTED       Manager  after the grant's owner is installed
 *     PREPARING     MANAGED       Manager  SSD, encoded or mixed sources: a Manager worker runs it
 *     PREPARING     REJECTED      Manager  with a code and text
 *     MANAGED       COMPLETED     Manager
 *     GRANTED       ACTIVE        engine   the claim        } exactly one
 *     GRANTED       REVOKED       Manager  the revocation   } of the two wins
 *     ACTIVE        PART_DRAINED  engine   a part that is not the last one has drained
 *     ACTIVE        DRAINED       engine   the last part, or a failure whose accepted work has drained
 *     PART_DRAINED  GRANTED       Manager  with the next part
 *     PART_DRAINED  REVOKED       Manager  session lost or operation cancelled: that part has drained
 *                                          and no other was granted
 *     DRAINED       REAPED        Manager  }
 *     COMPLETED     REAPED        Manager  } after every source owner
 *     REVOKED       REAPED        Manager  } is released
 *     REJECTED      REAPED        Manager  }
 *     REAPED        FREE          engine   its retirement loop; generation + 1
 *
 * Generations count from 1 and go from 2^32 - 1 back to 1: 0 is none, in `submitted` and in `cancel`.
 *
 * The Manager writes nothing into a record that is GRANTED: the engine may claim it meanwhile and write the
 * same fields. What a revocation says (`status`, `text`) is therefore written before each GRANTED, and stands
 * when the revocation wins; an engine that claims overwrites it before DRAINED.
 */
#ifndef CORE_GRANT_GRANT_H
#define CORE_GRANT_GRANT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"

#define HL_GRANT_MAGIC 0x544e5247u /* "GRNT" */
#define HL_GRANT_SCHEMA 5u
#define HL_GRANT_HEADER_BYTES 4096u
#define HL_GRANT_MEMORY_BYTES (HL_GRANT_HEADER_BYTES + HL_GRANT_RECORDS * 192ull + HL_PLAN_PART_BYTES)

/* X(name): the one list of states, in wire order. */
#define HL_GRANT_STATES(X)                                                                                   \
    X(FREE)                                                                                                  \
    X(RESERVED)                                                                                              \
    X(PREPARING)                                                                                             \
    X(GRANTED)                                                                                               \
    X(MANAGED)                                                                                               \
    X(ACTIVE)                                                                                                \
    X(PART_DRAINED)                                                                                          \
    X(DRAINED)                                                                                               \
    X(COMPLETED)                                                                                             \
    X(REVOKED)                                                                                               \
    X(REJECTED)                                                                                              \
    X(REAPED)

enum hl_grant_state {
#define HL_GRANT_ENUM(name) HL_GRANT_##name,
    HL_GRANT_STATES(HL_GRANT_ENUM)
#undef HL_GRANT_ENUM
        HL_GRANT_STATE_COUNT
};

/* The six cumulative stage offsets, nanoseconds from the engine's start of the operation (O1). */
enum hl_grant_stage {
    HL_STAGE_READY,      /* destination readiness known */
    HL_STAGE_DISPATCHED, /* descriptor written and announced */
    HL_STAGE_DEQUEUED,   /* the native worker took the operation up */
    HL_STAGE_CLAIMED,    /* GRANTED → ACTIVE won */
    HL_STAGE_ENQUEUED,   /* last submission returned */
    HL_STAGE_DRAINED,    /* copy stream seen drained */
    HL_STAGE_COUNT
};

enum { HL_GRANT_TRACE = 1 }; /* record flag: the engine takes the stage clocks */

struct hl_grant_record {
    _Atomic uint64_t word;
    /* engine, in RESERVED, before `submitted` */
    uint32_t descriptor_offset; /* in the descriptor memory */
    uint32_t descriptor_bytes;
    uint32_t flags;
    /* engine, in RESERVED: the generation, once the descriptor is complete (release). The Manager claims only
     * when it equals the word's generation. */
    _Atomic uint32_t submitted;
    /* engine, from RESERVED to PREPARING: the generation to cancel. A request; the Manager decides. Set to 0
     * when reserved: 2^32 generations later the old value would be meant. */
    _Atomic uint32_t cancel;
    /* engine, 0 in RESERVED, counted in ACTIVE: parts of this operation whose bytes have been copied out of
     * the bank, so that their space may be reused. */
    _Atomic uint32_t consumed;
    /* Manager, before GRANTED */
    uint16_t part_index;
    uint16_t part_count;
    uint32_t bank_offset;
    uint32_t bank_bytes;
    /* Manager in PREPARING, MANAGED and PART_DRAINED; engine in ACTIVE: an hl_status. Valid in REJECTED,
     * REVOKED, COMPLETED and DRAINED. */
    int32_t status;
    uint64_t bytes;                    /* copied: engine before DRAINED, Manager before COMPLETED */
    uint64_t stage_ns[HL_STAGE_COUNT]; /* engine before DRAINED; all zero when not traced */
    char text[HL_GRANT_TEXT_BYTES];    /* why it failed: the writer of `status`; NUL-terminated */
};
_Static_assert(sizeof(struct hl_grant_record) == 192, "a record is three cache lines");

typedef struct hl_grant_memory hl_grant_memory;

/* A record's word, read once. */
struct hl_grant_word {
    uint32_t generation;
    uint32_t state; /* an hl_grant_state; >= HL_GRANT_STATE_COUNT when scribbled */
};

/* Creates, seals and initialises a session's memory (Manager). */
hl_status hl_grant_memory_create(uint64_t epoch, const unsigned char token[16], hl_grant_memory **memory,
                                 hl_error *err);
/* Maps it (engine); the fd is duplicated. HL_E_INVALID (not an fd), HL_E_PERMISSION (seals, or it may not be
 * written), HL_E_RANGE (size), HL_E_VERSION (schema or layout signature: both values in the text),
 * HL_E_PROTOCOL (magic, epoch, token). */
hl_status hl_grant_memory_map(int fd, uint64_t epoch, const unsigned char token[16], hl_grant_memory **memory,
                              hl_error *err);
void hl_grant_memory_close(hl_grant_memory *memory); /* NULL is allowed */
int hl_grant_memory_fd(const hl_grant_memory *memory);

/* Computed from sizes and offsets of everything shared; exchanged at bootstrap. */
uint64_t hl_grant_layout_signature(void);

/* Whether a private copy of a record holds only what its writers may have put there at any instant: a known
 * state and no other bit in the word, terminated text, and what this state says is valid: a part inside the
 * bank and among its operation's parts (GRANTED, ACTIVE); a known status that is an error (REJECTED, REVOKED)
 * or HL_OK or an error (COMPLETED, DRAINED). A predicate of the bytes only; whose they are, which generation
 * is meant, which part is running and how much of the bank is the operation's is checked against private
 * state. */
bool hl_grant_record_is_sane(const struct hl_grant_record *copy);

/* I5: whether an operation in this state must have its sources' owner: from GRANTED, or MANAGED, until the
 * Manager has seen it drained, completed or revoked. */
bool hl_grant_state_needs_owner(uint32_t state);

struct hl_grant_record *hl_grant_record_at(hl_grant_memory *memory,
                                           uint32_t index); /* index < HL_GRANT_RECORDS */
void *hl_grant_bank(hl_grant_memory *memory);               /* HL_PLAN_PART_BYTES bytes */

struct hl_grant_word hl_grant_load(hl_grant_memory *memory, uint32_t index);

/* Copies a record out, its word first (acquire): every field that nobody may write in the copied state is as
 * it was published. Call it in states in which the peer writes nothing (not in RESERVED before
 * `submitted`, not in ACTIVE). */
void hl_grant_copy(hl_grant_memory *memory, uint32_t index, struct hl_grant_record *copy);

/* The one way to change a word. True when the record was in `from` of `generation` and now is in `to`; false,
 * and nothing changed, otherwise. `to` FREE leaves the next generation. Asserts that the table has the
 * transition. */
bool hl_grant_move(hl_grant_memory *memory, uint32_t index, uint32_t generation, enum hl_grant_state from,
                   enum hl_grant_state to);
bool hl_grant_transition_exists(enum hl_grant_state from, enum hl_grant_state to);
const char *hl_grant_state_name(uint32_t state); /* "GRANTED"; "unknown" */

/* Dirty bitset, engine to Manager: "look at this record". Setting never blocks and cannot overflow. What was
 * written before the mark is visible to who takes it. Mark first, then signal; read the signal, then take. */
void hl_grant_mark(hl_grant_memory *memory, uint32_t index);
/* Takes all marks and writes the indices, ascending; at most HL_GRANT_RECORDS. Returns how many. A mark set
 * during the call is returned by this call or the next. */
size_t hl_grant_take_marks(hl_grant_memory *memory, uint32_t indices[HL_GRANT_RECORDS]);

/* --- Manager-private --- */

/* Space in one session's plan bank. Not thread-safe. First fit over 64-byte units, neighbours merge when
 * freed. `bytes` of a bank: a multiple of 64 (HL_E_INVALID), at most HL_PLAN_PART_BYTES (HL_E_LIMIT). */
#define HL_BANK_UNIT_BYTES 64u
typedef struct hl_bank hl_bank;
hl_status hl_bank_create(uint32_t bytes, hl_bank **bank, hl_error *err);
void hl_bank_destroy(hl_bank *bank);
bool hl_bank_take(hl_bank *bank, uint32_t bytes, uint32_t *offset); /* bytes > 0; false when full */
void hl_bank_give(hl_bank *bank, uint32_t offset, uint32_t bytes);  /* asserts that exactly this was taken */
uint32_t hl_bank_used(const hl_bank *bank);                         /* bytes of whole units */

/* A credit counter: taken once, returned once (I2). Thread-safe. */
typedef struct hl_budget {
    _Atomic uint64_t used;
    uint64_t limit;
} hl_budget;
void hl_budget_init(hl_budget *budget, uint64_t limit);
bool hl_budget_take(hl_budget *budget,
                    uint64_t amount); /* false, and nothing taken, when it would exceed the limit */
void hl_budget_give(hl_budget *budget, uint64_t amount); /* asserts that as much is taken */
uint64_t hl_budget_used(const hl_budget *budget);

#endif
