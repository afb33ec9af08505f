/* How an operation ends early. Private to operation.c and submit.c. */
#ifndef CORE_TRANSFER_SUBMIT_H
#define CORE_TRANSFER_SUBMIT_H

#include "core/transfer/executor.h"

/* The copy stream failed, or can no longer be asked: what it accepted may still run. Keeps the operation's
 * first failure; neither it nor the executor takes anything more. */
void hl_operation_lose(hl_operation *operation, hl_status status, const hl_error *error);

#endif
