/* Loses notifications between processes: a write of an eventfd that crosses a session does nothing, at
 * random. Linked with --wrap=write and --wrap=eventfd_write, so that the product's own calls come here. */
#ifndef QUALIFICATION_RESTORE_NOTIFICATION_LOSS_H
#define QUALIFICATION_RESTORE_NOTIFICATION_LOSS_H

#include <stdatomic.h>
#include <stdint.h>

struct notification_loss {
    _Atomic uint32_t one_in;       /* this many are lost; 0: none, 1: all */
    _Atomic uint64_t seed;         /* advanced by each */
    _Atomic uint64_t lost, passed; /* since the start of the process */
    /* Only these may be lost in this process, which sets them: an engine's signals to the Manager. With
     * `manager`, every eventfd_write(), as only the Manager's notifications are that. */
    _Atomic int fds[64];
    _Atomic int fd_count;
    _Atomic int manager;
};
extern struct notification_loss notification_loss;

#endif
