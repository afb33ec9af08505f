/* A restore descriptor becomes a plan and an owner. Everything is looked at before anything is consumed. */
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/bindings.h"
#include "manager/operation.h"

#define STAGE "manager.prepare"

struct request {
    struct hl_wire_restore head;
    void *copy; /* of the descriptor; `pages` points into it */
    const uint32_t *pages;
    uint64_t page_count;
    int64_t now_ns; /* one time for all leases: what is valid when looked at is valid when consumed */
};

static hl_status read_descriptor(struct manager_session *session, const struct hl_grant_record *record,
                                 struct request *request, hl_error *err)
{
    struct hl_extent extent = {.offset = record->descriptor_offset, .bytes = record->descriptor_bytes};
    hl_status status = hl_descriptors_copy(session->descriptors, extent,
                                           hl_wire_restore_bytes(HL_PLAN_BLOCKS), &request->copy, err);
    if (status != HL_OK)
        return status;
    status = hl_wire_restore_decode(request->copy, extent.bytes, &request->head, &request->pages,
                                    &request->page_count, err);
    if (status != HL_OK) {
        free(request->copy);
        request->copy = NULL;
    }
    return status;
}

/* The plan's blocks, in memory that is kept from one operation to the next. */
static hl_status reserve_blocks(hl_manager *manager, uint64_t count, hl_error *err)
{
    if (count <= manager->plan_blocks_room)
        return HL_OK;
    uint64_t room = manager->plan_blocks_room > 0 ? manager->plan_blocks_room : 1024;
    while (room < count)
        room *= 2;
    struct hl_plan_block *blocks = malloc(room * sizeof *blocks);
    if (!blocks)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %llu blocks", (unsigned long long)room);
    free(manager->plan_blocks);
    manager->plan_blocks = blocks;
    manager->plan_blocks_room = room;
    return HL_OK;
}

static hl_status plan_source(hl_manager *manager, hl_entry_id entry, struct hl_plan_block *block,
                             hl_error *err)
{
    struct hl_index_source source;
    hl_status status = hl_index_source(manager->index, entry, &source, err);
    if (status != HL_OK)
        return status;
    if (source.residency != HL_RESIDENT_DRAM)
        return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE,
                       "a block's residency is %u: only blocks in DRAM can be restored", source.residency);
    block->arena_id = hl_arena_id(manager->arenas[source.arena]);
    block->allocation_id = source.allocation;
    block->allocation_offset = source.offset;
    block->allocation_bytes = source.bytes;
    block->block_offset = source.offset;
    return HL_OK;
}

/* A number may have been another binding's when the lease was made: what counts is whose blocks these are. */
static hl_status check_namespace(hl_manager *manager, const struct manager_binding *binding,
                                 const struct hl_lease_info *lease, uint32_t index, hl_error *err)
{
    struct hl_index_info info;
    hl_status status = hl_index_get(manager->index, lease->entries[0], &info, err);
    if (status == HL_OK && (info.key.space != binding->namespace_id || info.key.group != lease->group))
        status = HL_FAIL(err, HL_E_STATE, STAGE, "lease %u is of a binding that has gone", index);
    return status;
}

/* Checks lease `index` and appends its blocks, of which `first` come before. */
static hl_status plan_lease(hl_manager *manager, const struct manager_operation *operation,
                            const struct request *request, uint32_t index, uint64_t first, hl_error *err)
{
    struct hl_lease_info lease;
    uint64_t id = request->head.leases[index].lease;
    uint32_t pages = request->head.leases[index].page_count;
    hl_status status =
        hl_lease_get(manager->leases, operation->session->serial, id, request->now_ns, &lease, err);
    if (status != HL_OK)
        return status;
    if (lease.binding != request->head.binding)
        return HL_FAIL(err, HL_E_STATE, STAGE, "lease %u is of binding %u, the restore of binding %u", index,
                       lease.binding, request->head.binding);
    if (pages > lease.count)
        return HL_FAIL(err, HL_E_RANGE, STAGE, "lease %u has %zu blocks, page_count is %u", index,
                       lease.count, pages);
    status = check_namespace(manager, operation->binding, &lease, index, err);
    for (uint32_t i = 0; status == HL_OK && i < pages; i++) {
        struct hl_plan_block *block = &manager->plan_blocks[first + i];
        block->group = lease.group;
        block->page = request->pages[first + i];
        status = plan_source(manager, lease.entries[i], block, err);
    }
    return status;
}

static hl_status plan_leases(hl_manager *manager, const struct manager_operation *operation,
                             const struct request *request, hl_error *err)
{
    hl_status status = reserve_blocks(manager, request->page_count, err);
    uint64_t first = 0;
    for (uint32_t i = 0; status == HL_OK && i < request->head.lease_count; i++) {
        status = plan_lease(manager, operation, request, i, first, err);
        first += request->head.leases[i].page_count;
    }
    return status;
}

static hl_status compile(hl_manager *manager, const struct request *request,
                         struct manager_operation *operation, hl_error *err)
{
    const struct hl_plan_request plan = {.layout = operation->binding->layout,
                                         .identity = operation->identity,
                                         .blocks = manager->plan_blocks,
                                         .block_count = request->page_count,
                                         .chunk_bytes = hl_arena_chunk_bytes(manager->arenas[0]),
                                         .part_bytes = manager->part_bytes,
                                         .metadata_bytes = manager->metadata_bytes};
    hl_status status = hl_plan_compile(&plan, &operation->plan, err);
    if (status != HL_OK)
        return status;
    struct hl_plan_stats stats;
    hl_plan_get_stats(operation->plan, &stats);
    operation->payload_bytes = stats.payload_bytes;
    operation->part_count = (uint32_t)hl_plan_part_count(operation->plan);
    return HL_OK;
}

/* Everything was validated at the same `now_ns`: only memory can be missing, and then the leases consumed so
 * far are lost with the operation. */
static hl_status consume_leases(hl_manager *manager, const struct request *request,
                                struct manager_operation *operation, hl_error *err)
{
    for (uint32_t i = 0; i < request->head.lease_count; i++) {
        hl_lease_pins **pins = &operation->pins[operation->pins_count];
        hl_status status = HL_FAULT_CALL(
            manager_lease_consume,
            hl_lease_consume(manager->leases, operation->session->serial, request->head.leases[i].lease,
                             request->head.leases[i].page_count, request->now_ns, pins, err),
            HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, errno, "lease %u cannot be consumed", i));
        if (status != HL_OK)
            return status;
        operation->source_bytes += hl_pins_bytes(*pins);
        operation->pins_count++;
    }
    return HL_OK;
}

static hl_status take_permit(struct manager_gpu *gpu, struct manager_operation *operation, hl_error *err)
{
    if (!HL_FAULT_CALL(manager_permit_take, hl_budget_take(&gpu->permits, 1), false))
        return HL_FAIL(err, HL_E_BUDGET, STAGE, "the GPU has %llu restores admitted already",
                       (unsigned long long)hl_budget_used(&gpu->permits));
    operation->gpu = gpu;
    return HL_OK;
}

/* Refused, the session loses its leases: what it wants to restore is more than it can have prepared, and the
 * sources are not to wait for that. */
static hl_status take_plan_bytes(hl_manager *manager, const struct request *request,
                                 struct manager_operation *operation, hl_error *err)
{
    struct hl_budget *budget = &operation->session->plan_bytes;
    struct hl_plan_stats stats;
    hl_plan_get_stats(operation->plan, &stats);
    if (HL_FAULT_CALL(manager_plan_bytes_take, hl_budget_take(budget, stats.metadata_bytes), false)) {
        operation->plan_bytes = stats.metadata_bytes;
        return HL_OK;
    }
    hl_status status = consume_leases(manager, request, operation, err);
    if (status != HL_OK)
        return status;
    return HL_FAIL(err, HL_E_BUDGET, STAGE, "a plan of %llu bytes beside %llu prepared: at most %llu",
                   (unsigned long long)stats.metadata_bytes, (unsigned long long)hl_budget_used(budget),
                   (unsigned long long)budget->limit);
}

static hl_status admit(hl_manager *manager, const struct request *request,
                       struct manager_operation *operation, hl_error *err)
{
    hl_status status =
        manager_binding_find(operation->session, request->head.binding, &operation->binding, err);
    if (status == HL_OK)
        status = plan_leases(manager, operation, request, err);
    if (status == HL_OK)
        status = take_permit(&manager->gpus[operation->binding->gpu], operation, err);
    if (status == HL_OK)
        status = compile(manager, request, operation, err);
    if (status == HL_OK)
        status = take_plan_bytes(manager, request, operation, err);
    if (status == HL_OK)
        status = consume_leases(manager, request, operation, err);
    return status;
}

hl_status manager_prepare(hl_manager *manager, struct manager_session *session, uint32_t record,
                          uint32_t generation, struct manager_operation **operation, hl_error *err)
{
    struct hl_grant_record copy;
    struct request request = {.now_ns = hl_clock_ns()};
    struct manager_operation *made = calloc(1, sizeof *made);
    if (!made)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for an operation");
    made->session = session;
    made->identity =
        (struct hl_plan_identity){.epoch = manager->epoch, .record = record, .generation = generation};
    memcpy(made->identity.token, session->token, sizeof made->identity.token);

    hl_grant_copy(session->grants, record, &copy);
    made->trace = (copy.flags & HL_GRANT_TRACE) != 0;
    hl_status status = read_descriptor(session, &copy, &request, err);
    if (status == HL_OK)
        status = admit(manager, &request, made, err);
    free(request.copy);
    if (status != HL_OK) {
        manager_operation_release(manager, made);
        return status;
    }
    *operation = made;
    return HL_OK;
}
