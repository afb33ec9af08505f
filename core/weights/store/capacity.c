/* What a build may take. The counts are of allocated blocks (st_blocks) and of what an unprivileged user may
 * still allocate (f_bavail), so that a sparse or rounded file counts as what it costs. They are a preflight:
 * another build may take the space meanwhile, and a write then fails with ENOSPC. */
#include <inttypes.h>

#include "core/weights/store/store.h"

static hl_status check_store(hl_weight_store *store, uint64_t bytes, hl_weight_failure *failure)
{
    const uint64_t most = store->policy.max_store_bytes;
    if (most == HL_WEIGHT_NO_LIMIT)
        return HL_OK;
    uint64_t held = 0;
    hl_error err;
    if (hl_storage_tree_bytes(store->root, &held, &err))
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_CAPACITY, &err);
    if (bytes > most || held > most - bytes)
        return HL_WEIGHT_FAIL(failure, CAPACITY, STORE_LIMIT_EXCEEDED, true,
                              "%" PRIu64 " bytes more beside the %" PRIu64
                              " in the store exceed max_store_bytes %" PRIu64,
                              bytes, held, most);
    return HL_OK;
}

static hl_status check_filesystem(hl_weight_store *store, uint64_t bytes, hl_weight_failure *failure)
{
    uint64_t available = 0;
    hl_error err;
    if (hl_storage_free_bytes(store->root, &available, &err))
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_CAPACITY, &err);
    if (bytes > available || available - bytes < store->policy.min_free_bytes)
        return HL_WEIGHT_FAIL(failure, CAPACITY, INSUFFICIENT_CAPACITY, true,
                              "%" PRIu64 " bytes more do not fit the %" PRIu64
                              " that the file system has free beside min_free_bytes %" PRIu64,
                              bytes, available, store->policy.min_free_bytes);
    return HL_OK;
}

hl_status hl_capacity_check(hl_weight_store *store, uint64_t artifact_bytes, uint64_t bytes,
                            hl_weight_failure *failure)
{
    if (artifact_bytes > store->policy.max_artifact_bytes)
        return HL_WEIGHT_FAIL(failure, CAPACITY, ARTIFACT_TOO_LARGE, true,
                              "an artifact of %" PRIu64 " bytes exceeds max_artifact_bytes %" PRIu64,
                              artifact_bytes, store->policy.max_artifact_bytes);
    const hl_status status = check_store(store, bytes, failure);
    return status ? status : check_filesystem(store, bytes, failure);
}
