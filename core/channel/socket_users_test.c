/* Nobody but the same user is a peer, whatever doors stand open. Run outside Bazel's sandbox, whose user
 * namespace has one user only. */
#include <errno.h>
#include <grp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/channel/channel_testing.h"
#include "core/channel/socket.h"

#define FOREIGN_USER 65534

/* A socket of another user, made without this room's code, at its own risk. */
static int raw_socket(const char *path, int (*attach)(int, const struct sockaddr *, socklen_t))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && attach(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void only_the_same_user_is_a_peer(void)
{
    hl_error err;
    HL_EXPECT_OK(hl_channel_check_user(1000, 1000, "test", &err), err);
    HL_EXPECT_OK(hl_channel_check_user(0, 0, "test", &err), err);
    HL_EXPECT_STATUS(hl_channel_check_user(1001, 1000, "test", &err), HL_E_PERMISSION, err);
    CU_ASSERT_STRING_EQUAL(err.text, "the peer is user 1001, this process is user 1000");
    HL_EXPECT_STATUS(hl_channel_check_user(0, 1000, "test", &err), HL_E_PERMISSION, err);
    HL_EXPECT_STATUS(hl_channel_check_user(FOREIGN_USER, 0, "test", &err), HL_E_PERMISSION, err);
}

/* Whether this process is root and its user namespace knows the other user. Where not (a sandbox, a
 * developer's own machine), what is then left out is said, and the rule itself holds everywhere as
 * only_the_same_user_is_a_peer(). */
static bool can_become_another_user(void)
{
    char line[128];
    bool known = false;
    FILE *map = fopen("/proc/self/uid_map", "re"); /* lines of: first inside, first outside, count */
    CU_ASSERT_PTR_NOT_NULL_FATAL(map);
    while (!known && fgets(line, sizeof line, map)) {
        char *rest;
        unsigned long inside = strtoul(line, &rest, 10);
        strtoul(rest, &rest, 10);
        unsigned long count = strtoul(rest, NULL, 10);
        known = inside <= FOREIGN_USER && FOREIGN_USER - inside < count;
    }
    fclose(map);
    if (known && geteuid() == 0)
        return true;
    fprintf(stderr, "user %u cannot become user %d: the rule about users is tested as a function only\n",
            (unsigned)geteuid(), FOREIGN_USER);
    CU_ASSERT_TRUE(!known || geteuid() != 0);
    return false;
}

static void a_foreign_user_is_refused_by_the_manager(void)
{
    char folder[8], path[64];
    struct role stranger;
    hl_error err;
    int listener, fd = -7;
    pid_t pid = 0;
    uid_t uid = 0;
    if (!can_become_another_user())
        return;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    CU_ASSERT_EQUAL(chmod(folder, 0755), 0); /* the doors that would have kept the stranger out */
    CU_ASSERT_EQUAL(chmod(path, 0666), 0);
    role_start(&stranger, "stranger", path);
    CU_ASSERT_EQUAL_FATAL(recv(stranger.channel, &(char){0}, 1, 0), 1);
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_channel_accept(listener, &fd, &pid, &uid, &err), HL_E_PERMISSION, err);
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(uid, FOREIGN_USER);
    CU_ASSERT_EQUAL(pid, stranger.pid);
    CU_ASSERT_EQUAL(open_fds(), before);
    role_expect_exit(&stranger, 0);
    close(listener);
}

static void a_foreign_manager_is_refused_by_the_engine(void)
{
    char folder[8], path[64];
    struct role impostor;
    hl_error err;
    int fd = -7;
    pid_t pid = -7;
    if (!can_become_another_user())
        return;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    CU_ASSERT_EQUAL(chmod(folder, 0777), 0);
    role_start(&impostor, "impostor", path);
    CU_ASSERT_EQUAL_FATAL(recv(impostor.channel, &(char){0}, 1, 0), 1);
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "m.sock is of user 65534"));
    CU_ASSERT_EQUAL(chown(path, geteuid(), (gid_t)-1), 0); /* the file no longer tells */
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "the peer is user 65534"));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(pid, -7);
    CU_ASSERT_EQUAL(open_fds(), before);
    role_expect_exit(&impostor, 0);
}

static void a_folder_of_a_foreign_user_is_refused(void)
{
    char folder[8], path[64];
    hl_error err;
    int fd = -7;
    if (!can_become_another_user())
        return;
    folder_make(folder);
    CU_ASSERT_EQUAL(chown(folder, FOREIGN_USER, FOREIGN_USER), 0);
    folder_path(folder, "m.sock", path);
    HL_EXPECT_STATUS(hl_channel_listen(path, &fd, &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "is of user 65534, not 0"));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
}

static void an_engine_cannot_reach_a_socket_in_a_private_folder_of_another_user(void)
{
    char folder[8], path[64];
    struct role outsider;
    hl_error err;
    int listener;
    if (!can_become_another_user())
        return;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    role_start(&outsider, "outsider", path);
    role_expect_exit(&outsider, 0);
    close(listener);
}

static bool leave_root(void)
{
    return setgroups(0, NULL) == 0 && setgid(FOREIGN_USER) == 0 && setuid(FOREIGN_USER) == 0;
}

static int run_stranger(const char *path, int channel)
{
    char byte;
    if (!leave_root())
        return ROLE_UNSTAGED;
    int fd = raw_socket(path, connect);
    if (fd < 0 || send(channel, "c", 1, MSG_NOSIGNAL) != 1)
        return ROLE_UNSTAGED;
    return recv(fd, &byte, 1, 0) == 0 ? 0 : 1; /* closed, without a word */
}

static int run_impostor(const char *path, int channel)
{
    char byte;
    if (!leave_root())
        return ROLE_UNSTAGED;
    int fd = raw_socket(path, bind);
    if (fd < 0 || listen(fd, 8) != 0 || send(channel, "l", 1, MSG_NOSIGNAL) != 1)
        return ROLE_UNSTAGED;
    return recv(channel, &byte, 1, 0) == 0 ? 0 : 1;
}

static int run_outsider(const char *path)
{
    int fd;
    pid_t pid;
    hl_error err;
    if (!leave_root())
        return ROLE_UNSTAGED;
    return hl_channel_connect(path, &fd, &pid, &err) == HL_E_PERMISSION && err.sys_errno == EACCES ? 0 : 1;
}

int role_run(const char *role, const char *argument, int channel)
{
    if (strcmp(role, "stranger") == 0)
        return run_stranger(argument, channel);
    if (strcmp(role, "impostor") == 0)
        return run_impostor(argument, channel);
    return strcmp(role, "outsider") == 0 ? run_outsider(argument) : ROLE_UNSTAGED;
}

HL_TESTS(socket_users, HL_CASE(only_the_same_user_is_a_peer),
         HL_CASE(a_foreign_user_is_refused_by_the_manager),
         HL_CASE(a_foreign_manager_is_refused_by_the_engine), HL_CASE(a_folder_of_a_foreign_user_is_refused),
         HL_CASE(an_engine_cannot_reach_a_socket_in_a_private_folder_of_another_user));
