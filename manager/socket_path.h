/* Where Manager and tools meet when nobody says otherwise. */
#ifndef MANAGER_SOCKET_PATH_H
#define MANAGER_SOCKET_PATH_H

#include <limits.h>

/* $XDG_RUNTIME_DIR/hostlane/manager.sock, and without that variable /tmp/hostlane-UID/manager.sock: in either
 * case a folder that hl_channel_listen() can make and others cannot enter. Cut to fit. */
void manager_socket_path(char path[PATH_MAX]);

#endif
