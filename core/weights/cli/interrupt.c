#include "core/weights/cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

static volatile sig_atomic_t came;
static struct sigaction before[SIGNALS];

static void note(int number)
{
    came = number;
}

void weights_interrupt_begin(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

void weights_interrupt_end(void)
{
    for (size_t i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
}

int weights_interrupted(void)
{
    return came;
}

void weights_interrupt_pass_on(void)
{
    if (came == 0)
        return;
    signal(came, SIG_DFL);
    raise(came);
}
