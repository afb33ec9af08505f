/* deny and clean: an operator's decisions about artifacts. */
#include <stdio.h>

#include "core/weights/cli/commands.h"
#include "core/weights/cli/open.h"
#include "core/weights/cli/print.h"

static int done(const struct weights_arguments *arguments, const char *what, const char *name,
                const char *advice)
{
    if (!arguments->json) {
        printf("%s %s\n%s", what, name, advice);
        return fflush(stdout) == 0 ? WEIGHTS_DONE : WEIGHTS_FAILED;
    }
    struct hl_text json = {0};
    weights_json_open(&json, NULL, '{');
    weights_json_bool(&json, "ok", true);
    weights_json_string(&json, what, name);
    weights_json_close(&json, '}');
    return weights_json_print(&json) ? WEIGHTS_DONE : WEIGHTS_FAILED;
}

int weights_deny(const struct weights_arguments *arguments)
{
    hl_weight_store *store;
    hl_weight_failure failure;
    const int code = weights_open_store(arguments, WEIGHTS_CHANGES, &store);
    if (code != WEIGHTS_DONE)
        return code;
    const hl_status status = hl_weight_store_deny(store, arguments->operand, arguments->reason, &failure);
    hl_weight_store_close(store);
    return status == HL_OK ? done(arguments, "denied", arguments->operand,
                                  "The next import of its identity replaces it; `clean` removes it.\n")
                           : weights_fail(arguments->json, &failure);
}

int weights_clean(const struct weights_arguments *arguments)
{
    hl_weight_store *store;
    hl_weight_failure failure;
    const int code = weights_open_store(arguments, WEIGHTS_CHANGES, &store);
    if (code != WEIGHTS_DONE)
        return code;
    const char *name = arguments->quarantined ? arguments->quarantined : arguments->operand;
    const hl_status status = arguments->quarantined ? hl_weight_store_clean_quarantined(store, name, &failure)
                                                    : hl_weight_store_clean(store, name, &failure);
    hl_weight_store_close(store);
    return status == HL_OK ? done(arguments, "removed", name, "") : weights_fail(arguments->json, &failure);
}
