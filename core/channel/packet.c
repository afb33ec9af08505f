#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/channel/channel.h"
#include "faults/hook.h"

/* Ancillary data with at most HL_MESSAGE_FDS fds, aligned as its first header. */
union control {
    struct cmsghdr header;
    unsigned char bytes[CMSG_SPACE(HL_MESSAGE_FDS * sizeof(int))];
};
/* Padding behind the last fd would let one more through than a packet holds. */
_Static_assert(CMSG_SPACE(HL_MESSAGE_FDS * sizeof(int)) == CMSG_LEN(HL_MESSAGE_FDS * sizeof(int)),
               "the control buffer has room for HL_MESSAGE_FDS fds and no more");

static hl_status send_failure(int failed, hl_error *err)
{
    static const char stage[] = "channel.send";
    switch (failed) {
    case EAGAIN:
        return HL_FAIL(err, HL_E_BUSY, stage, "the peer has not read its earlier messages");
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return HL_FAIL_ERRNO(err, HL_E_PEER, stage, failed, "the peer has gone");
    case EBADF:
        return HL_FAIL_ERRNO(err, HL_E_INVALID, stage, failed, "the socket or an fd is not open");
    case ENOMEM:
    case ENOBUFS:
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, failed, "no memory for a message");
    default:
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot send a message");
    }
}

hl_status hl_channel_send(int fd, const void *message, const int *fds, unsigned fd_count, hl_error *err)
{
    static const char stage[] = "channel.send";
    const struct hl_message *head = message;
    if (head->bytes < sizeof *head || head->bytes > HL_MESSAGE_BYTES)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is %u, a message has %zu to %u", head->bytes,
                       sizeof *head, HL_MESSAGE_BYTES);
    if (fd_count > HL_MESSAGE_FDS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "fd_count is %u, at most %u are allowed", fd_count,
                       HL_MESSAGE_FDS);
    union control control;
    memset(&control, 0, sizeof control);
    struct iovec vector = {.iov_base = (void *)(uintptr_t)message, .iov_len = head->bytes};
    struct msghdr packet = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fd_count > 0) {
        packet.msg_control = &control;
        packet.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&packet);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, fd_count * sizeof(int));
        const int refused = HL_FAULT(channel_fds_send);
        if (refused)
            return send_failure(refused, err);
    }
    ssize_t sent;
    do
        sent = HL_FAULT_STEP(channel_send, sendmsg(fd, &packet, MSG_NOSIGNAL));
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return send_failure(errno, err);
    assert((size_t)sent == head->bytes); /* a packet is sent whole or not at all */
    return HL_OK;
}

void hl_packet_close_fds(struct hl_packet *packet)
{
    for (unsigned i = 0; i < packet->fd_count; i++)
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    packet->fd_count = 0;
}

/* Takes the fds out of the ancillary data, whatever becomes of the packet: from here on they are open. */
static void take_fds(struct msghdr *message, struct hl_packet *packet)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        assert(count <= HL_MESSAGE_FDS - packet->fd_count);
        memcpy(packet->fds + packet->fd_count, CMSG_DATA(c), count * sizeof(int));
        packet->fd_count += count;
        if (HL_FAULT(channel_fds_receive)) /* as when this process can open no more of them */
            message->msg_flags |= MSG_CTRUNC;
    }
}

/* A packet of no bytes and the end of the connection both read as 0. */
static bool has_ended(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN | POLLRDHUP};
    int ready;
    do
        ready = poll(&poller, 1, 0);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && (poller.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static hl_status check_whole(int fd, const struct msghdr *message, const struct hl_packet *packet,
                             hl_error *err)
{
    static const char stage[] = "channel.receive";
    if (message->msg_flags & MSG_TRUNC)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "a message is longer than %u bytes", HL_MESSAGE_BYTES);
    if (message->msg_flags & MSG_CTRUNC)
        return HL_FAIL(err, HL_E_PROTOCOL, stage,
                       "a message brings more fds than %u, or than this process can still open",
                       HL_MESSAGE_FDS);
    if (packet->size > 0)
        return HL_OK;
    if (packet->fd_count == 0 && has_ended(fd))
        return HL_FAIL(err, HL_E_PEER, stage, "the peer has closed the connection");
    return HL_FAIL(err, HL_E_PROTOCOL, stage, "a message has no bytes");
}

static ssize_t receive_once(int fd, struct hl_packet *packet, struct msghdr *message, union control *control,
                            int flags)
{
    ssize_t received;
    packet->size = 0;
    packet->fd_count = 0;
    do {
        message->msg_control = control;
        message->msg_controllen = sizeof *control;
        received = HL_FAULT_CALL(channel_receive, recvmsg(fd, message, MSG_CMSG_CLOEXEC | flags), -1);
    } while (received < 0 && errno == EINTR);
    return received;
}

static hl_status receive(int fd, struct hl_packet *packet, int flags, hl_error *err)
{
    static const char stage[] = "channel.receive";
    union control control;
    struct iovec vector = {.iov_base = packet->bytes, .iov_len = sizeof packet->bytes};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t received = receive_once(fd, packet, &message, &control, flags);
    /* A peer that sends its last message and closes between the kernel's look at the empty queue and its look
     * at the shutdown makes recvmsg() return 0 with that message still queued: the end is believed when it is
     * seen twice. */
    if (received == 0 && message.msg_controllen == 0 && has_ended(fd))
        received = receive_once(fd, packet, &message, &control, flags);
    if (received < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return HL_PENDING;
        if (errno == ECONNRESET || errno == ENOTCONN)
            return HL_FAIL_ERRNO(err, HL_E_PEER, stage, errno, "the peer has gone");
        return HL_FAIL_ERRNO(err, errno == EBADF ? HL_E_INVALID : HL_E_SYSTEM, stage, errno,
                             "cannot receive a message");
    }
    take_fds(&message, packet);
    packet->size = (size_t)received;
    hl_status status = check_whole(fd, &message, packet, err);
    if (status != HL_OK) {
        hl_packet_close_fds(packet);
        packet->size = 0;
    }
    return status;
}

hl_status hl_channel_receive(int fd, struct hl_packet *packet, hl_error *err)
{
    return receive(fd, packet, 0, err);
}

/* Waits until the socket can be read or has ended. */
static hl_status wait_readable(int fd, int64_t deadline_ns, hl_error *err)
{
    static const char stage[] = "channel.receive";
    for (;;) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        struct timespec rest = {0, 0};
        if (deadline_ns >= 0) {
            int64_t now = hl_clock_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
            rest = (struct timespec){.tv_sec = left / HL_NS_PER_S, .tv_nsec = left % HL_NS_PER_S};
        }
        int ready = ppoll(&poller, 1, deadline_ns < 0 ? NULL : &rest, NULL);
        if (ready > 0)
            return HL_OK;
        if (ready == 0)
            return HL_FAIL(err, HL_E_TIMEOUT, stage, "no message came in time");
        if (errno != EINTR)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot wait for a message");
    }
}

hl_status hl_channel_receive_until(int fd, struct hl_packet *packet, int64_t deadline_ns, hl_error *err)
{
    for (;;) {
        hl_status status = receive(fd, packet, MSG_DONTWAIT, err);
        if (status != HL_PENDING)
            return status;
        status = wait_readable(fd, deadline_ns, err);
        if (status != HL_OK)
            return status;
    }
}
