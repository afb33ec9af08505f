/* What each kind of message is on the wire: its size and the fds it may bring. */
#ifndef CORE_CHANNEL_MESSAGE_H
#define CORE_CHANNEL_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/channel/channel.h"

struct hl_message_rule {
    const char *name;
    size_t bytes;
    unsigned fds_least; /* between the two the body decides: message_check.c */
    unsigned fds_most;
};

/* `kind` is one. */
const struct hl_message_rule *hl_message_rule(enum hl_message_kind kind);

/* Whether a number from a peer is the status of a failure. */
bool hl_status_is_failure(int32_t status);

/* HL_E_PROTOCOL when the extent, called `field` in a message's text, is empty, misaligned or not in the part
 * of the descriptor memory that requests use. */
hl_status hl_extent_check(struct hl_extent extent, const char *field, const char *stage, hl_error *err);

#endif
