#include <stdio.h>

#include "core/weights/cli/arguments.h"
#include "core/weights/cli/cli.h"
#include "core/weights/cli/commands.h"

static int run(const struct weights_arguments *arguments)
{
    if (arguments->help) {
        fputs(weights_usage, stdout);
        return WEIGHTS_DONE;
    }
    switch (arguments->command) {
    case WEIGHTS_IMPORT:
        return weights_import(arguments);
    case WEIGHTS_LS:
        return weights_list(arguments);
    case WEIGHTS_SHOW:
        return weights_show(arguments);
    case WEIGHTS_VERIFY:
        return weights_verify(arguments);
    case WEIGHTS_DENY:
        return weights_deny(arguments);
    case WEIGHTS_CLEAN:
        return weights_clean(arguments);
    case WEIGHTS_WHERE:
        return weights_where(arguments);
    case WEIGHTS_IDENTITY:
        return weights_show_identity(arguments);
    }
    return WEIGHTS_USAGE;
}

int hl_weights_main(int argc, char **argv)
{
    struct weights_arguments arguments;
    int code = weights_parse_arguments(argc, argv, &arguments);
    if (code != WEIGHTS_DONE)
        return code;
    code = run(&arguments);
    /* A list of which the end is missing must not look whole. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("hostlane weights: cannot write to standard output\n", stderr);
        code = WEIGHTS_FAILED;
    }
    return code;
}
