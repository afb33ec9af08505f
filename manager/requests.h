/* What requests.c and query.c share. All with the lock held. */
#ifndef MANAGER_REQUESTS_H
#define MANAGER_REQUESTS_H

#include "manager/state.h"

/* Answers QUERY. On failure nothing is pinned or reserved. */
hl_status manager_query(hl_manager *manager, struct manager_session *session,
                        const struct hl_query_message *request, hl_error *err);

#endif
