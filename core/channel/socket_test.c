/* Who may listen, who may connect, and what becomes of a path that a dead Manager left behind. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/channel/channel_testing.h"

static unsigned mode_of(const char *path)
{
    struct stat file;
    CU_ASSERT_EQUAL_FATAL(lstat(path, &file), 0);
    return file.st_mode & 07777;
}

static int bound_socket(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void expect_refused(const char *path, hl_status status, const char *text)
{
    hl_error err;
    int fd = -7;
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_channel_listen(path, &fd, &err), status, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(open_fds(), before);
}

static void listening_makes_the_folder_and_the_socket_private(void)
{
    char folder[8], path[64], inner[64];
    hl_error err;
    int fd;
    folder_make(folder);
    folder_path(folder, "run", inner);
    folder_path(folder, "run/m.sock", path);
    mode_t mask = umask(0);
    HL_REQUIRE_OK(hl_channel_listen(path, &fd, &err), err);
    umask(mask);
    CU_ASSERT_EQUAL(mode_of(inner), 0700);
    CU_ASSERT_EQUAL(mode_of(path), 0600);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
    close(fd);
}

static void a_mask_that_takes_everything_away_does_not_close_the_socket_to_its_user(void)
{
    char folder[8], path[64];
    hl_error err;
    int fd;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    mode_t mask = umask(0777);
    hl_status status = hl_channel_listen(path, &fd, &err);
    umask(mask);
    HL_REQUIRE_OK(status, err);
    CU_ASSERT_EQUAL(mode_of(path), 0600);
    close(fd);
}

static void a_path_without_a_folder_is_in_the_working_directory(void)
{
    char folder[8];
    hl_error err;
    int fd, connected;
    pid_t pid;
    folder_make(folder);
    CU_ASSERT_EQUAL_FATAL(chdir(folder), 0);
    HL_REQUIRE_OK(hl_channel_listen("m.sock", &fd, &err), err);
    HL_REQUIRE_OK(hl_channel_connect("m.sock", &connected, &pid, &err), err);
    close(connected);
    close(fd);
}

static void a_folder_that_others_can_enter_is_refused(void)
{
    static const mode_t modes[] = {0701, 0710, 0720, 0740, 0750, 0755, 0777, 01777};
    char folder[8], path[64];
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        CU_ASSERT_EQUAL_FATAL(chmod(folder, modes[i]), 0);
        expect_refused(path, HL_E_PERMISSION, "others have no business");
        CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
    }
}

static void a_path_that_cannot_be_a_socket_is_refused(void)
{
    char folder[8], path[64], lock[64], longer[200];
    folder_make(folder);
    expect_refused("", HL_E_INVALID, "names no file");
    expect_refused(folder_path(folder, "", path), HL_E_INVALID, "names no file");
    memset(longer, 'x', sizeof longer);
    longer[108] = '\0';
    expect_refused(longer, HL_E_LIMIT, "has 108 bytes, at most 107");
    expect_refused(folder_path(folder, "no/such/m.sock", path), HL_E_SYSTEM, "cannot make the folder");
    close(open(folder_path(folder, "file", path), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    expect_refused(folder_path(folder, "file", path), HL_E_INVALID, "is not a socket");
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    expect_refused(folder_path(folder, "file/m.sock", path), HL_E_SYSTEM, "cannot open the folder");
    CU_ASSERT_EQUAL(symlink("nowhere", folder_path(folder, "link", path)), 0);
    expect_refused(path, HL_E_INVALID, "is not a socket");
    CU_ASSERT_EQUAL(mkdir(folder_path(folder, "l.sock.lock", lock), 0700), 0);
    expect_refused(folder_path(folder, "l.sock", path), HL_E_SYSTEM, "cannot open l.sock.lock");
}

static void a_stale_socket_is_replaced(void)
{
    char folder[8], path[64];
    hl_error err;
    int first, second, connected;
    pid_t pid;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &first, &err), err);
    close(first); /* as the kernel does for a Manager that was killed: the file stays */
    CU_ASSERT_EQUAL(access(path, F_OK), 0);
    HL_REQUIRE_OK(hl_channel_listen(path, &second, &err), err);
    CU_ASSERT_EQUAL(mode_of(path), 0600);
    HL_REQUIRE_OK(hl_channel_connect(path, &connected, &pid, &err), err);
    CU_ASSERT_EQUAL(pid, getpid());
    close(connected);
    close(second);
}

static void a_live_listener_of_any_type_is_busy(void)
{
    static const int types[] = {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM};
    char folder[8], path[64];
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int other = bound_socket(path, types[i]);
        CU_ASSERT_FATAL(other >= 0);
        if (types[i] != SOCK_DGRAM)
            CU_ASSERT_EQUAL(listen(other, 1), 0);
        expect_refused(path, HL_E_BUSY, "listening at");
        CU_ASSERT_EQUAL(access(path, F_OK), 0);
        close(other);
        unlink(path);
    }
}

static void a_live_manager_with_a_full_queue_is_busy(void)
{
    char folder[8], path[64];
    hl_error err;
    int listener, waiting[512], count = 0;
    pid_t pid;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    hl_status status = HL_OK;
    while (count < 512 && (status = hl_channel_connect(path, &waiting[count], &pid, &err)) == HL_OK)
        count++;
    HL_EXPECT_STATUS(status, HL_E_BUSY, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "connections waiting"));
    CU_ASSERT_TRUE(count >= (int)HL_SESSIONS);
    expect_refused(path, HL_E_BUSY, "listening at");
    while (count > 0)
        close(waiting[--count]);
    close(listener);
}

static void a_manager_that_starts_at_this_moment_is_busy(void)
{
    char folder[8], path[64], lock[64];
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    int fd = open(folder_path(folder, "m.sock.lock", lock), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CU_ASSERT_EQUAL_FATAL(flock(fd, LOCK_EX), 0);
    expect_refused(path, HL_E_BUSY, "another Manager is starting");
    close(fd);
}

/* Each round a stale socket lies there and four processes want its path: they answer 'l' (listening) or 'b'
 * (busy), and keep what they have until all have answered. */
static void of_managers_that_start_at_once_at_most_one_owns_the_path(void)
{
    enum { MANAGERS = 4, ROUNDS = 12 };
    char folder[8], path[64];
    unsigned owners = 0;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    for (int round = 0; round < ROUNDS; round++) {
        struct role managers[MANAGERS];
        unsigned listening = 0;
        for (int i = 0; i < MANAGERS; i++)
            role_start(&managers[i], "manager", path);
        for (int i = 0; i < MANAGERS; i++) /* all have started: go */
            CU_ASSERT_EQUAL_FATAL(recv(managers[i].channel, &(char){0}, 1, 0), 1);
        for (int i = 0; i < MANAGERS; i++)
            CU_ASSERT_EQUAL_FATAL(send(managers[i].channel, "g", 1, MSG_NOSIGNAL), 1);
        for (int i = 0; i < MANAGERS; i++) {
            char answer = 0;
            CU_ASSERT_EQUAL(recv(managers[i].channel, &answer, 1, 0), 1);
            CU_ASSERT_TRUE(answer == 'l' || answer == 'b');
            listening += answer == 'l';
        }
        CU_ASSERT_TRUE(listening <= 1);
        owners += listening;
        for (int i = 0; i < MANAGERS; i++)
            role_expect_exit(&managers[i], 0);
        CU_ASSERT_TRUE(listening == 0 || access(path, F_OK) == 0);
    }
    CU_ASSERT_TRUE(owners > 0);
}

static void connecting_to_nobody_is_a_peer_error(void)
{
    char folder[8], path[64];
    hl_error err;
    int fd = -7, listener;
    pid_t pid = -7;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PEER, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOENT);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    close(listener);
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PEER, err);
    CU_ASSERT_EQUAL(err.sys_errno, ECONNREFUSED);
    unlink(path);
    listener = bound_socket(path, SOCK_STREAM);
    CU_ASSERT_EQUAL(listen(listener, 1), 0);
    HL_EXPECT_STATUS(hl_channel_connect(path, &fd, &pid, &err), HL_E_PROTOCOL, err);
    close(listener);
    HL_EXPECT_STATUS(hl_channel_connect("", &fd, &pid, &err), HL_E_INVALID, err);
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(pid, -7);
    CU_ASSERT_EQUAL(open_fds(), before);
}

static void both_sides_learn_who_the_other_is(void)
{
    char folder[8], path[64];
    hl_error err;
    int listener, engine, manager = -7;
    pid_t pid = -7;
    uid_t uid = (uid_t)-7;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    HL_EXPECT_STATUS(hl_channel_accept(listener, &manager, &pid, &uid, &err), HL_PENDING, err);
    CU_ASSERT_EQUAL(manager, -7);
    HL_REQUIRE_OK(hl_channel_connect(path, &engine, &pid, &err), err);
    CU_ASSERT_EQUAL(pid, getpid());
    CU_ASSERT_EQUAL(fcntl(engine, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_FALSE(fcntl(engine, F_GETFL) & O_NONBLOCK);
    pid = -7;
    HL_REQUIRE_OK(hl_channel_accept(listener, &manager, &pid, &uid, &err), err);
    CU_ASSERT_EQUAL(pid, getpid());
    CU_ASSERT_EQUAL(uid, geteuid());
    CU_ASSERT_EQUAL(fcntl(manager, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_TRUE(fcntl(manager, F_GETFL) & O_NONBLOCK);
    close(engine);
    close(manager);
    HL_EXPECT_STATUS(hl_channel_accept(listener, &manager, &pid, &uid, &err), HL_PENDING, err);
    close(listener);
    HL_EXPECT_STATUS(hl_channel_accept(listener, &manager, &pid, &uid, &err), HL_E_SYSTEM, err);
}

/* A Manager opens the folder, the lock, a probe of a stale socket, and its own. */
static void without_a_free_fd_nothing_is_begun(void)
{
    char folder[8], path[64];
    hl_error err;
    int listener, fd = -7;
    pid_t pid = -7;
    folder_make(folder);
    folder_path(folder, "m.sock", path);
    HL_REQUIRE_OK(hl_channel_listen(path, &listener, &err), err);
    fds_limit(0);
    hl_status status = hl_channel_connect(path, &fd, &pid, &err);
    fds_unlimited();
    HL_EXPECT_STATUS(status, HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    close(listener);
    unsigned before = open_fds();
    for (unsigned free_fds = 0; free_fds < 3; free_fds++) {
        fds_limit(free_fds);
        status = hl_channel_listen(path, &fd, &err);
        fds_unlimited();
        HL_EXPECT_STATUS(status, HL_E_SYSTEM, err);
        CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
        CU_ASSERT_EQUAL(open_fds(), before);
        CU_ASSERT_EQUAL(access(path, F_OK), 0); /* stale or not: not known, so not touched */
    }
    unlink(path);
    fds_limit(2);
    status = hl_channel_listen(path, &fd, &err);
    fds_unlimited();
    HL_EXPECT_STATUS(status, HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(pid, -7);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
    CU_ASSERT_EQUAL(open_fds(), before);
    HL_REQUIRE_OK(hl_channel_listen(path, &fd, &err), err); /* the lock was let go */
    close(fd);
}

/* Starts when told, answers, and keeps the socket until the test closes the channel. */
static int run_manager(const char *path, int channel)
{
    char byte = 's';
    int fd;
    hl_error err;
    if (send(channel, &byte, 1, MSG_NOSIGNAL) != 1 || recv(channel, &byte, 1, 0) != 1)
        return ROLE_UNSTAGED;
    hl_status status = hl_channel_listen(path, &fd, &err);
    byte = status == HL_OK ? 'l' : status == HL_E_BUSY ? 'b' : '?';
    send(channel, &byte, 1, MSG_NOSIGNAL);
    return recv(channel, &byte, 1, 0) == 0 ? 0 : 1;
}

int role_run(const char *role, const char *argument, int channel)
{
    return strcmp(role, "manager") == 0 ? run_manager(argument, channel) : ROLE_UNSTAGED;
}

HL_TESTS(socket, HL_CASE(listening_makes_the_folder_and_the_socket_private),
         HL_CASE(a_mask_that_takes_everything_away_does_not_close_the_socket_to_its_user),
         HL_CASE(a_path_without_a_folder_is_in_the_working_directory),
         HL_CASE(a_folder_that_others_can_enter_is_refused),
         HL_CASE(a_path_that_cannot_be_a_socket_is_refused), HL_CASE(a_stale_socket_is_replaced),
         HL_CASE(a_live_listener_of_any_type_is_busy), HL_CASE(a_live_manager_with_a_full_queue_is_busy),
         HL_CASE(a_manager_that_starts_at_this_moment_is_busy),
         HL_CASE(of_managers_that_start_at_once_at_most_one_owns_the_path),
         HL_CASE(connecting_to_nobody_is_a_peer_error), HL_CASE(both_sides_learn_who_the_other_is),
         HL_CASE(without_a_free_fd_nothing_is_begun));
