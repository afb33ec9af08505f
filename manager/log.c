#include <stdarg.h>
#include <stdio.h>

#include "manager/state.h"

void manager_log(hl_manager *manager, enum hl_manager_log_level level, const char *format, ...)
{
    char text[512];
    if (!manager->options.log)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    manager->options.log(manager->options.log_user, level, text);
}
