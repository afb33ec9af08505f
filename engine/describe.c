/* What a batch must look like, what a binding keeps of it, and what the Manager is told. */
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"

static const char stage[] = "engine.register";

static hl_status check_name(const char *name, const char *field, hl_error *err)
{
    if (!name || !name[0])
        return HL_FAIL(err, HL_E_INVALID, stage, "%s is not given", field);
    if (strlen(name) >= HL_NAME_BYTES)
        return HL_FAIL(err, HL_E_INVALID, stage, "%s has %zu bytes, at most %u", field, strlen(name),
                       HL_NAME_BYTES - 1);
    for (const unsigned char *letter = (const unsigned char *)name; *letter; letter++)
        if (*letter < 0x20 || *letter > 0x7e)
            return HL_FAIL(err, HL_E_INVALID, stage, "%s is not printable", field);
    return HL_OK;
}

static hl_status check_tensors(const hl_context_batch *batch, hl_error *err)
{
    for (uint32_t i = 0; i < batch->layout->tensor_count; i++) {
        const hl_tensor *tensor = &batch->tensors[i];
        if (tensor->device_ptr == 0)
            return HL_FAIL(err, HL_E_INVALID, stage, "tensors[%u].device_ptr is 0", i);
        if (tensor->bytes < batch->layout->tensors[i].bytes)
            return HL_FAIL(err, HL_E_RANGE, stage, "tensors[%u] has %llu bytes, the layout needs %llu", i,
                           (unsigned long long)tensor->bytes,
                           (unsigned long long)batch->layout->tensors[i].bytes);
        if (tensor->name) {
            hl_status status = check_name(tensor->name, "a tensor's name", err);
            if (status != HL_OK)
                return status;
        }
    }
    return HL_OK;
}

hl_status engine_batch_check(const hl_context_batch *batch, enum hl_route *route, hl_error *err)
{
    if (!batch || batch->size != sizeof *batch)
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, hl_context_batch_init() sets %zu",
                       batch ? batch->size : 0, sizeof *batch);
    hl_status status = check_name(batch->instance, "instance", err);
    if (status == HL_OK)
        status = check_name(batch->model, "model", err);
    if (status != HL_OK)
        return status;
    if (!batch->layout || !batch->tensors)
        return HL_FAIL(err, HL_E_INVALID, stage, "%s is NULL", batch->layout ? "tensors" : "layout");
    status = hl_layout_validate(batch->layout, err);
    if (status != HL_OK)
        return status;
    if (batch->sm_cap > HL_TRANSFER_MAX_SMS)
        return HL_FAIL(err, HL_E_INVALID, stage, "sm_cap is %u, at most %u", batch->sm_cap,
                       HL_TRANSFER_MAX_SMS);
    if (!batch->device && batch->cuda_ordinal < 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "cuda_ordinal is %d", batch->cuda_ordinal);
    *route = HL_ROUTE_AUTO;
    if (batch->route) {
        status = hl_route_parse(batch->route, route, err);
        if (status != HL_OK)
            return status;
    }
    return check_tensors(batch, err);
}

hl_status engine_binding_new(hl_engine *engine, const hl_context_batch *batch, hl_binding **out,
                             hl_error *err)
{
    hl_binding *binding = calloc(1, sizeof *binding);
    if (!binding)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a binding");
    binding->engine = engine;
    binding->rank = batch->rank;
    memcpy(binding->instance, batch->instance, strlen(batch->instance) + 1); /* its length has been checked */
    hl_status status = hl_layout_from_components(batch->layout, &binding->layout, err);
    if (status != HL_OK)
        goto err_free;
    binding->owner_count = binding->layout->tensor_count;
    binding->owners = calloc(binding->owner_count, sizeof *binding->owners);
    if (!binding->owners) {
        status = HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u owners", binding->owner_count);
        goto err_free;
    }
    for (uint32_t i = 0; i < binding->owner_count; i++)
        binding->owners[i] = (struct engine_owner){batch->tensors[i].owner, batch->tensors[i].release};
    for (uint32_t i = 0; i < binding->layout->component_count; i++) {
        const struct hl_layout_component *component = &binding->layout->components[i];
        binding->page_bytes[component->group] += component->rows * component->row_bytes;
    }
    *out = binding;
    return HL_OK;

err_free:
    engine_binding_free(binding);
    return status;
}

void engine_binding_free(hl_binding *binding)
{
    hl_layout_free(binding->layout);
    free(binding->owners);
    free(binding);
}

/* An allocation that no other process can map has no export: it can be restored to, and not published from. A
 * CUDA driver says so in the same words as for a bad pointer. */
static hl_status export_tensors(hl_binding *binding, const hl_context_batch *batch,
                                struct hl_wire_tensor *tensors, hl_error *err)
{
    hl_device *dev = binding->gpu->dev;
    hl_error refused = {0};
    hl_status status = hl_device_enter(dev, err);
    if (status != HL_OK)
        return status;
    for (uint32_t i = 0; status == HL_OK && i < binding->layout->tensor_count; i++) {
        tensors[i].tensor = binding->layout->tensors[i];
        if (batch->tensors[i].name) {
            memset(tensors[i].tensor.name, 0, HL_NAME_BYTES);
            const char *name = batch->tensors[i].name; /* its length has been checked */
            memcpy(tensors[i].tensor.name, name, strlen(name) + 1);
        }
        status = dev->ops->ipc_export(dev, batch->tensors[i].device_ptr, &tensors[i].export, &refused);
        if (status == HL_OK)
            continue;
        if (dev->info.kind == HL_DEVICE_CUDA || status == HL_E_UNSUPPORTED) {
            engine_log(binding->engine, HL_LOG_WARNING, "tensors[%u] cannot be published from: %s", i,
                       refused.text);
            memset(&tensors[i].export, 0, sizeof tensors[i].export);
            status = HL_OK;
        } else if (err) {
            *err = refused;
        }
    }
    hl_device_leave(dev);
    return status;
}

hl_status engine_binding_describe(hl_binding *binding, const hl_context_batch *batch,
                                  struct hl_extent *extent, hl_error *err)
{
    const hl_layout *layout = binding->layout;
    size_t bytes = hl_wire_binding_bytes(layout->tensor_count, layout->component_count);
    void *at = NULL;
    struct hl_wire_binding head = {.rank = batch->rank,
                                   .element_bytes = layout->content.element_bytes,
                                   .layers = layout->layers,
                                   .page_tokens = layout->page_tokens,
                                   .group_count = layout->group_count,
                                   .tensor_count = layout->tensor_count,
                                   .component_count = layout->component_count,
                                   .content = layout->content};
    memcpy(head.instance, batch->instance, strlen(batch->instance) + 1);
    memcpy(head.model, batch->model, strlen(batch->model) + 1);
    memcpy(head.model_digest, batch->model_digest, sizeof head.model_digest);
    memcpy(head.device_uuid, binding->gpu->dev->info.uuid, sizeof head.device_uuid);
    memcpy(head.groups, layout->groups, layout->group_count * sizeof head.groups[0]);
    struct hl_wire_tensor *tensors = calloc(layout->tensor_count, sizeof *tensors);
    if (!tensors)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u tensors", layout->tensor_count);
    hl_status status = export_tensors(binding, batch, tensors, err);
    if (status == HL_OK)
        status = hl_descriptors_take(binding->engine->descriptors, (uint32_t)bytes, extent, &at, err);
    if (status == HL_OK) {
        status = hl_wire_binding_encode(&head, tensors, layout->components, at, bytes, err);
        if (status != HL_OK)
            hl_descriptors_give(binding->engine->descriptors, *extent);
    }
    free(tensors);
    return status;
}
