/* Names, remedies and statuses of failures, and the ways to fill one in. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/store/store.h"

static const char *const stage_names[] = {
#define STAGE_NAME(name, text) [HL_WEIGHT_STAGE_##name] = text,
    HL_WEIGHT_STAGE_LIST(STAGE_NAME)
#undef STAGE_NAME
};

/* What hl_error.stage says: the room before the stage. */
static const char *const error_stages[] = {
#define ERROR_STAGE(name, text) [HL_WEIGHT_STAGE_##name] = "weights." text,
    HL_WEIGHT_STAGE_LIST(ERROR_STAGE)
#undef ERROR_STAGE
};

static const struct {
    const char *name, *remedy;
    hl_status status;
} codes[] = {
#define CODE(name, text, status, remedy) [HL_WEIGHT_##name] = {text, remedy, status},
    HL_WEIGHT_CODE_LIST(CODE)
#undef CODE
};

static const unsigned stage_count = sizeof stage_names / sizeof stage_names[0];
static const unsigned code_count = sizeof codes / sizeof codes[0];

const char *hl_weight_stage_name(hl_weight_stage stage)
{
    return (unsigned)stage < stage_count ? stage_names[stage] : "unknown";
}

const char *hl_weight_code_name(hl_weight_code code)
{
    return (unsigned)code < code_count ? codes[code].name : "unknown";
}

const char *hl_weight_code_remedy(hl_weight_code code)
{
    return (unsigned)code < code_count ? codes[code].remedy : "unknown";
}

hl_status hl_weight_code_status(hl_weight_code code)
{
    return (unsigned)code < code_count ? codes[code].status : HL_E_INVALID;
}

void hl_weight_failure_set(hl_weight_failure *failure, hl_weight_stage stage, hl_weight_code code,
                           bool retryable, int sys_errno, const char *format, ...)
{
    assert((unsigned)stage < stage_count && (unsigned)code < code_count);
    if (!failure)
        return;
    /* The arguments may point into the failure that is replaced. */
    char text[sizeof failure->error.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    *failure = (hl_weight_failure){.stage = stage, .code = code, .retryable = retryable, .details = "{}"};
    hl_error_set(&failure->error, hl_weight_code_status(code), error_stages[stage], sys_errno, 0, "%s", text);
}

hl_status hl_weight_failure_from(hl_weight_failure *failure, hl_weight_stage stage, hl_weight_code code,
                                 bool retryable, const hl_error *err)
{
    const hl_error cause = *err; /* it may be failure->error itself */
    hl_weight_failure_set(failure, stage, code, retryable, 0, "%s", cause.text);
    if (failure) /* the text of a system's error is in cause.text already */
        failure->error.sys_errno = cause.sys_errno;
    return hl_weight_code_status(code);
}

void hl_weight_failure_details(hl_weight_failure *failure, const char *json)
{
    if (!failure)
        return;
    const size_t size = strlen(json) + 1;
    if (size <= sizeof failure->details)
        memcpy(failure->details, json, size);
    else
        memcpy(failure->details, "{}", sizeof "{}");
}

hl_status hl_weight_failure_io(hl_weight_failure *failure, hl_weight_stage stage, const hl_error *err)
{
    if (err->status == HL_E_NOSPACE || err->sys_errno == ENOSPC || err->sys_errno == EDQUOT)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_CAPACITY, HL_WEIGHT_ENOSPC, true, err);
    return hl_weight_failure_from(failure, stage, HL_WEIGHT_DOMAIN_UNAVAILABLE, true, err);
}
