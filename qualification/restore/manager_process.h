/* A Manager in a process of its own, which a test may ask, change, stop and kill. */
#ifndef QUALIFICATION_RESTORE_MANAGER_PROCESS_H
#define QUALIFICATION_RESTORE_MANAGER_PROCESS_H

#include "qualification/restore/footprint.h"
#include "qualification/restore/process.h"

/* The socket, in the folder that folder_enter() has made the working one. */
#define MANAGER_SOCKET "m/s"

struct manager_settings_of_a_test {
    uint64_t arena_bytes;
    uint32_t arena_count;
    uint32_t index_blocks;
    uint32_t spin_us;
    uint64_t part_bytes;     /* 0: the product's bound */
    uint64_t metadata_bytes; /* 0: the product's bound */
    uint64_t tick_ns;        /* of maintenance; 0: the product's second */
};
#define MANAGER_DEFAULTS                                                                                     \
    ((struct manager_settings_of_a_test){.arena_bytes = 16 << 20, .arena_count = 2, .index_blocks = 32768})

int manager_process_role(int channel);
#define MANAGER_ROLE                                                                                         \
    {                                                                                                        \
        .name = "manager", .act = manager_process_role                                                       \
    }

/* A fresh working folder for the socket; leaving removes it. */
void folder_enter(void);
void folder_leave(void);

void manager_start(struct process *manager, const struct manager_settings_of_a_test *settings);
/* The same in another role, which calls manager_process_role(). */
void manager_start_as(struct process *manager, const char *role,
                      const struct manager_settings_of_a_test *settings);
hl_manager_snapshot manager_stats(struct process *manager);
struct footprint manager_footprint(struct process *manager);
/* I2, asserted by the Manager itself; with `idle`, also that every credit is back. */
void manager_check(struct process *manager, bool idle);
/* Lets every lease's time be up now. */
void manager_expire(struct process *manager);
/* Bounds of one operation's plan and of each session's prepared plans, from now on; 0: unchanged. */
void manager_bound(struct process *manager, uint64_t metadata_bytes, uint64_t plan_bytes);
/* Where the Manager has mapped arena `index`, and how large it is. */
uint64_t manager_arena(struct process *manager, uint32_t index, uint64_t *bytes);
/* Waits until the log has a line with this text; returns how many there are. */
uint32_t manager_await_log(struct process *manager, const char *text);
/* How many log lines have this text now. */
uint32_t manager_logged(struct process *manager, const char *text);
/* hl_manager_stop(), which waits for engines that are copying; returns what is in quarantine. The process
 * lives on and answers. _begin() only asks for it. */
uint32_t manager_stop(struct process *manager);
void manager_stop_begin(struct process *manager);
uint32_t manager_stop_finish(struct process *manager);
/* Stops it, expects that nothing is left in it, and ends the process. */
void manager_end(struct process *manager);

/* Asks until `field` of the snapshot is `value`. */
#define MANAGER_AWAIT(manager, field, value)                                                                 \
    do {                                                                                                     \
        const int64_t until_ = hl_clock_ns() + PATIENCE_NS;                                                  \
        while (manager_stats(manager).field != (value))                                                      \
            MUST(hl_clock_ns() < until_ && sched_yield() == 0);                                              \
    } while (0)

#endif
