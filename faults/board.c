/* Boards as a test makes and reads them. */
#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults/board.h"
#include "faults/testing.h"

#define NS_PER_S 1000000000ll

_Static_assert((int)HL_FAULT_SHORT == (int)HL_FAULT_ACT_SHORT && HL_FAULT_ACT_SHORT + 1 == HL_FAULT_ACT_COUNT,
               "the test's actions are the board's");

static void misused(const char *what, const char *detail)
{
    fprintf(stderr, "faults/testing.h misused: %s: %s\n", what, detail);
    abort();
}

bool hl_fault_point_find(const char *name, uint32_t *index)
{
    for (uint32_t point = 0; point < HL_FAULT_POINT_COUNT; point++)
        if (!strcmp(hl_fault_point_text(point), name)) {
            *index = point;
            return true;
        }
    return false;
}

static uint32_t point_index(const char *name)
{
    uint32_t point = 0;
    if (!hl_fault_point_find(name, &point))
        misused("no such point", name);
    return point;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, (void *)word, operation, value, timeout, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

hl_fault_board *hl_fault_board_create(void)
{
    const int fd = memfd_create("hostlane-fault-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(hl_fault_board)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        misused("the board cannot be made", strerror(errno));
    hl_fault_board *board = mmap(NULL, sizeof(hl_fault_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED)
        misused("the board cannot be mapped", strerror(errno));
    board->magic = HL_FAULT_BOARD_MAGIC;
    board->version = HL_FAULT_BOARD_VERSION;
    board->point_count = HL_FAULT_POINT_COUNT;
    board->point_names = hl_fault_point_hash();
    board->creator = getpid();
    board->creator_fd = fd;
    return board;
}

void hl_fault_board_free(hl_fault_board *board)
{
    if (!board)
        return;
    close(board->creator_fd);
    munmap(board, sizeof *board);
}

void hl_fault_board_reset(hl_fault_board *board)
{
    for (unsigned i = 0; i < HL_FAULT_RULES; i++) {
        hl_fault_disarm(board, i);
        struct hl_fault_rule *rule = &board->rules[i];
        atomic_store(&rule->seen, 0);
        atomic_store(&rule->fired, 0);
        atomic_store(&rule->parked, 0);
        atomic_store(&rule->parked_tid, 0);
    }
    atomic_store(&board->processes, 0);
    for (uint32_t point = 0; point < HL_FAULT_POINT_COUNT; point++) {
        atomic_store(&board->hits[point], 0);
        atomic_store(&board->kinds[point], 0);
    }
}

unsigned hl_fault_arm_spec(hl_fault_board *board, const hl_fault_rule_spec *spec)
{
    const uint32_t point = point_index(spec->point);
    if (!spec->nth)
        misused("hits are counted from 1", spec->point);
    if (spec->action == HL_FAULT_ERROR && (!spec->argument || spec->argument > INT_MAX))
        misused("the argument is no errno", spec->point);
    for (unsigned i = 0; i < HL_FAULT_RULES; i++) {
        struct hl_fault_rule *rule = &board->rules[i];
        const uint32_t generation = atomic_load(&rule->generation);
        if (generation & 1)
            continue;
        atomic_store(&rule->point, point);
        atomic_store(&rule->act, (uint32_t)spec->action);
        atomic_store(&rule->nth, spec->nth);
        atomic_store(&rule->persistent, spec->persistent);
        atomic_store(&rule->process, spec->process);
        atomic_store(&rule->argument, spec->argument);
        atomic_store(&rule->seen, 0);
        atomic_store(&rule->fired, 0);
        atomic_store(&rule->parked, 0);
        atomic_store(&rule->parked_tid, 0);
        atomic_store(&rule->generation, generation + 1);
        return i;
    }
    misused("every rule is armed", spec->point);
    return 0;
}

unsigned hl_fault_arm(hl_fault_board *board, const char *point, uint32_t nth, hl_fault_action action,
                      uint64_t argument)
{
    return hl_fault_arm_spec(
        board, &(hl_fault_rule_spec){.point = point, .nth = nth, .action = action, .argument = argument});
}

static struct hl_fault_rule *rule_at(const hl_fault_board *board, unsigned rule)
{
    if (rule >= HL_FAULT_RULES)
        misused("no such rule", "its number is too great");
    return (struct hl_fault_rule *)&board->rules[rule];
}

void hl_fault_release(hl_fault_board *board, unsigned number)
{
    struct hl_fault_rule *rule = rule_at(board, number);
    atomic_fetch_add(&rule->release, 1);
    futex(&rule->release, FUTEX_WAKE, INT_MAX, NULL);
}

void hl_fault_disarm(hl_fault_board *board, unsigned number)
{
    struct hl_fault_rule *rule = rule_at(board, number);
    const uint32_t generation = atomic_load(&rule->generation);
    if (generation & 1)
        atomic_store(&rule->generation, generation + 1);
    hl_fault_release(board, number);
}

uint32_t hl_fault_hits(const hl_fault_board *board, const char *point)
{
    return atomic_load(&board->hits[point_index(point)]);
}

uint32_t hl_fault_fired(const hl_fault_board *board, unsigned rule)
{
    return atomic_load(&rule_at(board, rule)->fired);
}

uint32_t hl_fault_parked(const hl_fault_board *board, unsigned rule)
{
    return atomic_load(&rule_at(board, rule)->parked);
}

pid_t hl_fault_parked_tid(const hl_fault_board *board, unsigned rule)
{
    return (pid_t)atomic_load(&rule_at(board, rule)->parked_tid);
}

static bool await_count(_Atomic uint32_t *word, uint32_t at_least, int64_t timeout_ns)
{
    const int64_t deadline = now_ns() + timeout_ns;
    for (;;) {
        const uint32_t seen = atomic_load(word);
        if (seen >= at_least)
            return true;
        const int64_t left = deadline - now_ns();
        if (left <= 0)
            return false;
        const struct timespec timeout = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
        futex(word, FUTEX_WAIT, seen, &timeout);
    }
}

bool hl_fault_await_fired(hl_fault_board *board, unsigned rule, uint32_t times, int64_t timeout_ns)
{
    return await_count(&rule_at(board, rule)->fired, times, timeout_ns);
}

bool hl_fault_await_parked(hl_fault_board *board, unsigned rule, uint32_t threads, int64_t timeout_ns)
{
    return await_count(&rule_at(board, rule)->parked, threads, timeout_ns);
}

uint32_t hl_fault_point_count(void)
{
    return HL_FAULT_POINT_COUNT;
}

const char *hl_fault_point_name(uint32_t index)
{
    return hl_fault_point_text(index);
}

uint32_t hl_fault_hits_at(const hl_fault_board *board, uint32_t index)
{
    return index < HL_FAULT_POINT_COUNT ? atomic_load(&board->hits[index]) : 0;
}

hl_fault_action hl_fault_suits(const hl_fault_board *board, uint32_t index)
{
    switch (index < HL_FAULT_POINT_COUNT ? atomic_load(&board->kinds[index]) : 0) {
    case HL_FAULT_KIND_ERROR:
        return HL_FAULT_ERROR;
    case HL_FAULT_KIND_DROP:
        return HL_FAULT_DROP;
    case HL_FAULT_KIND_SHORT:
        return HL_FAULT_SHORT;
    default:
        return HL_FAULT_NONE;
    }
}
