/* The dispatcher's loop, for the files that give it descriptors to watch. */
#ifndef MANAGER_DISPATCH_H
#define MANAGER_DISPATCH_H

#include <stdint.h>

#include "manager/state.h"

enum manager_watch {
    MANAGER_WATCH_LISTENER,
    MANAGER_WATCH_WAKE,
    MANAGER_WATCH_TIMER,
    MANAGER_WATCH_GREETING,
    MANAGER_WATCH_SOCKET,
    MANAGER_WATCH_RETIREMENT,
    MANAGER_WATCH_PROCESS
};

/* Makes the epoll instance with the wake eventfd and the timer, and watches the listener. */
hl_status manager_dispatch_open(hl_manager *manager, hl_error *err);
void manager_dispatch_close(hl_manager *manager);

/* `index` is a session's or a greeting's; `serial` tells it from those that had the index before. */
hl_status manager_dispatch_watch(hl_manager *manager, int fd, enum manager_watch kind, uint32_t index,
                                 uint64_t serial, hl_error *err);
/* Closing an fd ends no watch as long as another process has a copy of it. */
void manager_dispatch_unwatch(hl_manager *manager, int fd);
/* While there is room for a greeting; else connections wait in the listener's queue. */
void manager_dispatch_listen(hl_manager *manager, bool on);

/* The dispatcher thread: returns once the Manager stops and nothing but quarantine is left. */
void *manager_dispatch_run(void *manager);
/* From any thread. */
void manager_dispatch_wake(hl_manager *manager);

#endif
