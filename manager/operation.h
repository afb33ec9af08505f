/* A restore's owner in the Manager: what keeps its sources where they are from before GRANTED until REAPED
 * (I5), and every credit that it took (I2). prepare.c makes it, grants.c, parts.c and quarantine.c drive it,
 * operation.c ends it. All with the Manager's lock held.
 *
 * What the private owner says is what has happened; the shared record only says what the engine claims. */
#ifndef MANAGER_OPERATION_H
#define MANAGER_OPERATION_H

#include "manager/state.h"

enum manager_phase {
    MANAGER_PREPARED,      /* record PREPARING: nothing has been granted yet */
    MANAGER_GRANTED,       /* part `part` is granted: the engine may be copying it */
    MANAGER_BETWEEN_PARTS, /* record PART_DRAINED, acknowledged: part `part` waits for bank space */
    MANAGER_QUARANTINED    /* nobody can say whether its sources are being read (I7) */
};

struct manager_operation {
    struct manager_session *session;
    struct manager_binding *binding;
    struct hl_plan_identity identity; /* record and generation among it */
    enum manager_phase phase;
    bool installed; /* session->operations[record] is this, and session and binding count it */
    bool trace;     /* the engine was asked to take the stage clocks */

    /* Credits, each taken once; manager_operation_release() returns what is here. */
    hl_lease_pins *pins[HL_RESTORE_LEASES]; /* sources, and their bytes of session->bytes */
    uint32_t pins_count;
    struct manager_gpu *gpu; /* whose permit is held, or NULL */
    hl_plan *plan;
    uint64_t plan_bytes; /* of session->plan_bytes */
    bool bank_held;      /* [bank_offset, bank_offset + bank_bytes) of session->bank */
    uint32_t bank_offset, bank_bytes;

    uint64_t source_bytes;  /* of all pins */
    uint64_t payload_bytes; /* that the whole plan copies */
    uint32_t part;          /* the granted one, or the next one to be granted */
    uint32_t part_count;

    bool deferred; /* in the session's queue, which begins at deferred_first */
    struct manager_operation *deferred_next;

    int64_t quarantined_at; /* seconds since 1970 */
    char quarantine_reason[96];
};

/* --- operation.c --- */

/* Makes the operation the owner of its record. */
void manager_operation_install(struct manager_operation *operation);

/* The only place that returns credits: pins and their bytes, plan bytes, permit, bank space, the counts of
 * session and binding. Also for an operation that prepare.c has only half made. Frees it; wakes and settles
 * nobody. */
void manager_operation_release(hl_manager *manager, struct manager_operation *operation);

/* What an engine reports with DRAINED. */
struct manager_completion {
    hl_status status;
    bool traced; /* stage_ns holds a valid report: none decreases, none is over a day */
    uint64_t stage_ns[HL_STAGE_COUNT];
    char text[HL_GRANT_TEXT_BYTES];
};

/* Reads a private copy of the record. False when it is no valid record of an operation of this generation
 * that has drained; a stage report that is invalid or missing is only left out (O1). */
bool manager_completion_read(const struct hl_grant_record *copy, uint32_t generation,
                             struct manager_completion *completion);

/* --- parts.c: the plan bank --- */

enum manager_grant_result {
    MANAGER_GRANT_DONE,     /* granted, and the engine told */
    MANAGER_GRANT_DEFERRED, /* in the queue */
    MANAGER_GRANT_SCRIBBLED /* the record was not in the state that the owner knows it to be in */
};

/* Grants the operation's next part, or queues it when the bank is full or others wait already. */
enum manager_grant_result manager_part_offer(struct manager_operation *operation);

/* Grants the first of the queue. DEFERRED: it still does not fit. The queue is not empty. */
enum manager_grant_result manager_part_offer_first(struct manager_session *session);

/* Takes the operation out of the queue; one that is not in it is left alone. */
void manager_part_withdraw(struct manager_operation *operation);

/* Gives the bank space of the current part back, if it is still held. */
void manager_part_consumed(struct manager_operation *operation);

/* Writes what a REJECTED or REVOKED record says, while the Manager is the record's writer. */
void manager_record_explain(struct manager_session *session, uint32_t record, hl_status status,
                            const char *text);

/* --- quarantine.c --- */

/* As manager_quarantine_add(), with the reason. */
void manager_quarantine_because(hl_manager *manager, struct manager_operation *operation, const char *format,
                                ...) __attribute__((format(printf, 3, 4)));

#endif
