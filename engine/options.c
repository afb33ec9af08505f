/* Defaults and checks of what a caller hands in. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"

#define DEFAULT_SPIN_US 20u
#define MAX_SPIN_US 1000000u

const struct engine_tuning engine_default_tuning = {.reply_ns = 30 * HL_NS_PER_S,
                                                    .register_ns = 600 * HL_NS_PER_S,
                                                    .tick_ns = HL_NS_PER_S / 50,
                                                    .manager_pidfd = -1};

void hl_engine_options_init(hl_engine_options *options)
{
    *options = (hl_engine_options){.size = sizeof *options, .name = "engine", .spin_us = DEFAULT_SPIN_US};
}

void hl_context_batch_init(hl_context_batch *batch)
{
    *batch = (hl_context_batch){.size = sizeof *batch};
}

void hl_query_options_init(hl_query_options *options)
{
    *options = (hl_query_options){.size = sizeof *options};
}

void hl_publish_request_init(hl_publish_request *request)
{
    *request = (hl_publish_request){.size = sizeof *request};
}

void hl_restore_request_init(hl_restore_request *request)
{
    *request = (hl_restore_request){.size = sizeof *request};
}

hl_status engine_options_check(const hl_engine_options *options, hl_error *err)
{
    static const char stage[] = "engine.options";
    struct sockaddr_un address;
    if (!options || options->size != sizeof *options)
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, hl_engine_options_init() sets %zu",
                       options ? options->size : 0, sizeof *options);
    if (!options->socket_path || !options->socket_path[0])
        return HL_FAIL(err, HL_E_INVALID, stage, "socket_path is not given");
    if (strlen(options->socket_path) >= sizeof address.sun_path)
        return HL_FAIL(err, HL_E_INVALID, stage, "socket_path has %zu bytes, a socket takes %zu",
                       strlen(options->socket_path), sizeof address.sun_path - 1);
    if (!options->name || strlen(options->name) >= sizeof((struct hl_hello *)0)->name)
        return HL_FAIL(err, HL_E_INVALID, stage, "name is %s", options->name ? "too long" : "NULL");
    if (options->spin_us > MAX_SPIN_US)
        return HL_FAIL(err, HL_E_INVALID, stage, "spin_us is %u, at most %u", options->spin_us, MAX_SPIN_US);
    return HL_OK;
}

void engine_log(hl_engine *engine, enum hl_log_level level, const char *format, ...)
{
    char text[320];
    va_list arguments;
    if (!engine->options.log)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    engine->options.log(engine->options.log_user, level, text);
}
