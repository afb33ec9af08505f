#include "core/layout/layout.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"

#define STAGE "layout.copy"

/* The counts bound what is allocated, so they come first; everything else is checked on the copy, which its
 * owner cannot change meanwhile. */
static hl_status check_sizes(const hl_layout *copy, hl_error *err)
{
    if (copy->component_count > HL_LAYOUT_COMPONENTS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "component_count is %u, at most %u are allowed",
                       copy->component_count, HL_LAYOUT_COMPONENTS);
    if (copy->tensor_count > HL_LAYOUT_TENSORS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "tensor_count is %u, at most %u are allowed",
                       copy->tensor_count, HL_LAYOUT_TENSORS);
    if (copy->component_count == 0 || copy->components == NULL)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "components is empty");
    if (copy->tensor_count == 0 || copy->tensors == NULL)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensors is empty");
    return HL_OK;
}

hl_status hl_layout_from_components(const hl_layout *description, hl_layout **layout, hl_error *err)
{
    if (description == NULL)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "description is NULL");
    hl_layout *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a layout");
    *copy = *description;
    const void *components = copy->components, *tensors = copy->tensors;
    hl_status status = check_sizes(copy, err);
    copy->components = NULL;
    copy->tensors = NULL;
    if (status != HL_OK)
        goto err_free;
    copy->components = calloc(copy->component_count, sizeof *copy->components);
    copy->tensors = calloc(copy->tensor_count, sizeof *copy->tensors);
    if (copy->components == NULL || copy->tensors == NULL) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u components", copy->component_count);
        goto err_free;
    }
    memcpy(copy->components, components, copy->component_count * sizeof *copy->components);
    memcpy(copy->tensors, tensors, copy->tensor_count * sizeof *copy->tensors);
    status = hl_layout_validate(copy, err);
    if (status != HL_OK)
        goto err_free;
    *layout = copy;
    return HL_OK;
err_free:
    hl_layout_free(copy);
    return status;
}

void hl_layout_free(hl_layout *layout)
{
    if (layout == NULL)
        return;
    free(layout->components);
    free(layout->tensors);
    free(layout);
}

uint64_t hl_layout_layer_page_bytes(const hl_layout *layout, uint32_t layer)
{
    uint64_t bytes = 0; /* cannot wrap: the rows lie apart in tensors and in one block */
    for (uint32_t i = 0; i < layout->component_count; i++)
        if (layout->components[i].layer == layer)
            bytes += layout->components[i].rows * layout->components[i].row_bytes;
    return bytes;
}
