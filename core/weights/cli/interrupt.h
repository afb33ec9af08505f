/* Ctrl-C while an import copies: the copy ends as a failure, so that the store removes what it has of it, and
 * the tool then ends by the signal. Killing the process instead would leave the bytes until the next build of
 * the same identity, on tmpfs as memory. */
#ifndef CORE_WEIGHTS_CLI_INTERRUPT_H
#define CORE_WEIGHTS_CLI_INTERRUPT_H

/* SIGINT, SIGTERM and SIGHUP are noted from here on, each once: the second one ends the process at once. A
 * signal that was ignored stays so. */
void weights_interrupt_begin(void);
void weights_interrupt_end(void);
/* The signal that came, or 0. */
int weights_interrupted(void);
/* Ends the process by the signal that came; returns when there was none. */
void weights_interrupt_pass_on(void);

#endif
