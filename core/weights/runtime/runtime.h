/* core/weights/runtime owns what follows from a store's answers: which of them lead to a producer, to the
 * caller's own loader or to a failed start, and the one report of each resolution; and the order in which a
 * restorer may touch a model. It calls core/weights/store and core/base; a model loader calls it through
 * hostlane/weights.h. It owns no model and no artifact.
 *
 * policy.c holds every decision as tables and touches nothing; runtime.c carries them out; report.c keeps the
 * attempts; restore.c is apart from them. */
#ifndef CORE_WEIGHTS_RUNTIME_RUNTIME_H
#define CORE_WEIGHTS_RUNTIME_RUNTIME_H

#include "core/weights/store/store.h"
#include "hostlane/weights.h"

/* --- policy.c --- */

/* What a failure allows in preferred mode. Required mode never falls back. */
enum hl_policy_fallback {
    HL_POLICY_UNDECIDED = 0, /* no code has it */
    HL_POLICY_NEVER,         /* stays visible: the call, the set-up or the producer is wrong */
    HL_POLICY_IF_RETRYABLE,  /* only when the failure says that it is of the moment */
    HL_POLICY_ALWAYS /* the artifact is absent or unusable, which another way of loading does not mind */
};
enum hl_policy_fallback hl_policy_fallback_of(hl_weight_code code);

/* CANONICAL_FALLBACK or FAIL_STARTUP. */
hl_weight_action hl_policy_after_failure(hl_weight_mode mode, const hl_weight_failure *failure);

/* What follows a lookup. `failure` is read only for TIMEOUT and FAILED: those are terminal, since a producer
 * would meet the same lock or the same disk. */
hl_weight_action hl_policy_after_lookup(hl_weight_mode mode, hl_weight_remote remote,
                                        enum hl_lookup_result result, const hl_weight_failure *failure);

/* How an attempt that ended with `result` is shown. */
hl_weight_attempt_result hl_policy_attempt_result(enum hl_lookup_result result);

/* Whether the options can be honoured; nothing outside memory is looked at. The mode is not disabled. */
hl_status hl_policy_check_options(const hl_weight_runtime_options *options, hl_weight_failure *failure);

/* --- report.c --- */

/* A report while it is written. */
struct hl_report_writer {
    hl_weight_report report;
    int64_t started_ns;
    int64_t attempt_ns; /* when the attempt in progress began */
};
void hl_report_begin(struct hl_report_writer *writer);
/* Ends an attempt; the next begins now. `failure` may be NULL. */
void hl_report_attempt(struct hl_report_writer *writer, hl_weight_stage stage,
                       hl_weight_attempt_result result, hl_weight_action action,
                       const hl_weight_failure *failure);
void hl_report_end(struct hl_report_writer *writer, hl_weight_outcome outcome);

#endif
