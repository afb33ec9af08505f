#include "qualification/restore/footprint.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "qualification/restore/process.h"

static uint64_t count_fds(void)
{
    uint64_t count = 0;
    DIR *list = opendir("/proc/self/fd");
    MUST(list != NULL);
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

static uint64_t count_maps(void)
{
    uint64_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    MUST(maps != NULL);
    for (int c = getc(maps); c != EOF; c = getc(maps))
        count += c == '\n';
    fclose(maps);
    return count;
}

void footprint_take(struct footprint *footprint)
{
    unsigned long long total, resident;
    footprint->fds = count_fds();
    footprint->maps = count_maps();
    FILE *statm = fopen("/proc/self/statm", "re");
    MUST(statm != NULL && fscanf(statm, "%llu %llu", &total, &resident) == 2);
    fclose(statm);
    footprint->resident_kib = resident * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}
