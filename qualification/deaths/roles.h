/* What deaths_process can be. Each role has the run's folder as its working folder, and returns the exit
 * status that the sweep wants. */
#ifndef QUALIFICATION_DEATHS_ROLES_H
#define QUALIFICATION_DEATHS_ROLES_H

#include <stdbool.h>

#define ROLE_WRONG 97 /* what must hold does not; said on standard error */

/* --- the engine is the victim --- */

/* Plays the script on the Manager of a survivor, and then presses: as victim, and as what comes after it.
 * With `may_lose` the session may be taken from it, as that of an engine which has been away for too long. */
int role_engine(bool may_lose, const char *route);
/* While the victim is stopped, a fresh engine that presses; after a death, a tool that has I2 asserted. */
int role_visitor(void);
/* The last engine: presses, and then releases what is in quarantine as an operator does. */
int role_settle(void);
/* The Manager's process, which outlives them. With `refuses`, it ends the sessions of engines that are
 * stopped. */
int role_manager_survives(bool refuses);

/* --- the Manager is the victim --- */

/* The Manager's process, for an engine that survives: as victim, and as what comes after it. With `settles`
 * it is the last: nothing may go wrong, and a fresh engine's process presses too. */
int role_manager(bool settles);
/* The engine's process, which outlives them. With `doomed`, another engine dies beside it after it has
 * claimed; with `hampered`, anything may fail. */
int role_engine_survives(bool doomed, bool hampered);
/* That engine. */
int role_doomed(void);

#endif
