/* Which store a command works on, and how it opens it. */
#ifndef CORE_WEIGHTS_CLI_OPEN_H
#define CORE_WEIGHTS_CLI_OPEN_H

#include "core/weights/cli/arguments.h"

enum weights_access {
    WEIGHTS_LOOKS,   /* an existing store, read-only */
    WEIGHTS_CHANGES, /* an existing store */
    WEIGHTS_CREATES  /* creates it when it is missing */
};

/* Opens the store of --store, $HOSTLANE_WEIGHTS or the user. On failure it has said why; returns the exit
 * status. */
int weights_open_store(const struct weights_arguments *arguments, enum weights_access access,
                       hl_weight_store **store);

#endif
