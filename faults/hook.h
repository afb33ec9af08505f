/* faults/ owns the deterministic faults of the *_faults builds: the one list of points (points.h), the macros
 * below, and a board in shared memory through which a test arms points and sees that they fired.
 *
 * In production a macro is a constant: no symbol, no branch, no call is left (a test looks at every shipped
 * binary). In *_faults targets, compiled with HL_FAULTS=1 and otherwise alike, a hit on a point is counted on
 * the board whose descriptor HL_FAULT_BOARD names in the environment, and the armed action happens: kill,
 * park, error, drop, delay, short. Without a board a hit does nothing.
 *
 * Each point stands before or after one publishing store, device submission or file-system step. */
#ifndef FAULTS_HOOK_H
#define FAULTS_HOOK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "faults/points.h"

#if defined(HL_FAULTS) && HL_FAULTS

enum hl_fault_point {
#define HL_FAULT_POINT_ENUM(name) HL_FAULT_AT_##name,
#define HL_FAULT_STEP_ENUM(name) HL_FAULT_AT_##name##_before, HL_FAULT_AT_##name##_after,
    HL_FAULT_POINTS(HL_FAULT_POINT_ENUM, HL_FAULT_STEP_ENUM)
#undef HL_FAULT_POINT_ENUM
#undef HL_FAULT_STEP_ENUM
        HL_FAULT_POINT_COUNT
};

int hl_fault_hit(enum hl_fault_point point);
void hl_fault_pass(enum hl_fault_point point);
bool hl_fault_dropped(enum hl_fault_point point);
size_t hl_fault_shortened(enum hl_fault_point point, size_t size);

/* 0, or the errno (positive) to fail with. */
#define HL_FAULT(name) hl_fault_hit(HL_FAULT_AT_##name)
/* Whether the notification that follows is to be lost. */
#define HL_FAULT_DROPS(name) hl_fault_dropped(HL_FAULT_AT_##name)
/* How much of `size` bytes the transfer that follows is to be offered; at least 1. */
#define HL_FAULT_SHORTENS(name, size) hl_fault_shortened(HL_FAULT_AT_##name, (size))

/* A system call as a step: `call` is an expression that gives -1 and errno when it fails. An error armed
 * before it replaces the call; one armed after it makes a call that succeeded report failure. */
#define HL_FAULT_STEP(name, call)                                                                            \
    ({                                                                                                       \
        long step_result_ = -1;                                                                              \
        int step_errno_ = hl_fault_hit(HL_FAULT_AT_##name##_before);                                         \
        if (!step_errno_) {                                                                                  \
            step_result_ = (call);                                                                           \
            step_errno_ = errno;                                                                             \
            const int after_ = hl_fault_hit(HL_FAULT_AT_##name##_after);                                     \
            if (after_) {                                                                                    \
                step_errno_ = after_;                                                                        \
                step_result_ = -1;                                                                           \
            }                                                                                                \
        }                                                                                                    \
        errno = step_errno_;                                                                                 \
        step_result_;                                                                                        \
    })

/* A call as a step, whatever it returns: an error armed before it sets errno to that and gives `failure` in
 * its place. What it has taken must not be lost, so that after it nothing can fail. */
#define HL_FAULT_CALL(name, call, failure)                                                                   \
    ({                                                                                                       \
        __typeof__(call) result_of_##name##_;                                                                \
        const int errno_of_##name##_ = hl_fault_hit(HL_FAULT_AT_##name##_before);                            \
        if (!errno_of_##name##_) {                                                                           \
            result_of_##name##_ = (call);                                                                    \
            hl_fault_pass(HL_FAULT_AT_##name##_after);                                                       \
        } else {                                                                                             \
            errno = errno_of_##name##_;                                                                      \
            result_of_##name##_ = (failure);                                                                 \
        }                                                                                                    \
        result_of_##name##_;                                                                                 \
    })

/* The same for what is handed over to somebody, who may have got it although the call reports a failure: an
 * error armed after it does that. */
#define HL_FAULT_SUBMIT(name, call, failure)                                                                 \
    ({                                                                                                       \
        __typeof__(call) result_of_##name##_;                                                                \
        int errno_of_##name##_ = hl_fault_hit(HL_FAULT_AT_##name##_before);                                  \
        if (!errno_of_##name##_) {                                                                           \
            result_of_##name##_ = (call);                                                                    \
            errno_of_##name##_ = hl_fault_hit(HL_FAULT_AT_##name##_after);                                   \
        }                                                                                                    \
        if (errno_of_##name##_) {                                                                            \
            errno = errno_of_##name##_;                                                                      \
            result_of_##name##_ = (failure);                                                                 \
        }                                                                                                    \
        result_of_##name##_;                                                                                 \
    })

/* A statement that publishes or gives back something and cannot fail: what suits its two points is to be
 * killed, parked or delayed there. */
#define HL_FAULT_STORE(name, ...)                                                                            \
    do {                                                                                                     \
        hl_fault_pass(HL_FAULT_AT_##name##_before);                                                          \
        __VA_ARGS__;                                                                                         \
        hl_fault_pass(HL_FAULT_AT_##name##_after);                                                           \
    } while (0)

/* The same for a transition that another side may win: the point after it is where it has been made. */
#define HL_FAULT_MOVE(name, move)                                                                            \
    ({                                                                                                       \
        hl_fault_pass(HL_FAULT_AT_##name##_before);                                                          \
        const bool made_##name##_ = (move);                                                                  \
        if (made_##name##_)                                                                                  \
            hl_fault_pass(HL_FAULT_AT_##name##_after);                                                       \
        made_##name##_;                                                                                      \
    })

/* The same for one call that makes either of two transitions: the points are those of `name` where `is_name`
 * holds, else of `other`. */
#define HL_FAULT_MOVE_EITHER(is_name, name, other, move)                                                     \
    ({                                                                                                       \
        const bool is_##name##_ = (is_name);                                                                 \
        hl_fault_pass(is_##name##_ ? HL_FAULT_AT_##name##_before : HL_FAULT_AT_##other##_before);            \
        const bool made_##name##_ = (move);                                                                  \
        if (made_##name##_)                                                                                  \
            hl_fault_pass(is_##name##_ ? HL_FAULT_AT_##name##_after : HL_FAULT_AT_##other##_after);          \
        made_##name##_;                                                                                      \
    })

/* A statement that tells another process something: a drop armed before it loses it. */
#define HL_FAULT_NOTIFY(name, ...)                                                                           \
    do {                                                                                                     \
        if (!hl_fault_dropped(HL_FAULT_AT_##name##_before)) {                                                \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
        hl_fault_pass(HL_FAULT_AT_##name##_after);                                                           \
    } while (0)

#else

#define HL_FAULT(name) 0
#define HL_FAULT_DROPS(name) false
#define HL_FAULT_SHORTENS(name, size) (size)
#define HL_FAULT_STEP(name, call) ((long)(call))
#define HL_FAULT_CALL(name, call, failure) (call)
#define HL_FAULT_SUBMIT(name, call, failure) (call)
#define HL_FAULT_STORE(name, ...)                                                                            \
    do {                                                                                                     \
        __VA_ARGS__;                                                                                         \
    } while (0)
#define HL_FAULT_MOVE(name, move) (move)
#define HL_FAULT_MOVE_EITHER(is_name, name, other, move) (move)
#define HL_FAULT_NOTIFY(name, ...)                                                                           \
    do {                                                                                                     \
        __VA_ARGS__;                                                                                         \
    } while (0)

#endif

#endif
