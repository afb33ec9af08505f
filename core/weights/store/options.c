#include "core/weights/store/options.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "core/base/clock.h"

void hl_weight_store_options_init(hl_weight_store_options *options)
{
    *options = (hl_weight_store_options){
        .size = sizeof *options,
        .scope = HL_WEIGHT_SCOPE_NODE,
        .domain_id = "node",
        .storage_class = HL_WEIGHT_DISK,
        .max_artifact_bytes = HL_WEIGHT_NO_LIMIT,
        .max_store_bytes = HL_WEIGHT_NO_LIMIT,
        .admission = HL_WEIGHT_ADMISSION_CONCURRENT,
        .coordination_timeout_ns = 600 * HL_NS_PER_S,
        .trust_permissions = true,
    };
}

#define INVALID(...) HL_WEIGHT_FAIL(failure, CONFIGURATION, INVALID_CONFIG, false, __VA_ARGS__)

static hl_status check_root(const char *root, hl_weight_failure *failure)
{
    if (!root || root[0] != '/')
        return INVALID("root is %s: it must be an absolute path", root && root[0] ? root : "empty");
    size_t length = strlen(root);
    if (length >= PATH_MAX)
        return INVALID("root has %zu bytes, a path at most %d", length, PATH_MAX - 1);
    while (length > 0 && root[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && root[begin - 1] != '/')
        begin--;
    const size_t name = length - begin;
    /* The store creates its root and judges it by name: a folder of its own, below another. */
    if (name == 0 || (root[begin] == '.' && (name == 1 || (name == 2 && root[begin + 1] == '.'))))
        return INVALID("root is %s: it must name a folder below another", root);
    return HL_OK;
}

static hl_status check_domain_id(const char *id, hl_weight_failure *failure)
{
    const size_t length = id ? strlen(id) : 0;
    if (length == 0)
        return INVALID("domain_id is empty");
    if (length >= HL_NAME_BYTES)
        return INVALID("domain_id has %zu bytes, at most %u are allowed", length, HL_NAME_BYTES - 1);
    if (!hl_json_valid_utf8(id, length))
        return INVALID("domain_id is not UTF-8");
    return HL_OK;
}

static hl_status check_policy(const hl_weight_store_options *options, hl_weight_failure *failure)
{
    if (options->max_artifact_bytes == 0)
        return INVALID("max_artifact_bytes is 0: nothing could be built");
    if (options->max_store_bytes == 0)
        return INVALID("max_store_bytes is 0: nothing could be built");
    if (options->min_free_bytes == HL_WEIGHT_NO_LIMIT)
        return INVALID("min_free_bytes is no amount of space");
    if (options->admission != HL_WEIGHT_ADMISSION_CONCURRENT &&
        options->admission != HL_WEIGHT_ADMISSION_SERIALIZED)
        return INVALID("admission is %d, no value of hl_weight_admission", (int)options->admission);
    if (options->admission == HL_WEIGHT_ADMISSION_SERIALIZED &&
        options->max_store_bytes == HL_WEIGHT_NO_LIMIT)
        return INVALID("admission is serialized: it needs max_store_bytes");
    return HL_OK;
}

hl_status hl_store_options_check(const hl_weight_store_options *options, hl_weight_failure *failure)
{
    if (!options || options->size != sizeof *options)
        return INVALID("options have size %zu, this library's have %zu: call hl_weight_store_options_init()",
                       options ? options->size : 0, sizeof *options);
    hl_status status = check_root(options->root, failure);
    if (status != HL_OK)
        return status;
    if (options->coordination_timeout_ns <= 0)
        return INVALID("coordination_timeout_ns is %" PRId64 ": it must be positive",
                       options->coordination_timeout_ns);
    if (options->aligned_layout > 1)
        return INVALID("aligned_layout is %" PRIu32 ": it must be 0 or 1", options->aligned_layout);
    if (options->adopt)
        return HL_OK; /* the rest comes from the domain */
    if (options->scope != HL_WEIGHT_SCOPE_NODE && options->scope != HL_WEIGHT_SCOPE_NUMA)
        return INVALID("scope is %d, no value of hl_weight_scope", (int)options->scope);
    if (options->storage_class != HL_WEIGHT_DISK && options->storage_class != HL_WEIGHT_TMPFS)
        return INVALID("storage_class is %d, no value of hl_weight_storage_class",
                       (int)options->storage_class);
    if ((status = check_domain_id(options->domain_id, failure)) != HL_OK)
        return status;
    return check_policy(options, failure);
}
