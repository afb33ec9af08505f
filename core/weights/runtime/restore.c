/* A model takes tensors over in two steps: a plan that changes nothing, and one commit. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/runtime/runtime.h"

struct hl_weight_plan {
    hl_weight_restorer restorer; /* the schema is not read after planning */
    void *planned;
    atomic_bool committed; /* set before commit() is called: whoever comes second is refused */
};

#define REFUSE(failure, code, retryable, ...)                                                                \
    HL_WEIGHT_FAIL(failure, RESTORATION, code, retryable, __VA_ARGS__)

static hl_status check_restorer(const hl_weight_lease *lease, const hl_weight_restorer *restorer,
                                hl_weight_failure *failure)
{
    if (!lease || !restorer)
        return REFUSE(failure, INVALID_CONFIG, false, "%s is missing", lease ? "restorer" : "lease");
    if (restorer->size != sizeof *restorer)
        return REFUSE(failure, INVALID_CONFIG, false, "restorer.size is %zu, not %zu", restorer->size,
                      sizeof *restorer);
    if (!restorer->restorer_schema || !restorer->plan || !restorer->commit)
        return REFUSE(failure, INVALID_CONFIG, false, "restorer.%s is missing",
                      !restorer->restorer_schema ? "restorer_schema"
                      : !restorer->plan          ? "plan"
                                                 : "commit");
    const char *schema = hl_lease_manifest(lease)->restorer_schema;
    if (strcmp(restorer->restorer_schema, schema) != 0)
        return REFUSE(failure, RESTORER_UNAVAILABLE, false,
                      "the artifact is for \"%s\", the restorer does \"%s\"", schema,
                      restorer->restorer_schema);
    return HL_OK;
}

/* A callback's error need not be filled; the failure's text says so. */
static hl_status fail_with(hl_weight_failure *failure, hl_weight_code code, bool retryable, hl_status status,
                           hl_error *err)
{
    err->status = status;
    if (err->text[0] == '\0')
        snprintf(err->text, sizeof err->text, "the restorer gave no reason");
    return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_RESTORATION, code, retryable, err);
}

hl_status hl_weight_restore_plan(const hl_weight_lease *lease, const hl_weight_restorer *restorer,
                                 hl_weight_plan **plan, hl_weight_failure *failure)
{
    hl_status status = check_restorer(lease, restorer, failure);
    if (status != HL_OK)
        return status;
    hl_weight_plan *made = malloc(sizeof *made);
    if (!made)
        return REFUSE(failure, RESTORE_PREFLIGHT_FAILED, true, "out of memory for the plan");
    made->restorer = *restorer;
    made->planned = NULL;
    atomic_init(&made->committed, false);
    hl_error err = {0};
    status = restorer->plan(restorer->context, lease, &made->planned, &err);
    if (status != HL_OK) {
        free(made); /* plan() sets *planned only on success: there is nothing to discard */
        return fail_with(failure, HL_WEIGHT_RESTORE_PREFLIGHT_FAILED, true, status, &err);
    }
    *plan = made;
    return HL_OK;
}

hl_status hl_weight_restore_commit(hl_weight_plan *plan, hl_weight_failure *failure)
{
    if (atomic_exchange(&plan->committed, true)) {
        (void)REFUSE(failure, INVALID_CONFIG, false,
                     "the plan was committed before: a plan is for one model");
        if (failure)
            failure->error.status = HL_E_STATE;
        return HL_E_STATE;
    }
    hl_error err = {0};
    const hl_status status = plan->restorer.commit(plan->restorer.context, plan->planned, &err);
    if (status != HL_OK)
        return fail_with(failure, HL_WEIGHT_RESTORE_COMMIT_FAILED, false, status, &err);
    return HL_OK;
}

void hl_weight_restore_close(hl_weight_plan *plan)
{
    if (!plan)
        return;
    if (plan->restorer.discard)
        plan->restorer.discard(plan->restorer.context, plan->planned);
    free(plan);
}
