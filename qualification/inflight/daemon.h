/* The Manager as it is deployed: the program hostlane-manager, in the working folder of folder_enter(). */
#ifndef QUALIFICATION_INFLIGHT_DAEMON_H
#define QUALIFICATION_INFLIGHT_DAEMON_H

#include "qualification/restore/process.h"

int daemon_role(int channel);
#define DAEMON_ROLE                                                                                          \
    {                                                                                                        \
        .name = "daemon", .act = daemon_role                                                                 \
    }

/* Returns when it takes connections. */
void daemon_start(struct process *daemon, uint64_t arena_bytes);
/* After a kill and a reap: forgets it. */
void daemon_forget(struct process *daemon);
/* SIGTERM; it ends well only with nothing in quarantine. */
void daemon_end(struct process *daemon);

/* A number of `hostlane status`. */
uint64_t daemon_number(const char *field);
/* Restores that hold a permit of its one GPU. */
uint64_t daemon_permits(void);
/* Asks until `field` is `value`. */
void daemon_await(const char *field, uint64_t value);
/* Its own check of all that it holds (I2). */
void daemon_check(void);

#endif
