/* ls and where: what a store holds, and what it is. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/cli/commands.h"
#include "core/weights/cli/open.h"
#include "core/weights/cli/print.h"
#include "core/weights/document/manifest.h"

/* "organisation/model at 0123456789ab" of an artifact whose manifest can be read, else "-". */
static void describe_model(hl_weight_store *store, const char *key, char *text, size_t size)
{
    hl_weight_artifact_snapshot *artifact = NULL;
    hl_manifest *manifest = NULL;
    snprintf(text, size, "-");
    if (hl_weight_store_inspect_artifact(store, key, HL_WEIGHT_MANIFEST_AND_METADATA, &artifact, NULL) !=
        HL_OK)
        return;
    if (artifact->manifest_json && hl_manifest_parse(artifact->manifest_json, strlen(artifact->manifest_json),
                                                     &manifest, NULL) == HL_OK) {
        const hl_weight_identity *identity = manifest->identity;
        snprintf(text, size, "%.96s at %.12s, %.48s", identity->model_id, identity->revision,
                 identity->component);
        if (identity->tensor_parallel_size > 1)
            snprintf(text + strlen(text), size - strlen(text), ", %" PRIu64 " of %" PRIu64,
                     identity->tensor_parallel_rank, identity->tensor_parallel_size);
        hl_manifest_free(manifest);
    }
    hl_weight_artifact_snapshot_free(artifact);
}

static const char *class_of(const hl_weight_domain_snapshot *domain)
{
    return domain->storage_class == HL_WEIGHT_TMPFS ? "tmpfs" : "disk";
}

/* --- JSON --- */

static void put_domain(struct hl_text *json, const hl_weight_domain_snapshot *domain)
{
    weights_json_bool(json, "ok", true);
    weights_json_string(json, "root", domain->root);
    weights_json_string(json, "domain_uuid", domain->domain_uuid);
    weights_json_string(json, "scope", domain->scope == HL_WEIGHT_SCOPE_NUMA ? "numa" : "node");
    weights_json_string(json, "domain_id", domain->domain_id);
    weights_json_string(json, "storage_class", class_of(domain));
    weights_json_bool(json, "bytes_are_memory", domain->storage_class == HL_WEIGHT_TMPFS);
    weights_json_string(json, "filesystem_type", domain->filesystem_type);
    weights_json_number(json, "policy_version", domain->policy_version);
    weights_json_limit(json, "max_artifact_bytes", domain->max_artifact_bytes);
    weights_json_limit(json, "max_store_bytes", domain->max_store_bytes);
    weights_json_number(json, "min_free_bytes", domain->min_free_bytes);
    weights_json_string(json, "admission",
                        domain->admission == HL_WEIGHT_ADMISSION_SERIALIZED ? "serialized" : "concurrent");
    weights_json_number(json, "store_bytes", domain->store_bytes);
    weights_json_number(json, "filesystem_free_bytes", domain->filesystem_free_bytes);
}

static bool print_domain_json(const hl_weight_domain_snapshot *domain, bool inventory)
{
    struct hl_text json = {0};
    weights_json_open(&json, NULL, '{');
    put_domain(&json, domain);
    if (inventory) {
        weights_json_open(&json, "inventory", '[');
        for (size_t i = 0; i < domain->inventory_count; i++) {
            const hl_weight_inventory_entry *entry = &domain->inventory[i];
            weights_json_open(&json, NULL, '{');
            weights_json_string(&json, "key", entry->artifact_key);
            weights_json_string(&json, "state", hl_weight_inventory_state_name(entry->state));
            weights_json_string(&json, "name", entry->storage_name);
            weights_json_number(&json, "bytes", entry->bytes);
            weights_json_string(&json, "reason", entry->reason);
            weights_json_close(&json, '}');
        }
        weights_json_close(&json, ']');
    }
    weights_json_close(&json, '}');
    return weights_json_print(&json);
}

/* --- for people --- */

static bool print_list(hl_weight_store *store, const hl_weight_domain_snapshot *domain)
{
    char size[WEIGHTS_SIZE_BYTES], text[512];
    struct weights_table table = {.columns = 4, .right_aligned = 1u << 1};
    const bool memory = domain->storage_class == HL_WEIGHT_TMPFS;
    if (domain->inventory_count == 0) {
        printf("%s is empty.\n", domain->root);
        return fflush(stdout) == 0;
    }
    weights_table_add(&table, "STATE");
    weights_table_add(&table, memory ? "MEMORY" : "SIZE");
    weights_table_add(&table, "KEY, OR NAME IN QUARANTINE");
    weights_table_add(&table, "MODEL OR REASON");
    for (size_t i = 0; i < domain->inventory_count; i++) {
        const hl_weight_inventory_entry *entry = &domain->inventory[i];
        weights_table_add(&table, hl_weight_inventory_state_name(entry->state));
        weights_table_add(&table, weights_size(size, entry->bytes));
        weights_table_add(&table, entry->storage_name);
        if (entry->state == HL_WEIGHT_STATE_READY)
            describe_model(store, entry->artifact_key, text, sizeof text);
        else
            snprintf(text, sizeof text, "%s",
                     entry->reason[0]                            ? entry->reason
                     : entry->state == HL_WEIGHT_STATE_TEMPORARY ? "a build, or what is left of one"
                                                                 : "-");
        weights_table_add(&table, text);
    }
    weights_table_print(&table, stdout);
    printf("\n%s holds %s%s;", domain->root, weights_size(size, domain->store_bytes),
           memory ? " of memory (tmpfs)" : "");
    printf(" %s are free.\n", weights_size(size, domain->filesystem_free_bytes));
    return fflush(stdout) == 0;
}

static bool print_where(const hl_weight_domain_snapshot *domain)
{
    char size[WEIGHTS_SIZE_BYTES];
    const bool memory = domain->storage_class == HL_WEIGHT_TMPFS;
    printf("root                %s\n", domain->root);
    printf("domain              %s \"%s\", %s\n", domain->scope == HL_WEIGHT_SCOPE_NUMA ? "numa" : "node",
           domain->domain_id, domain->domain_uuid);
    printf("file system         %s%s\n", domain->filesystem_type,
           memory ? ": every byte of the store is memory, and may be swapped" : ", a local disk");
    printf("storage class       %s\n", class_of(domain));
    printf("held by the store   %s\n", weights_size(size, domain->store_bytes));
    printf("free                %s\n", weights_size(size, domain->filesystem_free_bytes));
    printf("artifacts at most   %s\n", weights_limit(size, domain->max_artifact_bytes));
    printf("store at most       %s\n", weights_limit(size, domain->max_store_bytes));
    printf("to be left free     %s\n", weights_size(size, domain->min_free_bytes));
    printf("builds              %s\n", domain->admission == HL_WEIGHT_ADMISSION_SERIALIZED
                                           ? "one at a time (serialized)"
                                           : "of different identities at once (concurrent)");
    printf("eviction            none: artifacts stay until they are cleaned\n");
    printf("policy version      %" PRIu64 "\n", domain->policy_version);
    return fflush(stdout) == 0;
}

static int print_domain(const struct weights_arguments *arguments, bool inventory)
{
    hl_weight_store *store;
    hl_weight_domain_snapshot *domain;
    hl_weight_failure failure;
    const int code = weights_open_store(arguments, WEIGHTS_LOOKS, &store);
    if (code != WEIGHTS_DONE)
        return code;
    if (hl_weight_store_inspect_domain(store, &domain, &failure) != HL_OK) {
        hl_weight_store_close(store);
        return weights_fail(arguments->json, &failure);
    }
    const bool good = arguments->json ? print_domain_json(domain, inventory)
                      : inventory     ? print_list(store, domain)
                                      : print_where(domain);
    hl_weight_domain_snapshot_free(domain);
    hl_weight_store_close(store);
    return good ? WEIGHTS_DONE : WEIGHTS_FAILED;
}

int weights_list(const struct weights_arguments *arguments)
{
    return print_domain(arguments, true);
}

int weights_where(const struct weights_arguments *arguments)
{
    return print_domain(arguments, false);
}
