/* A valid packet of each kind, and a table of every field of every kind: shared by the message tests. */
#ifndef CORE_CHANNEL_MESSAGE_SAMPLES_H
#define CORE_CHANNEL_MESSAGE_SAMPLES_H

#include "core/channel/channel.h"

/* Fills the packet with a valid message of the kind, with as many fds (all -1) as it brings. */
void sample_fill(struct hl_packet *packet, enum hl_message_kind kind);

enum field_sort {
    FIELD_ANY,     /* every value is harmless */
    FIELD_BOUNDED, /* some values are refused */
    FIELD_ZERO,    /* every value but 0 is refused */
    FIELD_TEXT
};

struct field {
    const char *name; /* what an error calls it */
    size_t offset;
    size_t size;
    enum hl_message_kind kind;
    enum field_sort sort;
};

extern const struct field fields[];
extern const size_t field_count;

#endif
