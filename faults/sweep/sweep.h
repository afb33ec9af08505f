/* faults/sweep runs a scenario with every fault that it can meet: once unarmed to count the hits of every
 * point, then every point and hit with every action, each in a fresh folder and fresh processes, and each
 * kill again with a second one in the process that comes after. Nothing is sampled. A fault that does not
 * fire, a process that ends otherwise than its fault demands, and a condition that does not hold afterwards
 * are failures, each printed with the line that runs it again:
 *
 *     HL_FAULT_REPLAY='point:nth:action[/point:nth:action]' <the scenario's replay command>
 *
 * Actions: kill; park+kill (the process is parked, then killed from outside); park+stop (it is parked,
 * stopped, looked at by others, continued and let go: it must end well); an errno's name; short=BYTES; drop.
 * The part after the slash is a kill in the recovery.
 *
 * A scenario is programs of the *_faults build. Each gets the folder of the run as its last argument.
 *
 * A survivor is a process that lives beside the victim, without a board, from before it starts until after
 * the check. It is told what happens, by words on its standard input, and says whether what it must hold to
 * holds:
 *
 *     stopped                 the victim is parked and stopped: the survivor goes on as far as it can without
 * it killed, failed, done    the victim, or the recovery, has ended so checking                the check
 * begins
 */
#ifndef FAULTS_SWEEP_SWEEP_H
#define FAULTS_SWEEP_SWEEP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Exit statuses of a victim; of the other programs all but DONE are failures. */
#define HL_SWEEP_DONE 0
#define HL_SWEEP_FAILED 1 /* it reported a failure as it should; right only where an error was injected */

/* What programs after the victim find in their environment: how the victim ended. */
#define HL_SWEEP_OUTCOME "HL_SWEEP_OUTCOME" /* "killed", "failed" or "done"; "" before it ended */
#define HL_SWEEP_FAULTS "HL_SWEEP_FAULTS"   /* how many faults the case has: "0" to "2" */

/* What all programs find there: the victim's fault as a replay has it, "kill" for one; "" without. */
#define HL_SWEEP_ACTION "HL_SWEEP_ACTION"
#define HL_SWEEP_POINT "HL_SWEEP_POINT" /* where that is */

typedef struct hl_sweep_scenario {
    const char *name;
    const char *replay; /* the command that runs this scenario alone */

    /* argv, ended by NULL. */
    const char *const *prepare;  /* makes what the victim finds; NULL: nothing */
    const char *const *survivor; /* NULL: there is none */
    const char *const *victim;
    const char *const *look; /* what others may see at any time: run while the victim is parked and stopped,
                                and right after each death; NULL: nothing */
    const char *const *recover; /* the first to come after a death, and again after a second one; it must end
                                   well; NULL: nothing */
    const char *const *check;   /* what must hold at the end, after the recovery if there was a death */

    /* Errors that the victim always meets, from their hit on: "point:nth:errno", ended by NULL; NULL: none.
     * The way to what is done about a failure. */
    const char *const *always;
    /* Points at which an injected error may end the victim with SIGABRT, which then is a death like another;
     * ended by NULL; NULL: none. How many did is said in the output. */
    const char *const *aborts;
    /* Points that two runs need not hit equally often, ended by NULL; NULL: none. Half of the hits that the
     * counting runs had are taken of them, and at most the first three. Said in the output. */
    const char *const *varying;
    const int *errors;     /* errno values to inject, ended by 0 */
    uint32_t hits_a_point; /* take only so many hits of a point, the first ones and the last; 0: all. Said in
                              the output */
    uint32_t second_hits_a_point; /* the same for the second kill */
    bool light;                   /* neither parks nor second kills: for slow builds. Said in the output */
    bool only_stops;              /* park+stop alone */
    const char *const *points; /* only points that begin so, ended by NULL; NULL: all. Said in the output */
    uid_t owner;               /* of the run's folder; the programs themselves change to it */
} hl_sweep_scenario;

/* Over several scenarios. */
typedef struct hl_sweep_totals hl_sweep_totals;
hl_sweep_totals *hl_sweep_totals_create(void);
void hl_sweep_totals_free(hl_sweep_totals *totals);

/* Runs it with two jobs below `folder`, which exists. Prints one block of counts, and every failure. Returns
 * whether nothing failed. With HL_FAULT_REPLAY in the environment it runs that case alone and keeps its
 * folder. */
bool hl_sweep_run(const hl_sweep_scenario *scenario, const char *folder, hl_sweep_totals *totals);

/* Prints the sums, and the points named `prefix`… that no scenario hit and `excused` (names, ended by NULL)
 * does not list. Returns how many there are of them, plus one for every excused point that was hit after all.
 */
unsigned hl_sweep_report(const hl_sweep_totals *totals, const char *prefix, const char *const *excused);

/* --- in a survivor --- */

/* Answers the last word; the first answer, before any word, lets the victim start. */
void hl_sweep_answer(bool well);
/* The next word; false when the run is over and the survivor has to end well. */
bool hl_sweep_hear(char word[16]);

#endif
