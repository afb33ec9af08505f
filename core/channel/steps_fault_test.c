/* Every step of core/channel that can fail: typed errors, no descriptor left open, and the next use works. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/channel/channel_testing.h"
#include "faults/testing.h"

static hl_fault_board *board;

static void begin(void)
{
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

static void end(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

static unsigned fail(const char *point, int error)
{
    return hl_fault_arm(board, point, 1, HL_FAULT_ERROR, (uint64_t)error);
}

static void a_listener_that_fails_leaves_no_socket_behind(void)
{
    static const char *const points[] = {"channel_bind_before", "channel_listen_before"};
    char folder[8], path[64];
    begin();
    folder_make(folder);
    folder_path(folder, "s", path);
    for (unsigned i = 0; i < 2; i++) {
        hl_error err = {0};
        int fd = -1;
        const unsigned before = open_fds();
        const unsigned rule = fail(points[i], ENOSPC);
        HL_EXPECT_STATUS(hl_channel_listen(path, &fd, &err), HL_E_SYSTEM, err);
        CU_ASSERT_EQUAL(err.sys_errno, ENOSPC);
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
        CU_ASSERT_EQUAL(open_fds(), before);
        HL_REQUIRE_OK(hl_channel_listen(path, &fd, &err), err);
        close(fd);
        unlink(path);
    }
    end();
}

static void a_connection_that_fails_is_nobodys_and_the_next_one_works(void)
{
    char folder[8], path[64];
    hl_error err = {0};
    int listener, fd, peer;
    pid_t pid;
    uid_t uid;
    begin();
    folder_make(folder);
    folder_path(folder, "s", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    const unsigned before = open_fds();
    fail("channel_connect_before", ECONNREFUSED);
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PEER, err);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_REQUIRE_OK(hl_channel_connect(path, &fd, &pid, &err), err);
    fail("channel_accept_before", EMFILE);
    HL_EXPECT_STATUS(hl_channel_accept(listener, &peer, &pid, &uid, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    HL_REQUIRE_OK(hl_channel_accept(listener, &peer, &pid, &uid, &err), err); /* it still waited */
    close(peer);
    close(fd);
    close(listener);
    end();
}

static struct hl_done message_of(uint32_t sequence)
{
    struct hl_done done = {.value = 7};
    hl_message_head(&done, HL_MESSAGE_DONE, sequence);
    return done;
}

static void expect_message(int fd, uint32_t sequence, unsigned fd_count)
{
    struct hl_packet packet;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_channel_receive(fd, &packet, &err), err);
    CU_ASSERT_EQUAL(((const struct hl_done *)(const void *)packet.bytes)->head.sequence, sequence);
    CU_ASSERT_EQUAL(packet.fd_count, fd_count);
    hl_packet_close_fds(&packet);
}

static void a_message_that_fails_is_sent_not_at_all_or_whole(void)
{
    static const struct {
        int error;
        hl_status status;
    } errors[] = {{EPIPE, HL_E_PEER}, {EAGAIN, HL_E_BUSY}, {ENOBUFS, HL_E_NOMEM}, {EIO, HL_E_SYSTEM}};
    int pair[2];
    hl_error err = {0};
    begin();
    socket_pair(pair);
    for (uint32_t i = 0; i < 4; i++) {
        struct hl_done first = message_of(10 + i), second = message_of(20 + i);
        fail("channel_send_before", errors[i].error);
        HL_EXPECT_STATUS(hl_channel_send(pair[0], &first, NULL, 0, &err), errors[i].status, err);
        HL_REQUIRE_OK(hl_channel_send(pair[0], &second, NULL, 0, &err), err);
        expect_message(pair[1], 20 + i, 0);
    }
    /* The peer has it although the sender hears of a failure. */
    struct hl_done last = message_of(30);
    fail("channel_send_after", EPIPE);
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &last, NULL, 0, &err), HL_E_PEER, err);
    expect_message(pair[1], 30, 0);
    close(pair[0]);
    close(pair[1]);
    end();
}

static void descriptors_that_do_not_pass_are_closed(void)
{
    int pair[2], fds[2];
    hl_error err = {0};
    struct hl_packet packet;
    begin();
    socket_pair(pair);
    socket_pair(fds);
    const unsigned before = open_fds();
    struct hl_done message = message_of(1);
    fail("channel_fds_send", ETOOMANYREFS);
    HL_EXPECT_STATUS(hl_channel_send(pair[0], &message, fds, 2, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ETOOMANYREFS);
    HL_REQUIRE_OK(hl_channel_send(pair[0], &message, fds, 2, &err), err);
    fail("channel_fds_receive", EMFILE);
    HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), HL_E_PROTOCOL, err);
    CU_ASSERT_EQUAL(packet.fd_count, 0);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_REQUIRE_OK(hl_channel_send(pair[0], &message, fds, 2, &err), err);
    expect_message(pair[1], 1, 2);
    CU_ASSERT_EQUAL(open_fds(), before);
    for (unsigned i = 0; i < 2; i++) {
        close(pair[i]);
        close(fds[i]);
    }
    end();
}

static void a_look_that_fails_takes_no_message(void)
{
    static const struct {
        int error;
        hl_status status;
    } errors[] = {{ECONNRESET, HL_E_PEER}, {EAGAIN, HL_PENDING}, {ENOMEM, HL_E_SYSTEM}};
    int pair[2];
    hl_error err = {0};
    struct hl_packet packet;
    begin();
    socket_pair(pair);
    for (uint32_t i = 0; i < 3; i++) {
        struct hl_done message = message_of(i);
        HL_REQUIRE_OK(hl_channel_send(pair[0], &message, NULL, 0, &err), err);
        fail("channel_receive_before", errors[i].error);
        HL_EXPECT_STATUS(hl_channel_receive(pair[1], &packet, &err), errors[i].status, err);
        CU_ASSERT_EQUAL(packet.size, 0);
        expect_message(pair[1], i, 0);
    }
    close(pair[0]);
    close(pair[1]);
    end();
}

static void descriptor_memory_that_cannot_be_had_leaks_nothing(void)
{
    hl_descriptors *manager = NULL, *engine = NULL;
    struct hl_extent extent = {0};
    void *at = NULL, *copy = NULL;
    hl_error err = {0};
    begin();
    const unsigned before = open_fds();
    fail("channel_descriptors_create_before", ENFILE);
    HL_EXPECT_STATUS(hl_descriptors_create(&manager, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_REQUIRE_OK(hl_descriptors_create(&manager, &err), err);
    const unsigned with_manager = open_fds();
    fail("channel_descriptors_map_before", ENOMEM);
    HL_EXPECT_STATUS(hl_descriptors_map(hl_descriptors_fd(manager), &engine, &err), HL_E_NOMEM, err);
    CU_ASSERT_EQUAL(open_fds(), with_manager);
    HL_REQUIRE_OK(hl_descriptors_map(hl_descriptors_fd(manager), &engine, &err), err);
    fail("channel_extent_take_before", ENOMEM);
    HL_EXPECT_STATUS(hl_descriptors_take(engine, 64, &extent, &at, &err), HL_E_BUDGET, err);
    CU_ASSERT_PTR_NULL(at);
    HL_REQUIRE_OK(hl_descriptors_take(engine, 64, &extent, &at, &err), err);
    fail("channel_extent_copy_before", ENOMEM);
    HL_EXPECT_STATUS(hl_descriptors_copy(manager, extent, 64, &copy, &err), HL_E_NOMEM, err);
    CU_ASSERT_PTR_NULL(copy);
    HL_REQUIRE_OK(hl_descriptors_copy(manager, extent, 64, &copy, &err), err);
    free(copy);
    hl_descriptors_give(engine, extent);
    hl_descriptors_close(engine);
    hl_descriptors_close(manager);
    end();
}

HL_TESTS(channel_steps, HL_CASE(a_listener_that_fails_leaves_no_socket_behind),
         HL_CASE(a_connection_that_fails_is_nobodys_and_the_next_one_works),
         HL_CASE(a_message_that_fails_is_sent_not_at_all_or_whole),
         HL_CASE(descriptors_that_do_not_pass_are_closed), HL_CASE(a_look_that_fails_takes_no_message),
         HL_CASE(descriptor_memory_that_cannot_be_had_leaks_nothing));
