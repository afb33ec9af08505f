#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/arena/arena_private.h"
#include "core/base/memfd.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

static struct hl_arena_options small_options(void)
{
    return (struct hl_arena_options){.arena_id = 7, .bytes = HL_MIB, .numa_node = -1, .threads = 2};
}

static hl_arena *must_create(const struct hl_arena_options *options)
{
    hl_arena *arena = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_arena_create(options, &arena, &err), err);
    return arena;
}

/* Expects a refusal that names `word`, leaves the output alone and opens no fd. */
static void expect_refused(const struct hl_arena_options *options, hl_status status, const char *word)
{
    hl_arena *arena = NULL;
    hl_error err = {0};
    int next_fd = dup(0);
    close(next_fd);
    HL_EXPECT_STATUS(hl_arena_create(options, &arena, &err), status, err);
    CU_ASSERT_PTR_NULL(arena);
    CU_ASSERT_EQUAL(err.status, status);
    if (!strstr(err.text, word))
        fprintf(stderr, "the error does not say %s: %s\n", word, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    int fd = dup(0);
    CU_ASSERT_EQUAL(fd, next_fd);
    close(fd);
}

/* --- what an arena is --- */

static void a_new_arena_is_zero_writable_and_page_aligned(void)
{
    struct hl_arena_options options = small_options();
    options.bytes = HL_MIB - 5;
    hl_arena *arena = must_create(&options);
    unsigned char *base = hl_arena_base(arena);
    CU_ASSERT_EQUAL(hl_arena_id(arena), 7);
    CU_ASSERT_EQUAL(hl_arena_bytes(arena), HL_MIB);
    CU_ASSERT_EQUAL(hl_arena_chunk_bytes(arena), HL_ARENA_CHUNK_BYTES);
    CU_ASSERT_EQUAL((uintptr_t)base % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    CU_ASSERT_TRUE(base[0] == 0 && memcmp(base, base + 1, HL_MIB - 1) == 0);
    memset(base, 0xa5, HL_MIB);
    CU_ASSERT_EQUAL(base[HL_MIB - 1], 0xa5);
    hl_arena_destroy(arena);
    hl_arena_destroy(NULL);
}

static void every_page_exists_before_the_first_access(void)
{
    struct hl_arena_options options = small_options();
    hl_arena *arena = must_create(&options);
    unsigned char resident[256];
    struct stat file;
    CU_ASSERT_EQUAL_FATAL(mincore(hl_arena_base(arena), HL_MIB, resident), 0);
    for (int i = 0; i < 256; i++)
        CU_ASSERT_TRUE(resident[i] & 1);
    CU_ASSERT_EQUAL(fstat(hl_arena_fd(arena), &file), 0);
    CU_ASSERT_EQUAL(file.st_blocks * 512ull, HL_MIB);
    hl_arena_destroy(arena);
}

static void an_arena_cannot_change_its_size_or_seals(void)
{
    struct hl_arena_options options = small_options();
    hl_arena *arena = must_create(&options);
    int fd = hl_arena_fd(arena);
    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & ~F_SEAL_EXEC, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    errno = 0;
    CU_ASSERT_EQUAL(ftruncate(fd, HL_MIB / 2), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    CU_ASSERT_EQUAL(ftruncate(fd, 2 * HL_MIB), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    errno = 0;
    CU_ASSERT_EQUAL(fallocate(fd, 0, HL_MIB, 4096), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    errno = 0;
    CU_ASSERT_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    hl_arena_destroy(arena);
}

static void an_arena_has_no_name_and_is_not_inherited(void)
{
    struct hl_arena_options options = small_options();
    hl_arena *arena = must_create(&options);
    char link[64], target[128] = "";
    struct stat file;
    CU_ASSERT_EQUAL_FATAL(fstat(hl_arena_fd(arena), &file), 0);
    CU_ASSERT_EQUAL(file.st_nlink, 0); /* in no folder, so not in /dev/shm either */
    snprintf(link, sizeof link, "/proc/self/fd/%d", hl_arena_fd(arena));
    CU_ASSERT_TRUE(readlink(link, target, sizeof target - 1) > 0);
    CU_ASSERT_EQUAL(strncmp(target, "/memfd:hostlane-arena", 21), 0);
    CU_ASSERT_EQUAL(fcntl(hl_arena_fd(arena), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        struct stat other;
        bool same = fstatat(dirfd(folder), entry->d_name, &other, AT_SYMLINK_NOFOLLOW) == 0 &&
                    other.st_dev == file.st_dev && other.st_ino == file.st_ino;
        CU_ASSERT_FALSE(same);
    }
    if (folder)
        closedir(folder);
    hl_arena_destroy(arena);
}

/* --- options --- */

static void each_option_is_checked(void)
{
    struct hl_arena_options good = small_options(), bad;
    bad = good, bad.arena_id = 0;
    expect_refused(&bad, HL_E_INVALID, "arena_id");
    bad = good, bad.bytes = 0;
    expect_refused(&bad, HL_E_INVALID, "bytes");
    bad = good, bad.bytes = HL_ARENA_MAX_BYTES + 1;
    expect_refused(&bad, HL_E_LIMIT, "bytes");
    bad = good, bad.bytes = UINT64_MAX;
    expect_refused(&bad, HL_E_LIMIT, "bytes");
    bad = good, bad.pages = (enum hl_page_size)3;
    expect_refused(&bad, HL_E_INVALID, "pages");
    bad = good, bad.numa_node = -2;
    expect_refused(&bad, HL_E_INVALID, "numa_node");
    bad = good, bad.numa_node = 1023;
    expect_refused(&bad, HL_E_RANGE, "numa_node");
    bad = good, bad.numa_node = 1 << 30;
    expect_refused(&bad, HL_E_RANGE, "numa_node");
    bad = good, bad.threads = HL_ARENA_TOUCH_THREADS + 1;
    expect_refused(&bad, HL_E_LIMIT, "threads");
    bad = good, bad.chunk_bytes = 4096 + 256;
    expect_refused(&bad, HL_E_INVALID, "chunk_bytes");
    bad = good, bad.chunk_bytes = HL_ARENA_CHUNK_BYTES + 4096;
    expect_refused(&bad, HL_E_LIMIT, "chunk_bytes");
    bad = good, bad.pages = HL_PAGES_1G, bad.chunk_bytes = 2 * HL_MIB;
    expect_refused(&bad, HL_E_INVALID, "chunk_bytes");
    CU_ASSERT_EQUAL(hl_arena_create(&bad, NULL, NULL), HL_E_INVALID);
}

static void zero_threads_means_as_many_as_there_are_cpus(void)
{
    struct hl_arena_options options = small_options();
    options.threads = 0;
    options.bytes = 8 * HL_MIB;
    hl_arena_destroy(must_create(&options));
}

static void pages_lie_on_the_node_that_was_asked_for(void)
{
    struct hl_arena_options options = small_options();
    options.numa_node = 0;
    hl_arena *arena = must_create(&options);
    for (uint64_t offset = 0; offset < HL_MIB; offset += 4096) {
        void *page = (unsigned char *)hl_arena_base(arena) + offset;
        int node = -1;
        /* A kernel without NUMA, or a container that forbids the question, has nothing to compare. */
        int failed = move_pages(0, 1, &page, NULL, &node, 0) != 0 ? errno : 0;
        CU_ASSERT_TRUE(failed == ENOSYS || failed == EPERM || (failed == 0 && node == 0));
    }
    hl_arena_destroy(arena);
}

/* --- too little of something --- */

static void more_memory_than_there_is_is_refused_before_any_is_taken(void)
{
    struct hl_arena_options options = small_options();
    options.bytes = HL_ARENA_MAX_BYTES;
    expect_refused(&options, HL_E_NOMEM, "17592186044416 bytes are needed");
    options.numa_node = 0;
    expect_refused(&options, HL_E_NOMEM, "numa_node 0");
}

static uint64_t read_free_huge_pages(unsigned kib)
{
    char path[128], line[32];
    uint64_t free_pages = 0, promised = 0;
    const char *const names[] = {"free", "resv"};
    uint64_t *const values[] = {&free_pages, &promised};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%ukB/%s_hugepages", kib, names[i]);
        FILE *file = fopen(path, "re");
        if (file && fgets(line, sizeof line, file))
            *values[i] = strtoull(line, NULL, 10);
        if (file)
            fclose(file);
    }
    return free_pages - promised;
}

static void huge_pages_are_used_when_free_and_counted_when_not(void)
{
    static const struct {
        enum hl_page_size pages;
        uint64_t bytes;
    } sizes[] = {{HL_PAGES_2M, 2 * HL_MIB}, {HL_PAGES_1G, HL_GIB}};
    for (int i = 0; i < 2; i++) {
        struct hl_arena_options options = small_options();
        unsigned kib = (unsigned)(sizes[i].bytes / HL_KIB);
        uint64_t available = read_free_huge_pages(kib);
        char text[128];
        options.pages = sizes[i].pages;
        options.bytes = available * sizes[i].bytes + 1;
        snprintf(text, sizeof text, "%" PRIu64 " huge pages of %u KiB are needed and %" PRIu64 " are free",
                 available + 1, kib, available);
        expect_refused(&options, HL_E_NOMEM, text);
        options.bytes = 1;
        if (available == 0) {
            expect_refused(&options, HL_E_NOMEM, "are needed and 0 are free");
            continue;
        }
        hl_arena *arena = must_create(&options);
        CU_ASSERT_EQUAL(hl_arena_bytes(arena), sizes[i].bytes);
        CU_ASSERT_EQUAL((uintptr_t)hl_arena_base(arena) % sizes[i].bytes, 0);
        CU_ASSERT_EQUAL(read_free_huge_pages(kib), available - 1); /* populated */
        hl_arena *imported = NULL;
        hl_error err;
        HL_EXPECT_OK(hl_arena_import(hl_arena_fd(arena), 9, sizes[i].bytes, 0, &imported, &err), err);
        ((volatile unsigned char *)hl_arena_base(arena))[sizes[i].bytes - 1] = 42;
        if (imported)
            CU_ASSERT_EQUAL(((volatile unsigned char *)hl_arena_base(imported))[sizes[i].bytes - 1], 42);
        hl_arena_destroy(imported);
        CU_ASSERT_EQUAL(hl_arena_import(hl_arena_fd(arena), 9, sizes[i].bytes, 4096, &imported, &err),
                        HL_E_INVALID);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "chunk_bytes"));
        hl_arena_destroy(arena);
        CU_ASSERT_EQUAL(read_free_huge_pages(kib), available);
    }
}

static void without_a_free_fd_creation_says_so(void)
{
    struct hl_arena_options options = small_options();
    struct rlimit before, none;
    hl_arena *arena = NULL;
    hl_error err;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before, none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    hl_status status = hl_arena_create(&options, &arena, &err);
    setrlimit(RLIMIT_NOFILE, &before);
    CU_ASSERT_EQUAL(status, HL_E_SYSTEM);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    CU_ASSERT_PTR_NULL(arena);
}

static void a_file_size_limit_is_an_error_of_creation(void)
{
    struct hl_arena_options options = small_options();
    struct rlimit before, little;
    hl_arena *arena = NULL;
    hl_error err;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before, little.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    hl_status status = hl_arena_create(&options, &arena, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    CU_ASSERT_EQUAL(status, HL_E_SYSTEM);
    CU_ASSERT_EQUAL(err.sys_errno, EFBIG);
    CU_ASSERT_PTR_NULL(arena);
    int fd = dup(0), next = dup(0);
    CU_ASSERT_EQUAL(next, fd + 1); /* the memfd has been closed again */
    close(next);
    close(fd);
}

/* Takes the address space until no hole of `least` bytes is left. */
struct taken_space {
    void *base[4096];
    uint64_t bytes[4096];
    unsigned count;
};

static void take_address_space(struct taken_space *taken, uint64_t least)
{
    for (uint64_t bytes = HL_ARENA_MAX_BYTES; bytes >= least; bytes /= 2)
        for (; taken->count < 4096; taken->count++) {
            void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (base == MAP_FAILED)
                break;
            taken->base[taken->count] = base;
            taken->bytes[taken->count] = bytes;
        }
}

static void an_arena_that_cannot_be_mapped_leaves_nothing(void)
{
    static struct taken_space taken;
    struct hl_arena_options options = small_options();
    hl_arena *arena = NULL;
    hl_error err = {0};
    options.bytes = 256 * HL_MIB;
    int next_fd = dup(0);
    close(next_fd);
    take_address_space(&taken, 64 * HL_MIB);
    hl_status status = hl_arena_create(&options, &arena, &err);
    while (taken.count-- > 0)
        munmap(taken.base[taken.count], taken.bytes[taken.count]);
    CU_ASSERT_EQUAL(status, HL_E_NOMEM);
    CU_ASSERT_EQUAL(err.sys_errno, ENOMEM);
    CU_ASSERT_STRING_EQUAL(err.stage, "arena.map");
    CU_ASSERT_PTR_NULL(arena);
    int fd = dup(0);
    CU_ASSERT_EQUAL(fd, next_fd);
    close(fd);
}

/* Where the memfd of this name is mapped; NULL when it is not. */
static void *find_mapping(const char *name)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    void *base = NULL;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, name))
            base = (void *)(uintptr_t)strtoull(line, NULL, 16);
    if (maps)
        fclose(maps);
    return base;
}

/* Before the first page is touched, puts pages that do not exist in the arena's place, as if the system had
 * none left. */
static void take_pages_away(void *user, const char *stage, uint64_t done, uint64_t total)
{
    (void)stage;
    if (done != 0)
        return;
    void *arena = find_mapping("/memfd:hostlane-arena");
    CU_ASSERT_PTR_EQUAL(mmap(arena, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, *(int *)user, 0),
                        arena);
}

static void an_arena_that_cannot_be_populated_leaves_nothing(void)
{
    struct hl_arena_options options = small_options();
    int empty = memfd_create("empty", MFD_CLOEXEC);
    CU_ASSERT_FATAL(empty >= 0);
    options.progress = take_pages_away;
    options.progress_user = &empty;
    expect_refused(&options, HL_E_NOMEM, "0 bytes were populated");
    CU_ASSERT_PTR_NULL(find_mapping("/memfd:hostlane-arena"));
    CU_ASSERT_PTR_NULL(find_mapping("/memfd:empty")); /* what took its place has been unmapped */
    close(empty);
}

/* --- progress --- */

struct seen_progress {
    pthread_t caller;
    uint64_t calls;
    uint64_t last;
    uint64_t total;
    uint64_t bad;
};

static void see_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct seen_progress *seen = user;
    seen->calls++;
    seen->bad += done < seen->last || done > total || strcmp(stage, "touch") != 0 ||
                 !pthread_equal(seen->caller, pthread_self()) || (seen->total && seen->total != total);
    seen->last = done;
    seen->total = total;
}

static void progress_grows_to_the_total_on_the_callers_thread(void)
{
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct seen_progress seen = {.caller = pthread_self()};
        struct hl_arena_options options = small_options();
        options.bytes = 16 * HL_MIB;
        options.threads = threads;
        options.progress = see_progress;
        options.progress_user = &seen;
        hl_arena *arena = must_create(&options);
        CU_ASSERT_TRUE(seen.calls >= 2);
        CU_ASSERT_EQUAL(seen.bad, 0);
        CU_ASSERT_EQUAL(seen.last, 16 * HL_MIB);
        CU_ASSERT_EQUAL(seen.total, 16 * HL_MIB);
        hl_arena_destroy(arena);
    }
}

/* --- allocation through the arena --- */

static void an_arena_allocates_inside_itself_and_its_chunks(void)
{
    struct hl_arena_options options = small_options();
    struct hl_allocation allocation, found;
    struct hl_arena_stats stats;
    hl_error err;
    options.chunk_bytes = HL_MIB / 4;
    hl_arena *arena = must_create(&options);
    CU_ASSERT_EQUAL(hl_arena_alloc(arena, 0, &allocation, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_arena_alloc(arena, HL_MIB / 4 + 1, &allocation, &err), HL_E_RANGE);
    for (uint64_t i = 0; i < 4; i++) {
        HL_REQUIRE_OK(hl_arena_alloc(arena, HL_MIB / 4 - 1000, &allocation, &err), err);
        CU_ASSERT_EQUAL(allocation.offset % (HL_MIB / 4), 0);
        memset((unsigned char *)hl_arena_base(arena) + allocation.offset, (int)i, allocation.bytes);
    }
    CU_ASSERT_EQUAL(hl_arena_alloc(arena, 1024, &allocation, &err), HL_E_NOSPACE);
    HL_EXPECT_OK(hl_arena_find(arena, 4, &found, &err), err);
    CU_ASSERT_EQUAL(found.offset, allocation.offset);
    HL_EXPECT_OK(hl_arena_free(arena, 4, &err), err);
    CU_ASSERT_EQUAL(hl_arena_free(arena, 4, &err), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(hl_arena_find(arena, 4, &found, &err), HL_E_NOT_FOUND);
    hl_arena_get_stats(arena, &stats);
    CU_ASSERT_EQUAL(stats.live, 3);
    CU_ASSERT_EQUAL(stats.last_id, 4);
    CU_ASSERT_EQUAL(stats.largest_free, HL_MIB / 4);
    CU_ASSERT_EQUAL(stats.free_bytes + stats.used_bytes, HL_MIB);
    hl_arena_destroy(arena);
}

HL_TESTS(arena, HL_CASE(a_new_arena_is_zero_writable_and_page_aligned),
         HL_CASE(every_page_exists_before_the_first_access),
         HL_CASE(an_arena_cannot_change_its_size_or_seals),
         HL_CASE(an_arena_has_no_name_and_is_not_inherited), HL_CASE(each_option_is_checked),
         HL_CASE(zero_threads_means_as_many_as_there_are_cpus),
         HL_CASE(pages_lie_on_the_node_that_was_asked_for),
         HL_CASE(more_memory_than_there_is_is_refused_before_any_is_taken),
         HL_CASE(huge_pages_are_used_when_free_and_counted_when_not),
         HL_CASE(without_a_free_fd_creation_says_so), HL_CASE(a_file_size_limit_is_an_error_of_creation),
         HL_CASE(an_arena_that_cannot_be_mapped_leaves_nothing),
         HL_CASE(an_arena_that_cannot_be_populated_leaves_nothing),
         HL_CASE(progress_grows_to_the_total_on_the_callers_thread),
         HL_CASE(an_arena_allocates_inside_itself_and_its_chunks));
