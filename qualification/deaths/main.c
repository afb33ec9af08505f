/* deaths_process ROLE FOLDER: every process of the sweeps over the restore protocol (roles.h). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "faults/sweep/sweep.h"
#include "qualification/deaths/roles.h"
#include "qualification/restore/process.h"

#define USAGE 99
#define MUST_FAILED 98

/* Of the stage's library, whose own is for test cases: here a check that fails ends its process. */
void process_must(bool holds, const char *file, int line, const char *what, const char *why)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: %s%s%s\n", file, line, what, why[0] ? ": " : "", why);
    _exit(MUST_FAILED);
}

static int act(const char *role)
{
    if (!strcmp(role, "engine"))
        return role_engine(false, NULL);
    if (!strcmp(role, "engine-may-lose"))
        return role_engine(true, NULL);
    if (!strcmp(role, "engine-by-kernel"))
        return role_engine(false, "kernel");
    if (!strcmp(role, "doomed"))
        return role_doomed();
    if (!strcmp(role, "visitor"))
        return role_visitor();
    if (!strcmp(role, "settle"))
        return role_settle();
    if (!strcmp(role, "manager-survives"))
        return role_manager_survives(false);
    if (!strcmp(role, "manager-refuses"))
        return role_manager_survives(true);
    if (!strcmp(role, "manager"))
        return role_manager(false);
    if (!strcmp(role, "manager-settles"))
        return role_manager(true);
    if (!strcmp(role, "engine-survives"))
        return role_engine_survives(false, false);
    if (!strcmp(role, "engines-survive-and-die"))
        return role_engine_survives(true, false);
    if (!strcmp(role, "engine-survives-hampered"))
        return role_engine_survives(false, true);
    return USAGE;
}

/* The thread sanitizer has a thread of its own, which comes with the first other one. */
static void *do_nothing(void *unused)
{
    return unused;
}

static void have_sanitizer_thread(void)
{
    pthread_t thread;
    if (SANITIZED && pthread_create(&thread, NULL, do_nothing, NULL) == 0)
        pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    const struct rlimit no_core = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    if (argc != 3 || chdir(argv[2])) {
        fprintf(stderr, "usage: deaths_process ROLE FOLDER\n");
        return USAGE;
    }
    have_sanitizer_thread();
    return act(argv[1]);
}
