#include "core/channel/message.h"

#include <assert.h>
#include <string.h>

#include "core/base/error.h"
#include "core/channel/text.h"

/* A struct here goes on the wire as it is: its size is the sum of its fields, so that no byte of padding can
 * carry what nobody checked or leak what nobody meant to send. */
_Static_assert(sizeof(struct hl_message) == 16, "no padding");
_Static_assert(sizeof(struct hl_hello) == 16 + 6 * 4 + 8 + 2 * 4 + 64, "no padding");
_Static_assert(sizeof(struct hl_welcome) == 16 + 8 + 16 + 2 * 4, "no padding");
_Static_assert(sizeof(struct hl_register) == 16 + 8, "no padding");
_Static_assert(sizeof(struct hl_registered) == 16 + 2 * 4 + 8 + HL_ARENA_IMPORTS * 16, "no padding");
_Static_assert(sizeof(struct hl_unregister) == 16 + 2 * 4, "no padding");
_Static_assert(sizeof(struct hl_query_message) == 16 + 4 * 4 + 2 * 8, "no padding");
_Static_assert(sizeof(struct hl_lease_message) == 16 + 8 + 2 * 4 + 8, "no padding");
_Static_assert(sizeof(struct hl_release) == 16 + 8, "no padding");
_Static_assert(sizeof(struct hl_publish_message) == 16 + 4 * 4 + 8, "no padding");
_Static_assert(sizeof(struct hl_publish_block) == HL_KEY_BYTES + 2 * 4, "no padding");
_Static_assert(sizeof(struct hl_admin) == 16 + 2 * 4 + 3 * 8 + 64, "no padding");
_Static_assert(sizeof(struct hl_done) == 16 + 8, "no padding");
_Static_assert(sizeof(struct hl_error_message) == 16 + 2 * 4 + 240, "no padding");
_Static_assert(sizeof(struct hl_registered) <= HL_MESSAGE_BYTES, "the largest message fits");
_Static_assert(HL_ARENA_IMPORTS <= HL_MESSAGE_FDS, "REGISTERED brings an fd for every arena");
_Static_assert(HL_MESSAGE_HELLO == 1 && HL_MESSAGE_ERROR == 2, "these two keep their numbers");

#define RULE(kind, type, least, most)                                                                        \
    [HL_MESSAGE_##kind] = {.name = #kind, .bytes = sizeof(type), .fds_least = (least), .fds_most = (most)}

static const struct hl_message_rule rules[HL_MESSAGE_KIND_COUNT] = {
    RULE(HELLO, struct hl_hello, 0, 0),
    RULE(ERROR, struct hl_error_message, 0, 0),
    RULE(WELCOME, struct hl_welcome, 0, HL_BOOTSTRAP_FDS),
    RULE(REGISTER, struct hl_register, 0, 0),
    RULE(REGISTERED, struct hl_registered, 1, HL_ARENA_IMPORTS),
    RULE(UNREGISTER, struct hl_unregister, 0, 0),
    RULE(QUERY, struct hl_query_message, 0, 0),
    RULE(LEASE, struct hl_lease_message, 0, 0),
    RULE(RELEASE, struct hl_release, 0, 0),
    RULE(PUBLISH, struct hl_publish_message, 0, 0),
    RULE(ADMIN, struct hl_admin, 0, 0),
    RULE(BYE, struct hl_message, 0, 0),
    RULE(DONE, struct hl_done, 0, 1),
};

static bool is_kind(enum hl_message_kind kind)
{
    return kind > HL_MESSAGE_NONE && kind < HL_MESSAGE_KIND_COUNT;
}

const struct hl_message_rule *hl_message_rule(enum hl_message_kind kind)
{
    assert(is_kind(kind));
    return &rules[kind];
}

size_t hl_message_bytes(enum hl_message_kind kind)
{
    return is_kind(kind) ? rules[kind].bytes : 0;
}

const char *hl_message_kind_name(enum hl_message_kind kind)
{
    return is_kind(kind) ? rules[kind].name : "unknown";
}

void hl_message_head(void *message, enum hl_message_kind kind, uint32_t sequence)
{
    struct hl_message *head = message;
    *head = (struct hl_message){.magic = HL_MESSAGE_MAGIC,
                                .kind = kind,
                                .bytes = (uint32_t)hl_message_rule(kind)->bytes,
                                .sequence = sequence};
}

void hl_error_message_fill(struct hl_error_message *message, uint32_t sequence, const hl_error *err)
{
    *message = (struct hl_error_message){.status = err->status};
    hl_message_head(message, HL_MESSAGE_ERROR, sequence);
    hl_channel_text_fill(message->text, sizeof message->text, err->text);
}

bool hl_status_is_failure(int32_t status)
{
    switch (status) {
#define STATUS_CASE(name, value, text) case value:
        HL_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
        return status < 0;
    default:
        return false;
    }
}

hl_status hl_error_message_read(const struct hl_error_message *message, hl_error *err)
{
    static const char stage[] = "channel.peer";
    if (!hl_status_is_failure(message->status))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "status is %d, which is no failure", message->status);
    if (hl_channel_text_fault(message->text, sizeof message->text))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "text %s",
                       hl_channel_text_fault(message->text, sizeof message->text));
    return HL_FAIL(err, (hl_status)message->status, stage, "%s", message->text);
}
