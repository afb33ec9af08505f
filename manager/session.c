/* Sessions: what one consists of, how it begins, and the ways in which it ends. */
#include "manager/session.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/bindings.h"
#include "manager/dispatch.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

static const char stage[] = "manager.session";

/* --- the beginning --- */

static struct manager_session *free_session(hl_manager *manager, bool tool)
{
    const uint32_t first = tool ? HL_SESSIONS : 0, end = tool ? MANAGER_SESSION_SLOTS : HL_SESSIONS;
    for (uint32_t i = first; i < end; i++)
        if (manager->sessions[i].state == MANAGER_SESSION_EMPTY)
            return &manager->sessions[i];
    return NULL;
}

static hl_status refuse_session(const hl_manager *manager, bool tool, hl_error *err)
{
    uint32_t unresolved = 0, detached = 0;
    if (tool)
        return HL_FAIL(err, HL_E_BUDGET, stage, "%d tools are connected, no more are allowed",
                       MANAGER_TOOL_SESSIONS);
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        unresolved += manager->sessions[i].state == MANAGER_SESSION_UNRESOLVED;
        detached += manager->sessions[i].state == MANAGER_SESSION_DETACHED;
    }
    return HL_FAIL(err, HL_E_BUDGET, stage,
                   "all %u sessions are taken, %u of them by dead engines with operations in quarantine and "
                   "%u by engines without a channel",
                   HL_SESSIONS, unresolved, detached);
}

/* The peer's process, not another one that has its number meanwhile: the kernel's own reference to it where
 * the kernel has such. */
static hl_status open_process(int socket, pid_t pid, int *out, hl_error *err)
{
    int fd = -1;
    socklen_t size = sizeof fd;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) != 0)
        fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, errno == ESRCH ? HL_E_PEER : HL_E_SYSTEM, stage, errno,
                             "cannot watch process %d (is it in another PID namespace?)", (int)pid);
    *out = fd;
    return HL_OK;
}

static hl_status make_memory(const hl_manager *manager, struct manager_session *session, hl_error *err)
{
    hl_status status = hl_grant_memory_create(manager->epoch, session->token, &session->grants, err);
    if (status == HL_OK)
        status = hl_descriptors_create(&session->descriptors, err);
    if (status == HL_OK)
        status = hl_bank_create(HL_PLAN_PART_BYTES, &session->bank, err);
    if (status != HL_OK)
        return status;
    /* Non-blocking, also for the peer: a counter that the peer has filled must not stop the Manager. */
    int *const signals[] = {&session->restore_fd, &session->retirement_fd, &session->publish_fd};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        *signals[i] = HL_FAULT_CALL(manager_session_eventfd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), -1);
        if (*signals[i] < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make an eventfd");
    }
    return HL_OK;
}

static hl_status watch(hl_manager *manager, struct manager_session *session, hl_error *err)
{
    hl_status status = manager_dispatch_watch(manager, session->pidfd, MANAGER_WATCH_PROCESS, session->index,
                                              session->serial, err);
    if (status == HL_OK && session->retirement_fd >= 0)
        status = manager_dispatch_watch(manager, session->retirement_fd, MANAGER_WATCH_RETIREMENT,
                                        session->index, session->serial, err);
    if (status == HL_OK)
        status = manager_dispatch_watch(manager, session->socket, MANAGER_WATCH_SOCKET, session->index,
                                        session->serial, err);
    return status;
}

static hl_status welcome(const hl_manager *manager, const struct manager_session *session, uint32_t sequence,
                         hl_error *err)
{
    struct hl_welcome message = {
        .epoch = manager->epoch,
        .session = session->index,
        .lease_ttl_ms = manager->options.lease_ttl_ms,
    };
    int fds[HL_BOOTSTRAP_FDS];
    hl_message_head(&message, HL_MESSAGE_WELCOME, sequence);
    memcpy(message.token, session->token, sizeof message.token);
    if (session->tool)
        return hl_channel_send(session->socket, &message, NULL, 0, err);
    fds[HL_FD_DESCRIPTORS] = hl_descriptors_fd(session->descriptors);
    fds[HL_FD_GRANTS] = hl_grant_memory_fd(session->grants);
    fds[HL_FD_RESTORE] = session->restore_fd;
    fds[HL_FD_RETIREMENT] = session->retirement_fd;
    fds[HL_FD_PUBLISH] = session->publish_fd;
    return hl_channel_send(session->socket, &message, fds, HL_BOOTSTRAP_FDS, err);
}

static void close_watched(hl_manager *manager, int *fd)
{
    if (*fd < 0)
        return;
    manager_dispatch_unwatch(manager, *fd);
    close(*fd);
    *fd = -1;
}

static void close_signal(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* What a session holds besides bindings, leases and its socket; of a half made one too. */
static void free_session_memory(hl_manager *manager, struct manager_session *session)
{
    close_watched(manager, &session->retirement_fd);
    close_watched(manager, &session->pidfd);
    close_signal(&session->restore_fd);
    close_signal(&session->publish_fd);
    hl_bank_destroy(session->bank);
    hl_descriptors_close(session->descriptors);
    hl_grant_memory_close(session->grants);
    memset(session, 0, sizeof *session);
}

static uint64_t session_budget(const hl_manager *manager)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < manager->arena_count; i++)
        all += hl_arena_bytes(manager->arenas[i]);
    return manager->options.session_bytes != 0 ? manager->options.session_bytes : all;
}

hl_status manager_session_open(hl_manager *manager, int socket, pid_t pid, const struct hl_hello *hello,
                               hl_error *err)
{
    const bool tool = hello->role == HL_PEER_TOOL;
    struct manager_session *session = HL_FAULT_CALL(manager_session_place, free_session(manager, tool), NULL);
    hl_status status;
    if (!session)
        return refuse_session(manager, tool, err);
    *session = (struct manager_session){
        .index = (uint32_t)(session - manager->sessions),
        .socket = socket,
        .pidfd = -1,
        .pid = pid,
        .tool = tool,
        .restore_fd = -1,
        .retirement_fd = -1,
        .publish_fd = -1,
        .serial = ++manager->serial,
    };
    memcpy(session->name, hello->name, sizeof session->name);
    hl_budget_init(&session->bytes, session_budget(manager));
    hl_budget_init(&session->plan_bytes, HL_PLAN_SESSION_BYTES);
    if (getrandom(session->token, sizeof session->token, 0) != sizeof session->token) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make a token");
        goto err_free;
    }
    status =
        HL_FAULT_CALL(manager_session_process, open_process(socket, pid, &session->pidfd, err),
                      HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot watch process %d", (int)pid));
    if (status == HL_OK && !tool)
        status = make_memory(manager, session, err);
    if (status == HL_OK)
        status = watch(manager, session, err);
    if (status == HL_OK)
        status = welcome(manager, session, hello->head.sequence, err);
    if (status != HL_OK)
        goto err_unwatch;
    session->welcomed = true;
    HL_FAULT_STORE(manager_session_live, session->state = MANAGER_SESSION_LIVE);
    manager_log(manager, tool ? HL_MANAGER_DEBUG : HL_MANAGER_INFO, "session %u: %s \"%s\", process %d",
                session->index, tool ? "tool" : "engine", session->name, (int)pid);
    return HL_OK;
err_unwatch:
    manager_dispatch_unwatch(manager, socket); /* the caller's again */
err_free:
    free_session_memory(manager, session);
    return status;
}

/* --- while it lives --- */

void manager_session_send(struct manager_session *session, const void *message, const int *fds,
                          unsigned fd_count)
{
    hl_error err;
    if (session->socket < 0 || session->broken)
        return;
    hl_status status = hl_channel_send(session->socket, message, fds, fd_count, &err);
    if (status == HL_OK)
        return;
    /* Whoever asked for the reply may still use the session: it is detached in a round of its own. */
    session->broken = status == HL_E_BUSY ? "it does not read its replies" : "a reply could not be sent";
    shutdown(session->socket, SHUT_RDWR);
}

void manager_session_notify(struct manager_session *session)
{
    if (session->restore_fd >= 0)
        HL_FAULT_NOTIFY(channel_signal_restore, eventfd_write(session->restore_fd, 1));
}

uint32_t manager_session_publishes(const struct manager_session *session)
{
    uint32_t publishes = 0;
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        publishes += session->bindings[i].publishes;
    return publishes;
}

/* --- its end --- */

/* Publishes that the engine has announced, and that nobody will read any more, or whose refusal it could not
 * be told: it waits for their slots, as for all it knows its pages may be read. */
static void refuse_unread_publishes(struct manager_session *session)
{
    static const char why[] = "the session has ended";
    bool any = false;
    for (uint32_t i = 0; session->descriptors && i < HL_PUBLISH_SLOTS; i++) {
        struct hl_publish_slot *slot = hl_descriptors_slot(session->descriptors, i);
        if (session->publish_slots >> i & 1 ||
            atomic_load_explicit(&slot->state, memory_order_acquire) != HL_PUBLISH_PENDING)
            continue;
        slot->status = HL_E_PEER;
        slot->stored = slot->present = slot->bytes = 0;
        memcpy(slot->text, why, sizeof why);
        HL_FAULT_STORE(channel_slot_finish,
                       atomic_store_explicit(&slot->state, HL_PUBLISH_FINISHED, memory_order_release));
        any = true;
    }
    if (any && session->publish_fd >= 0)
        HL_FAULT_NOTIFY(channel_signal_publish, eventfd_write(session->publish_fd, 1));
}

void manager_session_detach(hl_manager *manager, struct manager_session *session, const char *reason)
{
    if (session->socket < 0)
        return;
    manager_log(manager, session->ended || session->tool ? HL_MANAGER_DEBUG : HL_MANAGER_WARNING,
                "session %u (\"%s\", process %d) has no channel any more: %s", session->index, session->name,
                (int)session->pid, reason);
    HL_FAULT_STORE(manager_session_detach, close_watched(manager, &session->socket));
    refuse_unread_publishes(session);
    if (session->state == MANAGER_SESSION_LIVE)
        session->state = MANAGER_SESSION_DETACHED;
    if (session->ended) {
        hl_lease_drop_session(manager->leases, session->serial);
        if (session->grants)
            manager_grants_lose(manager, session, false);
    }
    manager_session_settle(manager, session);
}

void manager_session_died(hl_manager *manager, struct manager_session *session)
{
    if (session->pidfd < 0)
        return;
    const uint64_t serial = session->serial;
    close_watched(manager, &session->pidfd);
    close_watched(manager, &session->socket);
    HL_FAULT_STORE(manager_session_death, session->state = MANAGER_SESSION_UNRESOLVED);
    hl_lease_drop_session(manager->leases, session->serial);
    if (session->grants)
        manager_grants_lose(manager, session, true);
    if (session->serial != serial)
        return;
    if (session->operation_count != 0)
        manager_log(manager, HL_MANAGER_ERROR,
                    "session %u (\"%s\"): process %d died with %u operations in quarantine", session->index,
                    session->name, (int)session->pid, session->quarantined);
    manager_session_settle(manager, session);
}

/* The channel is gone and the process is not: it may restore from the leases that it has. Without an
 * operation only leases hold bytes. */
static bool may_still_ask(const struct manager_session *session)
{
    return session->state == MANAGER_SESSION_DETACHED && !session->ended &&
           hl_budget_used(&session->bytes) != 0;
}

void manager_session_settle(hl_manager *manager, struct manager_session *session)
{
    if (session->state == MANAGER_SESSION_EMPTY || session->state == MANAGER_SESSION_LIVE)
        return;
    if (session->operation_count != 0 || manager_session_publishes(session) != 0 || may_still_ask(session))
        return;
    assert(session->socket < 0);
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        if (session->bindings[i].live)
            manager_binding_release(manager, &session->bindings[i]);
    hl_lease_drop_session(manager->leases, session->serial);
    assert(hl_budget_used(&session->bytes) == 0 && hl_budget_used(&session->plan_bytes) == 0);
    manager_log(manager, session->tool ? HL_MANAGER_DEBUG : HL_MANAGER_INFO, "session %u (\"%s\") has ended",
                session->index, session->name);
    HL_FAULT_STORE(manager_session_free, free_session_memory(manager, session));
}

bool manager_session_stop(hl_manager *manager, struct manager_session *session)
{
    const uint64_t serial = session->serial;
    session->ended = true;
    if (session->socket >= 0) {
        manager_session_detach(manager, session, "the Manager stops");
    } else {
        hl_lease_drop_session(manager->leases, session->serial);
        if (session->grants && session->operation_count != session->quarantined)
            manager_grants_lose(manager, session, session->state == MANAGER_SESSION_UNRESOLVED);
        if (session->serial == serial)
            manager_session_settle(manager, session);
    }
    return session->serial != serial ||
           (session->operation_count == session->quarantined && manager_session_publishes(session) == 0);
}
