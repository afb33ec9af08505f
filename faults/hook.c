/* What a hit on a fault point does. In production this file is empty. */
#include "faults/hook.h"

#if defined(HL_FAULTS) && HL_FAULTS

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults/board.h"
#include "faults/testing.h"

#define ORPHAN_CHECK_S 1 /* how often a parked thread looks whether the board's creator lives */
#define NS_PER_S 1000000000ull

static const char *const point_names[] = {
#define NAME_POINT(name) #name,
#define NAME_STEP(name) #name "_before", #name "_after",
    HL_FAULT_POINTS(NAME_POINT, NAME_STEP)
#undef NAME_POINT
#undef NAME_STEP
};
_Static_assert(sizeof point_names / sizeof point_names[0] == HL_FAULT_POINT_COUNT, "one name a point");

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static _Atomic(hl_fault_board *) current; /* never unmapped */
static _Atomic uint32_t ordinal;          /* of this process on the current board */
static _Thread_local bool spared;

/* Both write what SIGKILL would lose; present in coverage builds only. */
extern void __gcov_dump(void) __attribute__((weak));
extern void __gcov_exit(void) __attribute__((weak));

const char *hl_fault_point_text(uint32_t point)
{
    return point < HL_FAULT_POINT_COUNT ? point_names[point] : NULL;
}

uint64_t hl_fault_point_hash(void)
{
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
    for (uint32_t point = 0; point < HL_FAULT_POINT_COUNT; point++)
        for (const char *c = point_names[point];; c++) {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
            if (!*c)
                break;
        }
    return hash;
}

/* A fault that silently does not happen makes a test pass for nothing, so that every mistake ends the
 * process. */
static void refuse(const char *what, const char *detail)
{
    fprintf(stderr, "fault board: %s: %s\n", what, detail);
    abort();
}

static hl_fault_board *map_board(const char *text)
{
    char *end = NULL;
    errno = 0;
    const long fd = strtol(text, &end, 10);
    if (errno || end == text || *end || fd < 0 || fd > INT_MAX)
        refuse(HL_FAULT_BOARD_ENV " is no descriptor", text);
    struct stat st;
    if (fstat((int)fd, &st))
        refuse(HL_FAULT_BOARD_ENV " is not open", text);
    const int seals = fcntl((int)fd, F_GET_SEALS);
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (seals < 0 || (seals & wanted) != wanted)
        refuse("it is no memfd of a sealed size", text);
    if (st.st_size != (off_t)sizeof(hl_fault_board))
        refuse("its size is another", text);
    hl_fault_board *board =
        mmap(NULL, sizeof(hl_fault_board), PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (board == MAP_FAILED)
        refuse("it cannot be mapped", strerror(errno));
    if (board->magic != HL_FAULT_BOARD_MAGIC)
        refuse("its magic is another", text);
    if (board->version != HL_FAULT_BOARD_VERSION)
        refuse("its version is another", text);
    if (board->point_count != HL_FAULT_POINT_COUNT || board->point_names != hl_fault_point_hash())
        refuse("it was made from another list of points", text);
    return board;
}

static void attach(hl_fault_board *board)
{
    if (board)
        atomic_store(&ordinal, atomic_fetch_add(&board->processes, 1) + 1);
    atomic_store_explicit(&current, board, memory_order_release);
}

static void attach_environment(void)
{
    const char *text = getenv(HL_FAULT_BOARD_ENV);
    if (text)
        attach(map_board(text));
}

void hl_fault_use_board(hl_fault_board *board)
{
    pthread_once(&environment_once, attach_environment);
    attach(board);
}

void hl_fault_spare_thread(bool on)
{
    spared = on;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, (void *)word, operation, value, timeout, NULL, 0);
}

static void kill_self(void)
{
    if (__gcov_dump)
        __gcov_dump();
    else if (__gcov_exit)
        __gcov_exit();
    for (;;)
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

static void park(const hl_fault_board *board, struct hl_fault_rule *rule, uint32_t release)
{
    atomic_store(&rule->parked_tid, (uint32_t)syscall(SYS_gettid));
    atomic_fetch_add(&rule->parked, 1);
    futex(&rule->parked, FUTEX_WAKE, INT_MAX, NULL);
    const struct timespec round = {.tv_sec = ORPHAN_CHECK_S};
    while (atomic_load(&rule->release) == release) {
        futex(&rule->release, FUTEX_WAIT, release, &round);
        if (kill(board->creator, 0) && errno == ESRCH)
            kill_self();
    }
    atomic_fetch_sub(&rule->parked, 1);
    futex(&rule->parked, FUTEX_WAKE, INT_MAX, NULL);
}

static void delay(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* What a hit leaves to the macro that made it. */
struct outcome {
    enum hl_fault_act act; /* NONE, ERROR, DROP or SHORT: of the first rule that asks for one of them */
    uint64_t argument;
};

static void leave(struct outcome *outcome, enum hl_fault_kind kind, enum hl_fault_kind needed,
                  enum hl_fault_act act, uint64_t argument, uint32_t point)
{
    if (kind != needed)
        refuse("a rule's action does not suit the macro at its point", point_names[point]);
    if (outcome->act == HL_FAULT_ACT_NONE)
        *outcome = (struct outcome){.act = act, .argument = argument};
}

static void obey(hl_fault_board *board, struct hl_fault_rule *rule, uint32_t point, enum hl_fault_kind kind,
                 struct outcome *outcome)
{
    const uint32_t generation = atomic_load(&rule->generation);
    if (!(generation & 1) || atomic_load(&rule->point) != point)
        return;
    const uint32_t process = atomic_load(&rule->process);
    if (process && process != atomic_load(&ordinal))
        return;
    const enum hl_fault_act act = (enum hl_fault_act)atomic_load(&rule->act);
    const uint64_t argument = atomic_load(&rule->argument);
    const uint32_t nth = atomic_load(&rule->nth);
    const bool persistent = atomic_load(&rule->persistent) != 0;
    const uint32_t release = atomic_load(&rule->release);
    if (atomic_load(&rule->generation) != generation)
        return;
    const uint32_t seen = atomic_fetch_add(&rule->seen, 1) + 1;
    if (persistent ? seen < nth : seen != nth)
        return;
    atomic_fetch_add(&rule->fired, 1);
    futex(&rule->fired, FUTEX_WAKE, INT_MAX, NULL);
    switch (act) {
    case HL_FAULT_ACT_NONE:
        break;
    case HL_FAULT_ACT_KILL:
        kill_self();
        break;
    case HL_FAULT_ACT_PARK:
        park(board, rule, release);
        break;
    case HL_FAULT_ACT_DELAY:
        delay(argument);
        break;
    case HL_FAULT_ACT_ERROR:
        leave(outcome, kind, HL_FAULT_KIND_ERROR, act, argument, point);
        break;
    case HL_FAULT_ACT_DROP:
        leave(outcome, kind, HL_FAULT_KIND_DROP, act, argument, point);
        break;
    case HL_FAULT_ACT_SHORT:
        leave(outcome, kind, HL_FAULT_KIND_SHORT, act, argument, point);
        break;
    default:
        refuse("a rule's action is unknown", point_names[point]);
    }
}

bool hl_fault_has_fired(void)
{
    pthread_once(&environment_once, attach_environment);
    const hl_fault_board *board = atomic_load_explicit(&current, memory_order_acquire);
    for (uint32_t i = 0; board && i < HL_FAULT_RULES; i++) {
        if (atomic_load(&board->rules[i].fired))
            return true;
    }
    return false;
}

static struct outcome hit(enum hl_fault_point point, enum hl_fault_kind kind)
{
    struct outcome outcome = {.act = HL_FAULT_ACT_NONE};
    const int kept_errno = errno;
    pthread_once(&environment_once, attach_environment);
    hl_fault_board *board = atomic_load_explicit(&current, memory_order_acquire);
    if (board && !spared) {
        atomic_fetch_add(&board->hits[point], 1);
        atomic_fetch_or(&board->kinds[point], (uint32_t)kind);
        for (uint32_t i = 0; i < HL_FAULT_RULES; i++)
            obey(board, &board->rules[i], point, kind, &outcome);
    }
    errno = kept_errno;
    return outcome;
}

int hl_fault_hit(enum hl_fault_point point)
{
    const struct outcome outcome = hit(point, HL_FAULT_KIND_ERROR);
    return outcome.act == HL_FAULT_ACT_ERROR ? (int)outcome.argument : 0;
}

void hl_fault_pass(enum hl_fault_point point)
{
    hit(point, HL_FAULT_KIND_PASS);
}

bool hl_fault_dropped(enum hl_fault_point point)
{
    return hit(point, HL_FAULT_KIND_DROP).act == HL_FAULT_ACT_DROP;
}

size_t hl_fault_shortened(enum hl_fault_point point, size_t size)
{
    const struct outcome outcome = hit(point, HL_FAULT_KIND_SHORT);
    if (outcome.act != HL_FAULT_ACT_SHORT || outcome.argument >= size)
        return size;
    return outcome.argument ? (size_t)outcome.argument : 1;
}

#endif
