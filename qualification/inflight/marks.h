/* Progress marks: words in memory that all processes of a test share, which a stream writes between its
 * copies. A mark that is there proves that the device has finished everything submitted before it, one that
 * is not there that it has not finished what comes before that one: between the two, the copy is in flight.
 * The memory outlives every process, so that the marks can be read after a death.
 *
 * marks_take_device() puts the marks between the copies that the engine's own executor submits: it replaces
 * the device's operations by ones that call the real ones and then write a mark. To make the copies long it
 * submits each several times, which leaves the same bytes. */
#ifndef QUALIFICATION_INFLIGHT_MARKS_H
#define QUALIFICATION_INFLIGHT_MARKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "core/device/device.h"

struct marks {
    _Atomic uint32_t progress;  /* written by the device: marks passed */
    _Atomic uint32_t submitted; /* marks that the device has accepted, with every copy before them */
    _Atomic uint32_t gate;      /* a stream that is held waits for a 1 here; a plain store is enough */
};

struct marks_plan {
    uint32_t passes;      /* how often each copy is submitted */
    uint64_t mark_bytes;  /* from mark to mark; divides what all passes copy, so that a mark is last */
    uint64_t piece_bytes; /* of each of a launch's descriptors */
    uint32_t hold;        /* the stream waits at the gate after so many marks; 0: never */
};

/* The test makes them before it starts a process that takes part, which finds them by marks_open(). */
struct marks *marks_create(void);
struct marks *marks_open(void);
void marks_clear(struct marks *marks);
void marks_close(struct marks *marks);

/* Registers the marks with the device; the device's address of `progress`. The device is entered. */
hl_devptr marks_register(struct marks *marks, hl_device *dev);
void marks_unregister(struct marks *marks, hl_device *dev);

/* From now on. One device a process. */
void marks_take_device(struct marks *marks, hl_device *dev);
/* Which copies are marked: those into the device on `stream`. */
void marks_arm(hl_stream stream, const struct marks_plan *plan);

/* What the test saw of a process that it killed while its copies, or another's, were in flight. The times are
 * the test's own, from the kill on; those of marks are when a poll of less than a microsecond saw them. */
struct marks_death {
    uint32_t before, after; /* progress right before the call of kill() and right after it */
    uint32_t reaped;        /* progress when waitpid() had returned */
    uint32_t submitted;     /* at the kill */
    int64_t mark_ns;        /* CLOCK_MONOTONIC: progress was first seen where the test waited for it */
    int64_t kill_ns, killed_ns, reaped_ns; /* the call of kill(), its return, the return of waitpid() */
    int64_t last_mark_ns; /* progress was last seen to change until the reap; 0: it did not */
};
/* Waits until `progress` is at least `at` and the device has more to do, kills `pid` at once and reaps it. */
void marks_kill(struct marks *marks, uint32_t at, pid_t pid, struct marks_death *death);
/* Whether copies were in flight at the kill, by the marks alone. */
bool marks_prove_flight(const struct marks_death *death);

#endif
