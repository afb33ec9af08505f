/* Counting what a Manager holds. With the lock held. */
#ifndef MANAGER_CHECK_H
#define MANAGER_CHECK_H

#include "manager/state.h"

void manager_take_snapshot(const hl_manager *manager, hl_manager_snapshot *snapshot);

/* I2: every credit that is taken has one owner, and every owner's count is right. HL_E_STATE names the first
 * that is not. O(blocks + leases + records). */
hl_status manager_check_locked(const hl_manager *manager, hl_error *err);

#endif
