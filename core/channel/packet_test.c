/* Messages and fds over a socket: whole or refused, and never an fd left behind. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/channel/channel_testing.h"

static struct hl_packet packet;
static hl_error err;

static struct hl_done done_message(uint32_t sequence)
{
    struct hl_done done = {.value = sequence * 3ull};
    hl_message_head(&done, HL_MESSAGE_DONE, sequence);
    return done;
}

static void make_nonblocking(int fd)
{
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

/* A sender without manners: any number of bytes and fds (all the same), in one packet. */
static void send_raw(int fd, size_t size, unsigned fd_count, int passed)
{
    static unsigned char bytes[2 * HL_MESSAGE_BYTES];
    union {
        struct cmsghdr header;
        unsigned char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec vector = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        for (unsigned i = 0; i < fd_count; i++)
            memcpy(CMSG_DATA(&control.header) + i * sizeof(int), &passed, sizeof(int));
    }
    CU_ASSERT_EQUAL_FATAL(sendmsg(fd, &message, MSG_NOSIGNAL), (ssize_t)size);
}

static bool same_file(int a, int b)
{
    struct stat first, second;
    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
           first.st_dev == second.st_dev;
}

static void a_message_arrives_with_its_fds_in_order_and_close_on_exec(void)
{
    int pair[2], files[3];
    struct hl_done done = done_message(7);
    socket_pair(pair);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_FATAL((files[i] = memfd_create("passed", 0)) >= 0); /* not close-on-exec here */
    HL_REQUIRE_OK(hl_channel_send(pair[0], &done, files, 3, &err), err);
    HL_REQUIRE_OK(hl_channel_receive(pair[1], &packet, &err), err);
    CU_ASSERT_EQUAL(packet.size, sizeof done);
    CU_ASSERT_EQUAL(memcmp(packet.bytes, &done, sizeof done), 0);
    CU_ASSERT_EQUAL_FATAL(packet.fd_count, 3);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_NOT_EQUAL(packet.fds[i], files[i]);
        CU_ASSERT_TRUE(same_file(packet.fds[i], files[i]));
        CU_ASSERT_EQUAL(fcntl(packet.fds[i], F_GETFD), FD_CLOEXEC);
        close(files[i]);
    }
    hl_packet_close_fds(&packet);
    close(pair[0]);
    close(pair[1]);
}

static void an_owner_takes_an_fd_out_of_the_packet(void)
{
    int pair[2];
    struct hl_done done = done_message(1);
    socket_pair(pair);
    HL_REQUIRE_OK(hl_channel_send(pair[0], &done, (int[]){0, 0}, 2, &err), err);
    HL_REQUIRE_OK(hl_channel_receive(pair[1], &packet, &err), err);
    int mine = packet.fds[0], other = packet.fds[1];
    packet.fds[0] = -1;
    hl_packet_close_fds(&packet);
    CU_ASSERT_EQUAL(packet.fd_count, 0);
    CU_ASSERT_EQUAL(fcntl(mine, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fcntl(other, F_GETFD), -1);
    hl_packet_close_fds(&packet); /* nothing twice */
    close(mine);
    close(pair[0]);
    close(pair[1]);
}

static void as_many_fds_as_a_message_may_have_arrive(void)
{
    int pair[2], files[HL_MESSAGE_FDS + 1];
    struct hl_done done = done_message(1);
    socket_pair(pair);
    for (unsigned i = 0; i <= HL_MESSAGE_FDS; i++)
        files[i] = pair[0];
    unsigned before = open_fds();
    HL_REQUIRE_OK(hl_channel_send(pair[0], &done, files, HL_MESSAGE_FDS, &err), err);
    HL_REQUIRE_OK(hl_channel_receive(pair[1], &packet, &err), err);
    CU_ASSERT_EQUAL(packet.fd_count, HL_MESSAGE_FDS);
    CU_ASSERT_EQUAL(open_fds(), before + HL_MESSAGE_FDS);
    hl_packet_close_fds(&packet);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &done, files, HL_MESSAGE_FDS + 1, &err), HL_E_LIMIT, err);
    close(pair[0]);
    close(pair[1]);
}

/* Refused packets leave neither bytes nor fds, and the next message is read as if they had not been. */
static void expect_refused(int pair[2], size_t size, unsigned fd_count, const char *text)
{
    struct hl_done done = done_message(1);
    unsigned before = open_fds();
    send_raw(pair[0], size, fd_count, pair[0]);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PROTOCOL, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    CU_ASSERT_EQUAL(packet.size, 0);
    CU_ASSERT_EQUAL(packet.fd_count, 0);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_EXPECT_OK(hl_channel_send(pair[0], &done, NULL, 0, &err), err);
    HL_EXPECT_OK(hl_channel_receive(pair[1], &packet, &err), err);
    CU_ASSERT_EQUAL(packet.size, sizeof done);
}

static void a_packet_that_does_not_fit_is_refused_and_its_fds_are_closed(void)
{
    int pair[2];
    socket_pair(pair);
    expect_refused(pair, HL_MESSAGE_BYTES + 1, 0, "longer than 4096 bytes");
    expect_refused(pair, HL_MESSAGE_BYTES + 1, 2, "longer than 4096 bytes");
    expect_refused(pair, 2 * HL_MESSAGE_BYTES, HL_MESSAGE_FDS, "longer than 4096 bytes");
    expect_refused(pair, 24, HL_MESSAGE_FDS + 1, "more fds than 64");
    expect_refused(pair, 24, 253, "more fds than 64");
    expect_refused(pair, 2 * HL_MESSAGE_BYTES, 253, "longer than 4096 bytes");
    send_raw(pair[0], HL_MESSAGE_BYTES, 0, -1);
    HL_EXPECT_OK(hl_channel_receive(pair[1], &packet, &err), err);
    CU_ASSERT_EQUAL(packet.size, HL_MESSAGE_BYTES);
    close(pair[0]);
    close(pair[1]);
}

static void an_empty_packet_is_refused_and_is_not_the_end(void)
{
    int pair[2];
    socket_pair(pair);
    expect_refused(pair, 0, 0, "has no bytes");
    expect_refused(pair, 0, 3, "has no bytes");
    send_raw(pair[0], 0, 1, pair[0]); /* with an fd it cannot be taken for the end, even before one */
    close(pair[0]);
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PROTOCOL, err);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PEER, err);
    close(pair[1]);
}

/* The kernel then drops what it cannot install, and says that it cut the packet. */
static void a_process_without_a_free_fd_refuses_what_brings_some(void)
{
    int pair[2];
    socket_pair(pair);
    send_raw(pair[0], 24, 3, pair[0]);
    int next = dup(pair[0]);
    close(next);
    fds_limit(1); /* one of the three can be installed */
    hl_status status = hl_channel_receive(pair[1], &packet, &err);
    fds_unlimited();
    HL_EXPECT_STATUS(status, HL_E_PROTOCOL, err);
    CU_ASSERT_EQUAL(fcntl(next, F_GETFD), -1);
    close(pair[0]);
    close(pair[1]);
}

/* Ancillary data of another kind may come along on sockets that ask for it. */
static void credentials_beside_fds_are_passed_over(void)
{
    int pair[2];
    socket_pair(pair);
    CU_ASSERT_EQUAL_FATAL(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)), 0);
    unsigned before = open_fds();
    send_raw(pair[0], 24, 2, pair[0]);
    HL_REQUIRE_OK(hl_channel_receive(pair[1], &packet, &err), err);
    CU_ASSERT_EQUAL(packet.fd_count, 2);
    CU_ASSERT_EQUAL(open_fds(), before + 2);
    hl_packet_close_fds(&packet);
    close(pair[0]);
    close(pair[1]);
}

static void a_peer_that_closes_is_gone_after_its_last_message(void)
{
    int pair[2];
    struct hl_done done = done_message(5);
    socket_pair(pair);
    HL_REQUIRE_OK(hl_channel_send(pair[0], &done, NULL, 0, &err), err);
    close(pair[0]);
    HL_EXPECT_OK(hl_channel_receive(pair[1], &packet, &err), err);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PEER, err);
    HL_EXPECT_STATUS(hl_channel_receive_until(pair[1], &packet, -1, &err), HL_E_PEER, err);
    close(pair[1]);
}

/* SIGPIPE has its default action here: raised, it would end this program. */
static void sending_to_a_peer_that_has_gone_is_an_error_and_no_signal(void)
{
    int pair[2];
    struct hl_done done = done_message(5);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(signal(SIGPIPE, SIG_DFL), SIG_ERR);
    socket_pair(pair);
    HL_REQUIRE_OK(hl_channel_send(pair[1], &done, NULL, 0, &err), err);
    close(pair[0]); /* with a message unread: the connection counts as reset */
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PEER, err);
    HL_EXPECT_STATUS(hl_channel_send(pair[1], &done, NULL, 0, &err), HL_E_PEER, err);
    HL_EXPECT_STATUS(hl_channel_send(pair[1], &done, &pair[1], 1, &err), HL_E_PEER, err);
    close(pair[1]);
    /* The kernel raises it for streams only, so here it is the flag that keeps it away. */
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[0]);
    HL_EXPECT_STATUS(hl_channel_send(pair[1], &done, NULL, 0, &err), HL_E_PEER, err);
    close(pair[1]);
}

static void a_full_buffer_is_busy_and_nothing_is_lost(void)
{
    int pair[2];
    uint32_t sent = 0, received = 0;
    struct hl_done done = done_message(0);
    hl_status status;
    socket_pair(pair);
    make_nonblocking(pair[0]);
    make_nonblocking(pair[1]);
    for (int round = 0; round < 3; round++) {
        while ((status = hl_channel_send(pair[0], &done, NULL, 0, &err)) == HL_OK)
            done = done_message(++sent);
        HL_EXPECT_STATUS(status, HL_E_BUSY, err);
        CU_ASSERT_TRUE(sent > received);
        while ((status = hl_channel_receive(pair[1], &packet, &err)) == HL_OK) {
            struct hl_done expected = done_message(received++);
            CU_ASSERT_EQUAL(memcmp(packet.bytes, &expected, sizeof expected), 0);
        }
        HL_EXPECT_STATUS(status, HL_PENDING, err);
        CU_ASSERT_EQUAL(received, sent);
        CU_ASSERT_EQUAL(packet.size, 0);
    }
    close(pair[0]);
    close(pair[1]);
}

static void a_message_that_is_none_is_not_sent(void)
{
    int pair[2];
    struct hl_done done = done_message(1);
    socket_pair(pair);
    make_nonblocking(pair[1]);
    done.head.bytes = sizeof done.head - 1;
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &done, NULL, 0, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "bytes is 15"));
    done.head.bytes = HL_MESSAGE_BYTES + 1;
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &done, NULL, 0, &err), HL_E_INVALID, err);
    done = done_message(1);
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &done, (int[]){pair[0], -1}, 2, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_PENDING, err);
    close(pair[0]);
    close(pair[1]);
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &done, NULL, 0, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_INVALID, err);
}

static void what_is_no_connection_is_refused(void)
{
    struct hl_done done = done_message(1);
    int ends[2], lone = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    HL_EXPECT_STATUS(hl_channel_send(ends[1], &done, NULL, 0, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOTSOCK);
    HL_EXPECT_STATUS(hl_channel_receive(ends[0], &packet, &err), HL_E_SYSTEM, err);
    HL_EXPECT_STATUS(hl_channel_send(lone, &done, NULL, 0, &err), HL_E_PEER, err);
    HL_EXPECT_STATUS(hl_channel_receive(lone, &packet, &err), HL_E_PEER, err);
    close(lone);
    close(ends[0]);
    close(ends[1]);
}

static void a_deadline_ends_a_wait_and_a_message_in_time_does_too(void)
{
    int pair[2];
    struct hl_done done = done_message(9);
    socket_pair(pair); /* blocking: only the deadline ends these */
    HL_EXPECT_STATUS(hl_channel_receive_until(pair[1], &packet, 0, &err), HL_E_TIMEOUT, err);
    HL_EXPECT_STATUS(hl_channel_receive_until(pair[1], &packet, hl_clock_ns() + 1000000, &err), HL_E_TIMEOUT,
                     err);
    CU_ASSERT_EQUAL(packet.size, 0);
    HL_REQUIRE_OK(hl_channel_send(pair[0], &done, NULL, 0, &err), err);
    HL_EXPECT_OK(hl_channel_receive_until(pair[1], &packet, 0, &err), err); /* what is there needs no time */
    CU_ASSERT_EQUAL(packet.size, sizeof done);
    close(pair[0]);
    close(pair[1]);
}

/* A timer interrupts whatever waits, and at its fifth tick does what the wait is for. */
static volatile sig_atomic_t ticks;
static int tick_fd;
static bool tick_sends;

static void tick(int signal_number)
{
    (void)signal_number;
    static const unsigned char head[16] = {0x48, 0x41, 0x4e, 0x4c};
    unsigned char bytes[64];
    int kept = errno;
    if (++ticks == 5) {
        if (tick_sends)
            (void)!send(tick_fd, head, sizeof head, 0);
        else
            while (recv(tick_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
                ;
    }
    errno = kept;
}

static void start_ticking(int fd, bool sends)
{
    struct sigaction action = {.sa_handler = tick}; /* no SA_RESTART: every tick is an EINTR */
    struct itimerval every = {{0, 2000}, {0, 2000}};
    ticks = 0;
    tick_fd = fd;
    tick_sends = sends;
    CU_ASSERT_EQUAL_FATAL(sigaction(SIGALRM, &action, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(setitimer(ITIMER_REAL, &every, NULL), 0);
}

static void stop_ticking(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    CU_ASSERT_TRUE(ticks >= 5);
}

static void interrupted_calls_go_on(void)
{
    int pair[2];
    struct hl_done done = done_message(1);
    socket_pair(pair);
    start_ticking(pair[0], true);
    HL_EXPECT_OK(hl_channel_receive(pair[1], &packet, &err), err);
    stop_ticking();
    start_ticking(pair[0], true);
    HL_EXPECT_OK(hl_channel_receive_until(pair[1], &packet, -1, &err), err);
    stop_ticking();
    make_nonblocking(pair[0]);
    while (hl_channel_send(pair[0], &done, NULL, 0, &err) == HL_OK)
        ;
    CU_ASSERT_EQUAL_FATAL(fcntl(pair[0], F_SETFL, 0), 0);
    start_ticking(pair[1], false);
    HL_EXPECT_OK(hl_channel_send(pair[0], &done, NULL, 0, &err), err);
    stop_ticking();
    close(pair[0]);
    close(pair[1]);
}

HL_TESTS(packet, HL_CASE(a_message_arrives_with_its_fds_in_order_and_close_on_exec),
         HL_CASE(an_owner_takes_an_fd_out_of_the_packet), HL_CASE(as_many_fds_as_a_message_may_have_arrive),
         HL_CASE(a_packet_that_does_not_fit_is_refused_and_its_fds_are_closed),
         HL_CASE(an_empty_packet_is_refused_and_is_not_the_end),
         HL_CASE(a_process_without_a_free_fd_refuses_what_brings_some),
         HL_CASE(credentials_beside_fds_are_passed_over),
         HL_CASE(a_peer_that_closes_is_gone_after_its_last_message),
         HL_CASE(sending_to_a_peer_that_has_gone_is_an_error_and_no_signal),
         HL_CASE(a_full_buffer_is_busy_and_nothing_is_lost), HL_CASE(a_message_that_is_none_is_not_sent),
         HL_CASE(what_is_no_connection_is_refused),
         HL_CASE(a_deadline_ends_a_wait_and_a_message_in_time_does_too), HL_CASE(interrupted_calls_go_on));
