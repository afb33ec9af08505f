#include "core/arena/touch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/arena/arena_private.h"
#include "core/arena/host_memory.h"
#include "core/base/memfd.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

/* --- first touch --- */

struct subject {
    struct hl_touch touch;
    pthread_t caller;
    uint64_t calls;
    uint64_t last;
    uint64_t bad;
};

static void see_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct subject *subject = user;
    subject->calls++;
    subject->bad += done < subject->last || total != subject->touch.bytes || strcmp(stage, "touch") != 0 ||
                    !pthread_equal(subject->caller, pthread_self());
    subject->last = done;
}

/* A mapping of `bytes` of a memfd that has only `file_bytes`. */
static void open_subject(struct subject *subject, uint64_t bytes, uint64_t file_bytes, unsigned threads)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, (off_t)file_bytes) == 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, HL_MEMFD_SEALS), 0);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(base, MAP_FAILED);
    *subject = (struct subject){
        .touch = {.fd = fd,
                  .base = base,
                  .bytes = bytes,
                  .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE),
                  .threads = threads,
                  .slice_bytes = 64 * HL_KIB,
                  .progress = see_progress,
                  .progress_user = subject},
        .caller = pthread_self(),
    };
}

static uint64_t populated_bytes(const struct subject *subject)
{
    struct stat file;
    CU_ASSERT_EQUAL_FATAL(fstat(subject->touch.fd, &file), 0);
    return (uint64_t)file.st_blocks * 512;
}

static void close_subject(struct subject *subject)
{
    munmap(subject->touch.base, subject->touch.bytes);
    close(subject->touch.fd);
}

static void each_way_of_touching_populates_everything(void)
{
    static const unsigned threads[] = {0, 1, 3,
                                       HL_ARENA_TOUCH_THREADS}; /* 0: as when no thread can be started */
    for (unsigned i = 0; i < 4; i++)
        for (int without_populate = 0; without_populate < 2; without_populate++) {
            struct subject subject;
            hl_error err;
            open_subject(&subject, 2 * HL_MIB + 4096, 2 * HL_MIB + 4096, threads[i]);
            subject.touch.without_populate = without_populate;
            HL_EXPECT_OK(hl_touch_pages(&subject.touch, &err), err);
            CU_ASSERT_EQUAL(populated_bytes(&subject), 2 * HL_MIB + 4096);
            CU_ASSERT_EQUAL(subject.last, subject.touch.bytes);
            CU_ASSERT_EQUAL(subject.bad, 0);
            CU_ASSERT_TRUE(subject.calls >= 2);
            close_subject(&subject);
        }
}

static void touching_keeps_what_was_written(void)
{
    for (int without_populate = 0; without_populate < 2; without_populate++) {
        struct subject subject;
        hl_error err;
        open_subject(&subject, 64 * HL_KIB, 64 * HL_KIB, 1);
        subject.touch.without_populate = without_populate;
        subject.touch.progress = NULL;
        subject.touch.slice_bytes = 0;
        subject.touch.base[5] = 0xee;
        HL_EXPECT_OK(hl_touch_pages(&subject.touch, &err), err);
        CU_ASSERT_EQUAL(subject.touch.base[5], 0xee);
        close_subject(&subject);
    }
}

static unsigned starts_left;

static int start_while_any_are_left(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                    void *user)
{
    return starts_left > 0 && starts_left-- ? pthread_create(thread, attributes, run, user) : EAGAIN;
}

static void threads_that_cannot_start_are_done_without(void)
{
    for (unsigned startable = 0; startable < 3; startable++) {
        struct subject subject;
        hl_error err;
        open_subject(&subject, 2 * HL_MIB, 2 * HL_MIB, 3);
        subject.touch.start = start_while_any_are_left;
        starts_left = startable;
        HL_EXPECT_OK(hl_touch_pages(&subject.touch, &err), err);
        CU_ASSERT_EQUAL(starts_left, 0);
        CU_ASSERT_EQUAL(populated_bytes(&subject), 2 * HL_MIB);
        CU_ASSERT_EQUAL(subject.last, subject.touch.bytes);
        CU_ASSERT_EQUAL(subject.bad, 0);
        close_subject(&subject);
    }
}

/* Pages past the file's end stand for pages that the system does not have: a store there raises SIGBUS. */
static void missing_pages_are_an_error_and_no_signal(void)
{
    static const unsigned threads[] = {0, 1, 4};
    for (unsigned i = 0; i < 3; i++) {
        struct subject subject;
        hl_error err;
        open_subject(&subject, 1 * HL_MIB, 512 * HL_KIB, threads[i]);
        CU_ASSERT_EQUAL(hl_touch_pages(&subject.touch, &err), HL_E_NOMEM);
        CU_ASSERT_EQUAL(err.sys_errno, EFAULT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "bytes were populated"));
        CU_ASSERT_EQUAL(subject.bad, 0);
        CU_ASSERT_TRUE(subject.last <= 512 * HL_KIB);
        close_subject(&subject);
    }
}

static void the_fallback_reports_missing_pages_too(void)
{
    struct subject subject;
    hl_error err;
    open_subject(&subject, 1 * HL_MIB, 512 * HL_KIB, 2);
    subject.touch.without_populate = true;
    CU_ASSERT_EQUAL(hl_touch_pages(&subject.touch, &err),
                    HL_E_SYSTEM); /* the file is sealed against growing */
    CU_ASSERT_EQUAL(err.sys_errno, EPERM);
    CU_ASSERT_EQUAL(hl_touch_pages(&subject.touch, NULL), HL_E_SYSTEM);
    close_subject(&subject);
}

/* --- what the machine has: a made-up one with two nodes --- */

static char machine[4096];

static void write_file(const char *path, const char *text)
{
    char whole[8192];
    snprintf(whole, sizeof whole, "%s%s", machine, path);
    for (char *slash = strchr(whole + strlen(machine) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "we");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static void open_machine(void)
{
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(machine, sizeof machine, "%s/machine.XXXXXX", folder ? folder : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(machine));
}

static void nodes_and_their_cpus_come_from_sysfs(void)
{
    cpu_set_t cpus, allowed;
    char list[64];
    open_machine();
    CU_ASSERT_TRUE(hl_host_has_node(machine, 0)); /* also without NUMA */
    CU_ASSERT_FALSE(hl_host_has_node(machine, 1));
    CU_ASSERT_FALSE(hl_host_has_node(machine, -1));
    CU_ASSERT_FALSE(hl_host_has_node(machine, HL_HOST_NODES));
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int first = 0;
    while (!CPU_ISSET(first, &allowed))
        first++;
    snprintf(list, sizeof list, "%d-%d,1020-1023,4000\n", first, first);
    write_file("/sys/devices/system/node/node1/cpulist", list);
    CU_ASSERT_TRUE(hl_host_has_node(machine, 1));
    hl_host_node_cpus(machine, 1, &cpus);
    CU_ASSERT_TRUE(CPU_COUNT(&cpus) == 1 && CPU_ISSET(first, &cpus));
    hl_host_node_cpus(machine, -1, &cpus);
    CU_ASSERT_TRUE(CPU_EQUAL(&cpus, &allowed));
    static const char *const none_allowed[] = {"1022\n", "\n", "x\n", "1023-\n"};
    for (int i = 0; i < 4; i++) { /* a node without CPUs that this process may use: any will do */
        write_file("/sys/devices/system/node/node2/cpulist", none_allowed[i]);
        hl_host_node_cpus(machine, 2, &cpus);
        CU_ASSERT_TRUE(CPU_EQUAL(&cpus, &allowed));
    }
    write_file("/sys/devices/system/node/node3/meminfo", "Node 3 MemFree: 1 kB\n"); /* memory only */
    CU_ASSERT_TRUE(hl_host_has_node(machine, 3));
}

static void free_huge_pages_leave_out_promised_ones(void)
{
    open_machine();
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, -1), 0);
    write_file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, -1), 100);
    write_file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "30\n");
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, -1), 70);
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, 1), 70); /* no word about the node */
    write_file("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "40\n");
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, 1), 40);
    write_file("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "90\n");
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, 1), 70);
    write_file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "200\n");
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, 2 * HL_MIB, 1), 0);
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(machine, HL_GIB, 1), 0);
    CU_ASSERT_EQUAL(hl_host_page_bytes(HL_PAGES_2M), 2 * HL_MIB);
    CU_ASSERT_EQUAL(hl_host_page_bytes(HL_PAGES_1G), HL_GIB);
}

static void available_memory_is_the_least_of_machine_node_and_cgroups(void)
{
    open_machine();
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), UINT64_MAX);
    write_file("/proc/meminfo", "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  500 kB\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 500 * HL_KIB);
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, 1), 500 * HL_KIB);
    write_file("/sys/devices/system/node/node1/meminfo",
               "Node 1 MemTotal: 900 kB\nNode 1 MemFree: 100 kB\n"
               "Node 1 Active(file): 20 kB\nNode 1 Inactive(file): 3 kB\n"
               "Node 1 SReclaimable: 1 kB\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, 1), 124 * HL_KIB);
    write_file("/proc/self/cgroup", "0::/pod/box\n");
    write_file("/sys/fs/cgroup/pod/box/memory.max", "max\n");
    write_file("/sys/fs/cgroup/pod/box/memory.current", "1000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, 1), 124 * HL_KIB);
    write_file("/sys/fs/cgroup/pod/memory.max", "90000\n");
    write_file("/sys/fs/cgroup/pod/memory.current", "50000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, 1), 40000);
    write_file("/sys/fs/cgroup/pod/memory.stat", "anon 40000\ninactive_file 6000\nactive_file 4000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, 1), 50000);
    write_file("/sys/fs/cgroup/pod/box/memory.max", "30000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 29000);
    write_file("/sys/fs/cgroup/pod/box/memory.current", "31000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 0);
    write_file("/proc/self/cgroup",
               "5:cpu:/pod\n4:memory:/outside/name\n0::/\n"); /* version 1, in a container */
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 500 * HL_KIB);
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "30000\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 40000);
    write_file("/sys/fs/cgroup/memory/memory.stat",
               "active_file 1\ntotal_active_file 5000\ntotal_inactive_file 2\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 45002);
    write_file("/proc/self/cgroup", "1:cpu:/pod\nnonsense\n");
    CU_ASSERT_EQUAL(hl_host_available_bytes(machine, -1), 500 * HL_KIB);
}

static void a_root_too_long_for_a_path_says_nothing(void)
{
    char longest[4096 + 1];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CU_ASSERT_EQUAL(hl_host_available_bytes(longest, 0), UINT64_MAX);
    longest[4080] = '\0';
    CU_ASSERT_EQUAL(hl_host_available_bytes(longest, 0), UINT64_MAX);
    CU_ASSERT_EQUAL(hl_host_free_huge_pages(longest, HL_GIB, 0), 0);
}

HL_TESTS(touch, HL_CASE(each_way_of_touching_populates_everything), HL_CASE(touching_keeps_what_was_written),
         HL_CASE(threads_that_cannot_start_are_done_without),
         HL_CASE(missing_pages_are_an_error_and_no_signal), HL_CASE(the_fallback_reports_missing_pages_too),
         HL_CASE(nodes_and_their_cpus_come_from_sysfs), HL_CASE(free_huge_pages_leave_out_promised_ones),
         HL_CASE(available_memory_is_the_least_of_machine_node_and_cgroups),
         HL_CASE(a_root_too_long_for_a_path_says_nothing));
