/* Publishing: queue, turns, what becomes visible when, and the answers. A key is reserved in the index before
 * its bytes are copied and completed after they have all arrived (T1); what fails is abandoned, and its space
 * is used again only when the device is known to be done with it. */
#include "manager/publisher.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"

#define STAGE "manager.publisher"

/* --- admission; lock held --- */

hl_status manager_publish(hl_manager *manager, struct manager_session *session,
                          struct manager_binding *binding, const struct hl_publish_message *request,
                          const struct hl_publish_block *blocks, hl_error *err)
{
    struct manager_publisher *publisher = manager->gpus[binding->gpu].publisher;
    if (!publisher || publisher->stopping || manager->stopping)
        return HL_FAIL(err, HL_E_STATE, STAGE, "the Manager publishes nothing any more");
    assert(session->index < HL_SESSIONS && request->group < binding->layout->group_count);
    assert(request->block_count > 0 && request->slot < HL_PUBLISH_SLOTS);
    struct manager_publish *made = HL_FAULT_CALL(
        manager_publish_accept, malloc(sizeof *made + request->block_count * sizeof made->blocks[0]), NULL);
    if (!made)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u blocks", request->block_count);
    *made = (struct manager_publish){.session = session,
                                     .binding = binding,
                                     .group = request->group,
                                     .slot = request->slot,
                                     .gaps = manager_publish_has_gaps(binding->layout, request->group),
                                     .accepted_ns = hl_clock_ns(),
                                     .block_count = request->block_count};
    made->warned_ns = made->accepted_ns;
    memcpy(made->blocks, blocks, request->block_count * sizeof made->blocks[0]);
    struct manager_publish **first = &publisher->queues[session->index].first;
    struct manager_publish **last = &publisher->queues[session->index].last;
    *(*last ? &(*last)->next : first) = made;
    *last = made;
    publisher->queued++;
    pthread_cond_signal(&publisher->work);
    return HL_OK;
}

/* --- one batch; lock held --- */

static void fail(struct manager_publish *publish, hl_status status, const char *text)
{
    publish->status = status;
    snprintf(publish->text, sizeof publish->text, "%.*s", (int)sizeof publish->text - 1, text);
    publish->next_block = publish->block_count;
}

/* HL_OK: reserved, or *present. Makes room in a full index. */
static hl_status reserve(hl_manager *manager, const struct hl_index_key *key, hl_entry_id *entry,
                         bool *present, hl_error *err)
{
    hl_status status = hl_index_reserve(manager->index, key, entry, present, err);
    if (status == HL_E_NOSPACE) {
        uint32_t arena;
        if (manager_store_evict(manager, &arena, err) != HL_OK)
            return HL_E_NOSPACE;
        status = hl_index_reserve(manager->index, key, entry, present, err);
    }
    if (status == HL_E_BUSY) { /* another publish is writing these bytes */
        *present = true;
        return HL_OK;
    }
    return status;
}

/* Takes the key and the space of one block into the batch, unless it is there already. */
static hl_status take_block(struct manager_publisher *publisher, struct manager_publish *publish,
                            const struct hl_publish_block *block, hl_error *err)
{
    hl_manager *manager = publisher->manager;
    struct manager_publish_batch *batch = &publisher->batch;
    struct manager_publish_target *target = &batch->targets[batch->count];
    struct hl_index_key key = {.space = publish->binding->namespace_id, .group = publish->group};
    bool present;
    memcpy(key.hash, block->key, sizeof key.hash);
    hl_status status =
        HL_FAULT_CALL(manager_block_reserve, reserve(manager, &key, &target->entry, &present, err),
                      HL_FAIL_ERRNO(err, HL_E_NOSPACE, STAGE, errno, "the index takes no more blocks"));
    if (status != HL_OK)
        return status;
    if (present) {
        publish->present++;
        return HL_OK;
    }
    status = HL_FAULT_CALL(manager_block_take,
                           manager_store_take(manager,
                                              publish->binding->layout->groups[publish->group].block_bytes,
                                              &target->arena, &target->allocation, err),
                           HL_FAIL_ERRNO(err, HL_E_NOSPACE, STAGE, errno, "no room for a block"));
    if (status != HL_OK) {
        HL_FAULT_STORE(manager_block_abandon, hl_index_abandon(manager->index, target->entry, NULL));
        return status;
    }
    target->page = block->page;
    batch->count++;
    return HL_OK;
}

static void take_batch(struct manager_publisher *publisher, struct manager_publish *publish)
{
    const uint64_t block_bytes = publish->binding->layout->groups[publish->group].block_bytes;
    struct manager_publish_batch *batch = &publisher->batch;
    hl_error err;
    batch->publish = publish;
    batch->count = 0;
    if (publish->session->state == MANAGER_SESSION_UNRESOLVED) {
        fail(publish, HL_E_PEER, "the engine has died");
        return;
    }
    /* Looks at a bounded number of blocks also when all are present. */
    for (uint32_t looked = 0; looked < MANAGER_PUBLISH_BATCH && publish->next_block < publish->block_count &&
                              batch->count * block_bytes < MANAGER_PUBLISH_BATCH_BYTES;
         looked++) {
        hl_status status = take_block(publisher, publish, &publish->blocks[publish->next_block++], &err);
        if (status != HL_OK)
            fail(publish, status, err.text); /* those before it are published all the same */
    }
}

static void complete_batch(struct manager_publisher *publisher)
{
    hl_manager *manager = publisher->manager;
    struct manager_publish *publish = publisher->batch.publish;
    for (uint32_t i = 0; i < publisher->batch.count; i++) {
        const struct manager_publish_target *target = &publisher->batch.targets[i];
        const struct hl_index_source source = {
            .allocation = target->allocation.id,
            .offset = target->allocation.offset,
            .bytes = publish->binding->layout->groups[publish->group].block_bytes,
            .arena = target->arena,
            .residency = HL_RESIDENT_DRAM};
        hl_status status;
        HL_FAULT_STORE(manager_block_complete,
                       status = hl_index_complete(manager->index, target->entry, &source, NULL));
        assert(status == HL_OK);
        (void)status;
        publish->stored++;
        publish->bytes += source.bytes;
        manager->counters.published_blocks++;
    }
}

static void abandon_batch(struct manager_publisher *publisher, bool drained)
{
    hl_manager *manager = publisher->manager;
    uint64_t leaked = 0;
    for (uint32_t i = 0; i < publisher->batch.count; i++) {
        const struct manager_publish_target *target = &publisher->batch.targets[i];
        HL_FAULT_STORE(manager_block_abandon, hl_index_abandon(manager->index, target->entry, NULL));
        if (drained)
            manager_store_give(manager, target->arena, target->allocation.id);
        else
            leaked += target->allocation.bytes;
    }
    if (drained)
        return;
    manager->leaked_blocks += publisher->batch.count;
    manager->leaked_bytes += leaked;
    manager_log(manager, HL_MANAGER_ERROR,
                "publish: copies failed and their end could not be established: %" PRIu64
                " bytes of arena are given up",
                leaked);
}

/* --- the answer; lock held --- */

static struct manager_publish *unlink_first(struct manager_publisher *publisher, uint32_t index)
{
    struct manager_publish *publish = publisher->queues[index].first;
    publisher->queues[index].first = publish->next;
    if (!publish->next)
        publisher->queues[index].last = NULL;
    publisher->queued--;
    return publish;
}

static void reply(hl_manager *manager, struct manager_publish *publish)
{
    struct manager_session *session = publish->session;
    struct hl_publish_slot *slot = hl_descriptors_slot(session->descriptors, publish->slot);
    slot->status = publish->status;
    slot->stored = publish->stored;
    slot->present = publish->present;
    slot->bytes = publish->bytes;
    memcpy(slot->text, publish->text, sizeof slot->text);
    HL_FAULT_STORE(channel_slot_finish,
                   atomic_store_explicit(&slot->state, HL_PUBLISH_FINISHED, memory_order_release));
    if (session->publish_fd >= 0)
        HL_FAULT_NOTIFY(channel_signal_publish, eventfd_write(session->publish_fd, 1));
    if (publish->status != HL_OK)
        manager_log(manager, HL_MANAGER_WARNING,
                    "publish: session %u (\"%s\"): %u blocks stored, %u present of %u: %s", session->index,
                    session->name, publish->stored, publish->present, publish->block_count, publish->text);
    manager_publish_replied(manager, session, publish->binding, publish->slot);
}

/* --- the thread --- */

/* The session whose turn it is. */
static uint32_t next_session(struct manager_publisher *publisher)
{
    uint32_t index = publisher->turn;
    while (!publisher->queues[index].first)
        index = (index + 1) % HL_SESSIONS;
    publisher->turn = (index + 1) % HL_SESSIONS;
    return index;
}

/* Lock held, but not while bytes move. */
static void run_batch(struct manager_publisher *publisher)
{
    hl_manager *manager = publisher->manager;
    uint32_t index = next_session(publisher);
    struct manager_publish *publish = publisher->queues[index].first;
    bool drained = true;
    hl_error err;
    take_batch(publisher, publish);
    if (publisher->batch.count > 0) {
        pthread_mutex_unlock(&manager->lock);
        hl_status status = manager_publish_copy(publisher, &drained, &err);
        pthread_mutex_lock(&manager->lock);
        if (status == HL_OK) {
            complete_batch(publisher);
        } else {
            abandon_batch(publisher, drained);
            fail(publish, status, err.text);
        }
    }
    if (publish->next_block == publish->block_count) {
        unlink_first(publisher, index);
        reply(manager, publish);
        free(publish);
    }
}

static void *run(void *user)
{
    struct manager_publisher *publisher = user;
    hl_manager *manager = publisher->manager;
    pthread_mutex_lock(&manager->lock);
    for (;;) {
        while (publisher->queued == 0 && !publisher->stopping)
            pthread_cond_wait(&publisher->work, &manager->lock);
        if (publisher->queued == 0)
            break;
        run_batch(publisher);
    }
    pthread_mutex_unlock(&manager->lock);
    manager_publish_close_stream(publisher);
    return NULL;
}

/* --- start, stop, watch --- */

hl_status manager_publisher_start(hl_manager *manager, uint32_t gpu, hl_error *err)
{
    struct manager_publisher *publisher = calloc(1, sizeof *publisher);
    hl_status status;
    if (!publisher)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a publisher");
    publisher->manager = manager;
    publisher->dev = manager->gpus[gpu].dev;
    pthread_cond_init(&publisher->work, NULL);
    status = manager_publish_open_stream(publisher, err);
    if (status != HL_OK)
        goto err_free;
    int code = HL_FAULT_CALL(manager_publisher_start,
                             pthread_create(&publisher->thread, NULL, run, publisher), errno);
    if (code != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, code, "cannot start a publisher's thread");
        goto err_close_stream;
    }
    manager->gpus[gpu].publisher = publisher;
    return HL_OK;
err_close_stream:
    manager_publish_close_stream(publisher);
err_free:
    pthread_cond_destroy(&publisher->work);
    free(publisher);
    return status;
}

void manager_publisher_stop(hl_manager *manager, uint32_t gpu)
{
    struct manager_publisher *publisher = manager->gpus[gpu].publisher;
    if (!publisher)
        return;
    pthread_mutex_lock(&manager->lock);
    publisher->stopping = true;
    pthread_cond_signal(&publisher->work);
    pthread_mutex_unlock(&manager->lock);
    pthread_join(publisher->thread, NULL);
    manager->gpus[gpu].publisher = NULL;
    pthread_cond_destroy(&publisher->work);
    free(publisher);
}

void manager_publisher_watch(hl_manager *manager, uint32_t gpu, int64_t now_ns)
{
    struct manager_publisher *publisher = manager->gpus[gpu].publisher;
    if (!publisher || publisher->queued == 0)
        return;
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        for (struct manager_publish *at = publisher->queues[i].first; at; at = at->next) {
            if (now_ns - at->warned_ns < MANAGER_PUBLISH_WARN_S * HL_NS_PER_S)
                continue;
            at->warned_ns = now_ns;
            manager_log(manager, HL_MANAGER_WARNING,
                        "publish: session %u (\"%s\"), slot %u: %u of %u blocks begun after %lld s", i,
                        at->session->name, at->slot, at->next_block, at->block_count,
                        (long long)((now_ns - at->accepted_ns) / HL_NS_PER_S));
        }
}
