#include "qualification/deaths/holdings.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "qualification/restore/process.h"

#define FAULT_BOARD "memfd:hostlane-fault-board" /* mapped at the first hit */
#define VANISH_NS (5 * HL_NS_PER_S)

static void add(struct holdings *holdings, const char *kind, const char *name)
{
    char line[512];
    snprintf(line, sizeof line, "%s %s", kind, name);
    char **names = realloc(holdings->names, (holdings->count + 1) * sizeof *names);
    MUST(names != NULL);
    holdings->names = names;
    names[holdings->count] = strdup(line);
    MUST(names[holdings->count++] != NULL);
}

/* The number of an inode says nothing about what a descriptor is. */
static void add_descriptors(struct holdings *holdings)
{
    DIR *list = opendir("/proc/self/fd");
    MUST(list != NULL);
    for (struct dirent *entry; (entry = readdir(list));) {
        char target[256];
        const ssize_t size = readlinkat(dirfd(list), entry->d_name, target, sizeof target - 1);
        if (size < 0 || strtol(entry->d_name, NULL, 10) == dirfd(list))
            continue;
        target[size] = '\0';
        target[strcspn(target, "[")] = strncmp(target, "socket:", 7) ? target[strcspn(target, "[")] : '\0';
        add(holdings, "descriptor", target);
    }
    closedir(list);
}

/* With their sizes, without their addresses. */
static void add_mappings(struct holdings *holdings)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    MUST(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        unsigned long long from = 0, to = 0;
        char access[8] = "", name[300] = "", text[400];
        /* NOLINTNEXTLINE(cert-err34-c): the kernel's own text, whose fields are checked below */
        const int fields = sscanf(line, "%llx-%llx %7s %*s %*s %*s %299[^\n]", &from, &to, access, name);
        MUST(fields >= 3);
        if ((access[3] != 's' && !strstr(name, "memfd:")) || strstr(name, FAULT_BOARD))
            continue;
        snprintf(text, sizeof text, "%s %s, %llu bytes", name, access, to - from);
        add(holdings, "mapping", text);
    }
    fclose(maps);
}

static void add_threads(struct holdings *holdings)
{
    DIR *list = opendir("/proc/self/task");
    MUST(list != NULL);
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[64], name[32] = "";
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        FILE *comm = fopen(path, "re");
        if (!comm)
            continue; /* it has ended meanwhile */
        if (!fgets(name, sizeof name, comm))
            name[0] = '\0';
        fclose(comm);
        name[strcspn(name, "\n")] = '\0';
        add(holdings, "thread", name);
    }
    closedir(list);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void holdings_take(struct holdings *holdings)
{
    *holdings = (struct holdings){0};
    add_descriptors(holdings);
    add_mappings(holdings);
    add_threads(holdings);
    MUST(holdings->names != NULL);
    qsort(holdings->names, holdings->count, sizeof *holdings->names, compare);
}

static size_t differences(const struct holdings *before, const struct holdings *now, bool say)
{
    size_t i = 0, j = 0, count = 0;
    while (i < before->count || j < now->count) {
        const int order = i == before->count ? 1
                          : j == now->count  ? -1
                                             : strcmp(before->names[i], now->names[j]);
        if (order != 0 && say)
            fprintf(stderr, "%s: %s\n", order < 0 ? "gone" : "left",
                    order < 0 ? before->names[i] : now->names[j]);
        count += order != 0;
        i += order <= 0;
        j += order >= 0;
    }
    return count;
}

bool holdings_same(const struct holdings *before, const struct holdings *now)
{
    return differences(before, now, true) == 0;
}

void holdings_free(struct holdings *holdings)
{
    for (size_t i = 0; i < holdings->count; i++)
        free(holdings->names[i]);
    free(holdings->names);
    *holdings = (struct holdings){0};
}

bool holdings_are_again(const struct holdings *before, size_t kept)
{
    const int64_t until = hl_clock_ns() + VANISH_NS;
    for (;;) {
        struct holdings now;
        holdings_take(&now);
        const bool last = hl_clock_ns() >= until;
        const bool same = differences(before, &now, last) <= kept;
        holdings_free(&now);
        if (same || last)
            return same;
        sched_yield();
    }
}
