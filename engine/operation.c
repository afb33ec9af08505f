/* What the worker does with one operation, step by step, as its record says.
 *
 *     RESERVED, PREPARING     wait; take it back when cancelled or the session is lost
 *     GRANTED                 claim, copy the part out of the bank, submit
 *     ACTIVE                  wait for the copies; PART_DRAINED, or DRAINED and settled
 *     REVOKED, REJECTED,      settled with the Manager's outcome; also when all that is seen of it is REAPED
 *     COMPLETED
 *
 * A Manager that has died changes nothing about what was granted: the mapping and the plan are still there,
 * and no other Manager ever uses this memory (I8). */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/plan/plan.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.operation";

static void take_clock(hl_restore *restore, enum hl_grant_stage which)
{
    if (restore->start_ns)
        restore->stage_ns[which] = (uint64_t)(hl_clock_ns() - restore->start_ns);
}

static void tell_manager(hl_restore *restore)
{
    hl_grant_mark(restore->engine->grants, restore->record);
    engine_signal_manager(restore->engine);
}

/* The Manager has copied the descriptor, or will never look at it. */
static void give_extent(hl_restore *restore)
{
    if (restore->extent.bytes == 0)
        return;
    hl_descriptors_give(restore->engine->descriptors, restore->extent);
    restore->extent.bytes = 0;
}

/* The outcome is known and no device work is left. After this the operation is the retirement thread's. */
static void settle(hl_restore *restore, hl_status status, bool untouched, uint64_t bytes,
                   const hl_error *error)
{
    hl_engine *engine = restore->engine;
    hl_binding *binding = restore->binding;
    hl_operation_close(restore->operation);
    restore->operation = NULL;
    give_extent(restore);
    engine_gpu_give_event(binding->gpu, restore->ready_event);
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < restore->lease_count; i++)
        engine_lease_settle(restore->leases[i], false);
    restore->lease_count = 0;
    restore->result = (hl_restore_result){.status = status, .untouched = untouched, .bytes = bytes};
    memcpy(restore->result.stage_ns, restore->stage_ns, sizeof restore->result.stage_ns);
    if (status != HL_OK)
        restore->error = *error;
    HL_FAULT_STORE(engine_settle,
                   atomic_store_explicit(&restore->progress, ENGINE_FINISHED, memory_order_release));
    pthread_cond_broadcast(&restore->changed);
    restore->next_retiring = engine->retiring;
    engine->retiring = restore;
    binding->operations--;
    engine->operations--;
    if (binding->closing)
        pthread_cond_broadcast(&engine->changed);
    engine_completed(engine);
    engine_signal(engine->retire_wake);
    pthread_mutex_unlock(&engine->lock);
}

static bool settle_failed(hl_restore *restore, bool untouched, const hl_error *error, bool *settled)
{
    *settled = true;
    settle(restore, error->status, untouched, 0, error);
    return true;
}

/* The record is not what this side's history allows: somebody writes where he must not. What this engine
 * submitted has drained; it submits nothing more. */
static bool settle_broken(hl_restore *restore, struct hl_grant_word word, bool *settled)
{
    hl_error why = {0};
    if (restore->managed)
        engine_cannot_continue(restore->engine, restore->record, "the Manager's record is broken");
    hl_error_set(&why, HL_E_PROTOCOL, stage, 0, 0,
                 "record %u is %s of generation %u, which cannot follow this operation's generation %u",
                 restore->record, hl_grant_state_name(word.state), word.generation, restore->generation);
    restore->abandoned = true;
    engine_lose(restore->engine, &why);
    return settle_failed(restore, restore->parts == 0, &why, settled);
}

/* --- parts --- */

/* ACTIVE and nothing of this operation is on the device any more. */
static bool conclude(hl_restore *restore, const struct hl_operation_result *result, const hl_error *error,
                     bool *settled)
{
    hl_engine *engine = restore->engine;
    struct hl_grant_record *record = hl_grant_record_at(engine->grants, restore->record);
    if (!result->drained)
        engine_cannot_continue(engine, restore->record, error->text);
    take_clock(restore, HL_STAGE_DRAINED);
    bool failed = result->status != HL_OK;
    HL_FAULT_STORE(engine_outcome_write, {
        record->status = result->status;
        record->bytes = failed ? 0 : result->bytes;
        memcpy(record->stage_ns, restore->stage_ns, sizeof record->stage_ns);
        snprintf(record->text, sizeof record->text, "%.*s", (int)sizeof record->text - 1,
                 failed ? error->text : "");
    });
    restore->abandoned =
        !HL_FAULT_MOVE(grant_drained, hl_grant_move(engine->grants, restore->record, restore->generation,
                                                    HL_GRANT_ACTIVE, HL_GRANT_DRAINED));
    tell_manager(restore);
    *settled = true;
    settle(restore, result->status, !result->accepted, failed ? 0 : result->bytes, error);
    return true;
}

static bool fail_claimed(hl_restore *restore, const hl_error *error, bool *settled)
{
    struct hl_operation_result result = {.drained = true};
    hl_error undrained = *error;
    if (restore->operation)
        hl_operation_drain(restore->operation, &result, &undrained);
    result.status = error->status;
    return conclude(restore, &result, result.drained ? error : &undrained, settled);
}

static hl_status start_operation(hl_restore *restore, hl_error *err)
{
    hl_engine *engine = restore->engine;
    struct hl_operation_options options = {
        .identity = {.epoch = engine->epoch, .record = restore->record, .generation = restore->generation},
        .ready_event = restore->ready_event,
        .layer_events = restore->layer_events};
    memcpy(options.identity.token, engine->token, sizeof engine->token);
    return hl_operation_start(restore->binding->transfer, &options, &restore->operation, err);
}

/* Copies the granted part out of the bank, whose space the Manager may then use again (G6). Everything that
 * the peer wrote is looked at in private copies. */
static hl_status take_part(struct engine_worker *worker, hl_restore *restore, size_t *bytes, hl_error *err)
{
    hl_engine *engine = restore->engine;
    struct hl_grant_record grant;
    struct hl_plan_header header;
    hl_grant_copy(engine->grants, restore->record, &grant);
    if (!hl_grant_record_is_sane(&grant) || grant.part_index != restore->parts ||
        grant.bank_bytes < sizeof header)
        return HL_FAIL(err, HL_E_PROTOCOL, stage,
                       "record %u grants part %u of %u, %u bytes at %u of the bank; part %u is next",
                       restore->record, grant.part_index, grant.part_count, grant.bank_bytes,
                       grant.bank_offset, restore->parts);
    const unsigned char *bank = hl_grant_bank(engine->grants);
    HL_FAULT_STORE(engine_part_copy, memcpy(worker->part, bank + grant.bank_offset, grant.bank_bytes));
    restore->parts++;
    HL_FAULT_STORE(grant_consume,
                   atomic_store_explicit(&hl_grant_record_at(engine->grants, restore->record)->consumed,
                                         restore->parts, memory_order_release));
    hl_grant_mark(engine->grants, restore->record);
    memcpy(&header, worker->part, sizeof header);
    if (header.part_index != grant.part_index || header.part_count != grant.part_count)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "record %u grants part %u of %u, the bank has %u of %u",
                       restore->record, grant.part_index, grant.part_count, header.part_index,
                       header.part_count);
    restore->last = grant.part_index + 1 == grant.part_count;
    *bytes = grant.bank_bytes;
    return HL_OK;
}

static void consume_leases(hl_restore *restore)
{
    pthread_mutex_lock(&restore->engine->lock);
    HL_FAULT_STORE(engine_leases_consume, {
        for (uint32_t i = 0; i < restore->lease_count; i++)
            engine_lease_settle(restore->leases[i], true);
        restore->lease_count = 0;
    });
    pthread_mutex_unlock(&restore->engine->lock);
}

static bool claim(struct engine_worker *worker, hl_restore *restore, bool *settled)
{
    hl_error error = {0};
    size_t bytes = 0;
    if (!HL_FAULT_MOVE(grant_claim, hl_grant_move(restore->engine->grants, restore->record,
                                                  restore->generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE)))
        return true; /* revoked: the next look says so */
    if (restore->parts == 0)
        take_clock(restore, HL_STAGE_CLAIMED);
    consume_leases(restore);
    hl_status status = take_part(worker, restore, &bytes, &error);
    if (status == HL_OK && !restore->operation)
        status =
            HL_FAULT_CALL(engine_operation_start, start_operation(restore, &error),
                          HL_FAIL_ERRNO(&error, HL_E_NOMEM, stage, errno, "the executor takes no operation"));
    if (status == HL_OK)
        status = HL_FAULT_SUBMIT(
            engine_part_submit, hl_operation_submit(restore->operation, worker->part, bytes, &error),
            HL_FAIL_ERRNO(&error, HL_E_DEVICE, stage, errno, "the executor takes no part"));
    /* What has been consumed was marked; the copies go first. */
    engine_signal_manager(restore->engine);
    if (status != HL_OK)
        return fail_claimed(restore, &error, settled);
    restore->copying = true;
    if (restore->last) {
        take_clock(restore, HL_STAGE_ENQUEUED);
        engine_restore_enqueued(restore);
    }
    return true;
}

static bool look_at_copies(hl_restore *restore, bool *settled)
{
    struct hl_operation_result result;
    hl_error error = {0};
    hl_status status = hl_operation_poll(restore->operation, &result, &error);
    if (status == HL_PENDING)
        return false;
    restore->copying = false;
    /* The plan is whole in itself and may still be another request's. */
    if (status == HL_OK && restore->last && result.bytes != restore->expected_bytes)
        result.status =
            HL_FAIL(&error, HL_E_CORRUPT, stage, "the plan moved %llu bytes, the request has %llu",
                    (unsigned long long)result.bytes, (unsigned long long)restore->expected_bytes);
    if (result.status != HL_OK || restore->last)
        return conclude(restore, &result, &error, settled);
    if (!HL_FAULT_MOVE(grant_part_drained,
                       hl_grant_move(restore->engine->grants, restore->record, restore->generation,
                                     HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED)))
        return settle_broken(restore, hl_grant_load(restore->engine->grants, restore->record), settled);
    tell_manager(restore);
    return true;
}

/* --- outcomes that the Manager decides --- */

/* The Manager's worker has written the pages: what is left is to let the consumers go, through a plan that
 * copies nothing. */
static hl_status record_events(hl_restore *restore, hl_error *err)
{
    struct hl_operation_result result = {0};
    hl_plan *plan = NULL;
    size_t size = 0;
    hl_status status = start_operation(restore, err);
    if (status != HL_OK)
        return status;
    struct hl_plan_request request = {.layout = restore->binding->layout,
                                      .identity = {.epoch = restore->engine->epoch,
                                                   .record = restore->record,
                                                   .generation = restore->generation}};
    memcpy(request.identity.token, restore->engine->token, sizeof request.identity.token);
    status = hl_plan_compile(&request, &plan, err);
    if (status != HL_OK)
        return status;
    const void *part = hl_plan_part_bytes(plan, 0, &size);
    memcpy(restore->worker->part, part, size);
    hl_plan_free(plan);
    status = hl_operation_submit(restore->operation, restore->worker->part, size, err);
    if (status == HL_OK)
        status = hl_operation_drain(restore->operation, &result, err);
    return status;
}

static bool settle_completed(hl_restore *restore, uint64_t bytes, bool *settled)
{
    hl_error error = {0};
    hl_status status = HL_OK;
    if (bytes != restore->expected_bytes)
        status = HL_FAIL(&error, HL_E_PROTOCOL, stage, "the Manager moved %llu bytes, the request has %llu",
                         (unsigned long long)bytes, (unsigned long long)restore->expected_bytes);
    else if (restore->layer_events)
        status = record_events(restore, &error);
    if (status != HL_OK)
        return settle_failed(restore, false, &error, settled);
    consume_leases(restore);
    *settled = true;
    settle(restore, HL_OK, false, bytes, &error);
    return true;
}

/* REAPED may be all that this side sees of any of them; its status and bytes are still there. */
static bool settle_by_manager(hl_restore *restore, struct hl_grant_word word, bool *settled)
{
    struct hl_grant_record copy;
    hl_error error = {0};
    hl_grant_copy(restore->engine->grants, restore->record, &copy);
    if (!hl_grant_record_is_sane(&copy))
        return settle_broken(restore, word, settled);
    if (copy.status == HL_OK)
        return restore->parts == 0 ? settle_completed(restore, copy.bytes, settled)
                                   : settle_broken(restore, word, settled);
    if (copy.status > 0 || strcmp(hl_status_name((hl_status)copy.status), "unknown") == 0)
        return settle_broken(restore, word, settled);
    hl_error_set(&error, (hl_status)copy.status, "engine.manager", 0, 0, "%s",
                 copy.text[0] ? copy.text : hl_status_text((hl_status)copy.status));
    return settle_failed(restore, restore->parts == 0 && !restore->managed, &error, settled);
}

/* Not claimed by the Manager yet, or being prepared: the caller's wish, or the end of the session. */
static bool look_at_waiting(hl_restore *restore, uint32_t state, bool dead, bool *settled)
{
    hl_engine *engine = restore->engine;
    struct hl_grant_record *record = hl_grant_record_at(engine->grants, restore->record);
    bool cancelled = atomic_load(&restore->cancel);
    hl_error error = {0};
    if (state == HL_GRANT_RESERVED && (cancelled || atomic_load(&engine->lost)) &&
        HL_FAULT_MOVE(grant_withdraw, hl_grant_move(engine->grants, restore->record, restore->generation,
                                                    HL_GRANT_RESERVED, HL_GRANT_FREE))) {
        restore->taken_back = true;
        if (engine_check_peer(engine, &error) == HL_OK || cancelled)
            hl_error_set(&error, HL_E_CANCELLED, stage, 0, 0, "cancelled before the Manager took it up");
        return settle_failed(restore, true, &error, settled);
    }
    if (dead && state == HL_GRANT_PREPARING) {
        engine_check_peer(engine, &error);
        return settle_failed(restore, true, &error, settled);
    }
    if (!cancelled || restore->cancel_sent)
        return false;
    restore->cancel_sent = true;
    HL_FAULT_STORE(grant_cancel,
                   atomic_store_explicit(&record->cancel, restore->generation, memory_order_release));
    tell_manager(restore);
    return true;
}

/* Parts have drained; the rest will never be granted. */
static bool settle_cut_short(hl_restore *restore, bool *settled)
{
    hl_error error = {0};
    engine_check_peer(restore->engine, &error);
    return settle_failed(restore, false, &error, settled);
}

bool engine_operation_look(struct engine_worker *worker, hl_restore *restore, bool *settled)
{
    if (restore->copying)
        return look_at_copies(restore, settled);
    /* Read first: once it is true, the word that follows is the Manager's last. */
    bool dead = atomic_load(&restore->engine->dead);
    struct hl_grant_word word = hl_grant_load(restore->engine->grants, restore->record);
    if (word.generation != restore->generation)
        return settle_broken(restore, word, settled);
    if (word.state != HL_GRANT_RESERVED && word.state != HL_GRANT_PREPARING)
        give_extent(restore);
    switch (word.state) {
    case HL_GRANT_RESERVED:
    case HL_GRANT_PREPARING:
        return restore->parts == 0 ? look_at_waiting(restore, word.state, dead, settled)
                                   : settle_broken(restore, word, settled);
    case HL_GRANT_GRANTED:
        return claim(worker, restore, settled);
    case HL_GRANT_MANAGED:
        restore->managed = true;
        if (dead)
            engine_cannot_continue(restore->engine, restore->record,
                                   "the Manager died while its worker copied");
        return false;
    case HL_GRANT_PART_DRAINED:
        if (restore->parts == 0)
            return settle_broken(restore, word, settled);
        return dead ? settle_cut_short(restore, settled) : false;
    case HL_GRANT_COMPLETED:
    case HL_GRANT_REVOKED:
    case HL_GRANT_REJECTED:
    case HL_GRANT_REAPED:
        return settle_by_manager(restore, word, settled);
    default:
        return settle_broken(restore, word, settled);
    }
}
