/* Processes of a test: the test's own program, started again in a role, and a channel to tell it what to do.
 *
 * A role is taken up before main and ends with its process. A process dies with the test that started it. The
 * channel carries one message at a time in each direction; the test asks and the role answers. Whoever waits
 * does so for at most PATIENCE_NS, which only a broken program reaches.
 *
 * MUST() is the one check of what a role and the test's own process both run: in a role its failure ends the
 * process, which the asking test notices; in the test it ends the case. */
#ifndef QUALIFICATION_RESTORE_PROCESS_H
#define QUALIFICATION_RESTORE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hostlane/manager.h"
#include "hostlane/status.h"

#define PATIENCE_NS (120ll * 1000000000)

/* Whether this binary pays a sanitizer's price: then there are fewer rounds. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

struct process_message {
    uint32_t verb;
    int32_t status; /* of the answer: an hl_status */
    uint64_t values[8];
    char text[240];
    hl_manager_snapshot snapshot;
};

struct process {
    pid_t pid; /* 0: not running */
    int channel;
};

/* What a program can be started as; each test program defines the list. `act` returns the exit status. */
struct process_role {
    const char *name;
    int (*act)(int channel);
};
extern const struct process_role process_roles[];
extern const unsigned process_role_count;

void process_start(struct process *process, const char *role);
/* Sends the message and receives the answer into it. */
void process_ask(struct process *process, struct process_message *message);
void process_say(int channel, const struct process_message *message);
/* False when the other end has gone. */
bool process_hear(int channel, struct process_message *message);
void process_kill(struct process *process); /* SIGKILL; its end has been seen on return */
/* Closes the channel, which tells a role to end, and expects that it ends well. */
void process_end(struct process *process);
/* SIGSTOP and SIGCONT; every thread has stopped on return of the first. */
void process_stop(struct process *process);
void process_continue(struct process *process);

void process_must(bool holds, const char *file, int line, const char *what, const char *why);
#define MUST(condition) process_must((condition), __FILE__, __LINE__, #condition, "")
#define MUST_OK(call, err) MUST_STATUS(call, HL_OK, err)
#define MUST_STATUS(call, expected, err)                                                                     \
    do {                                                                                                     \
        hl_status must_ = (call);                                                                            \
        process_must(must_ == (expected), __FILE__, __LINE__, #call,                                         \
                     must_ == HL_OK ? "succeeded" : (err).text);                                             \
    } while (0)

#endif
