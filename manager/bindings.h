/* Bindings: an instance, rank and device of one session. All with the lock held. */
#ifndef MANAGER_BINDINGS_H
#define MANAGER_BINDINGS_H

#include "manager/state.h"

/* Answers REGISTER. On failure nothing is kept. */
hl_status manager_binding_register(hl_manager *manager, struct manager_session *session,
                                   const struct hl_register *request, hl_error *err);
/* Stops the binding's admission; DONE follows when nothing of it is left, at once or later. */
hl_status manager_binding_unregister(hl_manager *manager, struct manager_session *session,
                                     const struct hl_unregister *request, hl_error *err);
/* The session's binding of that number, if it still admits requests. HL_E_NOT_FOUND, HL_E_STATE. */
hl_status manager_binding_find(struct manager_session *session, uint32_t number,
                               struct manager_binding **binding, hl_error *err);
/* Whether every tensor of the group was exported, so that the Manager can read its pages. */
bool manager_binding_is_exported(const struct manager_binding *binding, uint32_t group);

/* Closes its imports and frees it. Nothing of it is admitted any more. */
void manager_binding_release(hl_manager *manager, struct manager_binding *binding);

#endif
