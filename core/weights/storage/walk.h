/* Walks a folder and all below it, for removal and for counting: on open descriptors, never by paths, so that
 * neither a link nor a renamed folder leads out of it, and without recursion, so that depth costs heap only.
 */
#ifndef CORE_WEIGHTS_STORAGE_WALK_H
#define CORE_WEIGHTS_STORAGE_WALK_H

#include <stdbool.h>

#include "hostlane/status.h"

struct hl_walk_visitor {
    void *context;
    /* Before a folder is read: open, on the walk's mount. */
    hl_status (*enter)(void *context, int folder, hl_error *err);
    /* A folder that cannot be opened: may make it so, and return HL_OK for a second try. NULL: an error. */
    hl_status (*unlock)(void *context, int parent, const char *name, hl_error *err);
    /* An entry of an open folder. Sets *is_folder when it is to be walked into. */
    hl_status (*entry)(void *context, int folder, const char *name, bool *is_folder, hl_error *err);
    /* After everything in a folder below the top. NULL: nothing to do. */
    hl_status (*leave)(void *context, int parent, const char *name, hl_error *err);
    /* A folder on which something else is mounted. */
    hl_status (*mount)(void *context, const char *name, hl_error *err);
};

/* Walks what `top` (open, stays the caller's) holds. What vanishes meanwhile is passed over. */
hl_status hl_walk(int top, const struct hl_walk_visitor *visitor, hl_error *err);

#endif
