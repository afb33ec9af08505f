#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/channel/channel.h"
#include "core/channel/text.h"

/* core/layout's structs go on the wire as they are. The component has a gap after `rows`, which is written
 * and checked as zero. */
#define COMPONENT_GAP 52
_Static_assert(sizeof(struct hl_wire_binding) ==
                   2 * HL_NAME_BYTES + 32 + 8 + 16 + 6 * 4 + HL_LAYOUT_GROUPS * 16 + 7 * 4 + 4,
               "no padding");
_Static_assert(sizeof(struct hl_wire_tensor) == 8 + HL_NAME_BYTES + HL_IPC_HANDLE_BYTES + 16, "no padding");
_Static_assert(sizeof(struct hl_layout_group) == 16, "no padding");
_Static_assert(sizeof(struct hl_layout_content) == 7 * 4, "no padding");
_Static_assert(sizeof(struct hl_layout_component) == 72 &&
                   offsetof(struct hl_layout_component, rows) + 4 == COMPONENT_GAP &&
                   offsetof(struct hl_layout_component, block_offset) == COMPONENT_GAP + 4,
               "one gap");
_Static_assert(sizeof(enum hl_role) == 4, "a role is 32 bits on the wire");

static const char stage[] = "channel.binding";

size_t hl_wire_binding_bytes(uint32_t tensor_count, uint32_t component_count)
{
    if (tensor_count > HL_LAYOUT_TENSORS || component_count > HL_LAYOUT_COMPONENTS)
        return 0;
    return sizeof(struct hl_wire_binding) + tensor_count * sizeof(struct hl_wire_tensor) +
           component_count * sizeof(struct hl_layout_component);
}

static hl_status check_count(const char *field, uint32_t count, uint32_t limit, hl_status failure,
                             hl_error *err)
{
    if (count > 0 && count <= limit)
        return HL_OK;
    return HL_FAIL(err, failure, stage, "%s is %u, not 1 to %u", field, count, limit);
}

static hl_status check_counts(const struct hl_wire_binding *head, hl_status failure, hl_error *err)
{
    hl_status status = check_count("tensor_count", head->tensor_count, HL_LAYOUT_TENSORS, failure, err);
    if (status == HL_OK)
        status = check_count("component_count", head->component_count, HL_LAYOUT_COMPONENTS, failure, err);
    if (status == HL_OK)
        status = check_count("group_count", head->group_count, HL_LAYOUT_GROUPS, failure, err);
    if (status == HL_OK)
        status = check_count("layers", head->layers, HL_LAYOUT_LAYERS, failure, err);
    if (status == HL_OK)
        status = check_count("page_tokens", head->page_tokens, HL_LAYOUT_PAGE_TOKENS, failure, err);
    return status;
}

/* Counts are within limits. */
static hl_status check_head(const struct hl_wire_binding *head, hl_status failure, hl_error *err)
{
    const char *fault = hl_channel_text_fault(head->instance, sizeof head->instance);
    if (fault)
        return HL_FAIL(err, failure, stage, "instance %s", fault);
    fault = hl_channel_text_fault(head->model, sizeof head->model);
    if (fault)
        return HL_FAIL(err, failure, stage, "model %s", fault);
    if (head->element_bytes != 0 && head->content.element_bytes != 0 &&
        head->element_bytes != head->content.element_bytes)
        return HL_FAIL(err, failure, stage, "element_bytes is %u, the content's is %u", head->element_bytes,
                       head->content.element_bytes);
    if (head->zero != 0 || head->zero_tail != 0)
        return HL_FAIL(err, failure, stage, "zero is %u and zero_tail %u, not 0", head->zero,
                       head->zero_tail);
    if (!hl_channel_is_zero(&head->groups[head->group_count],
                            (HL_LAYOUT_GROUPS - head->group_count) * sizeof head->groups[0]))
        return HL_FAIL(err, failure, stage, "groups is not zero from group_count %u on", head->group_count);
    return HL_OK;
}

/* An export that holds less than its tensor would let a publish read past the allocation. */
static hl_status check_tensor(const struct hl_wire_tensor *tensor, uint32_t i, hl_status failure,
                              hl_error *err)
{
    const struct hl_ipc_export *export = &tensor->export;
    const char *fault = hl_channel_text_fault(tensor->tensor.name, sizeof tensor->tensor.name);
    if (fault)
        return HL_FAIL(err, failure, stage, "tensors[%u].name %s", i, fault);
    if (hl_channel_is_zero(export, sizeof *export))
        return HL_OK;
    if (!hl_within(export->offset, tensor->tensor.bytes, export->allocation_bytes))
        return HL_FAIL(err, failure, stage,
                       "tensors[%u].export: offset %llu and %llu bytes are not in allocation_bytes %llu", i,
                       (unsigned long long)export->offset, (unsigned long long)tensor->tensor.bytes,
                       (unsigned long long)export->allocation_bytes);
    return HL_OK;
}

/* Around its gap, in which the struct may hold anything. */
static void put_component(const struct hl_layout_component *component, unsigned char *at)
{
    memset(at, 0, sizeof *component);
    memcpy(at, component, COMPONENT_GAP);
    memcpy(at + COMPONENT_GAP + 4, (const unsigned char *)component + COMPONENT_GAP + 4,
           sizeof *component - COMPONENT_GAP - 4);
}

/* With the name as a text field: what lies behind the caller's NUL stays here. */
static struct hl_wire_tensor clean_tensor(const struct hl_wire_tensor *tensor)
{
    struct hl_wire_tensor clean = *tensor;
    char *name = clean.tensor.name, *end = memchr(name, '\0', sizeof clean.tensor.name);
    if (end)
        memset(end, 0, sizeof clean.tensor.name - (size_t)(end - name));
    return clean;
}

hl_status hl_wire_binding_encode(const struct hl_wire_binding *head, const struct hl_wire_tensor *tensors,
                                 const struct hl_layout_component *components, void *out, size_t size,
                                 hl_error *err)
{
    unsigned char *at = out;
    hl_status status = check_counts(head, HL_E_LIMIT, err);
    if (status == HL_OK)
        status = check_head(head, HL_E_INVALID, err);
    if (status != HL_OK)
        return status;
    if (size != hl_wire_binding_bytes(head->tensor_count, head->component_count))
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, %u tensors and %u components need %zu", size,
                       head->tensor_count, head->component_count,
                       hl_wire_binding_bytes(head->tensor_count, head->component_count));
    for (uint32_t i = 0; i < head->tensor_count; i++) {
        struct hl_wire_tensor tensor = clean_tensor(&tensors[i]);
        status = check_tensor(&tensor, i, HL_E_INVALID, err);
        if (status != HL_OK)
            return status;
    }
    memcpy(at, head, sizeof *head);
    at += sizeof *head;
    for (uint32_t i = 0; i < head->tensor_count; i++, at += sizeof *tensors) {
        struct hl_wire_tensor tensor = clean_tensor(&tensors[i]);
        memcpy(at, &tensor, sizeof tensor);
    }
    for (uint32_t i = 0; i < head->component_count; i++, at += sizeof *components)
        put_component(&components[i], at);
    return HL_OK;
}

static hl_status build_layout(const struct hl_wire_binding *head, const struct hl_wire_tensor *tensors,
                              const struct hl_layout_component *components, hl_layout **layout, hl_error *err)
{
    hl_layout description = {.layers = head->layers,
                             .page_tokens = head->page_tokens,
                             .component_count = head->component_count,
                             .tensor_count = head->tensor_count,
                             .group_count = head->group_count,
                             .components = (struct hl_layout_component *)(uintptr_t)components,
                             .content = head->content};
    memcpy(description.groups, head->groups, sizeof description.groups);
    description.tensors = calloc(head->tensor_count, sizeof *description.tensors);
    if (!description.tensors)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u tensors", head->tensor_count);
    for (uint32_t i = 0; i < head->tensor_count; i++)
        description.tensors[i] = tensors[i].tensor;
    hl_status status = hl_layout_from_components(&description, layout, err);
    free(description.tensors);
    return status;
}

hl_status hl_wire_binding_decode(const void *bytes, size_t size, struct hl_wire_binding *out,
                                 const struct hl_wire_tensor **out_tensors, hl_layout **layout, hl_error *err)
{
    struct hl_wire_binding head;
    const unsigned char *at = bytes;
    if ((uintptr_t)bytes % 8 != 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is not 8-byte aligned");
    if (size < sizeof head)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "size is %zu, the head needs %zu", size, sizeof head);
    memcpy(&head, at, sizeof head);
    hl_status status = check_counts(&head, HL_E_PROTOCOL, err);
    if (status != HL_OK)
        return status;
    if (size != hl_wire_binding_bytes(head.tensor_count, head.component_count))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "size is %zu, %u tensors and %u components need %zu", size,
                       head.tensor_count, head.component_count,
                       hl_wire_binding_bytes(head.tensor_count, head.component_count));
    status = check_head(&head, HL_E_PROTOCOL, err);
    at += sizeof head;
    const struct hl_wire_tensor *tensors = (const struct hl_wire_tensor *)(const void *)at;
    for (uint32_t i = 0; status == HL_OK && i < head.tensor_count; i++)
        status = check_tensor(&tensors[i], i, HL_E_PROTOCOL, err);
    at += head.tensor_count * sizeof *tensors;
    for (uint32_t i = 0; status == HL_OK && i < head.component_count; i++)
        if (!hl_channel_is_zero(at + i * sizeof(struct hl_layout_component) + COMPONENT_GAP, 4))
            status = HL_FAIL(err, HL_E_PROTOCOL, stage, "components[%u]: the gap after rows is not 0", i);
    if (status == HL_OK)
        status =
            build_layout(&head, tensors, (const struct hl_layout_component *)(const void *)at, layout, err);
    if (status != HL_OK)
        return status;
    *out = head;
    *out_tensors = tensors;
    return HL_OK;
}
