/* What tools are told: JSON, in a memfd that goes with the reply. 64-bit identities are hexadecimal text, as
 * JSON readers keep 53 bits of a number. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/memfd.h"
#include "manager/check.h"
#include "manager/operation.h"
#include "manager/session.h"

static const char stage[] = "manager.admin";

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *identity(uint64_t value)
{
    return json_sprintf("0x%016" PRIx64, value);
}

static json_t *hex(const unsigned char *bytes, size_t count)
{
    char text[2 * 16 + 1];
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return json_string(text);
}

/* --- status --- */

static json_t *tell_versions(void)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "bootstrap", (int)HL_BOOTSTRAP_VERSION, "channel_abi",
                     (int)HL_CHANNEL_ABI, "lifecycle", (int)HL_LIFECYCLE_VERSION, "plan",
                     (int)HL_PLAN_VERSION, "cache_schema", (int)HL_CACHE_SCHEMA, "grant_schema",
                     (int)HL_GRANT_SCHEMA);
}

static json_t *tell_gpu(const struct manager_gpu *gpu)
{
    return json_pack("{s:s, s:o, s:s, s:s, s:o, s:i}", "name", gpu->dev->info.name, "uuid",
                     hex(gpu->uuid, sizeof gpu->uuid), "pci_id", gpu->dev->info.pci_id, "kind",
                     gpu->dev->info.kind == HL_DEVICE_CUDA ? "cuda" : "software", "restores",
                     number(hl_budget_used(&gpu->permits)), "restores_limit", (int)HL_GPU_RESTORES);
}

static json_t *tell_status(const hl_manager *manager)
{
    hl_manager_snapshot now;
    json_t *gpus = json_array();
    manager_take_snapshot(manager, &now);
    for (uint32_t i = 0; i < manager->gpu_count; i++)
        json_array_append_new(gpus, tell_gpu(&manager->gpus[i]));
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"pid", (uint64_t)getpid()},
        {"uptime_s", (uint64_t)((hl_clock_ns() - manager->started_ns) / HL_NS_PER_S)},
        {"sessions", now.sessions},
        {"unresolved", now.unresolved},
        {"sessions_limit", HL_SESSIONS},
        {"bindings", now.bindings},
        {"leases", now.leases},
        {"operations", now.operations},
        {"quarantined", now.quarantined},
        {"blocks", now.blocks},
        {"block_bytes", now.block_bytes},
        {"arena_bytes", now.arena_bytes},
        {"arena_used_bytes", now.arena_used_bytes},
        {"leaked_bytes", manager->leaked_bytes},
        {"reserved_bytes", now.reserved_bytes},
        {"plan_bytes", now.plan_bytes},
        {"published_blocks", now.published_blocks},
        {"evicted_blocks", now.evicted_blocks},
        {"restored", now.restored},
        {"rejected", now.rejected},
        {"revoked", now.revoked},
        {"restored_bytes", now.restored_bytes},
    };
    json_t *status = json_pack("{s:o, s:s, s:o, s:o}", "epoch", identity(now.epoch), "socket",
                               manager->options.socket_path, "versions", tell_versions(), "gpus", gpus);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(status, numbers[i].name, number(numbers[i].value));
    return status;
}

/* --- sessions --- */

static const char *state_name(enum manager_session_state state)
{
    switch (state) {
    case MANAGER_SESSION_LIVE:
        return "live";
    case MANAGER_SESSION_DETACHED:
        return "detached";
    case MANAGER_SESSION_UNRESOLVED:
        return "unresolved";
    case MANAGER_SESSION_EMPTY:
        break;
    }
    return "empty";
}

static json_t *tell_binding(const hl_manager *manager, const struct manager_binding *binding, uint32_t index)
{
    const char *digest = hl_namespaces_digest(manager->namespaces, binding->namespace_id);
    return json_pack("{s:i, s:s, s:i, s:i, s:s, s:i, s:i, s:b, s:i, s:i}", "binding", (int)index, "instance",
                     binding->instance, "rank", (int)binding->rank, "gpu", (int)binding->gpu, "namespace",
                     digest ? digest : "", "layers", (int)binding->layout->layers, "tensors",
                     (int)binding->layout->tensor_count, "closing", (int)binding->closing, "operations",
                     (int)binding->operations, "publishes", (int)binding->publishes);
}

static json_t *tell_session(const hl_manager *manager, const struct manager_session *session)
{
    json_t *bindings = json_array();
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        if (session->bindings[i].live)
            json_array_append_new(bindings, tell_binding(manager, &session->bindings[i], i));
    return json_pack("{s:i, s:s, s:s, s:b, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "session",
                     (int)session->index, "state", state_name(session->state), "name", session->name, "tool",
                     (int)session->tool, "pid", (int)session->pid, "operations",
                     (int)session->operation_count, "quarantined", (int)session->quarantined,
                     "reserved_bytes", number(hl_budget_used(&session->bytes)), "reserved_limit",
                     number(session->bytes.limit), "plan_bytes", number(hl_budget_used(&session->plan_bytes)),
                     "plan_limit", number(session->plan_bytes.limit), "bindings", bindings);
}

static json_t *tell_sessions(const hl_manager *manager)
{
    json_t *sessions = json_array();
    for (uint32_t i = 0; i < MANAGER_SESSION_SLOTS; i++)
        if (manager->sessions[i].state != MANAGER_SESSION_EMPTY)
            json_array_append_new(sessions, tell_session(manager, &manager->sessions[i]));
    return json_pack("{s:o, s:o}", "epoch", identity(manager->epoch), "sessions", sessions);
}

/* --- arenas --- */

static json_t *tell_arena(const hl_arena *arena)
{
    struct hl_arena_stats stats;
    hl_arena_get_stats(arena, &stats);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "arena", identity(hl_arena_id(arena)),
                     "bytes", number(stats.bytes), "used_bytes", number(stats.used_bytes), "free_bytes",
                     number(stats.free_bytes), "largest_free", number(stats.largest_free), "allocations",
                     number(stats.live), "free_ranges", number(stats.free_ranges), "chunk_bytes",
                     number(hl_arena_chunk_bytes(arena)));
}

static json_t *tell_arenas(const hl_manager *manager)
{
    json_t *arenas = json_array();
    for (uint32_t i = 0; i < manager->arena_count; i++)
        json_array_append_new(arenas, tell_arena(manager->arenas[i]));
    return json_pack("{s:o, s:o}", "epoch", identity(manager->epoch), "arenas", arenas);
}

/* --- quarantine --- */

static json_t *tell_quarantined(const struct manager_operation *operation)
{
    const struct manager_session *session = operation->session;
    return json_pack("{s:o, s:i, s:o, s:o, s:i, s:s, s:i, s:s, s:s, s:I, s:o, s:i, s:i}", "epoch",
                     identity(operation->identity.epoch), "record", (int)operation->identity.record,
                     "generation", number(operation->identity.generation), "token8",
                     hex(operation->identity.token, 8), "session", (int)session->index, "name", session->name,
                     "pid", (int)session->pid, "instance", operation->binding->instance, "reason",
                     operation->quarantine_reason, "since", (json_int_t)operation->quarantined_at,
                     "source_bytes", number(operation->source_bytes), "part", (int)operation->part,
                     "part_count", (int)operation->part_count);
}

static json_t *tell_quarantine(const hl_manager *manager)
{
    json_t *operations = json_array();
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        for (uint32_t j = 0; j < HL_GRANT_RECORDS && manager->sessions[i].quarantined > 0; j++) {
            const struct manager_operation *operation = manager->sessions[i].operations[j];
            if (operation && operation->phase == MANAGER_QUARANTINED)
                json_array_append_new(operations, tell_quarantined(operation));
        }
    return json_pack("{s:o, s:o}", "epoch", identity(manager->epoch), "quarantine", operations);
}

static hl_status release(hl_manager *manager, const struct hl_admin *request, json_t **json, hl_error *err)
{
    if (request->confirmed != 1)
        return HL_FAIL(err, HL_E_INVALID, stage,
                       "confirmed is %u: a release while a copy may still run must be asked for explicitly",
                       request->confirmed);
    hl_status status = manager_quarantine_release(manager, request->operation, request->operator_name, err);
    if (status != HL_OK)
        return status;
    *json = json_pack("{s:b, s:s}", "released", 1, "operator", request->operator_name);
    return HL_OK;
}

/* --- all --- */

static json_t *tell_check(const hl_manager *manager)
{
    hl_error err;
    if (manager_check_locked(manager, &err) == HL_OK)
        return json_pack("{s:b}", "ok", 1);
    return json_pack("{s:b, s:s, s:s}", "ok", 0, "status", hl_status_name(err.status), "text", err.text);
}

static hl_status put(const json_t *json, int *out, hl_error *err)
{
    int fd;
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for the answer");
    const size_t bytes = strlen(text);
    hl_status status = hl_memfd_create("hostlane-admin", 0, bytes, stage, &fd, err);
    if (status != HL_OK)
        goto free_text;
    if (pwrite(fd, text, bytes, 0) != (ssize_t)bytes) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot write the answer");
        close(fd);
    } else {
        *out = fd;
    }
free_text:
    free(text);
    return status;
}

hl_status manager_admin(hl_manager *manager, const struct hl_admin *request, int *json_fd, hl_error *err)
{
    json_t *json = NULL;
    hl_status status = HL_OK;
    switch ((enum hl_admin_verb)request->verb) {
    case HL_ADMIN_STATUS:
        json = tell_status(manager);
        break;
    case HL_ADMIN_SESSIONS:
        json = tell_sessions(manager);
        break;
    case HL_ADMIN_ARENAS:
        json = tell_arenas(manager);
        break;
    case HL_ADMIN_QUARANTINE:
        json = tell_quarantine(manager);
        break;
    case HL_ADMIN_RELEASE:
        status = release(manager, request, &json, err);
        break;
    case HL_ADMIN_CHECK:
        json = tell_check(manager);
        break;
    default:
        return HL_FAIL(err, HL_E_INVALID, stage, "verb is %u, which does not exist", request->verb);
    }
    if (status != HL_OK)
        return status;
    if (!json)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for the answer");
    status = put(json, json_fd, err);
    json_decref(json);
    return status;
}
