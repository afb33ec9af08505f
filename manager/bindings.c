/* Registering and unregistering. A binding's tensors are imported once for each allocation: a handle names an
 * allocation, of which an engine may have cut several tensors. */
#include "manager/bindings.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/session.h"

static const char stage[] = "manager.register";

hl_status manager_binding_find(struct manager_session *session, uint32_t number,
                               struct manager_binding **binding, hl_error *err)
{
    if (number >= HL_SESSION_BINDINGS || !session->bindings[number].live)
        return HL_FAIL(err, HL_E_NOT_FOUND, "manager.binding", "binding %u is not registered", number);
    if (session->bindings[number].closing)
        return HL_FAIL(err, HL_E_STATE, "manager.binding", "binding %u (\"%.60s\") is being unregistered",
                       number, session->bindings[number].instance);
    *binding = &session->bindings[number];
    return HL_OK;
}

bool manager_binding_is_exported(const struct manager_binding *binding, uint32_t group)
{
    for (uint32_t i = 0; i < binding->layout->component_count; i++) {
        const struct hl_layout_component *component = &binding->layout->components[i];
        if (component->group == group && binding->tensors[component->tensor] == 0)
            return false;
    }
    return true;
}

/* --- imports --- */

static bool is_exported(const struct hl_ipc_export *export)
{
    static const struct hl_ipc_export none;
    return memcmp(export, &none, sizeof none) != 0;
}

/* Another tensor before `index` that lies in the same allocation, or `index`. */
static uint32_t first_of_allocation(const struct hl_wire_tensor *tensors, uint32_t index)
{
    uint32_t i = 0;
    while (memcmp(tensors[i].export.handle, tensors[index].export.handle, HL_IPC_HANDLE_BYTES) != 0 ||
           !is_exported(&tensors[i].export))
        i++;
    return i;
}

/* The device is entered. What has been imported is the binding's also on failure. */
static hl_status import_tensor(hl_device *dev, struct manager_binding *binding,
                               const struct hl_wire_tensor *tensors, uint32_t index, hl_error *err)
{
    const struct hl_wire_tensor *tensor = &tensors[index];
    hl_devptr base;
    if (!is_exported(&tensor->export))
        return HL_OK;
    assert(hl_within(tensor->export.offset, tensor->tensor.bytes,
                     tensor->export.allocation_bytes)); /* decoded */
    uint32_t first = first_of_allocation(tensors, index);
    if (first < index) {
        if (tensors[first].export.allocation_bytes != tensor->export.allocation_bytes)
            return HL_FAIL(err, HL_E_INVALID, stage,
                           "tensors %u and %u are in one allocation, which has %" PRIu64 " bytes or %" PRIu64,
                           first, index, tensors[first].export.allocation_bytes,
                           tensor->export.allocation_bytes);
        base = binding->tensors[first] - tensors[first].export.offset;
    } else {
        struct hl_ipc_export whole = tensor->export;
        whole.offset = 0;
        hl_status status = dev->ops->ipc_import(dev, &whole, &base, err);
        if (status != HL_OK)
            return status;
        binding->imports[binding->import_count++] = base;
    }
    binding->tensors[index] = base + tensor->export.offset;
    return HL_OK;
}

static hl_status import_tensors(hl_manager *manager, struct manager_binding *binding,
                                const struct hl_wire_tensor *tensors, hl_error *err)
{
    hl_device *dev = manager->gpus[binding->gpu].dev;
    const uint32_t count = binding->layout->tensor_count;
    binding->tensors = calloc(count, sizeof *binding->tensors);
    binding->imports = calloc(count, sizeof *binding->imports);
    if (!binding->tensors || !binding->imports)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u tensors", count);
    hl_status status = hl_device_enter(dev, err);
    if (status != HL_OK)
        return status;
    for (uint32_t i = 0; i < count && status == HL_OK; i++)
        status = import_tensor(dev, binding, tensors, i, err);
    hl_device_leave(dev);
    return status;
}

static void close_imports(hl_manager *manager, struct manager_binding *binding)
{
    hl_device *dev = manager->gpus[binding->gpu].dev;
    hl_error err;
    if (binding->import_count == 0)
        return;
    hl_status status = hl_device_enter(dev, &err);
    if (status != HL_OK)
        goto err_log;
    for (uint32_t i = 0; i < binding->import_count; i++) {
        hl_status closed = dev->ops->ipc_close(dev, binding->imports[i], &err);
        status = closed != HL_OK ? closed : status;
    }
    hl_device_leave(dev);
    if (status == HL_OK)
        return;
err_log:
    manager_log(manager, HL_MANAGER_ERROR, "tensors of \"%s\" stay mapped: %s", binding->instance, err.text);
}

void manager_binding_release(hl_manager *manager, struct manager_binding *binding)
{
    assert(binding->operations == 0 && binding->publishes == 0);
    HL_FAULT_STORE(manager_binding_release, close_imports(manager, binding));
    free(binding->imports);
    free(binding->tensors);
    hl_layout_free(binding->layout);
    memset(binding, 0, sizeof *binding);
}

/* --- REGISTER --- */

static bool is_same(const struct manager_binding *binding, const struct hl_wire_binding *head,
                    const hl_manager *manager)
{
    return binding->live && binding->rank == head->rank && strcmp(binding->instance, head->instance) == 0 &&
           memcmp(manager->gpus[binding->gpu].uuid, head->device_uuid, sizeof head->device_uuid) == 0;
}

static bool is_dead(const struct manager_session *session)
{
    struct pollfd process = {.fd = session->pidfd, .events = POLLIN};
    return session->pidfd < 0 || poll(&process, 1, 0) > 0;
}

/* Only engines with a channel count: what a dead one has left, in quarantine too, must not keep its successor
 * out. The successor may even be faster than the news of the death. */
static hl_status refuse_duplicate(const hl_manager *manager, const struct hl_wire_binding *head,
                                  hl_error *err)
{
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        const struct manager_session *session = &manager->sessions[i];
        if (session->state != MANAGER_SESSION_LIVE || is_dead(session))
            continue;
        for (uint32_t j = 0; j < HL_SESSION_BINDINGS; j++)
            if (is_same(&session->bindings[j], head, manager))
                return HL_FAIL(err, HL_E_BUSY, stage,
                               "instance \"%.80s\" rank %u is registered on this device by session %u, "
                               "process %d",
                               head->instance, head->rank, session->index, (int)session->pid);
    }
    return HL_OK;
}

static hl_status free_binding(struct manager_session *session, struct manager_binding **binding,
                              hl_error *err)
{
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++) {
        if (session->bindings[i].live)
            continue;
        *binding = &session->bindings[i];
        return HL_OK;
    }
    return HL_FAIL(err, HL_E_LIMIT, stage, "this session has %u bindings, no more are allowed",
                   HL_SESSION_BINDINGS);
}

static hl_status intern(hl_manager *manager, const struct hl_wire_binding *head, const hl_layout *layout,
                        uint32_t *id, hl_error *err)
{
    struct hl_namespace_key key;
    uint32_t element_bytes = head->element_bytes ? head->element_bytes : layout->content.element_bytes;
    /* Not said: the bytes are opaque, and geometry and model digest alone tell blocks apart. */
    if (element_bytes == 0)
        element_bytes = 1;
    hl_status status = hl_namespace_describe(head->model, head->model_digest, element_bytes, head->rank,
                                             HL_CACHE_SCHEMA, layout, &key, err);
    if (status != HL_OK)
        return status;
    return HL_FAULT_CALL(manager_namespace_take, hl_namespaces_intern(manager->namespaces, &key, id, err),
                         HL_FAIL_ERRNO(err, HL_E_LIMIT, stage, errno, "no namespace can be had"));
}

static void answer(hl_manager *manager, struct manager_session *session,
                   const struct manager_binding *binding, uint32_t sequence)
{
    struct hl_registered message;
    int fds[HL_ARENA_IMPORTS];
    memset(&message, 0, sizeof message);
    hl_message_head(&message, HL_MESSAGE_REGISTERED, sequence);
    message.binding = (uint32_t)(binding - session->bindings);
    message.arena_count = manager->arena_count;
    message.chunk_bytes = hl_arena_chunk_bytes(manager->arenas[0]);
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        message.arenas[i].arena_id = hl_arena_id(manager->arenas[i]);
        message.arenas[i].bytes = hl_arena_bytes(manager->arenas[i]);
        fds[i] = hl_arena_fd(manager->arenas[i]);
    }
    manager_session_send(session, &message, fds, manager->arena_count);
}

/* Takes the layout, also on failure. */
static hl_status create(hl_manager *manager, struct manager_binding *binding,
                        const struct hl_wire_binding *head, const struct hl_wire_tensor *tensors,
                        hl_layout *layout, hl_error *err)
{
    *binding = (struct manager_binding){.layout = layout, .rank = head->rank};
    memcpy(binding->instance, head->instance, sizeof binding->instance);
    hl_status status = manager_gpu_get(manager, head->device_uuid, &binding->gpu, err);
    if (status == HL_OK)
        status = intern(manager, head, layout, &binding->namespace_id, err);
    if (status == HL_OK)
        status = import_tensors(manager, binding, tensors, err);
    if (status != HL_OK)
        manager_binding_release(manager, binding);
    else
        HL_FAULT_STORE(manager_binding_live, binding->live = true);
    return status;
}

hl_status manager_binding_register(hl_manager *manager, struct manager_session *session,
                                   const struct hl_register *request, hl_error *err)
{
    struct hl_wire_binding head;
    const struct hl_wire_tensor *tensors;
    struct manager_binding *binding;
    hl_layout *layout;
    void *copy;
    hl_status status =
        hl_descriptors_copy(session->descriptors, request->extent, HL_DESCRIPTOR_BYTES, &copy, err);
    if (status != HL_OK)
        return status;
    status = hl_wire_binding_decode(copy, request->extent.bytes, &head, &tensors, &layout, err);
    if (status != HL_OK)
        goto free_copy;
    status = refuse_duplicate(manager, &head, err);
    if (status == HL_OK)
        status = free_binding(session, &binding, err);
    if (status != HL_OK) {
        hl_layout_free(layout);
        goto free_copy;
    }
    status = create(manager, binding, &head, tensors, layout, err);
    if (status == HL_OK) {
        manager_log(manager, HL_MANAGER_INFO,
                    "session %u registered \"%s\" rank %u: model \"%.60s\", %u layers, %u tensors",
                    session->index, binding->instance, binding->rank, head.model, layout->layers,
                    layout->tensor_count);
        answer(manager, session, binding, request->head.sequence);
    }
free_copy:
    free(copy);
    return status;
}

/* --- UNREGISTER --- */

void manager_binding_settle(hl_manager *manager, struct manager_session *session,
                            struct manager_binding *binding)
{
    struct hl_done message = {.value = 0};
    if (!binding->live || !binding->closing || binding->operations != 0 || binding->publishes != 0)
        return;
    const bool answered = binding->answer_unregister;
    hl_message_head(&message, HL_MESSAGE_DONE, binding->unregister_sequence);
    manager_log(manager, HL_MANAGER_INFO, "session %u unregistered \"%s\" rank %u", session->index,
                binding->instance, binding->rank);
    manager_binding_release(manager, binding);
    if (answered)
        manager_session_send(session, &message, NULL, 0);
}

hl_status manager_binding_unregister(hl_manager *manager, struct manager_session *session,
                                     const struct hl_unregister *request, hl_error *err)
{
    struct manager_binding *binding;
    hl_status status = manager_binding_find(session, request->binding, &binding, err);
    if (status != HL_OK)
        return status;
    binding->closing = true;
    binding->answer_unregister = true;
    binding->unregister_sequence = request->head.sequence;
    manager_binding_settle(manager, session, binding);
    return HL_OK;
}
