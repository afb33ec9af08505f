#include "core/arena/host_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostlane/limits.h"

uint64_t hl_host_page_bytes(enum hl_page_size pages)
{
    if (pages == HL_PAGES_2M)
        return 2 * HL_MIB;
    if (pages == HL_PAGES_1G)
        return HL_GIB;
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* --- reading the kernel's small text files --- */

static FILE *open_below(const char *root, const char *format, va_list args)
{
    char path[PATH_MAX];
    int used = snprintf(path, sizeof path, "%s", root);
    if (used < 0 || (size_t)used >= sizeof path)
        return NULL;
    int more = vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    if (more < 0 || (size_t)more >= sizeof path - (size_t)used)
        return NULL;
    return fopen(path, "re");
}

__attribute__((format(printf, 2, 3))) static FILE *open_file(const char *root, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *file = open_below(root, format, args);
    va_end(args);
    return file;
}

/* Where the value of `key` begins in a line "key value" or "Node 0 key value"; NULL when it is another key's
 * line. */
static const char *value_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at && (at == line || at[-1] == ' ') ? at + strlen(key) : NULL;
}

/* The number after `key` ("": at the start of the file). False when there is none, as in a cgroup's limit
 * "max". */
__attribute__((format(printf, 4, 5))) static bool read_number(const char *root, const char *key,
                                                              uint64_t *number, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *file = open_below(root, format, args);
    va_end(args);
    if (!file)
        return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        const char *value = value_of(line, key);
        char *end = NULL;
        if (!value)
            continue;
        errno = 0;
        uint64_t parsed = strtoull(value, &end, 10);
        if (end == value || errno)
            break;
        *number = parsed;
        found = true;
    }
    fclose(file);
    return found;
}

__attribute__((format(printf, 4, 5))) static bool read_line(const char *root, char *line, size_t size,
                                                            const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *file = open_below(root, format, args);
    va_end(args);
    if (!file)
        return false;
    bool got = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

/* --- nodes --- */

bool hl_host_has_node(const char *root, int node)
{
    char line[16384];
    if (node < 0 || node >= HL_HOST_NODES)
        return false;
    return node == 0 || read_line(root, line, sizeof line, "/sys/devices/system/node/node%d/cpulist", node) ||
           read_line(root, line, sizeof line, "/sys/devices/system/node/node%d/meminfo", node);
}

/* Parses "0-3,8,10-11"; what cannot be read ends the list. */
static void parse_cpulist(const char *list, cpu_set_t *cpus)
{
    CPU_ZERO(cpus);
    for (;;) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list)
            return;
        if (*end == '-') {
            list = end + 1;
            last = strtoul(list, &end, 10);
            if (end == list)
                return;
        }
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, cpus);
        if (*end != ',')
            return;
        list = end + 1;
    }
}

void hl_host_node_cpus(const char *root, int node, cpu_set_t *cpus)
{
    char list[16384];
    cpu_set_t of_node;
    if (sched_getaffinity(0, sizeof *cpus, cpus) != 0) { /* more CPUs than the set can name */
        CPU_ZERO(cpus);
        return;
    }
    if (node < 0 || !read_line(root, list, sizeof list, "/sys/devices/system/node/node%d/cpulist", node))
        return;
    parse_cpulist(list, &of_node);
    CPU_AND(&of_node, &of_node, cpus);
    if (CPU_COUNT(&of_node) > 0)
        *cpus = of_node;
}

/* --- huge pages --- */

uint64_t hl_host_free_huge_pages(const char *root, uint64_t page_bytes, int node)
{
    uint64_t free_pages = 0, promised = 0, on_node = 0;
    uint64_t kib = page_bytes / HL_KIB;
    read_number(root, "", &free_pages, "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/free_hugepages",
                kib);
    read_number(root, "", &promised, "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/resv_hugepages", kib);
    uint64_t unpromised = free_pages > promised ? free_pages - promised : 0;
    if (node >= 0 &&
        read_number(root, "", &on_node,
                    "/sys/devices/system/node/node%d/hugepages/hugepages-%" PRIu64 "kB/free_hugepages", node,
                    kib))
        return on_node < unpromised ? on_node : unpromised;
    return unpromised;
}

/* --- regular memory --- */

static uint64_t node_available(const char *root, int node)
{
    static const char *const keys[] = {"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"};
    uint64_t total = 0;
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t kib = 0;
        if (!read_number(root, keys[i], &kib, "/sys/devices/system/node/node%d/meminfo", node) && i == 0)
            return UINT64_MAX;
        total += kib * HL_KIB;
    }
    return total;
}

/* Where a version of cgroups keeps what matters here. */
struct cgroup_files {
    const char *mount;
    const char *limit;
    const char *used;
    const char *active_cache; /* keys of memory.stat, sums of the whole subtree as `used` is */
    const char *inactive_cache;
};

static const struct cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "active_file",
                                              "inactive_file"};
static const struct cgroup_files cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                              "memory.usage_in_bytes", "total_active_file",
                                              "total_inactive_file"};

/* What one cgroup still allows. Its page cache counts as used, but goes before anybody is killed. */
static uint64_t cgroup_room(const char *root, const struct cgroup_files *files, const char *path)
{
    uint64_t limit, used, active = 0, inactive = 0;
    if (!read_number(root, "", &limit, "%s%s/%s", files->mount, path, files->limit) ||
        !read_number(root, "", &used, "%s%s/%s", files->mount, path, files->used))
        return UINT64_MAX;
    read_number(root, files->active_cache, &active, "%s%s/memory.stat", files->mount, path);
    read_number(root, files->inactive_cache, &inactive, "%s%s/memory.stat", files->mount, path);
    uint64_t cache = active + inactive;
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* The least of the cgroup at `path` (which is cut up) and those above it. A container may see its own cgroup
 * as the mount's root under a path that exists outside only; the root is therefore always asked. */
static uint64_t hierarchy_room(const char *root, const struct cgroup_files *files, char *path)
{
    uint64_t least = UINT64_MAX;
    for (char *cut = path + strlen(path); cut; cut = strrchr(path, '/')) {
        *cut = '\0';
        uint64_t room = cgroup_room(root, files, path);
        least = room < least ? room : least;
    }
    return least;
}

/* Lines are "0::/path" for version 2 and "number:controllers:/path" for version 1. */
static uint64_t cgroups_room(const char *root)
{
    char line[PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *file = open_file(root, "/proc/self/cgroup");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *path = strstr(line, ":/");
        bool v1 = path && strstr(line, ":memory:/") == path - strlen(":memory");
        if (!path || (!v1 && strncmp(line, "0::/", 4) != 0))
            continue;
        uint64_t room = hierarchy_room(root, v1 ? &cgroup_v1 : &cgroup_v2, path + 1);
        least = room < least ? room : least;
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t hl_host_available_bytes(const char *root, int node)
{
    uint64_t kib, least = cgroups_room(root);
    if (read_number(root, "MemAvailable:", &kib, "/proc/meminfo") && kib * HL_KIB < least)
        least = kib * HL_KIB;
    if (node >= 0) {
        uint64_t on_node = node_available(root, node);
        least = on_node < least ? on_node : least;
    }
    return least;
}
