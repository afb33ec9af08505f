#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hl_error_set(hl_error *err, hl_status status, const char *stage, int sys_errno, int device_code,
                  const char *format, ...)
{
    if (!err)
        return;
    err->status = status;
    err->sys_errno = sys_errno;
    err->device_code = device_code;
    err->stage = stage;
    va_list args;
    va_start(args, format);
    int used = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (sys_errno && used >= 0 && (size_t)used < sizeof err->text) {
        char description[96];
        snprintf(err->text + used, sizeof err->text - (size_t)used, ": %s",
                 strerror_r(sys_errno, description, sizeof description));
    }
}
