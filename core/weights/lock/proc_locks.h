/* The lines of /proc/locks, as far as flock() is concerned. */
#ifndef CORE_WEIGHTS_LOCK_PROC_LOCKS_H
#define CORE_WEIGHTS_LOCK_PROC_LOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether a line (terminated, with or without its newline) says that a process of this PID namespace holds a
 * flock on the inode; then its id. Waiters are no holders. */
bool hl_lock_line_holder(const char *line, dev_t device, ino_t inode, pid_t *holder);

#endif
