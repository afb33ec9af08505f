#include "core/weights/store/writer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"

#define STAGE "weights.writer"

void hl_writer_init(hl_weight_writer *writer, hl_weight_store *store, int folder)
{
    *writer = (hl_weight_writer){.store = store, .owner = getpid(), .folder = folder};
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_cond_init(&writer->idle, NULL);
    hl_syncer_init(&writer->syncer);
}

void hl_writer_destroy(hl_weight_writer *writer)
{
    assert(writer->ended);
    while (writer->payloads) {
        hl_weight_payload *const payload = writer->payloads;
        writer->payloads = payload->next;
        hl_payload_free(payload);
    }
    free(writer->names);
    hl_syncer_destroy(&writer->syncer);
    pthread_cond_destroy(&writer->idle);
    pthread_mutex_destroy(&writer->mutex);
}

/* --- calls of the producer --- */

hl_status hl_writer_enter(hl_weight_writer *writer, hl_error *err)
{
    /* Before the mutex, which another thread may have held when this process was forked. */
    if (getpid() != writer->owner)
        return HL_FAIL(err, HL_E_STATE, STAGE, "the writer belongs to process %d, not to its child",
                       (int)writer->owner);
    pthread_mutex_lock(&writer->mutex);
    const bool ended = writer->ended;
    if (!ended)
        writer->calls++;
    pthread_mutex_unlock(&writer->mutex);
    return ended ? HL_FAIL(err, HL_E_STATE, STAGE, "produce() has returned: its writer is closed") : HL_OK;
}

void hl_writer_leave(hl_weight_writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    if (--writer->calls == 0)
        pthread_cond_signal(&writer->idle);
    pthread_mutex_unlock(&writer->mutex);
}

bool hl_writer_take_lane(hl_weight_writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    const bool taken = writer->lanes < writer->store->hash_threads;
    writer->lanes += taken;
    pthread_mutex_unlock(&writer->mutex);
    return taken;
}

void hl_writer_return_lane(hl_weight_writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    writer->lanes--;
    pthread_mutex_unlock(&writer->mutex);
}

void hl_writer_note(hl_weight_writer *writer, const hl_error *err)
{
    pthread_mutex_lock(&writer->mutex);
    if (err->status == HL_E_NOSPACE && !writer->out_of_capacity) {
        writer->out_of_capacity = true;
        (void)hl_weight_failure_io(&writer->capacity, HL_WEIGHT_STAGE_CAPACITY, err);
    }
    if (!writer->failed)
        writer->error = *err;
    writer->failed = true;
    pthread_mutex_unlock(&writer->mutex);
}

/* --- names --- */

static const char **slot_of(const char **names, size_t slots, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    size_t slot = (size_t)(hash ^ (hash >> 32)) & (slots - 1);
    while (names[slot] && strcmp(names[slot], name) != 0)
        slot = (slot + 1) & (slots - 1);
    return &names[slot];
}

/* Room for `count` names at a load of at most a half. */
static hl_status reserve_names(hl_weight_writer *writer, size_t count, hl_error *err)
{
    size_t slots = writer->name_slots ? writer->name_slots : 16;
    while (slots / 2 < count)
        slots *= 2;
    if (slots == writer->name_slots)
        return HL_OK;
    const char **names = calloc(slots, sizeof *names);
    if (!names)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "cannot keep track of %zu tensors' names", count);
    for (size_t i = 0; i < writer->name_slots; i++)
        if (writer->names[i])
            *slot_of(names, slots, writer->names[i]) = writer->names[i];
    free(writer->names);
    writer->names = names;
    writer->name_slots = slots;
    return HL_OK;
}

static hl_status check_names(hl_weight_writer *writer, const hl_weight_payload *payload, hl_error *err)
{
    for (const hl_weight_payload *other = writer->payloads; other; other = other->next)
        if (!strcmp(other->file.file_name, payload->file.file_name))
            return HL_FAIL(err, HL_E_INVALID, STAGE, "file_name %.150s is given twice",
                           payload->file.file_name);
    for (size_t i = 0; i < payload->tensor_count; i++)
        if (*slot_of(writer->names, writer->name_slots, payload->tensors[i].entry.name))
            return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %.100s is in another file of the artifact",
                           payload->tensors[i].entry.name);
    return HL_OK;
}

/* --- admission of a payload --- */

static hl_status check_capacity(hl_weight_writer *writer, uint64_t bytes, uint64_t *planned, hl_error *err)
{
    if (!hl_add_u64(writer->planned_bytes, bytes, planned))
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "the artifact's files do not fit 64 bits");
    hl_weight_failure failure;
    const hl_status status = hl_capacity_check(writer->store, *planned, bytes, &failure);
    if (!status)
        return HL_OK;
    if (!writer->out_of_capacity)
        writer->capacity = failure;
    writer->out_of_capacity = true;
    if (err)
        *err = failure.error;
    return status;
}

static hl_status admit(hl_weight_writer *writer, hl_weight_payload *payload, hl_error *err)
{
    const size_t tensors = writer->tensor_count + payload->tensor_count;
    if (writer->payload_count == HL_WEIGHT_FILES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "an artifact has at most %u files", HL_WEIGHT_FILES);
    if (tensors > HL_WEIGHT_TENSORS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "an artifact has at most %u tensors", HL_WEIGHT_TENSORS);
    uint64_t planned = 0;
    hl_status status = reserve_names(writer, tensors, err);
    if (!status)
        status = check_names(writer, payload, err);
    if (!status)
        status = check_capacity(writer, payload->file.bytes, &planned, err);
    if (status)
        return status;
    for (size_t i = 0; i < payload->tensor_count; i++)
        *slot_of(writer->names, writer->name_slots, payload->tensors[i].entry.name) =
            payload->tensors[i].entry.name;
    writer->tensor_count = tensors;
    writer->planned_bytes = planned;
    writer->payload_count++;
    payload->next = writer->payloads;
    writer->payloads = payload;
    return HL_OK;
}

hl_status hl_writer_admit(hl_weight_writer *writer, hl_weight_payload *payload, hl_error *err)
{
    pthread_mutex_lock(&writer->mutex);
    const hl_status status = admit(writer, payload, err);
    pthread_mutex_unlock(&writer->mutex);
    return status;
}

/* --- the end --- */

/* Closes what the producer left open; the name of one of those, or NULL. */
static const char *discard_open(hl_weight_writer *writer)
{
    const char *left = NULL;
    for (hl_weight_payload *payload = writer->payloads; payload; payload = payload->next)
        if (payload->state == HL_PAYLOAD_OPEN || payload->state == HL_PAYLOAD_FAILED) {
            left = payload->file.file_name;
            payload->state = HL_PAYLOAD_ABANDONED;
            hl_payload_discard(payload);
        }
    return left;
}

hl_status hl_writer_end(hl_weight_writer *writer, hl_status produced, const hl_error *produced_error,
                        hl_weight_failure *failure)
{
    pthread_mutex_lock(&writer->mutex);
    writer->ended = true;
    while (writer->calls > 0)
        pthread_cond_wait(&writer->idle, &writer->mutex);
    pthread_mutex_unlock(&writer->mutex);
    const char *const left = discard_open(writer);
    hl_error sync_error;
    const hl_status synced = hl_syncer_finish(&writer->syncer, &sync_error);
    if (writer->out_of_capacity) {
        if (failure)
            *failure = writer->capacity;
        return writer->capacity.error.status;
    }
    if (produced)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_PRODUCER_FAILED, false,
                                      produced_error);
    if (writer->failed)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_PRODUCER_FAILED, false,
                                      &writer->error);
    if (left)
        return HL_WEIGHT_FAIL(failure, PRODUCTION, PRODUCER_FAILED, false, "the producer left %.150s open",
                              left);
    if (writer->payload_count == 0)
        return HL_WEIGHT_FAIL(failure, PRODUCTION, PRODUCER_FAILED, false, "the producer wrote nothing");
    return synced ? hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &sync_error) : HL_OK;
}
