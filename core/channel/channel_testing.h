/* What the tests of this room share: a folder of their own, open fds counted, and this program run again as
 * another process. */
#ifndef CORE_CHANNEL_CHANNEL_TESTING_H
#define CORE_CHANNEL_CHANNEL_TESTING_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "core/channel/channel.h"
#include "core/testing/cunit.h"

/* Makes $TEST_TMPDIR the working directory and a new folder of mode 0700 in it, whose relative name is short
 * enough for socket addresses: "XXXXXX". */
void folder_make(char folder[8]);
/* `file` in the folder, as a path. */
const char *folder_path(const char *folder, const char *file, char path[64]);

unsigned open_fds(void);
/* Lets this process open `count` fds more; fds_unlimited() undoes it. No fd is free below the open ones. */
void fds_limit(unsigned count);
void fds_unlimited(void);

/* The program of a spawned process: `channel` is a SEQPACKET socket to the test, `argument` what it passed.
 * The result is its exit status. A test program defines its own; one without processes leaves it out. */
int role_run(const char *role, const char *argument, int channel);

struct role {
    pid_t pid;
    int channel; /* the test's end, blocking */
};

/* Runs this program again. */
void role_start(struct role *role, const char *name, const char *argument);
/* Closes the channel and expects that the process exits by itself with `status`. */
void role_expect_exit(struct role *role, int status);
/* The same for a process that must die of an assertion (SIGABRT, or what a sanitizer makes of it). */
void role_expect_abort(struct role *role);

enum { ROLE_UNSTAGED = 99 }; /* exit status of a role that could not begin */

/* A pair of connected SEQPACKET sockets, close-on-exec. */
void socket_pair(int pair[2]);

#endif
