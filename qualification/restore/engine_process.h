/* An engine in a process of its own, which a test may direct, stop and kill. */
#ifndef QUALIFICATION_RESTORE_ENGINE_PROCESS_H
#define QUALIFICATION_RESTORE_ENGINE_PROCESS_H

#include "engine/engine_internal.h"
#include "qualification/restore/gate.h"
#include "qualification/restore/process.h"

int engine_process_role(int channel);
#define ENGINE_ROLE                                                                                          \
    {                                                                                                        \
        .name = "engine", .act = engine_process_role                                                         \
    }

/* Connects to MANAGER_SOCKET and registers; its world is the default one. */
void engine_start(struct process *engine, const char *instance);
void engine_publish_blocks(struct process *engine, uint64_t first, uint32_t count);
/* Restores, and compares every byte of its tensors. */
void engine_restore_blocks(struct process *engine, uint64_t first, uint32_t count, uint32_t at);
/* Holds and lets go its copy stream. */
void engine_hold_copies(struct process *engine);
void engine_let_copies_go(struct process *engine);
/* Starts a restore of which engine_finish() says the outcome, and whether every byte is right. */
void engine_begin(struct process *engine, uint64_t first, uint32_t count, uint32_t at);
void engine_enqueued(struct process *engine); /* waits for hl_restore_wait_enqueued() */
hl_status engine_finish(struct process *engine);
/* As client_gate_*; _reached() waits. */
void engine_gate(struct process *engine, enum engine_point point, uint32_t passes);
void engine_gate_reached(struct process *engine);
void engine_gate_opened(struct process *engine);
/* Waits until the record of the restore that has begun is in this state. */
void engine_await_state(struct process *engine, uint32_t state);
/* Closes the engine and ends the process. */
void engine_end(struct process *engine);

#endif
