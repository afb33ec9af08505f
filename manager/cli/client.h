/* One question to a Manager, from a tool. */
#ifndef MANAGER_CLI_CLIENT_H
#define MANAGER_CLI_CLIENT_H

#include <jansson.h>

#include "core/channel/channel.h"

/* Connects as a tool, asks, and parses the answer (json_decref()). The request's head is filled in here.
 * Errors of hl_channel_connect(), HL_E_VERSION, HL_E_BUDGET (too many tools), HL_E_TIMEOUT, and what the
 * Manager answers. */
hl_status cli_ask(const char *socket_path, struct hl_admin *request, json_t **answer, hl_error *err);

/* What a person can do about it; NULL when the error says it all. */
const char *cli_advice(hl_status status);

#endif
