#include "qualification/inflight/copier.h"

#include <stdio.h>

#include "core/base/clock.h"
#include "core/transfer/route.h"
#include "qualification/restore/client.h"

enum verb { OPEN = 1, PUBLISH, BEGIN, FINISH, RESTORE, MATCHES };

/* On a GPU: blocks of 32 MiB, of which a restore moves 14. Each copy is submitted 64 times, 28 GiB in all,
 * with a mark after each 1.75 GiB. On the software device the same in small, with two marks before the gate.
 */
struct copier_scale copier_scale(void)
{
    const bool cuda = world_wants_cuda();
    struct copier_scale scale = {
        .world = {.layers = 1, .pages = 16, .page_tokens = cuda ? 2048 : 16, .head_dim = cuda ? 4096 : 32},
        .blocks = 14};
    const uint64_t page_bytes = 2ull * scale.world.page_tokens * scale.world.head_dim; /* of K, and of V */
    scale.block_bytes = 2 * page_bytes;
    scale.plan = (struct marks_plan){
        .passes = cuda ? 64 : 8,
        .mark_bytes = (cuda ? 4 : 2) * scale.blocks * scale.block_bytes,
        .piece_bytes = page_bytes < HL_ROUTE_DESCRIPTOR_BYTES ? page_bytes : HL_ROUTE_DESCRIPTOR_BYTES,
        .hold = cuda ? 0 : 2};
    return scale;
}

/* --- in the engine's process --- */

static struct {
    struct world world;
    struct client client;
    struct marks *marks;
    struct copier_scale scale;
    hl_restore *restore;
    uint32_t record, generation;
    uint64_t first;
} role;

/* With the world's device, into which the marks have been put, also where the engine would open its own. */
static void open_engine(const char *text)
{
    hl_context_batch batch;
    char instance[64], route[16];
    struct client *client = &role.client;
    MUST(sscanf(text, "%63s %15s", instance, route) == 2);
    client_connect(client, &role.world, 0);
    client_batch(client, instance, &batch);
    batch.device = role.world.dev;
    batch.route = route;
    MUST_OK(hl_engine_register(client->engine, &batch, &client->binding, &client->err), client->err);
}

static void begin(uint64_t first)
{
    world_poison(&role.world);
    marks_arm(client_copy_stream(&role.client), &role.scale.plan);
    role.first = first;
    role.restore = client_start(&role.client, first, role.scale.blocks, 1);
    role.record = role.restore->record;
    role.generation = role.restore->generation;
}

static void finish(struct process_message *message)
{
    hl_restore_result result = {0};
    message->status = hl_restore_wait(role.restore, PATIENCE_NS, &result, &role.client.err);
    message->values[0] = (uint64_t)hl_clock_ns();
    message->values[1] = atomic_load(&role.marks->progress);
    message->values[2] = atomic_load(&role.marks->submitted);
    const struct hl_grant_word word = client_word(&role.client, role.record);
    message->values[3] = word.state == HL_GRANT_DRAINED && word.generation == role.generation;
    message->values[4] = result.bytes;
    hl_restore_close(role.restore);
    marks_arm(NULL, &role.scale.plan);
    client_expect(&role.client, role.first, role.scale.blocks, 1);
    message->values[5] = world_matches(&role.world);
}

static void obey(struct process_message *message)
{
    switch ((enum verb)message->verb) {
    case OPEN:
        open_engine(message->text);
        break;
    case PUBLISH:
        client_publish(&role.client, message->values[0], (uint32_t)message->values[1]);
        break;
    case BEGIN:
        begin(message->values[0]);
        break;
    case FINISH:
        finish(message);
        break;
    case RESTORE:
        client_restore(&role.client, message->values[0], (uint32_t)message->values[1],
                       (uint32_t)message->values[2]);
        break;
    case MATCHES:
        message->values[0] = world_matches(&role.world);
        break;
    }
}

int copier_role(int channel)
{
    struct process_message message;
    role.scale = copier_scale();
    role.marks = marks_open();
    world_open(&role.world, &role.scale.world);
    const struct hl_device_ops *real = role.world.dev->ops;
    marks_take_device(role.marks, role.world.dev);
    while (process_hear(channel, &message)) {
        message.status = HL_OK;
        obey(&message);
        if (message.status != HL_OK)
            snprintf(message.text, sizeof message.text, "%s", role.client.err.text);
        process_say(channel, &message);
    }
    if (role.client.engine)
        client_close(&role.client);
    MUST_OK(hl_device_enter(role.world.dev, &role.world.err), role.world.err);
    marks_unregister(role.marks, role.world.dev);
    hl_device_leave(role.world.dev);
    role.world.dev->ops = real;
    world_close(&role.world);
    return 0;
}

/* --- in the test's process --- */

static struct process_message ask(struct process *copier, enum verb verb, uint64_t a, uint64_t b, uint64_t c,
                                  const char *text)
{
    struct process_message message = {.verb = verb, .values = {a, b, c}};
    snprintf(message.text, sizeof message.text, "%s", text);
    process_ask(copier, &message);
    return message;
}

void copier_start(struct process *copier, const char *instance, const char *route)
{
    char text[96];
    snprintf(text, sizeof text, "%s %s", instance, route);
    process_start(copier, "copier");
    ask(copier, OPEN, 0, 0, 0, text);
}

void copier_publish(struct process *copier, uint64_t first, uint32_t count)
{
    ask(copier, PUBLISH, first, count, 0, "");
}

void copier_begin(struct process *copier, uint64_t first)
{
    ask(copier, BEGIN, first, 0, 0, "");
}

void copier_finish(struct process *copier, struct copier_outcome *outcome)
{
    const struct process_message message = ask(copier, FINISH, 0, 0, 0, "");
    *outcome = (struct copier_outcome){.status = (hl_status)message.status,
                                       .returned_ns = (int64_t)message.values[0],
                                       .progress = (uint32_t)message.values[1],
                                       .submitted = (uint32_t)message.values[2],
                                       .was_drained = message.values[3] != 0,
                                       .bytes = message.values[4],
                                       .exact = message.values[5] != 0};
    snprintf(outcome->text, sizeof outcome->text, "%s", message.status == HL_OK ? "" : message.text);
}

void copier_restore(struct process *copier, uint64_t first, uint32_t count, uint32_t at)
{
    ask(copier, RESTORE, first, count, at, "");
}

bool copier_matches(struct process *copier)
{
    return ask(copier, MATCHES, 0, 0, 0, "").values[0] != 0;
}

void copier_end(struct process *copier)
{
    process_end(copier);
}
