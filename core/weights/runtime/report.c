#include "core/weights/runtime/runtime.h"

#include <assert.h>
#include <string.h>

#include "core/base/clock.h"

/* Names of an enum that begins with 0 and has no gaps. */
#define NAME_OF(names, value)                                                                                \
    ((size_t)(value) < sizeof(names) / sizeof(names)[0] ? (names)[value] : "unknown")

const char *hl_weight_attempt_result_name(hl_weight_attempt_result result)
{
    static const char *const names[] = {"hit", "miss", "success", "timeout", "error", "skipped"};
    return NAME_OF(names, result);
}

const char *hl_weight_action_name(hl_weight_action action)
{
    static const char *const names[] = {
        "return_lease",       "try_remote",   "try_producer", "quarantine_then_produce",
        "canonical_fallback", "fail_startup", "skip"};
    return NAME_OF(names, action);
}

const char *hl_weight_outcome_name(hl_weight_outcome outcome)
{
    static const char *const names[] = {"local_hit",        "remote_import",      "local_production",
                                        "canonical_direct", "canonical_fallback", "failed"};
    return NAME_OF(names, outcome);
}

void hl_report_begin(struct hl_report_writer *writer)
{
    memset(writer, 0, sizeof *writer);
    writer->started_ns = writer->attempt_ns = hl_clock_ns();
    writer->report.outcome = HL_WEIGHT_OUTCOME_FAILED;
    /* An identifier for logs: without one from the kernel's generator the report is as true. */
    if (hl_storage_uuid(writer->report.resolution_id, NULL) != HL_OK)
        memset(writer->report.resolution_id, '0', sizeof writer->report.resolution_id - 1);
}

void hl_report_attempt(struct hl_report_writer *writer, hl_weight_stage stage,
                       hl_weight_attempt_result result, hl_weight_action action,
                       const hl_weight_failure *failure)
{
    hl_weight_report *report = &writer->report;
    assert(report->attempt_count < sizeof report->attempts / sizeof report->attempts[0]);
    hl_weight_attempt *attempt = &report->attempts[report->attempt_count++];
    const int64_t now = hl_clock_ns();
    attempt->stage = stage;
    attempt->result = result;
    attempt->action = action;
    attempt->elapsed_ns = now - writer->attempt_ns;
    attempt->failed = failure != NULL;
    if (failure)
        attempt->failure = *failure;
    writer->attempt_ns = now;
}

void hl_report_end(struct hl_report_writer *writer, hl_weight_outcome outcome)
{
    writer->report.outcome = outcome;
    writer->report.elapsed_ns = hl_clock_ns() - writer->started_ns;
}
