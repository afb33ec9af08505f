/* The connection between an engine and the process that runs its Manager, beside the product's own: by it the
 * engine has the Manager stand still and go on, so that the order of what they do is the same in every run.
 */
#ifndef QUALIFICATION_DEATHS_STAGE_H
#define QUALIFICATION_DEATHS_STAGE_H

#include <stdbool.h>

#define STAGE_SOCKET "stage"
#define STAGE_PATIENCE_MS 50000 /* less than what the sweep has for a program */

enum stage_word {
    STAGE_READY = 1, /* Manager → engine, once: it listens */
    STAGE_FREEZE,    /* engine → Manager: look at nothing until STAGE_THAW */
    STAGE_THAW,
    STAGE_GRANTS, /* engine → Manager: its grant memory's descriptor, to look at its records with */
    STAGE_FILL, /* engine → Manager: take all of the session's plan bank; STAGE_BUSY while some is in use */
    STAGE_EMPTY,       /* engine → Manager: give it back */
    STAGE_IS_DEFERRED, /* engine → Manager: does an operation wait for the bank? Else STAGE_BUSY */
    STAGE_EXPIRE,  /* engine → Manager: the one lease's time is up; STAGE_BUSY while others are on their way
                      back */
    STAGE_RELEASE, /* engine → Manager: release what is in quarantine; STAGE_BUSY while there is nothing */
    STAGE_END,     /* engine → Manager: the last engine has closed */
    STAGE_DONE,    /* the answer to each of an engine's */
    STAGE_BUSY     /* not yet */
};

/* In the working folder. The listener does not block. */
int stage_listen(void);
int stage_accept(int listener);
/* -1: nobody listens. */
int stage_connect(void);
/* False when the other end has gone. `passed` -1: none. */
bool stage_say(int stage, enum stage_word word, int passed);
/* `passed` may be NULL; else the caller's, or -1. */
bool stage_hear(int stage, enum stage_word *word, int *passed);
/* Says it and waits for STAGE_DONE. */
bool stage_ask(int stage, enum stage_word word, int passed);

#endif
