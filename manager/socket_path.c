#include "manager/socket_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void manager_socket_path(char path[PATH_MAX])
{
    const char *folder = getenv("XDG_RUNTIME_DIR");
    if (folder && folder[0] == '/')
        snprintf(path, PATH_MAX, "%s/hostlane/manager.sock", folder);
    else
        snprintf(path, PATH_MAX, "/tmp/hostlane-%u/manager.sock", (unsigned)geteuid());
}
