/* One case of a sweep, and what came of it. */
#ifndef FAULTS_SWEEP_CASE_H
#define FAULTS_SWEEP_CASE_H

#include <stddef.h>

#include "faults/sweep/sweep.h"
#include "faults/testing.h"

enum sweep_action { SWEEP_KILL, SWEEP_PARK_KILL, SWEEP_PARK_STOP, SWEEP_ERROR, SWEEP_SHORT, SWEEP_DROP };
#define SWEEP_ACTIONS 6

struct sweep_fault {
    uint32_t point;
    uint32_t nth;
    enum sweep_action action;
    uint64_t argument; /* errno or bytes */
};

struct sweep_case {
    struct sweep_fault first;
    bool has_second;
    struct sweep_fault second; /* a kill in the recovery */

    /* What came of it. */
    bool fired, second_fired;
    bool aborted; /* the first fault was an error, and ended the victim */
    bool passed;
    char trouble[256];
    char *log;               /* what its programs said; NULL unless it failed */
    uint32_t *recovery_hits; /* a point each, of a recovery without a fault; NULL: there was none */
};

/* How to run cases: one a thread. */
struct sweep_bench {
    const hl_sweep_scenario *scenario;
    char folder[512]; /* its own; cases are folders in it */
    bool keep;        /* the case's folder, and say where it is */
};

/* --- run.c --- */

void sweep_case_run(const struct sweep_bench *bench, unsigned number, struct sweep_case *one);
/* The scenario without a fault: `hits` and `suits` are filled, a point each. */
bool sweep_count(const struct sweep_bench *bench, unsigned number, uint32_t *hits, hl_fault_action *suits,
                 struct sweep_case *outcome);

/* --- survivor.c --- */

struct sweep_survivor {
    pid_t pid; /* 0: there is none, and everything about it succeeds */
    int channel;
};
/* Starts it with these NAME=value strings, ended by NULL, and waits until it is ready. */
bool sweep_survivor_start(struct sweep_survivor *survivor, const char *const *argv,
                          const char *const *environment, int log_fd);
/* Whether it answers that all is well. */
bool sweep_survivor_tell(struct sweep_survivor *survivor, const char *word);
/* Tells it that the run is over. Whether it ended in time; then *status is waitpid()'s. */
bool sweep_survivor_end(struct sweep_survivor *survivor, int *status);
void sweep_survivor_kill(struct sweep_survivor *survivor);

/* --- replay.c --- */

void sweep_action_text(const struct sweep_fault *fault, char *text, size_t size);

/* "point:nth:action" and the second one's after a slash. */
void sweep_case_text(const struct sweep_case *one, char *text, size_t size);
bool sweep_case_parse(const char *text, struct sweep_case *one);

/* --- folder.c --- */

bool sweep_folder_make(const char *path, uid_t owner);
/* With everything in it, whatever its modes. */
bool sweep_folder_remove(const char *path);

/* --- enumerate.c --- */

struct sweep_list {
    struct sweep_case *cases;
    size_t count, room;
};
/* Every first fault. `hits` and `suits` are the unarmed run's. */
void sweep_list_first(struct sweep_list *list, const hl_sweep_scenario *scenario, const uint32_t *hits,
                      const hl_fault_action *suits);
/* Every second kill, from the recoveries of the kills in `first`. Recoveries that hit the same points equally
 * often are of one kind: all hits of each kind are met once, and every first kill meets at least one. Returns
 * the number of kinds. */
size_t sweep_list_second(struct sweep_list *list, const hl_sweep_scenario *scenario,
                         const struct sweep_list *first);
void sweep_list_free(struct sweep_list *list);
/* Whether `names`, ended by NULL, or NULL, has the point. */
bool sweep_is_listed(const char *const *names, uint32_t point);
/* Whether the scenario sweeps the point. */
bool sweep_is_meant(const hl_sweep_scenario *scenario, uint32_t point);
/* Whether hit `nth` of `hits` is taken when only `most` are. */
bool sweep_hit_is_taken(uint32_t nth, uint32_t hits, uint32_t most);

#endif
