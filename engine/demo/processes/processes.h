/* engine/demo/processes runs Hostlane as it is deployed: a Manager process, and engines in processes of their
 * own that link the engine library. It calls the engine library and what the demo's modes share, and runs the
 * program hostlane-manager. main.c calls it.
 *
 * The process that a person starts is the parent: it opens the device to describe it and puts nothing on it,
 * starts this same program again with --role, kills who has to die, and reports.
 *
 *     scenario.c         the default: publish, kill the engine, restore, kill the Manager
 *     replay_scenario.c  --trace: one engine that replays a trace
 *     child.c            a started process: its pipes, its end
 *     manager_role.c     the Manager, both sides
 *     engine_role.c      an engine's session; engine A, which publishes
 *     restore_role.c     engine B, which restores
 *     trace_replay.c     the engine that replays
 *     trace_file.c, trace_generate.c, reference_cache.c
 *     report.c           what is printed
 *
 * Reports. A child writes JSON objects, one a line, to the descriptor HL_DEMO_REPORT_FD; each has "event".
 * The parent prints from them, and puts them into the results file as they are. A child that fails says why
 * on stderr (a failed comparison: on stdout) and ends with the demo's exit status. Its standard input is a
 * pipe from the parent, which tells it to go on, and whose end tells it to end. */
#ifndef ENGINE_DEMO_PROCESSES_PROCESSES_H
#define ENGINE_DEMO_PROCESSES_PROCESSES_H

#include <jansson.h>
#include <sys/types.h>

#include "engine/demo/demo.h"
#include "engine/demo/processes/trace.h"
#include "hostlane/engine.h"

#define HL_DEMO_REPORT_FD 3
#define HL_DEMO_PATIENCE_NS (600 * 1000000000ll) /* for the next word of another process */

/* --- the modes: each returns the program's exit status --- */
int hl_demo_run_processes(hl_demo *demo, int argc, char **argv);
int hl_demo_run_replay(hl_demo *demo, int argc, char **argv);
int hl_demo_run_generate(hl_demo *demo);
/* What a started process does: options.role says what it is. */
int hl_demo_run_role(hl_demo *demo);

/* --- child.c: a process that this one started --- */
struct hl_demo_child {
    const char *name; /* "engine A": a string constant */
    pid_t pid;        /* 0: none */
    int pidfd;
    int report;  /* read end, or -1 */
    int command; /* write end, or -1 */
    bool ended;
    int wait_status; /* once ended */
    char *line;      /* what has been read and not been handed out */
    size_t used, room;
};

/* SIGINT, SIGTERM and SIGHUP end the waits below with HL_E_CANCELLED, so that the others are ended too. */
void hl_demo_catch_interrupts(void);
/* Runs argv[0]. `log_fd`: its stdout and stderr; -1: this process's. HL_E_SYSTEM. */
hl_status hl_demo_child_start(struct hl_demo_child *child, const char *name, char *const argv[], int log_fd,
                              hl_error *err);
/* The child's next report, a new reference, which must be an `event`. HL_E_PEER when it ended, HL_E_PROTOCOL
 * when it said something else, HL_E_TIMEOUT, HL_E_CANCELLED. */
hl_status hl_demo_child_report(struct hl_demo_child *child, const char *event, json_t **report,
                               hl_error *err);
/* Lets a child that waits in hl_demo_await_command() go on. */
hl_status hl_demo_child_go_on(struct hl_demo_child *child, hl_error *err);
/* Waits for its end. HL_E_TIMEOUT, HL_E_CANCELLED. */
hl_status hl_demo_child_wait(struct hl_demo_child *child, int64_t timeout_ns, hl_error *err);
/* SIGKILL, and proof that this is what it died of (HL_E_STATE otherwise). */
hl_status hl_demo_child_kill(struct hl_demo_child *child, hl_error *err);
/* Ends it if it lives. Safe on a zeroed child. */
void hl_demo_child_close(struct hl_demo_child *child);
/* The exit status that its end means for the demo: its own, or HL_DEMO_ERROR. */
int hl_demo_child_code(const struct hl_demo_child *child);

/* In the child: dies with the parent, and lives through a closed pipe. */
void hl_demo_become_child(void);
/* Writes and drops a report. */
hl_status hl_demo_send_report(json_t *report, hl_error *err);
/* Waits for the parent's word. HL_E_PEER when the parent closed the pipe. */
hl_status hl_demo_await_command(hl_error *err);

/* --- manager_role.c --- */
struct hl_demo_manager {
    struct hl_demo_child child;
    char folder[256];
    char socket[300];
    char log[300];
};

/* Starts a Manager with one arena, and returns when engines can connect. HL_E_NOT_FOUND without its program.
 */
hl_status hl_demo_manager_start(const hl_demo *demo, uint64_t arena_bytes, struct hl_demo_manager *manager,
                                hl_error *err);
/* Ends it and removes its folder; safe on a zeroed one, and after it was killed. */
void hl_demo_manager_close(struct hl_demo_manager *manager);
/* Prints what the Manager logged last. */
void hl_demo_manager_print_log(const struct hl_demo_manager *manager, FILE *out);
/* In the started process: becomes the Manager; returns only when it cannot. */
int hl_demo_manager_role(const struct hl_demo_options *options);

/* --- engine_role.c --- */
struct hl_demo_engine {
    hl_demo *demo;
    hl_engine *engine;
    hl_binding *binding;
};

/* The role's arguments: this program's options with the role, the socket and the device that was found. Free
 * with free(). NULL without memory. */
char **hl_demo_role_arguments(const hl_demo *demo, int argc, char **argv, const char *role,
                              const char *socket);
/* Connects and registers the demo's tensors as the engine `instance`. */
hl_status hl_demo_engine_open(hl_demo *demo, const char *instance, struct hl_demo_engine *engine,
                              hl_error *err);
/* Unregisters and disconnects; the Manager may be gone. */
void hl_demo_engine_close(struct hl_demo_engine *engine);
/* The key of a number, which names a block or a trace's id. */
void hl_demo_key(uint64_t number, hl_block_key *key);
/* Publishes blocks from pages and waits; adds to *total. HL_E_NOSPACE when not all fitted; *total is right
 * then too. */
hl_status hl_demo_engine_publish(struct hl_demo_engine *engine, uint32_t group, const hl_block_key *keys,
                                 const uint32_t *pages, size_t count, hl_publish_result *total,
                                 hl_error *err);
/* Names of hl_restore_result.stage_ns. */
extern const char *const hl_demo_stage_names[6];

/* --- restore_role.c, trace_replay.c: between entering and leaving the device --- */
hl_status hl_demo_restore_role(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);
hl_status hl_demo_replay_role(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);

/* --- replay_scenario.c --- */
/* How a trace is made to fit: `demo` gets a geometry whose block has fewer layers and tokens. */
struct hl_demo_scale {
    uint64_t real_bytes;     /* of a block of HL_TRACE_BLOCK_TOKENS tokens of the model */
    uint64_t replayed_bytes; /* of a block in this replay */
    uint32_t model_layers, layers, tokens;
    uint64_t working_set; /* arena bytes of all the trace's blocks */
};
/* `budget`: bytes that the chosen scale may need; 0 where the options name the scale. Fills the demo's pages
 * in, too. */
hl_status hl_demo_scale_geometry(hl_demo *demo, const struct hl_trace *trace, uint64_t budget,
                                 struct hl_demo_scale *scale, hl_error *err);

/* --- report.c --- */
void hl_demo_report_manager(const struct hl_demo_manager *manager, uint64_t arena_bytes, bool huge,
                            FILE *out);
void hl_demo_report_published(pid_t pid, const json_t *published, FILE *out);
void hl_demo_report_restored(pid_t pid, const json_t *restored, FILE *out);
void hl_demo_report_survived(const json_t *survived, FILE *out);
void hl_demo_report_scale(const hl_demo *demo, const struct hl_trace *trace,
                          const struct hl_demo_scale *scale, FILE *out);
void hl_demo_report_replay(const json_t *replayed, FILE *out);

#endif
