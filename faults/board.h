/* The board: the memory through which a test arms fault points in another process and sees what happened
 * there. It is a sealed memfd of its own, never the memory under test, so that a fault cannot hide in it.
 * Tests use faults/testing.h; this layout is for hook.c, board.c and the tests of both.
 *
 * Threads and processes. Everything after the header is atomic and lock-free. Hits and fired counts are added
 * by whoever hits; everything else of a rule is written by the test alone. Each `fired`, `parked` and
 * `release` is also a futex word (shared between processes), so that nobody polls.
 *
 * Deaths. A process may die between any two instructions: the counts then hold what was added, and no more
 * is needed, as nothing here is locked. A thread that died while parked stays in `parked`. The creator's
 * death kills the processes that are parked on its board. */
#ifndef FAULTS_BOARD_H
#define FAULTS_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#include "faults/hook.h"

#if !defined(HL_FAULTS) || !HL_FAULTS
#error "the board exists in *_faults targets only"
#endif

#define HL_FAULT_BOARD_MAGIC 0x6472616f62666c68ull /* "hlfboard" */
#define HL_FAULT_BOARD_VERSION 1u
#define HL_FAULT_BOARD_ENV "HL_FAULT_BOARD" /* decimal number of the inherited descriptor */
#define HL_FAULT_RULES 8u

enum hl_fault_act {
    HL_FAULT_ACT_NONE,  /* only fires: a breakpoint to wait for that holds nobody */
    HL_FAULT_ACT_KILL,  /* SIGKILL of the whole process */
    HL_FAULT_ACT_PARK,  /* the thread waits for `release` */
    HL_FAULT_ACT_ERROR, /* argument: errno; HL_FAULT, and before and after the steps that say so */
    HL_FAULT_ACT_DROP,  /* HL_FAULT_DROPS, and before HL_FAULT_NOTIFY */
    HL_FAULT_ACT_DELAY, /* argument: ns */
    HL_FAULT_ACT_SHORT, /* argument: bytes; HL_FAULT_SHORTENS */
    HL_FAULT_ACT_COUNT
};

/* With which macros a point was hit, hence what may be armed there. At a PASS nothing can fail. */
enum hl_fault_kind {
    HL_FAULT_KIND_ERROR = 1,
    HL_FAULT_KIND_DROP = 2,
    HL_FAULT_KIND_SHORT = 4,
    HL_FAULT_KIND_PASS = 8
};

/* A rule. The test writes the fields, then makes `generation` odd (release); a hit reads the generation
 * (acquire), the fields, and the generation again, and leaves a rule alone that changed meanwhile. A slot is
 * armed again only when no thread can be inside its point. */
struct hl_fault_rule {
    _Atomic uint32_t generation; /* test; odd while armed */
    _Atomic uint32_t point;      /* test; enum hl_fault_point */
    _Atomic uint32_t act;        /* test; enum hl_fault_act */
    _Atomic uint32_t nth;        /* test; the hit to act on, from 1, counted from the arming */
    _Atomic uint32_t persistent; /* test; 1: also on every later hit */
    _Atomic uint32_t process;    /* test; 0: any; n: only the n-th process that came to the board */
    _Atomic uint64_t argument;   /* test */
    _Atomic uint32_t seen;       /* hits; of this point since the arming, by a process that the rule means */
    _Atomic uint32_t fired;      /* hits; added to before the action is done. Futex word of the test */
    _Atomic uint32_t parked;     /* hits; threads that are waiting now. Futex word of the test */
    _Atomic uint32_t parked_tid; /* hits; the last of them; written before `parked` is added to */
    _Atomic uint32_t release;    /* test; changes let go whoever waits. Futex word of the parked */
};

typedef struct hl_fault_board {
    /* Header: written by the creator before anybody else knows the board; never changes. */
    uint64_t magic;
    uint32_t version;
    uint32_t point_count;
    uint64_t point_names; /* hl_fault_point_hash(): both sides were built from one list */
    int32_t creator;      /* pid */
    int32_t creator_fd;   /* the creator's descriptor of the board */

    _Atomic uint32_t processes; /* hits; how many processes came to the board */
    _Atomic uint32_t padding;
    struct hl_fault_rule rules[HL_FAULT_RULES];
    _Atomic uint32_t hits[HL_FAULT_POINT_COUNT];  /* hits; armed or not. Wraps */
    _Atomic uint32_t kinds[HL_FAULT_POINT_COUNT]; /* hits; enum hl_fault_kind, or-ed */
} hl_fault_board;

_Static_assert(sizeof(struct hl_fault_rule) == 56, "the layout has no holes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "shared between processes");

const char *hl_fault_point_text(uint32_t point); /* "weights_read_before"; NULL beyond the last */
uint64_t hl_fault_point_hash(void);

#endif
