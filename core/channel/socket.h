/* The rule about whom a Manager and an engine talk to, apart so that it can be tested without a second user.
 */
#ifndef CORE_CHANNEL_SOCKET_H
#define CORE_CHANNEL_SOCKET_H

#include <sys/types.h>

#include "hostlane/status.h"

/* HL_E_PERMISSION unless the peer has exactly this process's effective user id; root is another user too. */
hl_status hl_channel_check_user(uid_t peer, uid_t own, const char *stage, hl_error *err);

#endif
