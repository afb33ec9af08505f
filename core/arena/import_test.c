#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/arena/arena_private.h"
#include "core/base/memfd.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { BYTES = 256 * 1024, ROLE_SOCKET = 9 };
static const char role_variable[] = "HL_ARENA_TEST_ROLE";

static hl_arena *must_create(void)
{
    struct hl_arena_options options = {.arena_id = 1, .bytes = BYTES, .numa_node = -1, .threads = 1};
    hl_arena *arena = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_arena_create(&options, &arena, &err), err);
    return arena;
}

static int memfd_with(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Expects a refusal that names `word`, leaves the output alone and no fd behind; closes `fd` unless it is
 * negative. */
static void expect_refused(int fd, uint64_t bytes, hl_status status, const char *word)
{
    hl_arena *arena = NULL;
    hl_error err = {0};
    int next_fd = dup(0);
    close(next_fd);
    HL_EXPECT_STATUS(hl_arena_import(fd, 5, bytes, 0, &arena, &err), status, err);
    CU_ASSERT_PTR_NULL(arena);
    if (!strstr(err.text, word))
        fprintf(stderr, "the error does not say %s: %s\n", word, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    int after_fd = dup(0);
    CU_ASSERT_EQUAL(after_fd, next_fd);
    close(after_fd);
    if (fd >= 0)
        close(fd);
}

/* --- refusals --- */

static void what_is_no_memfd_is_refused(void)
{
    char path[4096];
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/import_test.XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(path);
    CU_ASSERT_FATAL(file >= 0 && ftruncate(file, BYTES) == 0);
    unlink(path);
    expect_refused(file, BYTES, HL_E_PERMISSION,
                   ""); /* on tmpfs it has the seal against seals, else none at all */
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    expect_refused(ends[0], BYTES, HL_E_PERMISSION, "not a memfd");
    close(ends[1]);
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    expect_refused(ends[0], BYTES, HL_E_PERMISSION, "not a memfd");
    close(ends[1]);
    expect_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), BYTES, HL_E_PERMISSION, "not a memfd");
}

static void each_missing_or_extra_seal_is_refused(void)
{
    static const int bits[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE};
    unsigned accepted = 0;
    for (unsigned set = 0; set < 32; set++) {
        int seals = 0;
        for (unsigned i = 0; i < 5; i++)
            seals |= set >> i & 1 ? bits[i] : 0;
        if (seals == HL_MEMFD_SEALS) {
            hl_arena *arena = NULL;
            hl_error err;
            int fd = memfd_with(BYTES, seals);
            HL_EXPECT_OK(hl_arena_import(fd, 5, BYTES, 0, &arena, &err), err);
            hl_arena_destroy(arena);
            close(fd);
            accepted++;
        } else {
            expect_refused(memfd_with(BYTES, seals), BYTES, HL_E_PERMISSION, "seals");
        }
    }
    CU_ASSERT_EQUAL(accepted, 1);
}

static void a_memfd_that_may_not_be_written_is_refused(void)
{
    char path[64];
    int fd = memfd_with(BYTES, HL_MEMFD_SEALS);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int read_only = open(path, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_FATAL(read_only >= 0);
    expect_refused(read_only, BYTES, HL_E_PERMISSION, "cannot map");
    close(fd);
}

static void another_size_than_agreed_is_refused(void)
{
    expect_refused(memfd_with(BYTES - 4096, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "bytes");
    expect_refused(memfd_with(BYTES + 4096, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "bytes");
    expect_refused(memfd_with(0, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "bytes");
    expect_refused(memfd_with(BYTES, HL_MEMFD_SEALS), UINT64_MAX, HL_E_LIMIT, "bytes");
    expect_refused(memfd_with(BYTES, HL_MEMFD_SEALS), 0, HL_E_INVALID, "bytes");
    expect_refused(memfd_with(BYTES + 1, HL_MEMFD_SEALS), BYTES + 1, HL_E_INVALID, "page size");
}

static void bad_arguments_are_refused(void)
{
    hl_arena *arena = NULL;
    hl_error err;
    int fd = memfd_with(BYTES, HL_MEMFD_SEALS);
    CU_ASSERT_EQUAL(hl_arena_import(fd, 0, BYTES, 0, &arena, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "arena_id"));
    CU_ASSERT_EQUAL(hl_arena_import(fd, 1, BYTES, 4097, &arena, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "chunk_bytes"));
    CU_ASSERT_EQUAL(hl_arena_import(fd, 1, BYTES, UINT64_MAX, &arena, NULL), HL_E_LIMIT);
    close(fd);
    CU_ASSERT_EQUAL(hl_arena_import(fd, 1, BYTES, 0, &arena, &err), HL_E_INVALID); /* closed */
    CU_ASSERT_EQUAL(err.sys_errno, EBADF);
    CU_ASSERT_EQUAL(hl_arena_import(-1, 1, BYTES, 0, &arena, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NULL(arena);
}

static void an_imported_arena_does_not_allocate(void)
{
    struct hl_allocation allocation;
    struct hl_arena_stats stats;
    hl_arena *owner = must_create(), *imported = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_arena_import(hl_arena_fd(owner), 1, BYTES, 4096, &imported, &err), err);
    CU_ASSERT_EQUAL(hl_arena_chunk_bytes(imported), 4096);
    CU_ASSERT_EQUAL(hl_arena_alloc(imported, 256, &allocation, &err), HL_E_STATE);
    CU_ASSERT_EQUAL(hl_arena_free(imported, 1, &err), HL_E_STATE);
    CU_ASSERT_EQUAL(hl_arena_find(imported, 1, &allocation, &err), HL_E_STATE);
    hl_arena_get_stats(imported, &stats);
    CU_ASSERT_EQUAL(stats.bytes, BYTES);
    CU_ASSERT_EQUAL(stats.free_bytes, 0);
    hl_arena_destroy(imported);
    hl_arena_destroy(owner);
}

/* --- sharing --- */

static void both_mappings_show_the_same_bytes(void)
{
    hl_arena *owner = must_create(), *imported = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_arena_import(hl_arena_fd(owner), 77, BYTES, 0, &imported, &err), err);
    unsigned char *a = hl_arena_base(owner), *b = hl_arena_base(imported);
    CU_ASSERT_EQUAL(hl_arena_id(imported), 77);
    CU_ASSERT_PTR_NOT_EQUAL(a, b);
    CU_ASSERT_NOT_EQUAL(hl_arena_fd(owner), hl_arena_fd(imported));
    CU_ASSERT_EQUAL(fcntl(hl_arena_fd(imported), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    memset(a, 0x11, BYTES);
    CU_ASSERT_EQUAL(memcmp(a, b, BYTES), 0);
    memset(b + 4096, 0x22, 4096);
    CU_ASSERT_EQUAL(a[4096 + 4095], 0x22);
    hl_arena_destroy(owner);
    CU_ASSERT_EQUAL(b[BYTES - 1], 0x11); /* the importer's mapping stands alone */
    hl_arena_destroy(imported);
}

static void send_fd(int socket, int fd)
{
    char byte = 'a';
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1)
        _exit(3);
}

static int receive_fd(int socket)
{
    char byte;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd = -1;
    CU_ASSERT_EQUAL_FATAL(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* The other process: this program, started again with the variable set. It creates an arena, hands it over,
 * answers one change made by the importer and waits to be killed. */
__attribute__((constructor)) static void act_as_creator(void)
{
    if (!getenv(role_variable))
        return;
    struct hl_arena_options options = {.arena_id = 1, .bytes = BYTES, .numa_node = -1, .threads = 1};
    hl_arena *arena = NULL;
    char byte;
    if (hl_arena_create(&options, &arena, NULL) != HL_OK)
        _exit(2);
    unsigned char *base = hl_arena_base(arena);
    memset(base, 0x33, BYTES);
    send_fd(ROLE_SOCKET, hl_arena_fd(arena));
    if (read(ROLE_SOCKET, &byte, 1) == 1 && base[BYTES - 1] == 0x44) {
        base[0] = 0x55;
        byte = 'b';
        if (write(ROLE_SOCKET, &byte, 1) == 1)
            while (read(ROLE_SOCKET, &byte, 1) == 1)
                continue;
    }
    _exit(4); /* the test kills it before */
}

static pid_t start_creator(int *socket)
{
    char variable[64];
    char *arguments[] = {"arena_creator", NULL}, *environment[] = {variable, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int ends[2];
    snprintf(variable, sizeof variable, "%s=creator", role_variable);
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], ROLE_SOCKET);
    CU_ASSERT_EQUAL(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *socket = ends[0];
    return pid;
}

static void a_dead_creators_arena_stays_valid_for_the_importer(void)
{
    int socket, outcome = 0;
    char byte = 'c';
    hl_arena *arena = NULL;
    hl_error err;
    pid_t creator = start_creator(&socket);
    int fd = receive_fd(socket);
    HL_REQUIRE_OK(hl_arena_import(fd, 1, BYTES, 0, &arena, &err), err);
    close(fd);
    unsigned char *base = hl_arena_base(arena);
    CU_ASSERT_EQUAL(base[0], 0x33); /* the creator's writes are seen here … */
    base[BYTES - 1] = 0x44;
    CU_ASSERT_EQUAL(write(socket, &byte, 1), 1);
    CU_ASSERT_EQUAL(read(socket, &byte, 1), 1);
    CU_ASSERT_EQUAL(base[0], 0x55); /* … and ours there */
    CU_ASSERT_EQUAL(kill(creator, SIGKILL), 0);
    CU_ASSERT_EQUAL(waitpid(creator, &outcome, 0), creator);
    CU_ASSERT_TRUE(WIFSIGNALED(outcome) && WTERMSIG(outcome) == SIGKILL);
    memset(base + 4096, 0x66, BYTES - 4096);
    CU_ASSERT_EQUAL(base[0], 0x55);
    CU_ASSERT_EQUAL(base[BYTES - 1], 0x66);
    close(socket);
    hl_arena_destroy(arena);
}

/* --- no room in the address space --- */

static void an_arena_that_cannot_be_mapped_is_out_of_memory(void)
{
    enum { MOST = 4096 };
    static struct {
        void *base;
        uint64_t bytes;
    } taken[MOST];
    unsigned count = 0;
    for (uint64_t bytes = HL_ARENA_MAX_BYTES; bytes >= 8 * HL_GIB; bytes /= 2)
        for (; count < MOST; count++) {
            taken[count].base =
                mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            taken[count].bytes = bytes;
            if (taken[count].base == MAP_FAILED)
                break;
        }
    hl_arena *arena = NULL;
    hl_error err = {0};
    int fd = memfd_with(16 * HL_GIB, HL_MEMFD_SEALS); /* sparse: importing populates nothing */
    hl_status status = hl_arena_import(fd, 1, 16 * HL_GIB, 0, &arena, &err);
    while (count-- > 0)
        munmap(taken[count].base, taken[count].bytes);
    CU_ASSERT_EQUAL(status, HL_E_NOMEM);
    CU_ASSERT_EQUAL(err.sys_errno, ENOMEM);
    CU_ASSERT_PTR_NULL(arena);
    close(fd);
}

HL_TESTS(import, HL_CASE(what_is_no_memfd_is_refused), HL_CASE(each_missing_or_extra_seal_is_refused),
         HL_CASE(a_memfd_that_may_not_be_written_is_refused), HL_CASE(another_size_than_agreed_is_refused),
         HL_CASE(bad_arguments_are_refused), HL_CASE(an_imported_arena_does_not_allocate),
         HL_CASE(both_mappings_show_the_same_bytes),
         HL_CASE(a_dead_creators_arena_stays_valid_for_the_importer),
         HL_CASE(an_arena_that_cannot_be_mapped_is_out_of_memory));
