#include "core/base/memfd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { BYTES = 3 * 4096 };

static int memfd_with(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* The lowest fd that is free: equal before and after means that none was left behind. */
static int next_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

/* Expects a refusal that names `word` and leaves neither output nor fd; closes `fd`. */
static void expect_refused(int fd, uint64_t bytes, hl_status status, const char *word)
{
    hl_error err = {0};
    int own = -7, before = next_fd();
    HL_EXPECT_STATUS(hl_memfd_import(fd, bytes, "test.import", &own, &err), status, err);
    CU_ASSERT_EQUAL(own, -7);
    CU_ASSERT_STRING_EQUAL(err.stage, "test.import");
    if (!strstr(err.text, word))
        fprintf(stderr, "the error does not say %s: %s\n", word, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    CU_ASSERT_EQUAL(next_fd(), before);
    if (fd >= 0)
        close(fd);
}

static void a_new_memfd_is_zeroed_sealed_and_closed_on_exec(void)
{
    hl_error err;
    struct stat file;
    void *base = NULL;
    int fd = -1;
    HL_REQUIRE_OK(hl_memfd_create("test", 0, BYTES, "test.create", &fd, &err), err);
    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & ~F_SEAL_EXEC, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_FATAL(fstat(fd, &file) == 0 && file.st_size == BYTES);
    CU_ASSERT_NOT_EQUAL(ftruncate(fd, BYTES - 4096), 0);
    CU_ASSERT_NOT_EQUAL(ftruncate(fd, BYTES + 4096), 0);
    CU_ASSERT_NOT_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    HL_REQUIRE_OK(hl_memfd_map(fd, BYTES, "test.map", &base, &err), err);
    for (unsigned i = 0; i < BYTES; i++)
        CU_ASSERT_EQUAL_FATAL(((unsigned char *)base)[i], 0);
    munmap(base, BYTES);
    close(fd);
}

static void an_import_has_its_own_fd_on_the_same_memory(void)
{
    hl_error err;
    void *a = NULL, *b = NULL;
    int fd = -1, own = -1;
    HL_REQUIRE_OK(hl_memfd_create("test", 0, BYTES, "test.create", &fd, &err), err);
    HL_REQUIRE_OK(hl_memfd_import(fd, BYTES, "test.import", &own, &err), err);
    CU_ASSERT_NOT_EQUAL(own, fd);
    CU_ASSERT_EQUAL(fcntl(own, F_GETFD), FD_CLOEXEC);
    HL_REQUIRE_OK(hl_memfd_map(fd, BYTES, "test.map", &a, &err), err);
    close(fd);
    HL_REQUIRE_OK(hl_memfd_map(own, BYTES, "test.map", &b, &err), err);
    close(own);
    memset(a, 0x5a, BYTES);
    CU_ASSERT_EQUAL(memcmp(a, b, BYTES), 0);
    munmap(a, BYTES);
    munmap(b, BYTES);
}

static void each_missing_or_extra_seal_is_refused(void)
{
    static const int bits[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE};
    unsigned accepted = 0;
    for (unsigned set = 0; set < 32; set++) {
        int seals = 0, own = -1;
        for (unsigned i = 0; i < 5; i++)
            seals |= set >> i & 1 ? bits[i] : 0;
        if (seals == HL_MEMFD_SEALS) {
            hl_error err;
            int fd = memfd_with(BYTES, seals);
            HL_EXPECT_OK(hl_memfd_import(fd, BYTES, "test.import", &own, &err), err);
            close(own);
            close(fd);
            accepted++;
        } else {
            expect_refused(memfd_with(BYTES, seals), BYTES, HL_E_PERMISSION, "seals");
        }
    }
    CU_ASSERT_EQUAL(accepted, 1);
}

static void what_is_no_memfd_is_refused(void)
{
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    expect_refused(ends[0], BYTES, HL_E_PERMISSION, "not a memfd");
    close(ends[1]);
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    expect_refused(ends[0], BYTES, HL_E_PERMISSION, "not a memfd");
    close(ends[1]);
    expect_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), BYTES, HL_E_PERMISSION, "not a memfd");
    expect_refused(-1, BYTES, HL_E_INVALID, "fd -1");
}

static void another_size_than_agreed_is_refused(void)
{
    expect_refused(memfd_with(BYTES - 1, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "bytes is 12288");
    expect_refused(memfd_with(BYTES + 1, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "has 12289");
    expect_refused(memfd_with(0, HL_MEMFD_SEALS), BYTES, HL_E_RANGE, "has 0");
}

static void what_may_not_be_written_cannot_be_mapped(void)
{
    char path[64];
    hl_error err = {0};
    void *base = NULL;
    int fd = memfd_with(BYTES, HL_MEMFD_SEALS);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int read_only = open(path, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_FATAL(read_only >= 0);
    HL_EXPECT_STATUS(hl_memfd_map(read_only, BYTES, "test.map", &base, &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NULL(base);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "cannot map"));
    close(read_only);
    close(fd);
}

static void a_memfd_that_cannot_be_made_leaves_nothing(void)
{
    char name[512];
    hl_error err = {0};
    int fd = -7, before = next_fd();
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0'; /* longer than the kernel takes */
    HL_EXPECT_STATUS(hl_memfd_create(name, 0, BYTES, "test.create", &fd, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EINVAL);
    HL_EXPECT_STATUS(hl_memfd_create("test", 0, UINT64_MAX, "test.create", &fd, &err), HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "18446744073709551615 bytes"));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(next_fd(), before);
}

static void running_out_of_descriptors_is_a_system_error(void)
{
    hl_error err = {0};
    struct rlimit limit, none;
    int made = -7, own = -7, fd = memfd_with(BYTES, HL_MEMFD_SEALS);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = (rlim_t)next_fd();
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    HL_EXPECT_STATUS(hl_memfd_create("test", 0, BYTES, "test.create", &made, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    HL_EXPECT_STATUS(hl_memfd_import(fd, BYTES, "test.import", &own, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CU_ASSERT_EQUAL(made, -7);
    CU_ASSERT_EQUAL(own, -7);
    close(fd);
}

HL_TESTS(memfd, HL_CASE(a_new_memfd_is_zeroed_sealed_and_closed_on_exec),
         HL_CASE(an_import_has_its_own_fd_on_the_same_memory), HL_CASE(each_missing_or_extra_seal_is_refused),
         HL_CASE(what_is_no_memfd_is_refused), HL_CASE(another_size_than_agreed_is_refused),
         HL_CASE(what_may_not_be_written_cannot_be_mapped),
         HL_CASE(a_memfd_that_cannot_be_made_leaves_nothing),
         HL_CASE(running_out_of_descriptors_is_a_system_error));
