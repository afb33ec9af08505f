/* The engine's process beside Managers that die, stop and fail: it plays the script with each, and what it
 * reports stays true. Another thread hears what the sweep says. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "faults/sweep/sweep.h"
#include "faults/testing.h"
#include "qualification/deaths/holdings.h"
#include "qualification/deaths/player.h"
#include "qualification/deaths/roles.h"
#include "qualification/deaths/stage.h"

static struct {
    struct player player;
    int listener;
    int wake[2]; /* a pipe: the sweep is over */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned rounds; /* Managers that have been played with to the end */
    bool busy;
    bool doomed, hampered;
    bool wrong;  /* in any round */
    bool failed; /* in the last round: the library reported a failure */
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void set_busy(bool busy)
{
    pthread_mutex_lock(&self.lock);
    self.busy = busy;
    self.rounds += !busy;
    pthread_cond_broadcast(&self.changed);
    pthread_mutex_unlock(&self.lock);
}

/* Another engine dies over what it has claimed, and an operator releases that. */
static void have_doomed(int stage)
{
    const char *const argv[] = {"/proc/self/exe", "doomed", ".", NULL};
    const int64_t until = hl_clock_ns() + STAGE_PATIENCE_MS * 1000000ll;
    enum stage_word answer = STAGE_BUSY;
    int status = 0;
    const pid_t doomed = hl_fault_spawn(NULL, argv, NULL);
    if (!hl_fault_await_exit(doomed, HL_FAULT_PATIENCE_NS / 2, &status)) {
        kill(doomed, SIGKILL);
        waitpid(doomed, NULL, 0);
        return;
    }
    while (WIFSIGNALED(status) && answer == STAGE_BUSY && hl_clock_ns() < until)
        if (!stage_say(stage, STAGE_RELEASE, -1) || !stage_hear(stage, &answer, NULL))
            return;
}

/* One Manager, from its first word to its last or to its death. */
static void play(int stage)
{
    enum stage_word word;
    struct holdings before;
    bool wrong = false;
    bool failed = false;
    holdings_take(&before);
    if (stage_hear(stage, &word, NULL) && word == STAGE_READY) {
        if (self.doomed)
            have_doomed(stage);
        wrong = !player_play(&self.player, stage);
        failed = self.player.failed;
        if (!wrong && !holdings_are_again(&before, 0)) {
            fprintf(stderr, "the surviving engine has left something behind\n");
            wrong = true;
        }
        stage_ask(stage, STAGE_END, -1);
    }
    holdings_free(&before);
    close(stage);
    pthread_mutex_lock(&self.lock);
    self.wrong = self.wrong || wrong;
    self.failed = failed;
    pthread_mutex_unlock(&self.lock);
}

static void *play_all(void *unused)
{
    struct pollfd fds[2] = {{.fd = self.listener, .events = POLLIN}, {.fd = self.wake[0], .events = POLLIN}};
    (void)unused;
    pthread_setname_np(pthread_self(), "player");
    for (;;) {
        MUST(poll(fds, 2, -1) > 0);
        if (fds[0].revents) {
            const int stage = stage_accept(self.listener);
            MUST(stage >= 0);
            set_busy(true);
            play(stage);
            set_busy(false);
        } else {
            return NULL;
        }
    }
}

/* --- what the sweep says --- */

static bool await_rounds(unsigned rounds)
{
    struct timespec until;
    bool there = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STAGE_PATIENCE_MS / 1000;
    pthread_mutex_lock(&self.lock);
    while (there && (self.rounds < rounds || self.busy))
        there = pthread_cond_timedwait(&self.changed, &self.lock, &until) == 0;
    const bool good = there && !self.wrong;
    pthread_mutex_unlock(&self.lock);
    if (!there)
        fprintf(stderr, "the surviving engine hangs\n");
    return good;
}

/* The Manager was well all the time: lost notifications delay, and lose nothing. */
static bool round_was_clean(unsigned round)
{
    const char *action = getenv(HL_SWEEP_ACTION);
    const bool undisturbed =
        round > 1 || !action || !action[0] || !strcmp(action, "drop") || !strcmp(action, "park+stop");
    pthread_mutex_lock(&self.lock);
    const bool failed = self.failed;
    pthread_mutex_unlock(&self.lock);
    if (!undisturbed || !failed || self.hampered)
        return true;
    fprintf(stderr, "the surviving engine met a failure, and nothing had failed\n");
    return false;
}

static bool obey(const char *word, unsigned *managers)
{
    if (!strcmp(word, "stopped")) {
        player_hurry(&self.player);
        return true;
    }
    if (!strcmp(word, "checking"))
        return true;
    ++*managers;
    return await_rounds(*managers) && (strcmp(word, "done") != 0 || round_was_clean(*managers));
}

int role_engine_survives(bool doomed, bool hampered)
{
    self.doomed = doomed;
    self.hampered = hampered;
    pthread_t thread;
    char word[16];
    unsigned managers = 0;
    bool good = true;
    player_open(&self.player, "player");
    self.listener = stage_listen();
    MUST(pipe(self.wake) == 0);
    MUST(pthread_create(&thread, NULL, play_all, NULL) == 0);
    hl_sweep_answer(true);
    while (good && hl_sweep_hear(word)) {
        good = obey(word, &managers);
        hl_sweep_answer(good);
    }
    /* The check's Manager has been the last. */
    good = good && await_rounds(managers + 1) && round_was_clean(managers + 1);
    close(self.wake[1]);
    pthread_join(thread, NULL);
    close(self.wake[0]);
    close(self.listener);
    player_close(&self.player);
    return good ? HL_SWEEP_DONE : ROLE_WRONG;
}
