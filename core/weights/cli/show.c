/* show: one artifact. */
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/cli/commands.h"
#include "core/weights/cli/open.h"
#include "core/weights/cli/print.h"
#include "core/weights/document/manifest.h"
#include "core/weights/store/store.h"

static bool print_json(const hl_weight_artifact_snapshot *artifact, const char *folder)
{
    struct hl_text json = {0};
    weights_json_open(&json, NULL, '{');
    weights_json_bool(&json, "ok", true);
    weights_json_string(&json, "key", artifact->artifact_key);
    weights_json_string(&json, "folder", folder);
    weights_json_bool(&json, "valid", artifact->valid);
    if (!artifact->valid)
        weights_json_failure(&json, "failure", &artifact->failure);
    weights_json_number(&json, "bytes", artifact->bytes);
    weights_json_string(&json, "publication_id",
                        artifact->publication_id[0] ? artifact->publication_id : NULL);
    weights_json_string(&json, "backing_fingerprint",
                        artifact->backing_fingerprint[0] ? artifact->backing_fingerprint : NULL);
    weights_json_bool(&json, "build_lock_active", artifact->build_lock_active);
    weights_json_bool(&json, "artifact_lock_active", artifact->artifact_lock_active);
    weights_json_raw(&json, "manifest", artifact->manifest_json ? artifact->manifest_json : "null");
    weights_json_close(&json, '}');
    return weights_json_print(&json);
}

/* A line with names that others chose. */
static void print_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void print_line(const char *format, ...)
{
    char *line = NULL;
    va_list list;
    va_start(list, format);
    const int size = vasprintf(&line, format, list);
    va_end(list);
    if (size < 0)
        abort(); /* as a table does */
    printf("%s\n", weights_plain(line));
    free(line);
}

static void print_identity(const hl_manifest *manifest)
{
    const hl_weight_identity *identity = manifest->identity;
    print_line("  model            %s at %s", identity->model_id, identity->revision);
    print_line("  source           %s", identity->source_fingerprint);
    print_line("  component        %s (%s)", identity->component, identity->ownership);
    print_line("  representation   %s, %s", identity->representation, identity->dtype);
    print_line("  layout           %s, tensor parallel rank %" PRIu64 " of %" PRIu64
               ", sequence parallel %" PRIu64 "",
               identity->layout, identity->tensor_parallel_rank, identity->tensor_parallel_size,
               identity->sequence_parallel_size);
    print_line("  adaptation       %s%s%s", identity->adaptation_kind,
               identity->adaptation_fingerprint ? ", " : "",
               identity->adaptation_fingerprint ? identity->adaptation_fingerprint : "");
    print_line("  producer         %s %s (%s)", identity->producer_id, identity->producer_version,
               identity->implementation_fingerprint);
    print_line("  schemas          manifest %s, restorer %s", manifest->producer_schema,
               manifest->restorer_schema);
    print_line("  content          %s", manifest->content_sha256);
}

static void print_files(const hl_manifest *manifest)
{
    char size[WEIGHTS_SIZE_BYTES];
    struct weights_table table = {.columns = 3, .right_aligned = 1u << 1};
    weights_table_add(&table, "FILE");
    weights_table_add(&table, "SIZE");
    weights_table_add(&table, "SHA-256");
    for (size_t i = 0; i < manifest->file_count; i++) {
        weights_table_add(&table, manifest->files[i].file_name);
        weights_table_add(&table, weights_size(size, manifest->files[i].bytes));
        weights_table_add(&table, manifest->files[i].sha256);
    }
    printf("\n");
    weights_table_print(&table, stdout);
}

/* "[4,3]" */
static void print_shape(const struct hl_manifest_tensor *tensor, struct hl_text *text)
{
    text->size = 0;
    hl_text_append(text, "[", 1);
    for (uint32_t i = 0; i < tensor->rank; i++)
        hl_text_print(text, "%s%" PRIu64, i ? "," : "", tensor->shape[i]);
    hl_text_append(text, "]", 1);
}

static void print_tensors(const hl_manifest *manifest)
{
    char size[WEIGHTS_SIZE_BYTES];
    struct hl_text shape = {0};
    struct weights_table table = {.columns = 6, .right_aligned = 1u << 3};
    static const char *const titles[] = {"TENSOR", "DTYPE", "SHAPE", "SIZE", "ROLE", "FILE"};
    for (size_t i = 0; i < table.columns; i++)
        weights_table_add(&table, titles[i]);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[i];
        print_shape(tensor, &shape);
        weights_table_add(&table, tensor->name);
        weights_table_add(&table, tensor->dtype);
        weights_table_add(&table, shape.failed ? "?" : shape.bytes);
        weights_table_add(&table, weights_size(size, tensor->bytes));
        weights_table_add(&table, tensor->role);
        weights_table_add(&table, tensor->file_name);
    }
    hl_text_free(&shape);
    printf("\n");
    weights_table_print(&table, stdout);
}

static bool print_artifact(const hl_weight_artifact_snapshot *artifact, const char *folder, bool tensors)
{
    char size[WEIGHTS_SIZE_BYTES];
    hl_manifest *manifest = NULL;
    printf("%s\n  state            %s\n", artifact->artifact_key,
           artifact->valid ? "ready" : "not to be used");
    if (!artifact->valid)
        weights_print_failure(stdout, "                   ", &artifact->failure);
    printf("  folder           %s\n", folder);
    printf("  size             %s\n", weights_size(size, artifact->bytes));
    printf("  publication      %s\n", artifact->publication_id[0] ? artifact->publication_id : "unknown");
    if (artifact->backing_fingerprint[0])
        printf("  backing          %s\n", artifact->backing_fingerprint);
    printf("  locks now        build %s, artifact %s\n", artifact->build_lock_active ? "held" : "free",
           artifact->artifact_lock_active ? "held: in use or being changed" : "free");
    if (!artifact->manifest_json ||
        hl_manifest_parse(artifact->manifest_json, strlen(artifact->manifest_json), &manifest, NULL) !=
            HL_OK) {
        printf("  manifest         cannot be read\n");
        return fflush(stdout) == 0;
    }
    print_identity(manifest);
    printf("  tensors          %zu in %zu files%s\n", manifest->tensor_count, manifest->file_count,
           tensors ? "" : " (--tensors lists them)");
    print_files(manifest);
    if (tensors)
        print_tensors(manifest);
    hl_manifest_free(manifest);
    return fflush(stdout) == 0;
}

int weights_show(const struct weights_arguments *arguments)
{
    hl_weight_store *store;
    hl_weight_artifact_snapshot *artifact = NULL;
    hl_weight_failure failure;
    char folder[PATH_MAX + 80];
    int code = weights_open_store(arguments, WEIGHTS_LOOKS, &store);
    if (code != WEIGHTS_DONE)
        return code;
    hl_status status = hl_weight_store_inspect_artifact(store, arguments->operand,
                                                        HL_WEIGHT_MANIFEST_AND_METADATA, &artifact, &failure);
    if (status == HL_OK && !artifact->present)
        status = HL_WEIGHT_FAIL(&failure, LOOKUP, LOCAL_MISS, false, "there is no artifact %s",
                                arguments->operand);
    if (status != HL_OK)
        code = weights_fail(arguments->json, &failure);
    else {
        snprintf(folder, sizeof folder, "%s/artifacts/%s", store->root_path, artifact->artifact_key);
        if (!(arguments->json ? print_json(artifact, folder)
                              : print_artifact(artifact, folder, arguments->tensors)))
            code = WEIGHTS_FAILED;
    }
    hl_weight_artifact_snapshot_free(artifact);
    hl_weight_store_close(store);
    return code;
}
