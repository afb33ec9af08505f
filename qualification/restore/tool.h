/* What speaks to a Manager without the engine library: an operator's tool, and raw connections. */
#ifndef QUALIFICATION_RESTORE_TOOL_H
#define QUALIFICATION_RESTORE_TOOL_H

#include <jansson.h>

#include "core/channel/channel.h"
#include "qualification/restore/process.h"

/* Connects without a HELLO. */
int raw_connect(void);
/* Connects and says HELLO in this role; the packet is the answer, whose fds are the caller's. */
int raw_hello(enum hl_peer_role role, struct hl_packet *packet);
/* Sends and receives; false when the Manager has closed the connection instead. */
bool raw_request(int fd, const void *message, const int *fds, unsigned fd_count, struct hl_packet *packet);
/* Waits until the Manager has closed the connection; reads and drops what comes before. Closes it. */
void raw_await_close(int fd);

/* The answer of an ADMIN request as JSON (json_decref()); an ERROR's status goes to *status, then NULL. */
json_t *tool_ask(enum hl_admin_verb verb, const uint64_t operation[3], uint32_t confirmed, hl_status *status);
/* The identities of all operations in quarantine; returns how many. */
size_t tool_quarantine(uint64_t operations[][3], size_t room);
/* hostlane quarantine release, as an operator does it. */
hl_status tool_release(const uint64_t operation[3], uint32_t confirmed);

#endif
