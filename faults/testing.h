/* The test's side of faults/: make a board, arm points on it, hand it to a child or use it in this process,
 * wait for what happens, look at the counts. Links with //faults:board into tests only; the code under test
 * must be a *_faults twin, else nothing is ever hit. A rule's action: see faults/board.h.
 *
 *     hl_fault_board *board = hl_fault_board_create();
 *     unsigned rule = hl_fault_arm(board, "weights_publish_rename_after", 1, HL_FAULT_PARK, 0);
 *     pid_t child = hl_fault_spawn(board, argv, NULL);
 *     CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
 *     … look …
 *     kill(child, SIGKILL);
 *     CU_ASSERT_TRUE(hl_fault_await_exit(child, HL_FAULT_PATIENCE_NS, &status));
 *     hl_fault_board_free(board);
 *
 * A mistake of the test (an unknown point, no free rule) ends it with a message. Points are named as
 * faults/points.h lists them; a step's two points are NAME_before and NAME_after. Any thread may call these,
 * on one board too, except where said. */
#ifndef FAULTS_TESTING_H
#define FAULTS_TESTING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct hl_fault_board hl_fault_board;

/* How long a test waits for what must happen before it calls it lost: long enough for a busy machine under a
 * sanitizer. Nothing waits that long when all is well. */
#define HL_FAULT_PATIENCE_NS 60000000000ll

typedef enum hl_fault_action {
    HL_FAULT_NONE,  /* counts as fired, nothing else */
    HL_FAULT_KILL,  /* SIGKILL of its own process */
    HL_FAULT_PARK,  /* the thread waits for hl_fault_release() */
    HL_FAULT_ERROR, /* argument: errno to fail with */
    HL_FAULT_DROP,  /* the notification is lost */
    HL_FAULT_DELAY, /* argument: ns */
    HL_FAULT_SHORT  /* argument: bytes to offer; at least 1 is */
} hl_fault_action;

/* --- boards --- */

/* A zeroed board with nothing armed. The caller's process is its creator: when it dies, processes parked on
 * the board die too. Freed with hl_fault_board_free() (NULL is accepted); children keep theirs. Do not free a
 * board that this process uses. */
hl_fault_board *hl_fault_board_create(void);
void hl_fault_board_free(hl_fault_board *board);

/* From now on hits in this process go to `board`; NULL: nowhere. Call it while no other thread of the process
 * is at a point of the old one. */
void hl_fault_use_board(hl_fault_board *board);

/* While a thread is spared its hits are not counted and nothing happens at them: for what a test itself does
 * with the code under test, beside what it tests. */
void hl_fault_spare_thread(bool on);

/* Whether a rule of this process' board has fired, in any process. */
bool hl_fault_has_fired(void);

/* Disarms everything and sets all counts to 0, while no process uses the board. */
void hl_fault_board_reset(hl_fault_board *board);

/* --- rules; up to 8 at once --- */

typedef struct hl_fault_rule_spec {
    const char *point;
    uint32_t nth; /* the hit to act on, from 1, counted from the arming; all threads and processes together */
    hl_fault_action action;
    uint64_t argument;
    bool persistent;  /* also on every later hit */
    uint32_t process; /* 0: every process; n: only the n-th that came to the board (with its first hit, or
                         hl_fault_use_board()), so that a fault can wait for the recovery after another */
} hl_fault_rule_spec;

/* Arms a rule and returns its number. Rules that meet in one hit act in the order of their numbers. */
unsigned hl_fault_arm_spec(hl_fault_board *board, const hl_fault_rule_spec *spec);

/* The short form: once, any process. */
unsigned hl_fault_arm(hl_fault_board *board, const char *point, uint32_t nth, hl_fault_action action,
                      uint64_t argument);

/* Frees the rule; whoever is parked on it is let go. Its counts stay readable until the number is given out
 * again. */
void hl_fault_disarm(hl_fault_board *board, unsigned rule);

/* --- seeing --- */

uint32_t hl_fault_hits(const hl_fault_board *board, const char *point); /* armed or not */
uint32_t hl_fault_fired(const hl_fault_board *board, unsigned rule);
uint32_t hl_fault_parked(const hl_fault_board *board, unsigned rule);  /* threads that wait now */
pid_t hl_fault_parked_tid(const hl_fault_board *board, unsigned rule); /* the last that parked; 0: none did */

/* Whether it happened within the time; they sleep in the kernel and are woken. */
bool hl_fault_await_fired(hl_fault_board *board, unsigned rule, uint32_t times, int64_t timeout_ns);
bool hl_fault_await_parked(hl_fault_board *board, unsigned rule, uint32_t threads, int64_t timeout_ns);

/* Lets every thread go that is parked on the rule now. A one-shot rule parks no other. */
void hl_fault_release(hl_fault_board *board, unsigned rule);

/* --- the list of points --- */

uint32_t hl_fault_point_count(void);
const char *hl_fault_point_name(uint32_t index); /* NULL beyond the last */
bool hl_fault_point_find(const char *name, uint32_t *index);

/* By number, for those who go through the list. */
uint32_t hl_fault_hits_at(const hl_fault_board *board, uint32_t index);
/* What the macro at the point obeys besides kill, park and delay, as far as it was hit: HL_FAULT_ERROR,
 * HL_FAULT_DROP or HL_FAULT_SHORT; HL_FAULT_NONE: nothing else, or never hit, or hit through different
 * macros. */
hl_fault_action hl_fault_suits(const hl_fault_board *board, uint32_t index);

/* --- children --- */

/* Starts argv[0] (a path) with the board (NULL: without one), with this process' environment and the
 * "NAME=value" strings of `environment` (NULL, or ended by NULL) in place of what it had. */
pid_t hl_fault_spawn(const hl_fault_board *board, const char *const *argv, const char *const *environment);

/* The same with the child's standard output and error going to a file that this process has open. */
pid_t hl_fault_spawn_logged(const hl_fault_board *board, const char *const *argv,
                            const char *const *environment, int log_fd);

/* Whether the child ended within the time; then *status is waitpid()'s and it is reaped. */
bool hl_fault_await_exit(pid_t child, int64_t timeout_ns, int *status);

#endif
