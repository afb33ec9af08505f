/* What each word of `hostlane weights` does. All take parsed arguments, say what they have to say and return
 * the exit status. */
#ifndef CORE_WEIGHTS_CLI_COMMANDS_H
#define CORE_WEIGHTS_CLI_COMMANDS_H

#include "core/weights/cli/arguments.h"

int weights_import(const struct weights_arguments *arguments);        /* import.c */
int weights_list(const struct weights_arguments *arguments);          /* list.c */
int weights_where(const struct weights_arguments *arguments);         /* list.c */
int weights_show(const struct weights_arguments *arguments);          /* show.c */
int weights_verify(const struct weights_arguments *arguments);        /* verify.c */
int weights_deny(const struct weights_arguments *arguments);          /* lifecycle.c */
int weights_clean(const struct weights_arguments *arguments);         /* lifecycle.c */
int weights_show_identity(const struct weights_arguments *arguments); /* identity.c */

/* identity.c: reads and parses an identity from a file, or says why not. */
int weights_read_identity(const struct weights_arguments *arguments, const char *path,
                          hl_weight_identity **identity);
/* identity.c: refuses one that still holds a placeholder of the example. */
int weights_check_placeholders(const struct weights_arguments *arguments, const hl_weight_identity *identity);

#endif
