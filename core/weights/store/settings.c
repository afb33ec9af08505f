#include "core/weights/store/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char domain_name[] = "domain.json", policy_name[] = "domain-policy.json";

static const char *scope_name(hl_weight_scope scope)
{
    return scope == HL_WEIGHT_SCOPE_NODE ? "node" : "numa";
}

static const char *class_name(hl_weight_storage_class class)
{
    return class == HL_WEIGHT_DISK ? "disk" : "tmpfs";
}

static const char *admission_name(hl_weight_admission admission)
{
    return admission == HL_WEIGHT_ADMISSION_CONCURRENT ? "concurrent" : "serialized";
}

hl_status hl_store_unavailable(const hl_weight_store *store, const hl_error *err, hl_weight_failure *failure)
{
    hl_error where = *err;
    snprintf(where.text, sizeof where.text, "%.*s (the store %s)", (int)sizeof where.text / 2, err->text,
             store->root_path);
    const bool lasting = err->status == HL_E_PERMISSION || err->status == HL_E_CORRUPT ||
                         err->status == HL_E_LIMIT || err->sys_errno == ELOOP || err->sys_errno == ENOTDIR;
    if (lasting)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_DOMAIN, HL_WEIGHT_DOMAIN_UNAVAILABLE, false,
                                      &where);
    return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_DOMAIN, &where);
}

/* --- reading --- */

static hl_status read_text(const hl_weight_store *store, const char *name, char **text, size_t *bytes,
                           hl_error *err)
{
    return hl_storage_read_document(store->root, name, HL_WEIGHT_DOCUMENT_BYTES, store->trust_permissions,
                                    text, bytes, err);
}

static bool is_missing(const hl_error *err)
{
    return err->status == HL_E_SYSTEM && err->sys_errno == ENOENT;
}

static hl_status refuse_document(const hl_weight_store *store, const char *name, const hl_error *err,
                                 hl_weight_failure *failure)
{
    if (err->status == HL_E_NOMEM)
        return hl_store_unavailable(store, err, failure);
    return HL_WEIGHT_FAIL(failure, DOMAIN, DOMAIN_POLICY_MISMATCH, false, "%s is of no schema known here: %s",
                          name, err->text);
}

/* *missing tells an absent document from every other failure; then *failure is not filled. */
static hl_status load_domain(hl_weight_store *store, bool *missing, hl_weight_failure *failure)
{
    char *text = NULL;
    size_t bytes = 0;
    hl_error err;
    hl_status status = read_text(store, domain_name, &text, &bytes, &err);
    *missing = status != HL_OK && is_missing(&err);
    if (status != HL_OK)
        return *missing ? HL_E_NOT_FOUND : hl_store_unavailable(store, &err, failure);
    status = hl_domain_parse(text, bytes, &store->domain, &err);
    free(text);
    return status == HL_OK ? HL_OK : refuse_document(store, domain_name, &err, failure);
}

static hl_status load_policy(hl_weight_store *store, bool *missing, hl_weight_failure *failure)
{
    char *text = NULL;
    size_t bytes = 0;
    hl_error err;
    hl_status status = read_text(store, policy_name, &text, &bytes, &err);
    *missing = status != HL_OK && is_missing(&err);
    if (status != HL_OK)
        return *missing ? HL_E_NOT_FOUND : hl_store_unavailable(store, &err, failure);
    status = hl_domain_policy_parse(text, bytes, &store->policy, &err);
    free(text);
    return status == HL_OK ? HL_OK : refuse_document(store, policy_name, &err, failure);
}

static hl_status fail_missing(const hl_weight_store *store, const char *name, hl_weight_failure *failure)
{
    return HL_WEIGHT_FAIL_ERRNO(failure, DOMAIN, DOMAIN_UNAVAILABLE, true, ENOENT, "%s holds no %s",
                                store->root_path, name);
}

hl_status hl_store_settings_load(hl_weight_store *store, hl_weight_failure *failure)
{
    bool missing;
    hl_status status = load_domain(store, &missing, failure);
    if (status != HL_OK)
        return missing ? fail_missing(store, domain_name, failure) : status;
    status = load_policy(store, &missing, failure);
    if (status != HL_OK && missing)
        return fail_missing(store, policy_name, failure);
    return status;
}

/* --- writing --- */

static hl_status write_text(const hl_weight_store *store, const char *name, struct hl_text *text,
                            hl_weight_failure *failure)
{
    hl_error err;
    hl_status status = hl_text_status(text, "weights.domain", &err);
    if (status == HL_OK)
        status = hl_storage_replace_document(store->root, name, text->bytes, text->size, &err);
    hl_text_free(text);
    return status == HL_OK ? HL_OK : hl_store_unavailable(store, &err, failure);
}

static hl_status write_domain(hl_weight_store *store, const hl_weight_store_options *options,
                              const struct hl_filesystem *filesystem, hl_weight_failure *failure)
{
    hl_error err;
    struct hl_text text = {0};
    struct hl_domain_document domain = {.scope = options->scope, .storage_class = options->storage_class};
    if (hl_storage_uuid(domain.uuid, &err) != HL_OK)
        return hl_store_unavailable(store, &err, failure);
    snprintf(domain.domain_id, sizeof domain.domain_id, "%s", options->domain_id);
    snprintf(domain.filesystem_type, sizeof domain.filesystem_type, "%s", filesystem->type);
    hl_domain_put(&text, &domain);
    const hl_status status = write_text(store, domain_name, &text, failure);
    if (status == HL_OK)
        store->domain = domain;
    return status;
}

static hl_status write_policy(hl_weight_store *store, const hl_weight_store_options *options,
                              hl_weight_failure *failure)
{
    struct hl_text text = {0};
    const struct hl_domain_policy policy = {.policy_version = 1,
                                            .max_artifact_bytes = options->max_artifact_bytes,
                                            .max_store_bytes = options->max_store_bytes,
                                            .min_free_bytes = options->min_free_bytes,
                                            .admission = options->admission};
    hl_domain_policy_put(&text, &policy);
    const hl_status status = write_text(store, policy_name, &text, failure);
    if (status == HL_OK)
        store->policy = policy;
    return status;
}

/* Whoever writes one of the two documents holds the lock that the caller holds: what is unfinished now, its
 * maker died over. */
static hl_status sweep_unfinished(hl_weight_store *store, hl_weight_failure *failure)
{
    hl_error err;
    hl_status status = hl_storage_sweep_unfinished(store->root, domain_name, &err);
    if (status == HL_OK)
        status = hl_storage_sweep_unfinished(store->root, policy_name, &err);
    return status == HL_OK ? HL_OK : hl_store_unavailable(store, &err, failure);
}

hl_status hl_store_settings_establish(hl_weight_store *store, const hl_weight_store_options *options,
                                      const struct hl_filesystem *filesystem, hl_weight_failure *failure)
{
    bool missing;
    hl_status status = sweep_unfinished(store, failure);
    if (status != HL_OK)
        return status;
    status = load_domain(store, &missing, failure);
    if (status != HL_OK && missing)
        status = write_domain(store, options, filesystem, failure);
    if (status != HL_OK)
        return status;
    status = load_policy(store, &missing, failure);
    if (status != HL_OK && missing)
        status = write_policy(store, options, failure);
    return status;
}

/* --- comparing --- */

static hl_status mismatch(hl_weight_failure *failure, const char *field, const char *stored,
                          const char *requested)
{
    struct hl_text details = {0};
    hl_text_print(&details, "{\"field\":\"%s\",\"requested\":", field);
    hl_json_put_string(&details, requested, strlen(requested));
    hl_text_print(&details, ",\"stored\":");
    hl_json_put_string(&details, stored, strlen(stored));
    hl_text_print(&details, "}");
    const hl_status status =
        HL_WEIGHT_FAIL(failure, DOMAIN, DOMAIN_POLICY_MISMATCH, false,
                       "%s is %.80s in the domain, but %.80s was asked for", field, stored, requested);
    if (!details.failed)
        hl_weight_failure_details(failure, details.bytes);
    hl_text_free(&details);
    return status;
}

#define LIMIT_BYTES 24
static const char *print_limit(uint64_t limit, char text[LIMIT_BYTES])
{
    if (limit == HL_WEIGHT_NO_LIMIT)
        return "unlimited";
    snprintf(text, LIMIT_BYTES, "%" PRIu64, limit);
    return text;
}

static hl_status compare_limit(hl_weight_failure *failure, const char *field, uint64_t stored,
                               uint64_t requested)
{
    char first[LIMIT_BYTES], second[LIMIT_BYTES];
    if (stored == requested)
        return HL_OK;
    return mismatch(failure, field, print_limit(stored, first), print_limit(requested, second));
}

static hl_status compare_policy(const struct hl_domain_policy *policy, const hl_weight_store_options *options,
                                hl_weight_failure *failure)
{
    hl_status status =
        compare_limit(failure, "max_artifact_bytes", policy->max_artifact_bytes, options->max_artifact_bytes);
    if (status == HL_OK)
        status = compare_limit(failure, "max_store_bytes", policy->max_store_bytes, options->max_store_bytes);
    if (status == HL_OK)
        status = compare_limit(failure, "min_free_bytes", policy->min_free_bytes, options->min_free_bytes);
    if (status == HL_OK && policy->admission != options->admission)
        status = mismatch(failure, "admission", admission_name(policy->admission),
                          admission_name(options->admission));
    return status;
}

hl_status hl_store_settings_compare(const hl_weight_store *store, const hl_weight_store_options *options,
                                    const struct hl_filesystem *filesystem, hl_weight_failure *failure)
{
    const struct hl_domain_document *domain = &store->domain;
    /* A domain that was copied to another kind of file system is another domain. */
    if (strcmp(domain->filesystem_type, filesystem->type) != 0)
        return mismatch(failure, "filesystem_type", domain->filesystem_type, filesystem->type);
    const hl_weight_storage_class real =
        filesystem->class == HL_FILESYSTEM_TMPFS ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;
    if (domain->storage_class != real)
        return mismatch(failure, "storage_class", class_name(domain->storage_class), class_name(real));
    if (options->adopt)
        return HL_OK;
    if (domain->scope != options->scope)
        return mismatch(failure, "scope", scope_name(domain->scope), scope_name(options->scope));
    if (strcmp(domain->domain_id, options->domain_id) != 0)
        return mismatch(failure, "domain_id", domain->domain_id, options->domain_id);
    return compare_policy(&store->policy, options, failure);
}
