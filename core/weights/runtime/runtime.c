#include "core/weights/runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct hl_weight_runtime {
    hl_weight_runtime_options options; /* the strings of options.store are the runtime's own */
    pthread_mutex_t mutex;             /* of store */
    hl_weight_store *store;            /* NULL until a resolution has opened it */
};

/* What one resolution works with. */
struct resolution {
    hl_weight_runtime *runtime;
    const hl_weight_identity *identity;
    const hl_weight_producer *producers;
    size_t producer_count;
    struct hl_report_writer writer;
    hl_weight_failure failure; /* of the last attempt that failed */
    hl_weight_lease *lease;
};

void hl_weight_runtime_options_init(hl_weight_runtime_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->mode = HL_WEIGHT_MODE_DISABLED;
    hl_weight_store_options_init(&options->store);
    options->validation = HL_WEIGHT_MANIFEST_AND_METADATA;
    options->remote = HL_WEIGHT_REMOTE_DISABLED;
    options->allow_local_build = true;
}

/* --- life --- */

/* In disabled mode the strings are not even read. */
static bool own_strings(hl_weight_store_options *store, bool enabled)
{
    store->root = enabled ? strdup(store->root) : NULL;
    store->domain_id = enabled ? strdup(store->domain_id) : NULL;
    return !enabled || (store->root && store->domain_id);
}

static void free_strings(hl_weight_store_options *store)
{
    free((char *)store->root);
    free((char *)store->domain_id);
}

hl_status hl_weight_runtime_create(const hl_weight_runtime_options *options, hl_weight_runtime **runtime,
                                   hl_weight_failure *failure)
{
    if (!options || options->size != sizeof *options)
        return HL_WEIGHT_FAIL(failure, CONFIGURATION, INVALID_CONFIG, false,
                              "options.size is %zu, not %zu: use hl_weight_runtime_options_init()",
                              options ? options->size : 0, sizeof *options);
    const bool enabled = options->mode != HL_WEIGHT_MODE_DISABLED;
    const hl_status status = enabled ? hl_policy_check_options(options, failure) : HL_OK;
    if (status != HL_OK)
        return status;
    hl_weight_runtime *made = calloc(1, sizeof *made);
    if (!made)
        goto err_memory;
    made->options = *options;
    if (!own_strings(&made->options.store, enabled))
        goto err_strings;
    pthread_mutex_init(&made->mutex, NULL);
    *runtime = made;
    return HL_OK;

err_strings:
    free_strings(&made->options.store);
    free(made);
err_memory:
    return HL_WEIGHT_FAIL(failure, CONFIGURATION, DOMAIN_UNAVAILABLE, true, "out of memory");
}

void hl_weight_runtime_free(hl_weight_runtime *runtime)
{
    if (!runtime)
        return;
    hl_weight_store_close(runtime->store);
    pthread_mutex_destroy(&runtime->mutex);
    free_strings(&runtime->options.store);
    free(runtime);
}

/* Opened once. A failure is not kept: the next resolution tries again. */
static hl_status open_store(hl_weight_runtime *runtime, hl_weight_failure *failure)
{
    hl_status status = HL_OK;
    pthread_mutex_lock(&runtime->mutex);
    if (!runtime->store)
        status = hl_weight_store_open(&runtime->options.store, &runtime->store, failure);
    pthread_mutex_unlock(&runtime->mutex);
    return status;
}

/* --- one resolution --- */

/* Ends it with an action that has no lease. */
static hl_weight_outcome outcome_of(hl_weight_action action)
{
    return action == HL_WEIGHT_ACTION_CANONICAL_FALLBACK ? HL_WEIGHT_OUTCOME_CANONICAL_FALLBACK
                                                         : HL_WEIGHT_OUTCOME_FAILED;
}

static hl_weight_outcome fail_attempt(struct resolution *resolution, hl_weight_stage stage,
                                      hl_weight_attempt_result result)
{
    const hl_weight_action action =
        hl_policy_after_failure(resolution->runtime->options.mode, &resolution->failure);
    hl_report_attempt(&resolution->writer, stage, result, action, &resolution->failure);
    return outcome_of(action);
}

static bool declares(const hl_weight_producer *producer, const char *key)
{
    for (size_t i = 0; i < producer->output_count; i++)
        if (strcmp(producer->output_keys[i], key) == 0)
            return true;
    return false;
}

/* The first producer that may run now, or NULL with the reason in the failure. */
static const hl_weight_producer *choose_producer(struct resolution *resolution)
{
    const hl_weight_runtime_options *options = &resolution->runtime->options;
    size_t later = 0;
    if (!options->allow_local_build || options->store.read_only) {
        (void)HL_WEIGHT_FAIL(&resolution->failure, PRODUCTION, PRODUCER_UNAVAILABLE, true, "%s",
                             options->allow_local_build ? "the store is opened for reading only"
                                                        : "allow_local_build is off");
        return NULL;
    }
    for (size_t i = 0; i < resolution->producer_count; i++) {
        const hl_weight_producer *producer = &resolution->producers[i];
        if (!declares(producer, hl_weight_identity_key(resolution->identity)))
            continue;
        if (producer->phase == HL_WEIGHT_PRE_LOAD_SAFE)
            return producer;
        later++;
    }
    (void)HL_WEIGHT_FAIL(&resolution->failure, PRODUCTION, PRODUCER_UNAVAILABLE, true,
                         "none of %zu producers declares the identity and is safe before the model is loaded "
                         "(%zu declare it for later)",
                         resolution->producer_count, later);
    return NULL;
}

static hl_weight_outcome produce(struct resolution *resolution)
{
    const hl_weight_runtime_options *options = &resolution->runtime->options;
    const hl_weight_producer *producer = choose_producer(resolution);
    if (!producer)
        return fail_attempt(resolution, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_ATTEMPT_SKIPPED);
    hl_weight_origin origin;
    enum hl_lookup_result result = HL_LOOKUP_FAILED;
    if (hl_store_get_or_build_as(resolution->runtime->store, resolution->identity, options->validation,
                                 producer, &origin, &result, &resolution->lease,
                                 &resolution->failure) != HL_OK)
        return fail_attempt(resolution, HL_WEIGHT_STAGE_PRODUCTION,
                            result == HL_LOOKUP_TIMEOUT ? HL_WEIGHT_ATTEMPT_TIMEOUT
                                                        : HL_WEIGHT_ATTEMPT_ERROR);
    /* Built here or joined: the lease's provenance says which. */
    hl_report_attempt(&resolution->writer, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_ATTEMPT_SUCCESS,
                      HL_WEIGHT_ACTION_RETURN_LEASE, NULL);
    return HL_WEIGHT_OUTCOME_LOCAL_PRODUCTION;
}

static hl_weight_outcome refuse_remote(struct resolution *resolution)
{
    (void)HL_WEIGHT_FAIL(&resolution->failure, REMOTE, UNSUPPORTED, false,
                         "remote is not disabled, and there is no remote provider");
    return fail_attempt(resolution, HL_WEIGHT_STAGE_REMOTE, HL_WEIGHT_ATTEMPT_ERROR);
}

static hl_weight_outcome look_up(struct resolution *resolution)
{
    const hl_weight_runtime_options *options = &resolution->runtime->options;
    const enum hl_lookup_result result =
        hl_store_lookup_as(resolution->runtime->store, resolution->identity, options->validation,
                           HL_WEIGHT_HIT, &resolution->lease, &resolution->failure);
    const bool failed = result != HL_LOOKUP_HIT && result != HL_LOOKUP_MISS;
    const hl_weight_action action =
        hl_policy_after_lookup(options->mode, options->remote, result, &resolution->failure);
    hl_report_attempt(&resolution->writer, HL_WEIGHT_STAGE_LOOKUP, hl_policy_attempt_result(result), action,
                      failed ? &resolution->failure : NULL);
    switch (action) {
    case HL_WEIGHT_ACTION_RETURN_LEASE:
        return HL_WEIGHT_OUTCOME_LOCAL_HIT;
    case HL_WEIGHT_ACTION_TRY_REMOTE:
        return refuse_remote(resolution);
    case HL_WEIGHT_ACTION_TRY_PRODUCER:
    case HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE:
        return produce(resolution);
    default:
        return outcome_of(action);
    }
}

/* What is wrong with the call itself, or NULL. */
static const char *wrong_call(const struct resolution *resolution)
{
    if (!resolution->identity)
        return "the identity is missing";
    if (resolution->producer_count && !resolution->producers)
        return "producers are counted but not given";
    for (size_t i = 0; i < resolution->producer_count; i++)
        if (resolution->producers[i].size != sizeof(hl_weight_producer))
            return "a producer's size is not sizeof(hl_weight_producer)";
    return NULL;
}

static hl_weight_outcome resolve_enabled(struct resolution *resolution)
{
    const char *wrong = wrong_call(resolution);
    if (wrong) {
        (void)HL_WEIGHT_FAIL(&resolution->failure, CONFIGURATION, INVALID_CONFIG, false, "%s", wrong);
        return fail_attempt(resolution, HL_WEIGHT_STAGE_CONFIGURATION, HL_WEIGHT_ATTEMPT_ERROR);
    }
    if (open_store(resolution->runtime, &resolution->failure) != HL_OK)
        return fail_attempt(resolution, HL_WEIGHT_STAGE_DOMAIN, HL_WEIGHT_ATTEMPT_ERROR);
    return look_up(resolution);
}

hl_status hl_weight_runtime_resolve(hl_weight_runtime *runtime, const hl_weight_identity *identity,
                                    const hl_weight_producer *producers, size_t producer_count,
                                    hl_weight_lease **lease, hl_weight_report *report,
                                    hl_weight_failure *failure)
{
    struct resolution resolution = {
        .runtime = runtime, .identity = identity, .producers = producers, .producer_count = producer_count};
    hl_weight_outcome outcome = HL_WEIGHT_OUTCOME_CANONICAL_DIRECT;
    hl_report_begin(&resolution.writer);
    if (runtime->options.mode == HL_WEIGHT_MODE_DISABLED)
        hl_report_attempt(&resolution.writer, HL_WEIGHT_STAGE_CONFIGURATION, HL_WEIGHT_ATTEMPT_SKIPPED,
                          HL_WEIGHT_ACTION_SKIP, NULL);
    else
        outcome = resolve_enabled(&resolution);
    hl_report_end(&resolution.writer, outcome);

    const bool failed = outcome == HL_WEIGHT_OUTCOME_FAILED;
    if (report)
        *report = resolution.writer.report;
    if (failure && (failed || outcome == HL_WEIGHT_OUTCOME_CANONICAL_FALLBACK))
        *failure = resolution.failure;
    if (!failed)
        *lease = resolution.lease; /* NULL for the caller's own loader */
    if (runtime->options.observe)
        runtime->options.observe(runtime->options.observe_context, &resolution.writer.report);
    return failed ? hl_weight_code_status(resolution.failure.code) : HL_OK;
}
