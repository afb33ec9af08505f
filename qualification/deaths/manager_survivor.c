/* The Manager's process beside engines that die, stop and fail. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/device/software.h"
#include "core/grant/grant.h"
#include "faults/sweep/sweep.h"
#include "manager/state.h"
#include "qualification/deaths/holdings.h"
#include "qualification/deaths/house.h"
#include "qualification/deaths/roles.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/process.h"

#define ENGINES 8
#define LEDGERS 8

struct warden {
    struct house house;
    bool refuses;
    int listener;
    int engines[ENGINES];
    int freezer; /* the engine for whom the Manager stands still; -1 */
    /* The grant memory of every engine that played: what its records said when it died. */
    const unsigned char *ledgers[LEDGERS];
    size_t ledger_count;
    uint64_t quarantined_bytes;
};

/* --- what engines ask for --- */

static void keep_ledger(struct warden *warden, int fd)
{
    MUST(fd >= 0 && warden->ledger_count < LEDGERS);
    const void *memory = mmap(NULL, HL_GRANT_MEMORY_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    warden->ledgers[warden->ledger_count++] = memory;
    close(fd);
}

static void drop_ledgers(struct warden *warden)
{
    while (warden->ledger_count)
        munmap((void *)(uintptr_t)warden->ledgers[--warden->ledger_count], HL_GRANT_MEMORY_BYTES);
}

static void lose_engine(struct warden *warden, int *engine)
{
    if (warden->freezer == *engine) {
        house_thaw(&warden->house);
        warden->freezer = -1;
    }
    close(*engine);
    *engine = -1;
}

static void serve_engine(struct warden *warden, int *engine)
{
    enum stage_word word;
    int passed;
    if (!stage_hear(*engine, &word, &passed)) {
        lose_engine(warden, engine);
        return;
    }
    if (word == STAGE_FREEZE)
        warden->freezer = *engine;
    else if (word == STAGE_THAW)
        warden->freezer = -1;
    else if (word == STAGE_GRANTS)
        keep_ledger(warden, passed);
    stage_say(*engine, house_serve(&warden->house, word), -1);
}

static void admit_engine(struct warden *warden)
{
    const int engine = stage_accept(warden->listener);
    for (size_t i = 0; engine >= 0 && i < ENGINES; i++)
        if (warden->engines[i] < 0) {
            warden->engines[i] = engine;
            return;
        }
    MUST(engine < 0);
}

/* --- what the sweep says --- */

/* Exactly what had been claimed, and not drained, when its engine died is in quarantine (I7). */
static bool quarantine_is_right(const struct warden *warden)
{
    const uint32_t quarantined = house_stats(&warden->house).quarantined;
    uint32_t active = 0;
    for (size_t i = 0; i < warden->ledger_count; i++)
        for (uint32_t record = 0; record < HL_GRANT_RECORDS; record++) {
            uint64_t word;
            memcpy(&word,
                   warden->ledgers[i] + HL_GRANT_HEADER_BYTES + record * sizeof(struct hl_grant_record),
                   sizeof word);
            active += (word & 0xff) == HL_GRANT_ACTIVE;
        }
    if (active != quarantined)
        fprintf(stderr, "%u records were ACTIVE when their engines died, %u operations are in quarantine\n",
                active, quarantined);
    return active == quarantined && house_strange_quarantine(&warden->house) == 0;
}

/* An engine has ended, in whatever way: all that is left of it is declared. */
static bool see_end(struct warden *warden)
{
    const bool good = house_await_no_sessions(&warden->house) && house_is_sound(&warden->house) &&
                      quarantine_is_right(warden);
    warden->quarantined_bytes = house_quarantined_bytes(&warden->house);
    return good;
}

static bool obey(struct warden *warden, const char *word)
{
    house_thaw(&warden->house); /* whoever had it stand still is stopped or dead */
    warden->freezer = -1;
    house_empty_bank(&warden->house);
    if (!strcmp(word, "stopped")) {
        if (warden->refuses)
            house_refuse_sessions(&warden->house);
        return house_is_sound(&warden->house);
    }
    if (strcmp(word, "checking") != 0)
        return see_end(warden);
    if (house_quarantined_bytes(&warden->house) != warden->quarantined_bytes) {
        fprintf(stderr, "a source in quarantine has been written\n");
        return false;
    }
    return quarantine_is_right(warden);
}

/* Engines first: what they said before they died is to be known when the sweep speaks of it. */
static bool turn(struct warden *warden, bool *over)
{
    struct pollfd fds[ENGINES + 2];
    char word[16];
    for (size_t i = 0; i < ENGINES; i++)
        fds[i] = (struct pollfd){.fd = warden->engines[i], .events = POLLIN};
    fds[ENGINES] = (struct pollfd){.fd = warden->listener, .events = POLLIN};
    fds[ENGINES + 1] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    MUST(poll(fds, ENGINES + 2, -1) > 0);
    bool quiet = true;
    for (size_t i = 0; i < ENGINES; i++)
        if (fds[i].revents) {
            serve_engine(warden, &warden->engines[i]);
            quiet = false;
        }
    if (fds[ENGINES].revents) {
        admit_engine(warden);
        quiet = false;
    }
    if (!quiet || !fds[ENGINES + 1].revents)
        return true;
    *over = !hl_sweep_hear(word);
    if (*over)
        return true;
    const bool good = obey(warden, word);
    hl_sweep_answer(good);
    return good;
}

/* --- the whole --- */

static struct hl_software_counts pinned(const struct house *house)
{
    struct hl_software_counts counts;
    pthread_mutex_lock(&house->manager->lock);
    hl_software_counts(house->manager->gpus[0].dev, &counts);
    pthread_mutex_unlock(&house->manager->lock);
    return counts;
}

static bool device_is_again(const struct house *house, const struct hl_software_counts *before)
{
    const struct hl_software_counts now = pinned(house);
    if (now.registrations == before->registrations && now.registered_bytes == before->registered_bytes &&
        now.imports == before->imports && now.allocations == before->allocations && now.violations == 0)
        return true;
    fprintf(stderr,
            "the Manager's device has %llu registrations, %llu pinned bytes, %llu imports, %llu "
            "violations\n",
            (unsigned long long)now.registrations, (unsigned long long)now.registered_bytes,
            (unsigned long long)now.imports, (unsigned long long)now.violations);
    return false;
}

int role_manager_survives(bool refuses)
{
    struct warden warden = {.refuses = refuses, .freezer = -1};
    struct holdings before;
    bool good = true, over = false;
    for (size_t i = 0; i < ENGINES; i++)
        warden.engines[i] = -1;
    MUST(house_open(&warden.house, HOUSE_ARENA_BYTES));
    warden.listener = stage_listen();
    holdings_take(&before);
    const struct hl_software_counts device = pinned(&warden.house);
    hl_sweep_answer(true);
    while (good && !over)
        good = turn(&warden, &over);
    drop_ledgers(&warden);
    good = good && house_await_no_sessions(&warden.house) && house_is_home(&warden.house) &&
           device_is_again(&warden.house, &device) && holdings_are_again(&before, 0);
    holdings_free(&before);
    close(warden.listener);
    return house_close(&warden.house) && good ? HL_SWEEP_DONE : ROLE_WRONG;
}
