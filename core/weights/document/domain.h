/* domain.json (where the store is), domain-policy.json (what it may hold) and deny markers. */
#ifndef CORE_WEIGHTS_DOCUMENT_DOMAIN_H
#define CORE_WEIGHTS_DOCUMENT_DOMAIN_H

#include "core/weights/document/manifest.h"

struct hl_domain_document {
    char uuid[HL_WEIGHT_UUID_BYTES];
    hl_weight_scope scope;
    char domain_id[HL_NAME_BYTES];
    hl_weight_storage_class storage_class;
    char filesystem_type[32]; /* the kernel's name */
};
/* Appends the canonical bytes. The strings are UTF-8, which the store has checked. */
void hl_domain_put(struct hl_text *text, const struct hl_domain_document *domain);
/* HL_E_CORRUPT or HL_E_UNSUPPORTED (another schema or backend); HL_E_NOMEM. Order of keys and white space are
 * free here and in the two documents below: nothing is bound to their bytes. */
hl_status hl_domain_parse(const char *text, size_t bytes, struct hl_domain_document *domain, hl_error *err);

/* HL_WEIGHT_NO_LIMIT is written as null. policy_version is not compared. */
struct hl_domain_policy {
    uint64_t policy_version; /* >= 1 */
    uint64_t max_artifact_bytes;
    uint64_t max_store_bytes;
    uint64_t min_free_bytes;
    hl_weight_admission admission; /* SERIALIZED makes it schema 2 with one key more */
};
/* UINT64_MAX is no number of bytes but HL_WEIGHT_NO_LIMIT. A serialized policy has max_store_bytes. */
void hl_domain_policy_put(struct hl_text *text, const struct hl_domain_policy *policy);
hl_status hl_domain_policy_parse(const char *text, size_t bytes, struct hl_domain_policy *policy,
                                 hl_error *err);

/* A deny marker; only its presence matters to a lookup, so that a torn one still denies. */
struct hl_deny_marker {
    char stage[32];  /* name of the hl_weight_stage that condemned the artifact */
    char reason[48]; /* name of the hl_weight_code */
    char message[240];
};
/* Bytes that are not UTF-8 (a message that was cut) are written as '?'. hl_deny_parse() cuts what is too
 * long. */
void hl_deny_put(struct hl_text *text, const struct hl_deny_marker *marker);
hl_status hl_deny_parse(const char *text, size_t bytes, struct hl_deny_marker *marker, hl_error *err);

#endif
