/* The bootstrap: HELLO, WELCOME, and the five fds that come with it, none of which is believed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

static const char stage[] = "engine.connect";

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The process at the other end of the socket; where the kernel can say, without the gap in which its number
 * might be given to another process. */
static hl_status open_manager(hl_engine *engine, hl_error *err)
{
    socklen_t size = sizeof engine->pidfd;
    if (engine->tuning.manager_pidfd >= 0) {
        engine->pidfd = fcntl(engine->tuning.manager_pidfd, F_DUPFD_CLOEXEC, 0);
        if (engine->pidfd < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot duplicate a pidfd");
        return HL_OK;
    }
    if (getsockopt(engine->socket, SOL_SOCKET, SO_PEERPIDFD, &engine->pidfd, &size) == 0)
        return HL_OK;
    engine->pidfd = (int)syscall(SYS_pidfd_open, engine->manager, 0);
    if (engine->pidfd >= 0)
        return HL_OK;
    if (errno == ESRCH)
        return HL_FAIL(err, HL_E_PEER, stage, "the Manager, process %d, has ended", (int)engine->manager);
    return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot watch process %d", (int)engine->manager);
}

static hl_status read_welcome(hl_engine *engine, struct hl_packet *packet, hl_error *err)
{
    enum hl_message_kind kind;
    hl_status status = hl_message_check(packet, &kind, err);
    if (status != HL_OK)
        return status;
    if (kind == HL_MESSAGE_ERROR)
        return hl_error_message_read((const struct hl_error_message *)(const void *)packet->bytes, err);
    if (kind != HL_MESSAGE_WELCOME)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "HELLO was answered by %s", hl_message_kind_name(kind));
    const struct hl_welcome *welcome = (const struct hl_welcome *)(const void *)packet->bytes;
    if (welcome->head.sequence != 0)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "sequence is %u, HELLO had 0", welcome->head.sequence);
    if (packet->fd_count != HL_BOOTSTRAP_FDS)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "WELCOME came with %u fds, not %u", packet->fd_count,
                       HL_BOOTSTRAP_FDS);
    engine->epoch = welcome->epoch;
    memcpy(engine->token, welcome->token, sizeof engine->token);
    return HL_OK;
}

/* Takes the fd out of the packet when it is an eventfd. Writing must never block this side. */
static hl_status take_eventfd(struct hl_packet *packet, enum hl_bootstrap_fd which, const char *name,
                              int *own, hl_error *err)
{
    static const char expected[] = "anon_inode:[eventfd]";
    char link[64], target[64];
    int fd = packet->fds[which];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, target, sizeof target);
    if (size != (ssize_t)sizeof expected - 1 || memcmp(target, expected, sizeof expected - 1) != 0)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the %s fd is not an eventfd", name);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot set up the %s eventfd", name);
    packet->fds[which] = -1;
    *own = fd;
    return HL_OK;
}

/* A fresh session's records are all FREE. */
static hl_status take_records(hl_engine *engine, hl_error *err)
{
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++) {
        struct hl_grant_word word = hl_grant_load(engine->grants, i);
        if (word.state != HL_GRANT_FREE)
            return HL_FAIL(err, HL_E_PROTOCOL, stage, "record %u of a new session is %s", i,
                           hl_grant_state_name(word.state));
        engine->generations[i] = word.generation;
        engine->free_records[HL_GRANT_RECORDS - 1 - i] = (uint16_t)i;
    }
    engine->free_count = HL_GRANT_RECORDS;
    return HL_OK;
}

static hl_status take_fds(hl_engine *engine, struct hl_packet *packet, hl_error *err)
{
    hl_status status = hl_descriptors_map(packet->fds[HL_FD_DESCRIPTORS], &engine->descriptors, err);
    if (status == HL_OK)
        status = hl_grant_memory_map(packet->fds[HL_FD_GRANTS], engine->epoch, engine->token, &engine->grants,
                                     err);
    if (status == HL_OK)
        status = take_eventfd(packet, HL_FD_RESTORE, "restore", &engine->restore_fd, err);
    if (status == HL_OK)
        status = take_eventfd(packet, HL_FD_RETIREMENT, "retirement", &engine->retirement_fd, err);
    if (status == HL_OK)
        status = take_eventfd(packet, HL_FD_PUBLISH, "publish", &engine->publish_fd, err);
    if (status == HL_OK)
        status = take_records(engine, err);
    return status;
}

static hl_status say_hello(hl_engine *engine, hl_error *err)
{
    struct hl_hello hello;
    struct hl_packet packet;
    hl_hello_fill(&hello, HL_PEER_ENGINE, engine->options.name);
    hl_status status = hl_channel_send(engine->socket, &hello, NULL, 0, err);
    if (status != HL_OK)
        return status;
    int64_t deadline = hl_clock_ns() + engine->tuning.reply_ns;
    status = hl_channel_receive_until(engine->socket, &packet, deadline, err);
    if (status == HL_E_TIMEOUT)
        return HL_FAIL(err, HL_E_PEER, stage, "the Manager did not answer HELLO in %lld ms",
                       (long long)(engine->tuning.reply_ns / 1000000));
    if (status != HL_OK)
        return status;
    status = read_welcome(engine, &packet, err);
    if (status == HL_OK)
        status = take_fds(engine, &packet, err);
    hl_packet_close_fds(&packet);
    return status;
}

hl_status engine_bootstrap(hl_engine *engine, hl_error *err)
{
    hl_status status =
        hl_channel_connect(engine->options.socket_path, &engine->socket, &engine->manager, err);
    if (status != HL_OK)
        return status;
    status = HL_FAULT_CALL(engine_manager_watch, open_manager(engine, err),
                           HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot watch the Manager"));
    if (status == HL_OK)
        status = say_hello(engine, err);
    if (status != HL_OK)
        engine_disconnect(engine);
    return status;
}

void engine_disconnect(hl_engine *engine)
{
    close_fd(&engine->socket);
    close_fd(&engine->pidfd);
    close_fd(&engine->restore_fd);
    close_fd(&engine->retirement_fd);
    close_fd(&engine->publish_fd);
    hl_grant_memory_close(engine->grants);
    hl_descriptors_close(engine->descriptors);
    engine->grants = NULL;
    engine->descriptors = NULL;
}
