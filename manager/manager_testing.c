#include "manager/manager_testing.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "manager/check.h"

static void *must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

/* --- the world --- */

hl_layout *world_layout(enum hl_layout_kind kind, enum hl_block_order order, uint32_t pages)
{
    struct hl_model_geometry geometry = {
        .name = "small", .layers = 2, .kv_heads = 2, .head_dim = 8, .element_bytes = 2};
    const struct hl_layout_options options = {.kind = kind, .order = order, .page_tokens = 4, .pages = pages};
    hl_layout *layout = NULL;
    hl_error err = {0};
    if (kind == HL_LAYOUT_MLA) {
        geometry.mla = 1;
        geometry.kv_heads = 1;
    }
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &options, &layout, &err), err);
    return layout;
}

static void keep_log(void *user, enum hl_manager_log_level level, const char *text)
{
    struct world *world = user;
    (void)level;
    size_t room = sizeof world->log - world->log_used;
    int written = snprintf(world->log + world->log_used, room, "%s\n", text);
    world->log_used += (size_t)written < room ? (size_t)written : room - 1;
}

/* Whether an operation or a publish of the Manager covers what a copy is about to touch (I1, T1): a restore
 * reads pinned sources only, a publish writes fresh space only. */
static bool is_pinned(hl_manager *manager, uint64_t first, uint64_t end)
{
    struct hl_index_cursor cursor = {0};
    struct hl_index_info info;
    while (hl_index_next(manager->index, &cursor, &info)) {
        if (info.state != HL_INDEX_PRESENT || info.pins == 0)
            continue;
        uint64_t base = (uint64_t)(uintptr_t)hl_arena_base(manager->arenas[info.source.arena]);
        if (first >= base + info.source.offset && end <= base + info.source.offset + info.source.bytes)
            return true;
    }
    return false;
}

static bool is_fresh(hl_manager *manager, uint64_t first, uint64_t end)
{
    struct hl_index_cursor cursor = {0};
    struct hl_index_info info;
    while (hl_index_next(manager->index, &cursor, &info)) {
        if (info.state != HL_INDEX_PRESENT)
            continue;
        uint64_t base = (uint64_t)(uintptr_t)hl_arena_base(manager->arenas[info.source.arena]);
        if (first < base + info.source.offset + info.source.bytes && end > base + info.source.offset)
            return false;
    }
    return true;
}

static int check_access(void *user, const struct hl_software_access *access)
{
    struct world *world = user;
    bool allowed = true;
    pthread_mutex_lock(&world->manager->lock);
    if (access->kind == HL_COPY_H2D)
        allowed = is_pinned(world->manager, access->src, access->src + access->bytes);
    if (access->kind == HL_COPY_D2H)
        allowed = is_fresh(world->manager, access->dst, access->dst + access->bytes);
    pthread_mutex_unlock(&world->manager->lock);
    return allowed ? 0 : 1;
}

static void open_arenas(struct world *world, const struct world_options *options)
{
    hl_manager *manager = world->manager;
    struct manager_gpu *gpu = &manager->gpus[0];
    for (uint32_t i = 0; i < (options->arenas ? options->arenas : 1); i++) {
        const struct hl_arena_options arena = {.arena_id = 100 + i,
                                               .bytes = options->arena_bytes ? options->arena_bytes : HL_MIB,
                                               .numa_node = -1,
                                               .threads = 1};
        HL_REQUIRE_OK(hl_arena_create(&arena, &manager->arenas[i], &world->err), world->err);
        manager->arena_count++;
        HL_REQUIRE_OK(hl_arena_register(manager->arenas[i], world->dev, NULL, NULL, &gpu->registrations[i],
                                        &world->err),
                      world->err);
    }
}

static void open_session(struct world *world, uint32_t index, const struct world_options *options)
{
    hl_manager *manager = world->manager;
    struct manager_session *session = &manager->sessions[index];
    int pair[2];
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    *session = (struct manager_session){.index = index,
                                        .state = MANAGER_SESSION_LIVE,
                                        .socket = pair[0],
                                        .pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0),
                                        .pid = getpid(),
                                        .name = "played by the test",
                                        .welcomed = true,
                                        .serial = ++manager->serial,
                                        .restore_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                                        .retirement_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                                        .publish_fd = eventfd(0, EFD_CLOEXEC)};
    memset(session->token, (int)(0x51 + index), sizeof session->token);
    HL_REQUIRE_OK(hl_grant_memory_create(manager->epoch, session->token, &session->grants, &world->err),
                  world->err);
    HL_REQUIRE_OK(hl_descriptors_create(&session->descriptors, &world->err), world->err);
    HL_REQUIRE_OK(
        hl_descriptors_map(hl_descriptors_fd(session->descriptors), &world->engine[index], &world->err),
        world->err);
    HL_REQUIRE_OK(hl_bank_create(options->bank_bytes ? options->bank_bytes : HL_PLAN_PART_BYTES,
                                 &session->bank, &world->err),
                  world->err);
    hl_budget_init(&session->bytes, 1ull << 40);
    hl_budget_init(&session->plan_bytes, HL_PLAN_SESSION_BYTES);
    struct manager_binding *binding = &session->bindings[0];
    *binding = (struct manager_binding){.live = true, .namespace_id = WORLD_SPACE, .instance = "instance"};
    HL_REQUIRE_OK(hl_layout_from_components(world->layout, &binding->layout, &world->err), world->err);
    binding->tensors = must(calloc(world->layout->tensor_count, sizeof *binding->tensors));
    for (uint32_t i = 0; i < world->layout->tensor_count; i++) {
        HL_REQUIRE_OK(world->dev->ops->mem_alloc(world->dev, world->layout->tensors[i].bytes,
                                                 &world->tensors[index][i], &world->err),
                      world->err);
        binding->tensors[i] = world->tensors[index][i];
    }
}

void world_open(struct world *world, const struct world_options *options)
{
    static const uint64_t seed[2] = {1, 2};
    memset(world, 0, sizeof *world);
    hl_manager *manager = world->manager = must(calloc(1, sizeof *manager));
    world->layout = options->layout ? options->layout : world_layout(HL_LAYOUT_SPLIT, 0, 64);
    CU_ASSERT_FATAL(world->layout->tensor_count <= 64);
    manager->epoch = 0xe90c4;
    manager->part_bytes = options->part_bytes;
    manager->options.log = keep_log;
    manager->options.log_user = world;
    manager->listener = manager->timer = -1;
    manager->epoll = epoll_create1(EPOLL_CLOEXEC);
    manager->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&manager->lock, NULL);
    const struct hl_software_options software = {
        .checker = check_access, .checker_user = world, .bytes_per_second = options->bytes_per_second};
    HL_REQUIRE_OK(hl_device_open_software_with(&software, &world->dev, &world->err), world->err);
    HL_REQUIRE_OK(hl_device_enter(world->dev, &world->err), world->err);
    HL_REQUIRE_OK(world->dev->ops->stream_create(world->dev, &world->stream, &world->err), world->err);
    const struct hl_index_options index = {.capacity = options->index_blocks ? options->index_blocks : 4096,
                                           .seed = seed};
    HL_REQUIRE_OK(hl_index_create(&index, &manager->index, &world->err), world->err);
    HL_REQUIRE_OK(hl_leases_create(&(struct hl_leases_options){.most = 4096}, manager->index,
                                   &manager->leases, &world->err),
                  world->err);
    manager->gpus[0].dev = world->dev;
    hl_budget_init(&manager->gpus[0].permits, HL_GPU_RESTORES);
    manager->gpu_count = 1;
    open_arenas(world, options);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++)
        open_session(world, i, options);
    if (options->publisher)
        HL_REQUIRE_OK(manager_publisher_start(manager, 0, &world->err), world->err);
}

void world_expect_idle(struct world *world)
{
    hl_manager *manager = world->manager;
    struct hl_index_stats index;
    struct hl_leases_stats leases;
    hl_index_get_stats(manager->index, &index);
    hl_leases_get_stats(manager->leases, &leases);
    CU_ASSERT_EQUAL(index.pins, 0);
    CU_ASSERT_EQUAL(index.writing, 0);
    CU_ASSERT_EQUAL(leases.handed_pins, 0);
    CU_ASSERT_EQUAL(hl_budget_used(&manager->gpus[0].permits), 0);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        struct manager_session *session = &manager->sessions[i];
        if (session->state == MANAGER_SESSION_EMPTY)
            continue;
        CU_ASSERT_EQUAL(hl_budget_used(&session->bytes), 0);
        CU_ASSERT_EQUAL(hl_budget_used(&session->plan_bytes), 0);
        CU_ASSERT_EQUAL(hl_bank_used(session->bank), 0);
        CU_ASSERT_EQUAL(session->operation_count, 0);
        CU_ASSERT_EQUAL(session->quarantined, 0);
        CU_ASSERT_PTR_NULL(session->deferred_first);
        CU_ASSERT_PTR_NULL(session->deferred_last);
        for (uint32_t j = 0; j < HL_SESSION_BINDINGS; j++)
            CU_ASSERT_FATAL(session->bindings[j].operations == 0 && session->bindings[j].publishes == 0);
    }
}

void world_check(struct world *world)
{
    pthread_mutex_lock(&world->manager->lock);
    HL_EXPECT_OK(manager_check_locked(world->manager, &world->err), world->err);
    pthread_mutex_unlock(&world->manager->lock);
}

void world_close(struct world *world)
{
    hl_manager *manager = world->manager;
    struct hl_software_counts counts;
    manager_publisher_stop(manager, 0);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++)
        if (manager->sessions[i].state != MANAGER_SESSION_EMPTY) {
            world_engine_dies(world, i);
            CU_ASSERT_EQUAL(manager->sessions[i].state, MANAGER_SESSION_EMPTY);
        }
    world_expect_idle(world);
    HL_EXPECT_OK(hl_index_check(manager->index, &world->err), world->err);
    HL_EXPECT_OK(hl_leases_check(manager->leases, &world->err), world->err);
    for (uint32_t i = 0; i < WORLD_SESSIONS; i++) {
        hl_descriptors_close(world->engine[i]);
        for (uint32_t t = 0; t < world->layout->tensor_count; t++)
            HL_EXPECT_OK(world->dev->ops->mem_free(world->dev, world->tensors[i][t], &world->err),
                         world->err);
    }
    HL_EXPECT_OK(world->dev->ops->stream_destroy(world->dev, world->stream, &world->err), world->err);
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        hl_registration_release(manager->gpus[0].registrations[i]);
        hl_arena_destroy(manager->arenas[i]);
    }
    hl_leases_destroy(manager->leases);
    hl_index_destroy(manager->index);
    hl_software_counts(world->dev, &counts);
    CU_ASSERT_EQUAL(counts.violations, 0);
    CU_ASSERT_EQUAL(counts.allocations, 0);
    CU_ASSERT_EQUAL(counts.registrations, 0);
    CU_ASSERT_EQUAL(counts.streams, 0);
    CU_ASSERT_EQUAL(counts.events, 0);
    hl_device_leave(world->dev);
    hl_device_close(world->dev);
    hl_layout_free(world->layout);
    close(manager->epoll);
    close(manager->wake);
    pthread_mutex_destroy(&manager->lock);
    free(manager->plan_blocks);
    free(manager);
}

/* --- blocks --- */

void world_key(uint64_t key, unsigned char hash[HL_KEY_BYTES])
{
    memset(hash, 0, HL_KEY_BYTES);
    memcpy(hash, &key, sizeof key);
}

void world_block_bytes(const struct world *world, uint32_t group, uint64_t key, unsigned char *bytes)
{
    const hl_layout *layout = world->layout;
    unsigned char *all = must(malloc(layout->groups[group].block_bytes));
    hl_random random;
    hl_random_seed(&random, key * 2654435761u + group);
    hl_random_fill(&random, all, layout->groups[group].block_bytes);
    memset(bytes, 0, layout->groups[group].block_bytes);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        for (uint32_t row = 0; c->group == group && row < c->rows; row++) {
            uint64_t at = c->block_offset + row * c->block_row_stride;
            memcpy(bytes + at, all + at, c->row_bytes);
        }
    }
    free(all);
}

static struct hl_index_key index_key(uint32_t group, uint64_t key)
{
    struct hl_index_key made = {.space = WORLD_SPACE, .group = group};
    world_key(key, made.hash);
    return made;
}

void world_store(struct world *world, uint32_t group, uint64_t key)
{
    hl_manager *manager = world->manager;
    struct hl_index_key made = index_key(group, key);
    struct hl_allocation allocation;
    struct hl_index_source source = {.bytes = world->layout->groups[group].block_bytes,
                                     .residency = HL_RESIDENT_DRAM};
    hl_entry_id id;
    bool present;
    pthread_mutex_lock(&manager->lock);
    HL_REQUIRE_OK(hl_index_reserve(manager->index, &made, &id, &present, &world->err), world->err);
    if (!present) {
        HL_REQUIRE_OK(manager_store_take(manager, source.bytes, &source.arena, &allocation, &world->err),
                      world->err);
        source.allocation = allocation.id;
        source.offset = allocation.offset;
        world_block_bytes(world, group, key,
                          (unsigned char *)hl_arena_base(manager->arenas[source.arena]) + source.offset);
        HL_REQUIRE_OK(hl_index_complete(manager->index, id, &source, &world->err), world->err);
    }
    pthread_mutex_unlock(&manager->lock);
}

bool world_stored(struct world *world, uint32_t group, uint64_t key, const unsigned char **bytes)
{
    hl_manager *manager = world->manager;
    struct hl_index_key made = index_key(group, key);
    struct hl_index_source source;
    hl_entry_id id;
    pthread_mutex_lock(&manager->lock);
    bool found = hl_index_find(manager->index, &made, &id, NULL) == HL_OK &&
                 hl_index_source(manager->index, id, &source, NULL) == HL_OK;
    pthread_mutex_unlock(&manager->lock);
    if (found)
        *bytes = (const unsigned char *)hl_arena_base(manager->arenas[source.arena]) + source.offset;
    return found;
}

/* Calls hl_software_poke() or compares with hl_software_peek(), row by row. */
static bool page_rows(struct world *world, uint32_t session, uint32_t group, uint32_t page, uint64_t key,
                      bool write)
{
    const hl_layout *layout = world->layout;
    unsigned char *block = must(malloc(layout->groups[group].block_bytes)), *row_bytes = must(malloc(HL_MIB));
    bool same = true;
    world_block_bytes(world, group, key, block);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        CU_ASSERT_FATAL(c->row_bytes <= HL_MIB);
        for (uint32_t row = 0; c->group == group && row < c->rows; row++) {
            const unsigned char *stored = block + c->block_offset + row * c->block_row_stride;
            hl_devptr at =
                world->tensors[session][c->tensor] + c->offset + page * c->page_stride + row * c->row_stride;
            if (write) {
                hl_software_poke(world->dev, at, stored, c->row_bytes);
                continue;
            }
            hl_software_peek(world->dev, row_bytes, at, c->row_bytes);
            same = same && memcmp(row_bytes, stored, c->row_bytes) == 0;
        }
    }
    free(row_bytes);
    free(block);
    return same;
}

void world_fill_page(struct world *world, uint32_t session, uint32_t group, uint32_t page, uint64_t key)
{
    page_rows(world, session, group, page, key, true);
}

bool world_page_holds(struct world *world, uint32_t session, uint32_t group, uint32_t page, uint64_t key)
{
    return page_rows(world, session, group, page, key, false);
}

/* --- the dispatcher's side --- */

void world_look(struct world *world, uint32_t session, uint32_t record)
{
    pthread_mutex_lock(&world->manager->lock);
    manager_grants_look(world->manager, world_session(world, session), record);
    pthread_mutex_unlock(&world->manager->lock);
}

void world_sweep(struct world *world, uint32_t session)
{
    pthread_mutex_lock(&world->manager->lock);
    manager_grants_sweep(world->manager, world_session(world, session));
    pthread_mutex_unlock(&world->manager->lock);
}

void world_engine_dies(struct world *world, uint32_t session)
{
    pthread_mutex_lock(&world->manager->lock);
    manager_session_died(world->manager, world_session(world, session));
    pthread_mutex_unlock(&world->manager->lock);
}

void world_detach(struct world *world, uint32_t session, bool ended)
{
    pthread_mutex_lock(&world->manager->lock);
    world_session(world, session)->ended = ended;
    manager_session_detach(world->manager, world_session(world, session), "the test closed it");
    pthread_mutex_unlock(&world->manager->lock);
}

hl_status world_publish_locked(struct world *world, uint32_t session, uint32_t slot, uint32_t group,
                               const uint64_t *keys, uint32_t count, uint32_t page)
{
    struct manager_session *at = world_session(world, session);
    struct hl_publish_block *blocks = must(calloc(count, sizeof *blocks));
    const struct hl_publish_message request = {.group = group, .block_count = count, .slot = slot};
    for (uint32_t i = 0; i < count; i++) {
        world_key(keys[i], blocks[i].key);
        blocks[i].page = page + i;
    }
    atomic_store(&hl_descriptors_slot(world->engine[session], slot)->state, HL_PUBLISH_PENDING);
    hl_status status = manager_publish(world->manager, at, &at->bindings[0], &request, blocks, &world->err);
    if (status == HL_OK) {
        at->publish_slots |= 1ull << slot;
        at->bindings[0].publishes++;
    }
    free(blocks);
    return status;
}

void world_publish(struct world *world, uint32_t session, uint32_t slot, uint32_t group, uint64_t first,
                   uint32_t count, uint32_t page)
{
    uint64_t *keys = must(calloc(count, sizeof *keys));
    for (uint32_t i = 0; i < count; i++)
        keys[i] = first + i;
    pthread_mutex_lock(&world->manager->lock);
    HL_REQUIRE_OK(world_publish_locked(world, session, slot, group, keys, count, page), world->err);
    pthread_mutex_unlock(&world->manager->lock);
    free(keys);
}

struct hl_publish_slot world_publish_outcome(struct world *world, uint32_t session, uint32_t slot)
{
    struct hl_publish_slot *shared = hl_descriptors_slot(world->engine[session], slot);
    struct hl_publish_slot copy;
    while (atomic_load_explicit(&shared->state, memory_order_acquire) != HL_PUBLISH_FINISHED) {
        uint64_t count; /* blocks until some publish has finished */
        CU_ASSERT_EQUAL_FATAL(read(world_session(world, session)->publish_fd, &count, sizeof count),
                              sizeof count);
    }
    /* A thread sanitizer does not see that two mappings are one memory. */
    pthread_mutex_lock(&world->manager->lock);
    copy = *shared;
    pthread_mutex_unlock(&world->manager->lock);
    atomic_store(&shared->state, HL_PUBLISH_IDLE);
    return copy;
}

uint32_t world_state(struct world *world, uint32_t session, uint32_t record)
{
    return hl_grant_load(world_session(world, session)->grants, record).state;
}
