/* Takes a model's weights from a store of host weights and builds them there if they are missing.
 * Usage: weights_example ROOT disk|tmpfs IDENTITY.json */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlane/weights.h"

/* Writes the artifact through `writer`, and cannot publish it: the store does, if this returns HL_OK. */
static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    static const float values[6] = {1, 2, 3, 4, 5, 6};
    static const uint64_t shape[] = {2, 3};
    const hl_weight_tensor_spec tensor = {.name = "layer.weight",
                                          .kind = HL_WEIGHT_PARAMETER,
                                          .role = "weight",
                                          .dtype = "torch.float32",
                                          .rank = 2,
                                          .shape = shape};
    hl_weight_payload *payload;
    (void)context;
    hl_status status = hl_weight_writer_open(writer, "model.safetensors", &tensor, 1, &payload, err);
    if (status != HL_OK)
        return status;
    status = hl_weight_payload_write(payload, 0, 0, values, sizeof values, err);
    const hl_status closed = hl_weight_payload_close(payload, status == HL_OK ? err : NULL);
    return status == HL_OK ? closed : status;
}

static int fail(const hl_weight_failure *failure)
{
    fprintf(stderr, "%s: %s: %s\n%s\n", hl_weight_stage_name(failure->stage),
            hl_weight_code_name(failure->code), failure->error.text, hl_weight_code_remedy(failure->code));
    return 1;
}

static hl_weight_identity *read_identity(const char *path)
{
    static char text[64 * 1024];
    hl_weight_identity *identity = NULL;
    hl_error err;
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    const size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    if (hl_weight_identity_parse(text, bytes, &identity, &err) != HL_OK)
        fprintf(stderr, "%s: %s\n", path, err.text);
    return identity;
}

int main(int argc, char **argv)
{
    hl_weight_identity *identity = argc == 4 ? read_identity(argv[3]) : NULL;
    if (!identity)
        return 2;

    hl_weight_runtime_options options;
    hl_weight_runtime_options_init(&options);
    options.mode = HL_WEIGHT_MODE_PREFERRED;
    options.store.root = argv[1];
    options.store.storage_class = strcmp(argv[2], "tmpfs") == 0 ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;

    const char *const keys[] = {hl_weight_identity_key(identity)};
    const hl_weight_producer producer = {.size = sizeof producer,
                                         .scope = HL_WEIGHT_SINGLE_PROCESS,
                                         .phase = HL_WEIGHT_PRE_LOAD_SAFE,
                                         .output_keys = keys,
                                         .output_count = 1,
                                         .produce = produce};
    hl_weight_runtime *runtime = NULL;
    hl_weight_lease *lease = NULL;
    hl_weight_report report;
    hl_weight_failure failure;
    int code = 0;
    if (hl_weight_runtime_create(&options, &runtime, &failure) != HL_OK ||
        hl_weight_runtime_resolve(runtime, identity, &producer, 1, &lease, &report, &failure) != HL_OK) {
        code = fail(&failure);
    } else if (!lease) {
        printf("%s: load the model without the store\n", hl_weight_outcome_name(report.outcome));
    } else {
        const hl_weight_tensor_view *view = hl_weight_lease_tensor(lease, "layer.weight");
        printf("%s: %s has %" PRIu64 " bytes, the last value is %g\n", hl_weight_outcome_name(report.outcome),
               view->name, view->bytes, (double)((const float *)view->data)[5]);
        hl_weight_lease_release(lease); /* view->data ends here */
    }
    hl_weight_runtime_free(runtime);
    hl_weight_identity_free(identity);
    return code;
}
