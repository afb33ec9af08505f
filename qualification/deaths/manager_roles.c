/* The Manager's process beside an engine that survives it. */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults/sweep/sweep.h"
#include "faults/testing.h"
#include "qualification/deaths/holdings.h"
#include "qualification/deaths/house.h"
#include "qualification/deaths/roles.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/process.h"

/* Until the surviving engine has said its last word; whether it did. */
static bool serve_engine(struct house *house, int stage)
{
    enum stage_word word;
    int passed;
    while (stage_hear(stage, &word, &passed)) {
        if (passed >= 0)
            close(passed);
        stage_say(stage, house_serve(house, word), -1);
        if (word == STAGE_END)
            return true;
    }
    house_thaw(house);
    fprintf(stderr, "the engine that should survive does not\n");
    return false;
}

/* A fresh engine, in a process of its own. */
static bool have_visitor(void)
{
    const char *const argv[] = {"/proc/self/exe", "visitor", ".", NULL};
    int status = 0;
    const pid_t visitor = hl_fault_spawn(NULL, argv, (const char *const[]){HL_SWEEP_OUTCOME "=", NULL});
    if (!hl_fault_await_exit(visitor, HL_FAULT_PATIENCE_NS / 2, &status)) {
        kill(visitor, SIGKILL);
        waitpid(visitor, NULL, 0);
        fprintf(stderr, "a fresh engine hangs\n");
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == HL_SWEEP_DONE;
}

/* An engine that lives has claimed nothing that does not drain: only an error that was injected explains
 * quarantine, or a lease that the engine could not give back. */
static bool settle(struct house *house)
{
    const char *action = getenv(HL_SWEEP_ACTION);
    const bool error = action && action[0] == 'E';
    if (error)
        house_expire_leases(house);
    if (!house_await_no_sessions(house))
        return false;
    const uint32_t released = house_release_quarantine(house);
    if (released && !error) {
        fprintf(stderr, "%u operations were in quarantine, and their engine lives\n", released);
        return false;
    }
    return house_is_home(house);
}

int role_manager(bool settles)
{
    struct house house;
    struct holdings before;
    const int stage = stage_connect();
    MUST(stage >= 0);
    holdings_take(&before);
    bool good = true;
    const bool opened = house_open(&house, HOUSE_SMALL_ARENA_BYTES);
    if (opened) {
        good = stage_say(stage, STAGE_READY, -1) && serve_engine(&house, stage) &&
               (!settles || have_visitor()) && settle(&house);
        good = house_close(&house) && good;
    }
    if (!holdings_are_again(&before, 0)) {
        fprintf(stderr, "the Manager has left something behind\n");
        good = false;
    }
    holdings_free(&before);
    close(stage);
    return !good ? ROLE_WRONG : opened ? HL_SWEEP_DONE : HL_SWEEP_FAILED;
}
