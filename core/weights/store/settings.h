/* Private to core/weights/store: domain.json and domain-policy.json, which the first to open a domain writes
 * and everybody after him must agree with. */
#ifndef CORE_WEIGHTS_STORE_SETTINGS_H
#define CORE_WEIGHTS_STORE_SETTINGS_H

#include "core/weights/store/store.h"

/* Reads both documents into the store. DOMAIN_UNAVAILABLE: one is missing or cannot be read;
 * DOMAIN_POLICY_MISMATCH: one is no document of a schema that this library knows. */
hl_status hl_store_settings_load(hl_weight_store *store, hl_weight_failure *failure);

/* The same, but writes a missing one from the options first, and removes what earlier ones died over: under
 * the exclusive domain-init lock. */
hl_status hl_store_settings_establish(hl_weight_store *store, const hl_weight_store_options *options,
                                      const struct hl_filesystem *filesystem, hl_weight_failure *failure);

/* Whether the documents are what the options ask for: DOMAIN_POLICY_MISMATCH names the field. With `adopt`
 * the options' values are not looked at, only what the file system is. */
hl_status hl_store_settings_compare(const hl_weight_store *store, const hl_weight_store_options *options,
                                    const struct hl_filesystem *filesystem, hl_weight_failure *failure);

/* Fails with what a lower room reported about the domain: not retryable when it will not pass by itself (an
 * untrusted owner or mode, a link or a file in the place of a folder). */
hl_status hl_store_unavailable(const hl_weight_store *store, const hl_error *err, hl_weight_failure *failure);

#endif
