/* core/base owns what every other room needs and nothing that knows about blocks, devices or processes: error
 * text, checked arithmetic, the clock, SHA-256 and the seeded generator of test and demo data. It calls no
 * other room.
 *
 * Errors: the first function that decides on an error says why, with HL_FAIL; callers pass the status up
 * unchanged. */
#ifndef CORE_BASE_ERROR_H
#define CORE_BASE_ERROR_H

#include "hostlane/status.h"

/* Fills *err (when not NULL) and yields `status`, so that `return HL_FAIL(err, HL_E_RANGE, "plan.decode",
 * "…")` is the one way to fail. The text is a printf format and is cut at the buffer's end. The value does
 * not pass through the function: a compiler or analyser that sees one source file must know that it is what
 * was given, hence that outputs are not read after a failure. */
#define HL_FAIL(err, status, stage, ...) HL_FAIL_WITH(err, status, stage, 0, 0, __VA_ARGS__)

/* The same after a failed system call: keeps `errno_value` and appends its description to the text. */
#define HL_FAIL_ERRNO(err, status, stage, errno_value, ...)                                                  \
    HL_FAIL_WITH(err, status, stage, errno_value, 0, __VA_ARGS__)

/* The same after a failed driver call: keeps the driver's own code. */
#define HL_FAIL_DEVICE(err, status, stage, device_code, ...)                                                 \
    HL_FAIL_WITH(err, status, stage, 0, device_code, __VA_ARGS__)

#define HL_FAIL_WITH(err, status, stage, errno_value, device_code, ...)                                      \
    ({                                                                                                       \
        const hl_status failed_with_ = (status);                                                             \
        hl_error_set((err), failed_with_, (stage), (errno_value), (device_code), __VA_ARGS__);               \
        failed_with_;                                                                                        \
    })

void hl_error_set(hl_error *err, hl_status status, const char *stage, int sys_errno, int device_code,
                  const char *format, ...) __attribute__((format(printf, 6, 7)));

#endif
