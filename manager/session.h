/* Sessions, for the dispatcher and for what answers their requests. All with the lock held. */
#ifndef MANAGER_SESSION_H
#define MANAGER_SESSION_H

#include "manager/state.h"

/* A greeting's socket has something: its HELLO makes it a session, anything else ends it. */
void manager_session_greet(hl_manager *manager, uint32_t greeting);
/* Ends greetings that say nothing, and listens again where that was given up. */
void manager_session_expire_greetings(hl_manager *manager, int64_t now_ns);
/* Ends all greetings: the Manager stops. */
void manager_session_end_greetings(hl_manager *manager);

/* Makes a session of a connection whose HELLO is in order, and welcomes it. On success the socket is the
 * session's. HL_E_BUDGET when all are taken. */
hl_status manager_session_open(hl_manager *manager, int socket, pid_t pid, const struct hl_hello *hello,
                               hl_error *err);

/* Sends a message, fds borrowed. A peer that does not read its replies is hung up on. */
void manager_session_send(struct manager_session *session, const void *message, const int *fds,
                          unsigned fd_count);

/* Ends what can be ended of a session while the Manager stops; true when only quarantine is left of it. */
bool manager_session_stop(hl_manager *manager, struct manager_session *session);

/* Publishes of all bindings that have not been answered. */
uint32_t manager_session_publishes(const struct manager_session *session);

#endif
