/* First touch: makes every page of a mapping exist, in parallel, on CPUs of one NUMA node. Private to
 * core/arena. */
#ifndef CORE_ARENA_TOUCH_H
#define CORE_ARENA_TOUCH_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena/arena.h"

struct hl_touch {
    int fd; /* a memfd that is sealed against growing, mapped whole at `base` */
    unsigned char *base;
    uint64_t bytes; /* a multiple of page_bytes */
    uint64_t page_bytes;
    unsigned threads;      /* besides the caller; 0: the caller does it alone */
    const cpu_set_t *cpus; /* where those threads run; NULL or empty: anywhere */
    uint64_t slice_bytes;  /* done at a time by one thread; a multiple of page_bytes; 0: chosen here */
    bool without_populate; /* as on a kernel without MADV_POPULATE_WRITE (before 5.14) */
    /* NULL: pthread_create; a test gives one that fails. */
    int (*start)(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user);
    hl_arena_progress progress;
    void *progress_user;
};

/* Never raises SIGBUS: HL_E_NOMEM, with where, when the system has no page left, HL_E_SYSTEM for another
 * failure. */
hl_status hl_touch_pages(const struct hl_touch *touch, hl_error *err);

#endif
