/* What a Manager may be asked to be, and whether this host lets it. */
#ifndef MANAGER_OPTIONS_H
#define MANAGER_OPTIONS_H

#include <stdbool.h>

#include "hostlane/manager.h"

/* Copies a caller's options, whose struct may be of an older and shorter version: what that lacks has its
 * default. HL_E_INVALID or HL_E_LIMIT names the field and its value. */
hl_status manager_options_read(const hl_manager_options *given, hl_manager_options *options, hl_error *err);

/* Reads this process's limits below `root` ("" in production). *short_memlock says that RLIMIT_MEMLOCK is
 * below `pinned_bytes`: the CUDA driver pins for root whatever the limit is, and for others often too, so
 * this is a warning. HL_E_SYSTEM where /proc does not say: a Manager that cannot see its limits would find
 * them out by being killed. */
hl_status manager_options_check_host(const char *root, uint64_t pinned_bytes, uint64_t *memlock,
                                     bool *short_memlock, hl_error *err);

#endif
