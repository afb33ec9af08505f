#include "qualification/restore/engine_process.h"

#include <stdio.h>

#include "qualification/restore/client.h"

enum verb { OPEN = 1, PUBLISH, RESTORE, HOLD, LET_GO, BEGIN, ENQUEUED, FINISH, GATE, REACHED, OPENED, STATE };

/* --- in the engine's process --- */

static struct {
    struct world world;
    struct client client;
    hl_restore *restore;
    uint32_t record;
    uint64_t first;
    uint32_t count, at;
} role;

static void begin(const struct process_message *message)
{
    role.first = message->values[0];
    role.count = (uint32_t)message->values[1];
    role.at = (uint32_t)message->values[2];
    role.restore = client_start(&role.client, role.first, role.count, role.at);
    role.record = role.restore->record;
}

static hl_status finish(void)
{
    hl_restore_result result = {0};
    hl_status status = hl_restore_wait(role.restore, PATIENCE_NS, &result, &role.client.err);
    hl_restore_close(role.restore);
    if (status == HL_OK)
        client_expect(&role.client, role.first, role.count, role.at);
    if (status == HL_OK || result.untouched)
        MUST(world_matches(&role.world));
    return status;
}

static hl_status obey(const struct process_message *message)
{
    struct client *client = &role.client;
    switch ((enum verb)message->verb) {
    case OPEN:
        client_open(client, &role.world, message->text);
        break;
    case PUBLISH:
        client_publish(client, message->values[0], (uint32_t)message->values[1]);
        break;
    case RESTORE:
        client_restore(client, message->values[0], (uint32_t)message->values[1],
                       (uint32_t)message->values[2]);
        break;
    case HOLD:
        world_hold(&role.world, client_copy_stream(client));
        break;
    case LET_GO:
        world_let_go(&role.world);
        break;
    case BEGIN:
        begin(message);
        break;
    case ENQUEUED:
        return hl_restore_wait_enqueued(role.restore, PATIENCE_NS, &client->err);
    case FINISH:
        return finish();
    case GATE:
        client_gate_arm(client, (enum engine_point)message->values[0], (uint32_t)message->values[1]);
        break;
    case REACHED:
        client_gate_reached(client);
        break;
    case OPENED:
        client_gate_open(client);
        break;
    case STATE:
        client_await_state(client, role.record, (uint32_t)message->values[0]);
        break;
    }
    return HL_OK;
}

int engine_process_role(int channel)
{
    struct process_message message;
    world_open(&role.world, &WORLD_DEFAULTS);
    while (process_hear(channel, &message)) {
        message.status = obey(&message);
        if (message.status != HL_OK)
            snprintf(message.text, sizeof message.text, "%s", role.client.err.text);
        process_say(channel, &message);
    }
    if (role.client.engine)
        client_close(&role.client);
    world_close(&role.world);
    return 0;
}

/* --- in the test's process --- */

static hl_status tell(struct process *engine, enum verb verb, uint64_t a, uint64_t b, uint64_t c,
                      const char *text)
{
    struct process_message message = {.verb = verb, .values = {a, b, c}};
    snprintf(message.text, sizeof message.text, "%s", text);
    process_ask(engine, &message);
    return (hl_status)message.status;
}

void engine_start(struct process *engine, const char *instance)
{
    process_start(engine, "engine");
    MUST(tell(engine, OPEN, 0, 0, 0, instance) == HL_OK);
}

void engine_publish_blocks(struct process *engine, uint64_t first, uint32_t count)
{
    MUST(tell(engine, PUBLISH, first, count, 0, "") == HL_OK);
}

void engine_restore_blocks(struct process *engine, uint64_t first, uint32_t count, uint32_t at)
{
    MUST(tell(engine, RESTORE, first, count, at, "") == HL_OK);
}

void engine_hold_copies(struct process *engine)
{
    tell(engine, HOLD, 0, 0, 0, "");
}

void engine_let_copies_go(struct process *engine)
{
    tell(engine, LET_GO, 0, 0, 0, "");
}

void engine_begin(struct process *engine, uint64_t first, uint32_t count, uint32_t at)
{
    tell(engine, BEGIN, first, count, at, "");
}

void engine_enqueued(struct process *engine)
{
    MUST(tell(engine, ENQUEUED, 0, 0, 0, "") == HL_OK);
}

hl_status engine_finish(struct process *engine)
{
    return tell(engine, FINISH, 0, 0, 0, "");
}

void engine_gate(struct process *engine, enum engine_point point, uint32_t passes)
{
    tell(engine, GATE, point, passes, 0, "");
}

void engine_gate_reached(struct process *engine)
{
    tell(engine, REACHED, 0, 0, 0, "");
}

void engine_gate_opened(struct process *engine)
{
    tell(engine, OPENED, 0, 0, 0, "");
}

void engine_await_state(struct process *engine, uint32_t state)
{
    tell(engine, STATE, state, 0, 0, "");
}

void engine_end(struct process *engine)
{
    process_end(engine);
}
