/* Resolves once, between two marks on standard error, so that disabled_test.sh can see every system call of
 * it. Usage: disabled_probe disabled|preferred ROOT */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hostlane/weights.h"

static void mark(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(3);
}

int main(int argc, char **argv)
{
    hl_weight_runtime_options options;
    hl_weight_runtime *runtime;
    hl_weight_lease *lease = NULL;
    hl_weight_report report;
    hl_weight_failure failure;
    if (argc != 3)
        return 2;
    hl_weight_runtime_options_init(&options);
    options.mode = strcmp(argv[1], "disabled") == 0 ? HL_WEIGHT_MODE_DISABLED : HL_WEIGHT_MODE_PREFERRED;
    options.store.root = argv[2];
    options.store.adopt = true; /* the folder is no store: refused, after a look at it */
    mark("resolution begins\n");
    if (hl_weight_runtime_create(&options, &runtime, &failure) != HL_OK)
        return 4;
    static const char identity_text[] = "{}";
    hl_weight_identity *identity = (hl_weight_identity *)identity_text; /* must not be looked into */
    (void)hl_weight_runtime_resolve(runtime, identity, NULL, 0, &lease, &report, &failure);
    hl_weight_runtime_free(runtime);
    mark("resolution ends\n");
    return lease ? 5 : report.outcome == HL_WEIGHT_OUTCOME_CANONICAL_DIRECT ? 0 : 1;
}
