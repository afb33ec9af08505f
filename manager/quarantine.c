/* Operations of which nobody can say whether their sources are still being read. They keep everything that
 * they hold until an operator decides: no timer, no closed socket and no exit of a process says that a copy
 * has ended (I7). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/operation.h"

#define STAGE "manager.quarantine"

static void say_when(int64_t seconds, char text[32])
{
    time_t at = (time_t)seconds;
    struct tm parts;
    if (!gmtime_r(&at, &parts) || !strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts))
        snprintf(text, 32, "%" PRId64, seconds);
}

static void enter(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    if (operation->phase == MANAGER_QUARANTINED)
        return;
    manager_part_withdraw(operation);
    HL_FAULT_STORE(manager_quarantine_enter, operation->phase = MANAGER_QUARANTINED);
    operation->quarantined_at = (int64_t)time(NULL);
    session->quarantined++;
    manager_log(manager, HL_MANAGER_ERROR,
                "quarantine: session %" PRIu32 " (%s, process %d), record %" PRIu32 " generation %" PRIu32
                ": %s; %" PRIu64 " bytes of sources are kept until an operator releases them",
                session->index, session->name, (int)session->pid, operation->identity.record,
                operation->identity.generation, operation->quarantine_reason, operation->source_bytes);
}

void manager_quarantine_because(hl_manager *manager, struct manager_operation *operation, const char *format,
                                ...)
{
    va_list arguments;
    if (operation->phase == MANAGER_QUARANTINED)
        return;
    va_start(arguments, format);
    vsnprintf(operation->quarantine_reason, sizeof operation->quarantine_reason, format, arguments);
    va_end(arguments);
    enter(manager, operation);
}

void manager_quarantine_add(hl_manager *manager, struct manager_session *session,
                            struct manager_operation *operation)
{
    (void)session;
    manager_quarantine_because(manager, operation, "claimed, and no evidence that it has drained");
}

/* The exact operation only: a later one of the same record or a namesake of another session is not meant. */
static struct manager_operation *find(hl_manager *manager, const uint64_t operation[3])
{
    uint32_t record = (uint32_t)(operation[1] >> 32), generation = (uint32_t)operation[1];
    if (operation[0] != manager->epoch || record >= HL_GRANT_RECORDS)
        return NULL;
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct manager_operation *found = manager->sessions[i].operations[record];
        uint64_t token;
        if (manager->sessions[i].state == MANAGER_SESSION_EMPTY || !found)
            continue;
        memcpy(&token, found->identity.token, sizeof token);
        if (found->phase == MANAGER_QUARANTINED && found->identity.generation == generation &&
            token == operation[2])
            return found;
    }
    return NULL;
}

hl_status manager_quarantine_release(hl_manager *manager, const uint64_t operation[3],
                                     const char *operator_name, hl_error *err)
{
    char since[32], now[32];
    if (!operator_name || !operator_name[0])
        return HL_FAIL(err, HL_E_INVALID, STAGE, "operator_name is empty: a release is signed");
    struct manager_operation *found = find(manager, operation);
    if (!found)
        return HL_FAIL(err, HL_E_NOT_FOUND, STAGE,
                       "no operation %" PRIu64 ":%" PRIu64 ":%" PRIu64 " is in quarantine", operation[0],
                       operation[1], operation[2]);
    struct manager_session *session = found->session;
    struct manager_binding *binding = found->binding;
    say_when(found->quarantined_at, since);
    say_when((int64_t)time(NULL), now);
    manager_log(manager, HL_MANAGER_WARNING,
                "quarantine: %s released session %" PRIu32 " (%s, process %d), record %" PRIu32
                " generation %" PRIu32 ", in quarantine since %s, at %s: %" PRIu64 " bytes of sources",
                operator_name, session->index, session->name, (int)session->pid, found->identity.record,
                found->identity.generation, since, now, found->source_bytes);
    HL_FAULT_STORE(manager_quarantine_release, manager_operation_release(manager, found));
    manager_binding_settle(manager, session, binding);
    manager_session_settle(manager, session);
    return HL_OK;
}
