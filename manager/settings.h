/* The daemon's settings: from a file of `key = value` lines and from flags `--key VALUE`, which win. One list
 * of keys serves both, the help and --print-options. */
#ifndef MANAGER_SETTINGS_H
#define MANAGER_SETTINGS_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "hostlane/manager.h"

#define MANAGER_SETTINGS_BYTES (64u * 1024) /* of a file */

struct manager_settings {
    hl_manager_options options; /* socket_path points at `socket` */
    char socket[PATH_MAX];
    enum hl_manager_log_level log_level; /* what is less important is not written */
    bool help, print_options;
};

void manager_settings_init(struct manager_settings *settings);

/* Reads the file that --config names, then the other flags. HL_E_INVALID names the flag, or file and line,
 * the key, the value and what is expected; HL_E_SYSTEM when the file cannot be read. Whether the values make
 * sense together is hl_manager_start()'s to say. */
hl_status manager_settings_read(struct manager_settings *settings, int argc, char *const argv[],
                                hl_error *err);

/* Writes them as a file that manager_settings_read() reads. */
void manager_settings_print(const struct manager_settings *settings, FILE *to);
void manager_settings_help(FILE *to);

#endif
