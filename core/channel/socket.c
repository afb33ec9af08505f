#include "core/channel/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/channel/channel.h"
#include "faults/hook.h"

/* Engines and tools that may wait to be accepted. */
#define BACKLOG ((int)HL_SESSIONS * 2)

/* Where a socket lies: its address, its folder (open), and its name in there. */
struct place {
    struct sockaddr_un address;
    const char *name; /* in address.sun_path */
    int folder;
};

hl_status hl_channel_check_user(uid_t peer, uid_t own, const char *stage, hl_error *err)
{
    if (peer == own)
        return HL_OK;
    return HL_FAIL(err, HL_E_PERMISSION, stage, "the peer is user %u, this process is user %u",
                   (unsigned)peer, (unsigned)own);
}

static hl_status fill_address(const char *path, struct sockaddr_un *address, const char *stage, hl_error *err)
{
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/')
        return HL_FAIL(err, HL_E_INVALID, stage, "the socket's path \"%.80s\" names no file", path);
    if (length >= sizeof address->sun_path)
        return HL_FAIL(err, HL_E_LIMIT, stage, "the socket's path has %zu bytes, at most %zu are allowed",
                       length, sizeof address->sun_path - 1);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, length);
    return HL_OK;
}

static hl_status check_peer(int fd, pid_t *pid, uid_t *uid, const char *stage, hl_error *err)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot see who the peer is");
    *pid = peer.pid;
    *uid = peer.uid;
    return hl_channel_check_user(peer.uid, geteuid(), stage, err);
}

/* Opens the folder, made when missing, and refuses one that another user owns or can enter. What is checked
 * is what was opened. */
static hl_status open_folder(struct place *place, hl_error *err)
{
    static const char stage[] = "channel.folder";
    char path[sizeof place->address.sun_path] = ".";
    size_t length = (size_t)(place->name - place->address.sun_path);
    if (length > 0) {
        memcpy(path, place->address.sun_path, length);
        path[length] = '\0';
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make the folder %.100s", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, errno == EACCES ? HL_E_PERMISSION : HL_E_SYSTEM, stage, errno,
                             "cannot open the folder %.100s", path);
    struct stat folder;
    hl_status status;
    if (fstat(fd, &folder) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot look at the folder %.100s", path);
        goto err_close;
    }
    if (folder.st_uid != geteuid()) {
        status = HL_FAIL(err, HL_E_PERMISSION, stage, "the folder %.100s is of user %u, not %u", path,
                         (unsigned)folder.st_uid, (unsigned)geteuid());
        goto err_close;
    }
    if ((folder.st_mode & 077) != 0) {
        status = HL_FAIL(err, HL_E_PERMISSION, stage,
                         "the folder %.100s has mode 0%o, others have no business in it (0700)", path,
                         (unsigned)folder.st_mode & 07777);
        goto err_close;
    }
    place->folder = fd;
    return HL_OK;
err_close:
    close(fd);
    return status;
}

/* One Manager at a time looks at the path and takes it. The lock is a file of its own, which stays: the lock
 * on a file that is removed excludes nobody. It is held for a few system calls, so a holder is a Manager that
 * starts at this moment. */
static hl_status lock_place(const struct place *place, int *lock, hl_error *err)
{
    static const char stage[] = "channel.lock";
    char name[sizeof place->address.sun_path + sizeof ".lock"];
    snprintf(name, sizeof name, "%s.lock", place->name);
    int fd = openat(place->folder, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot open %.100s.lock", place->name);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        hl_status status = HL_FAIL_ERRNO(err, errno == EWOULDBLOCK ? HL_E_BUSY : HL_E_SYSTEM, stage, errno,
                                         "another Manager is starting at %.100s", place->address.sun_path);
        close(fd);
        return status;
    }
    *lock = fd;
    return HL_OK;
}

/* A child that another thread starts may hold a copy of the fd until it executes its program: unlock first.
 */
static void unlock_place(int lock)
{
    flock(lock, LOCK_UN);
    close(lock);
}

static int connect_socket(const struct sockaddr_un *address, int *fd)
{
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return errno;
    int failed;
    do
        failed = connect(*fd, (const struct sockaddr *)address, sizeof *address) != 0 ? errno : 0;
    while (failed == EINTR);
    if (failed)
        close(*fd);
    return failed;
}

/* Removes the socket of a Manager that is dead: connecting to one says so, and no timestamp or pid does.
 * Anything that is not a socket is somebody's file. */
static hl_status remove_stale(const struct place *place, hl_error *err)
{
    static const char stage[] = "channel.stale";
    const char *path = place->address.sun_path;
    struct stat there;
    int probe;
    if (fstatat(place->folder, place->name, &there, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? HL_OK
                               : HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot look at %.100s", path);
    if (!S_ISSOCK(there.st_mode))
        return HL_FAIL(err, HL_E_INVALID, stage, "%.100s exists and is not a socket", path);
    int failed = connect_socket(&place->address, &probe);
    switch (failed) {
    case 0:
        close(probe);
        return HL_FAIL(err, HL_E_BUSY, stage, "a Manager is listening at %.100s", path);
    case EAGAIN:     /* alive, with a full queue */
    case EPROTOTYPE: /* alive, with a socket of another type */
        return HL_FAIL(err, HL_E_BUSY, stage, "a process is listening at %.100s", path);
    case ENOENT:
        return HL_OK;
    case ECONNREFUSED:
        break;
    default:
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot see whether %.100s is in use", path);
    }
    if (unlinkat(place->folder, place->name, 0) != 0 && errno != ENOENT)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot remove the stale %.100s", path);
    return HL_OK;
}

static hl_status bind_and_listen(const struct place *place, int *out, hl_error *err)
{
    static const char stage[] = "channel.listen";
    const char *path = place->address.sun_path;
    hl_status status;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make a socket");
    if (HL_FAULT_CALL(channel_bind, bind(fd, (const struct sockaddr *)&place->address, sizeof place->address),
                      -1) != 0) {
        status = HL_FAIL_ERRNO(err, errno == EADDRINUSE ? HL_E_BUSY : HL_E_SYSTEM, stage, errno,
                               "cannot bind to %.100s", path);
        goto err_close;
    }
    /* Until here only the folder's mode kept others out, and nobody can connect before listen(). */
    if (fchmodat(place->folder, place->name, 0600, 0) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot set the mode of %.100s", path);
        goto err_unlink;
    }
    if (HL_FAULT_CALL(channel_listen, listen(fd, BACKLOG), -1) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot listen at %.100s", path);
        goto err_unlink;
    }
    *out = fd;
    return HL_OK;
err_unlink:
    unlinkat(place->folder, place->name, 0);
err_close:
    close(fd);
    return status;
}

hl_status hl_channel_listen(const char *path, int *fd, hl_error *err)
{
    struct place place;
    int lock;
    hl_status status = fill_address(path, &place.address, "channel.listen", err);
    if (status != HL_OK)
        return status;
    const char *slash = strrchr(place.address.sun_path, '/');
    place.name = slash ? slash + 1 : place.address.sun_path;
    status = open_folder(&place, err);
    if (status != HL_OK)
        return status;
    status = lock_place(&place, &lock, err);
    if (status != HL_OK)
        goto close_folder;
    status = remove_stale(&place, err);
    if (status == HL_OK)
        status = bind_and_listen(&place, fd, err);
    unlock_place(lock);
close_folder:
    close(place.folder);
    return status;
}

hl_status hl_channel_accept(int listener, int *fd, pid_t *pid, uid_t *uid, hl_error *err)
{
    static const char stage[] = "channel.accept";
    int accepted;
    do
        accepted =
            HL_FAULT_CALL(channel_accept, accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), -1);
    while (accepted < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (accepted < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return HL_PENDING;
    if (accepted < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot accept a connection");
    hl_status status = check_peer(accepted, pid, uid, stage, err);
    if (status != HL_OK) {
        close(accepted);
        return status;
    }
    *fd = accepted;
    return HL_OK;
}

static hl_status connect_failure(const char *path, int failed, const char *stage, hl_error *err)
{
    switch (failed) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return HL_FAIL_ERRNO(err, HL_E_PEER, stage, failed, "no Manager is listening at %.100s", path);
    case EAGAIN:
        return HL_FAIL(err, HL_E_BUSY, stage, "the Manager at %.100s has %d connections waiting", path,
                       BACKLOG);
    case EACCES:
    case EPERM:
        return HL_FAIL_ERRNO(err, HL_E_PERMISSION, stage, failed, "cannot reach %.100s", path);
    case EPROTOTYPE:
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the process at %.100s is no Manager", path);
    default:
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot connect to %.100s", path);
    }
}

hl_status hl_channel_connect(const char *path, int *fd, pid_t *pid, hl_error *err)
{
    static const char stage[] = "channel.connect";
    struct sockaddr_un address;
    struct stat there;
    pid_t peer_pid;
    uid_t peer_uid;
    int connected;
    hl_status status = fill_address(path, &address, stage, err);
    if (status != HL_OK)
        return status;
    if (stat(path, &there) != 0)
        return connect_failure(path, errno, stage, err);
    if (there.st_uid != geteuid())
        return HL_FAIL(err, HL_E_PERMISSION, stage, "%.100s is of user %u, this process is user %u", path,
                       (unsigned)there.st_uid, (unsigned)geteuid());
    int failed = HL_FAULT_CALL(channel_connect, connect_socket(&address, &connected), errno);
    if (failed)
        return connect_failure(path, failed, stage, err);
    status = check_peer(connected, &peer_pid, &peer_uid, stage, err);
    if (status != HL_OK)
        goto err_close;
    /* An engine waits for its replies with deadlines; its sends are small and rare. */
    if (fcntl(connected, F_SETFL, 0) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make the connection blocking");
        goto err_close;
    }
    *fd = connected;
    *pid = peer_pid;
    return HL_OK;
err_close:
    close(connected);
    return status;
}
