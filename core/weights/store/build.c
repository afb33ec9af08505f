/* get_or_build: at most one builder of an artifact on the node, the others wait and join. The order of locks
 * is [domain-build] → build → artifact; only the last is taken exclusively for short, and a lease that holds
 * it is reported instead of awaited. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/weights/store/departure.h"
#include "core/weights/store/writer.h"
#include "faults/hook.h"

#define STAGE "weights.build"

struct request {
    hl_weight_store *store;
    const hl_weight_identity *identity;
    const char *key;
    hl_weight_validation validation;
    const hl_weight_producer *producer;
    hl_weight_origin origin;
    enum hl_lookup_result result;
    hl_weight_lease *lease;
    hl_weight_failure *failure; /* never NULL */
};

/* --- what is refused before anything is looked at --- */

static hl_status check_producer(const struct request *request)
{
    const hl_weight_producer *const producer = request->producer;
    hl_weight_failure *const failure = request->failure;
    if (!producer || producer->size != sizeof *producer || !producer->produce)
        return HL_WEIGHT_FAIL(failure, CONFIGURATION, INVALID_CONFIG, false,
                              "the producer is missing, has no produce(), or its size is not %zu",
                              sizeof *producer);
    if (producer->scope != HL_WEIGHT_SINGLE_PROCESS)
        return HL_WEIGHT_FAIL(failure, PRODUCTION, PRODUCER_UNSUPPORTED, false,
                              "producer scope %d is not single-process", (int)producer->scope);
    if (producer->output_count != 1 || !producer->output_keys || !producer->output_keys[0] ||
        strcmp(producer->output_keys[0], request->key) != 0)
        return HL_WEIGHT_FAIL(failure, PRODUCTION, PRODUCER_UNAVAILABLE, false,
                              "the producer declares %zu outputs, not exactly %s", producer->output_count,
                              request->key);
    return HL_OK;
}

static hl_status check_schemas(const struct request *request)
{
    const struct {
        const char *name, *given, *wanted;
    } schemas[] = {
        {"manifest_schema", request->producer->manifest_schema, request->identity->manifest_schema},
        {"restorer_schema", request->producer->restorer_schema, request->identity->restorer_schema},
    };
    for (unsigned i = 0; i < sizeof schemas / sizeof schemas[0]; i++)
        if (schemas[i].given && strcmp(schemas[i].given, schemas[i].wanted) != 0)
            return HL_WEIGHT_FAIL(request->failure, PRODUCTION, PRODUCER_FAILED, false,
                                  "the producer's %s is \"%.64s\", the identity's \"%.64s\"", schemas[i].name,
                                  schemas[i].given, schemas[i].wanted);
    return HL_OK;
}

/* --- before the build: what the last one left --- */

static hl_status clear_entry(struct request *request, bool occupied, hl_error *err)
{
    hl_status status = hl_quarantine_reharden(request->store, request->key, err);
    if (!status && occupied)
        status = hl_quarantine_artifact(request->store, request->key, HL_REASON_INVALID, err);
    return status == HL_E_NOT_FOUND ? HL_OK : status;
}

/* An entry that did not pass may be in use: a validation under way may end in the time given to it, a lease
 * has no end that could be awaited; it goes on, and the caller hears who has it. Without an entry only
 * lookups hold the lock, each for a moment. */
static hl_status take_entry(struct request *request, bool occupied, struct hl_lock *lock)
{
    hl_weight_store *const store = request->store;
    const int64_t shortly = HL_WEIGHT_QUARANTINE_WAIT_MS * (HL_NS_PER_S / 1000);
    const int64_t wait = occupied && store->timeout_ns > shortly ? shortly : store->timeout_ns;
    hl_error err;
    if (hl_lock_take(store->locks, HL_LOCK_ARTIFACT, request->key, HL_LOCK_EXCLUSIVE, wait, false, lock,
                     &err) == HL_OK)
        return HL_OK;
    return hl_departure_blocked(store, HL_LOCK_ARTIFACT, request->key, HL_WEIGHT_STAGE_PRODUCTION,
                                occupied ? HL_WEIGHT_ACTIVE_LEASE : HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, &err,
                                request->failure);
}

static hl_status prepare(struct request *request)
{
    hl_weight_store *const store = request->store;
    struct stat st;
    const bool occupied = fstatat(store->artifacts, request->key, &st, AT_SYMLINK_NOFOLLOW) == 0;
    struct hl_lock lock = HL_LOCK_NONE;
    hl_status status = take_entry(request, occupied, &lock);
    if (status)
        return status;
    hl_error err;
    if ((status = clear_entry(request, occupied, &err)) != HL_OK)
        status = hl_weight_failure_from(request->failure, HL_WEIGHT_STAGE_LIFECYCLE,
                                        HL_WEIGHT_QUARANTINE_FAILED, status != HL_E_CORRUPT, &err);
    else if (hl_store_sweep_remains(store, request->key, &err) != HL_OK)
        status = hl_weight_failure_io(request->failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    hl_lock_release(&lock);
    return status;
}

/* --- the build --- */

static hl_status make_folder(hl_weight_store *store, const char *key, struct hl_build *build, hl_error *err)
{
    char uuid[HL_WEIGHT_UUID_BYTES];
    hl_status status = hl_storage_uuid(uuid, err);
    if (status)
        return status;
    snprintf(build->name, sizeof build->name, "%s.%d.%s", key, (int)getpid(), uuid);
    if (HL_FAULT_STEP(weights_build_folder, mkdirat(store->tmp, build->name, 0700)) != 0)
        status = HL_FAIL_ERRNO(err, errno == ENOSPC || errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM, STAGE,
                               errno, "cannot make the build's folder in tmp/");
    return status ? status : hl_storage_open_folder(store->tmp, build->name, &build->folder, err);
}

static hl_status produce(struct request *request, struct hl_build *build)
{
    hl_weight_writer writer;
    hl_writer_init(&writer, request->store, build->folder);
    hl_error err = {.status = HL_OK};
    (void)HL_FAIL(&err, HL_E_SYSTEM, STAGE, "the producer failed and gave no reason");
    const hl_status produced = request->producer->produce(request->producer->context, &writer, &err);
    hl_status status = hl_writer_end(&writer, produced, &err, request->failure);
    if (!status)
        status = hl_build_finish(&writer, request->identity, request->producer->format_metadata, build,
                                 request->failure);
    hl_writer_destroy(&writer);
    return status;
}

static hl_status build_and_publish(struct request *request, struct hl_build *build)
{
    hl_error err;
    hl_status status = check_schemas(request);
    if (status)
        return status;
    if (make_folder(request->store, request->key, build, &err)) {
        status = hl_weight_failure_io(request->failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
        goto err_remove;
    }
    if ((status = produce(request, build)))
        goto err_remove;
    if ((status = hl_store_publish(request->store, request->key, build, request->failure)))
        goto err_remove;
    return HL_OK;

err_remove:
    /* After a failed publication the folder has left tmp/, or is removed here like any other. What cannot be
     * removed now the next build sweeps; the failure to report is the first. */
    if (build->name[0]) {
        hl_error ignored;
        (void)hl_storage_remove_tree(request->store->tmp, build->name, &ignored);
    }
    return status;
}

/* --- the lease on what was built --- */

/* Validates what was published without reading it again: the digests in its manifest were computed from the
 * bytes as they were written, which is what a full checksum would compare them with. So they count as one for
 * the caller who asked for it. */
static enum hl_lookup_result lease_publication(struct request *request, const struct hl_build *build)
{
    hl_weight_store *const store = request->store;
    struct hl_artifact artifact = {.folder = -1};
    struct hl_lock lock = HL_LOCK_NONE;
    hl_error err;
    if (hl_lock_take(store->locks, HL_LOCK_ARTIFACT, request->key, HL_LOCK_SHARED, store->timeout_ns, false,
                     &lock, &err)) {
        const bool timeout = err.status == HL_E_TIMEOUT;
        (void)hl_departure_blocked(store, HL_LOCK_ARTIFACT, request->key, HL_WEIGHT_STAGE_LOOKUP,
                                   HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, &err, request->failure);
        return timeout ? HL_LOOKUP_TIMEOUT : HL_LOOKUP_FAILED;
    }
    const enum hl_verdict verdict = hl_artifact_validate(
        store, request->key, request->identity, HL_WEIGHT_MANIFEST_AND_METADATA, &artifact, request->failure);
    enum hl_lookup_result result = HL_LOOKUP_MISS;
    if (verdict == HL_VERDICT_VALID && !strcmp(artifact.ready.publication_id, build->ready.publication_id)) {
        result = HL_LOOKUP_HIT;
        if (hl_lease_create(store, &artifact, &lock, HL_WEIGHT_BUILT, request->validation, &request->lease,
                            request->failure))
            result = HL_LOOKUP_FAILED;
    }
    if (result == HL_LOOKUP_HIT)
        return result;
    hl_artifact_close(&artifact);
    hl_lock_release(&lock);
    if (result == HL_LOOKUP_FAILED)
        return result;
    /* Another's publication, or one that does not pass: judged as any lookup judges it. */
    return hl_store_lookup_as(store, request->identity, request->validation, HL_WEIGHT_BUILT, &request->lease,
                              request->failure);
}

static hl_status build_locked(struct request *request)
{
    request->result = hl_store_lookup_as(request->store, request->identity, request->validation,
                                         HL_WEIGHT_JOINED, &request->lease, request->failure);
    request->origin = HL_WEIGHT_JOINED;
    if (request->result == HL_LOOKUP_HIT)
        return HL_OK;
    if (request->result != HL_LOOKUP_MISS && request->result != HL_LOOKUP_INVALID)
        return request->failure->error.status;
    request->result = HL_LOOKUP_FAILED;
    request->origin = HL_WEIGHT_BUILT;
    hl_status status = prepare(request);
    if (status)
        return status;
    struct hl_build build = {.folder = -1};
    status = build_and_publish(request, &build);
    if (!status) {
        request->result = lease_publication(request, &build);
        status = request->result == HL_LOOKUP_HIT ? HL_OK : request->failure->error.status;
    }
    hl_manifest_free(build.manifest);
    if (build.folder >= 0)
        close(build.folder);
    return status;
}

/* --- whose turn it is --- */

static hl_status take_turn(struct request *request, enum hl_lock_kind kind, struct hl_lock *lock)
{
    hl_weight_store *const store = request->store;
    hl_error err;
    if (hl_lock_take(store->locks, kind, request->key, HL_LOCK_EXCLUSIVE, store->timeout_ns, false, lock,
                     &err) == HL_OK)
        return HL_OK;
    request->result = err.status == HL_E_TIMEOUT ? HL_LOOKUP_TIMEOUT : HL_LOOKUP_FAILED;
    return hl_departure_blocked(store, kind, request->key, HL_WEIGHT_STAGE_PRODUCTION,
                                HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, &err, request->failure);
}

static hl_status build_in_turn(struct request *request)
{
    hl_weight_store *const store = request->store;
    struct hl_lock admission = HL_LOCK_NONE, turn = HL_LOCK_NONE;
    hl_status status = HL_OK;
    if (store->policy.admission == HL_WEIGHT_ADMISSION_SERIALIZED)
        status = take_turn(request, HL_LOCK_DOMAIN_BUILD, &admission);
    if (status)
        return status;
    status = take_turn(request, HL_LOCK_BUILD, &turn);
    if (!status)
        status = build_locked(request);
    hl_lock_release(&turn);
    hl_lock_release(&admission);
    return status;
}

static hl_status get_or_build(struct request *request)
{
    request->result = HL_LOOKUP_FAILED;
    hl_status status = check_producer(request);
    if (status)
        return status;
    request->origin = HL_WEIGHT_HIT;
    request->result = hl_store_lookup_as(request->store, request->identity, request->validation,
                                         HL_WEIGHT_HIT, &request->lease, request->failure);
    if (request->result == HL_LOOKUP_HIT)
        return HL_OK;
    if (request->result != HL_LOOKUP_MISS && request->result != HL_LOOKUP_INVALID)
        return request->failure->error.status;
    if (request->store->read_only) {
        request->result = HL_LOOKUP_FAILED;
        return HL_WEIGHT_FAIL(request->failure, PRODUCTION, UNSUPPORTED, false,
                              "the store was opened read-only: nothing can be built in it");
    }
    return build_in_turn(request);
}

hl_status hl_store_get_or_build_as(hl_weight_store *store, const hl_weight_identity *identity,
                                   hl_weight_validation validation, const hl_weight_producer *producer,
                                   hl_weight_origin *origin, enum hl_lookup_result *result,
                                   hl_weight_lease **lease, hl_weight_failure *failure)
{
    hl_weight_failure own;
    struct request request = {.store = store,
                              .identity = identity,
                              .key = identity->key,
                              .validation = validation,
                              .producer = producer,
                              .failure = failure ? failure : &own};
    const hl_status status = get_or_build(&request);
    if (result)
        *result = request.result;
    if (status)
        return status;
    if (origin)
        *origin = request.origin;
    *lease = request.lease;
    return HL_OK;
}

hl_status hl_weight_store_get_or_build(hl_weight_store *store, const hl_weight_identity *identity,
                                       hl_weight_validation validation, const hl_weight_producer *producer,
                                       hl_weight_origin *origin, hl_weight_lease **lease,
                                       hl_weight_failure *failure)
{
    return hl_store_get_or_build_as(store, identity, validation, producer, origin, NULL, lease, failure);
}
