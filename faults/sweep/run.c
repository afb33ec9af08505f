/* One case: prepare, victim, recovery, check. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults/sweep/case.h"

#define MOST_ARGUMENTS 32
#define SLICE_NS 50000000ll /* how soon a victim that ended in place of parking is noticed */

struct run {
    const struct sweep_bench *bench;
    struct sweep_case *one;
    char folder[640];
    int log;
    const char *outcome; /* for HL_SWEEP_OUTCOME; NULL before the victim ended */
    struct sweep_survivor survivor;
};

/* What every program of the run finds in its environment. */
struct words {
    char outcome[64], faults[64], action[80], point[80];
    const char *list[5];
};

static bool trouble(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool must_end_well(struct run *run, const char *what, const hl_fault_board *board,
                          const char *const *argv);

/* Keeps the first trouble of a case. */
static bool trouble(struct run *run, const char *format, ...)
{
    if (!run->one->trouble[0]) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(run->one->trouble, sizeof run->one->trouble, format, arguments);
        va_end(arguments);
    }
    return false;
}

static void say_words(const struct run *run, struct words *words)
{
    const struct sweep_fault *fault = &run->one->first;
    char action[64] = "";
    if (fault->nth)
        sweep_action_text(fault, action, sizeof action);
    snprintf(words->outcome, sizeof words->outcome, HL_SWEEP_OUTCOME "=%s", run->outcome ? run->outcome : "");
    snprintf(words->faults, sizeof words->faults, HL_SWEEP_FAULTS "=%d",
             fault->nth ? 1 + run->one->has_second : 0);
    snprintf(words->action, sizeof words->action, HL_SWEEP_ACTION "=%s", action);
    words->list[0] = words->outcome;
    words->list[1] = words->faults;
    words->list[2] = words->action;
    snprintf(words->point, sizeof words->point, HL_SWEEP_POINT "=%s",
             fault->nth ? hl_fault_point_name(fault->point) : "");
    words->list[3] = words->point;
    words->list[4] = NULL;
}

/* argv with the folder of the run behind it. */
static void add_folder(const struct run *run, const char *const *argv, const char *full[MOST_ARGUMENTS + 2])
{
    size_t count = 0;
    for (; argv[count] && count < MOST_ARGUMENTS; count++)
        full[count] = argv[count];
    full[count++] = run->folder;
    full[count] = NULL;
}

static pid_t start(struct run *run, const hl_fault_board *board, const char *const *argv)
{
    const char *full[MOST_ARGUMENTS + 2];
    struct words words;
    add_folder(run, argv, full);
    say_words(run, &words);
    return hl_fault_spawn_logged(board, full, words.list, run->log);
}

static bool start_survivor(struct run *run)
{
    const char *full[MOST_ARGUMENTS + 2];
    struct words words;
    if (!run->bench->scenario->survivor)
        return true;
    add_folder(run, run->bench->scenario->survivor, full);
    say_words(run, &words);
    return sweep_survivor_start(&run->survivor, full, words.list, run->log) ||
           trouble(run, "the survivor did not get ready");
}

static bool tell_survivor(struct run *run, const char *word)
{
    return sweep_survivor_tell(&run->survivor, word) ||
           trouble(run, "the survivor does not agree to \"%s\"", word);
}

/* After the check: the survivor ends well too. */
static bool end_survivor(struct run *run)
{
    int status = 0;
    if (!sweep_survivor_end(&run->survivor, &status))
        return trouble(run, "the survivor hung");
    return (WIFEXITED(status) && WEXITSTATUS(status) == HL_SWEEP_DONE) ||
           trouble(run, "the survivor ended with status %#x", status);
}

static bool check(struct run *run)
{
    return tell_survivor(run, "checking") && must_end_well(run, "check", NULL, run->bench->scenario->check) &&
           end_survivor(run);
}

static bool await(struct run *run, const char *what, pid_t child, int *status)
{
    if (hl_fault_await_exit(child, HL_FAULT_PATIENCE_NS, status))
        return true;
    kill(child, SIGKILL);
    waitpid(child, status, 0);
    return trouble(run, "the %s hung", what);
}

static bool must_end_well(struct run *run, const char *what, const hl_fault_board *board,
                          const char *const *argv)
{
    if (!argv)
        return true;
    int status = 0;
    if (!await(run, what, start(run, board, argv), &status))
        return false;
    if (WIFSIGNALED(status))
        return trouble(run, "the %s died of signal %d", what, WTERMSIG(status));
    return WEXITSTATUS(status) == HL_SWEEP_DONE ||
           trouble(run, "the %s exited with %d", what, WEXITSTATUS(status));
}

static bool must_be_killed(struct run *run, const char *what, int status)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    if (WIFSIGNALED(status))
        return trouble(run, "the %s died of signal %d and not of SIGKILL", what, WTERMSIG(status));
    return trouble(run, "the %s exited with %d and was not killed", what, WEXITSTATUS(status));
}

/* Waits until the victim parks; false when it ended in its place, which is then reaped. */
static bool await_parked(struct run *run, hl_fault_board *board, unsigned rule, pid_t victim)
{
    for (int64_t waited = 0; waited < HL_FAULT_PATIENCE_NS; waited += SLICE_NS) {
        if (hl_fault_await_parked(board, rule, 1, SLICE_NS))
            return true;
        int status = 0;
        if (waitpid(victim, &status, WNOHANG) == victim)
            return trouble(run, "the victim ended with status %#x and never parked", status);
    }
    int status = 0;
    kill(victim, SIGKILL);
    waitpid(victim, &status, 0);
    return trouble(run, "the victim hung and never parked");
}

static bool stop_look_continue(struct run *run, hl_fault_board *board, unsigned rule, pid_t victim)
{
    int status = 0;
    kill(victim, SIGSTOP);
    bool ok = waitpid(victim, &status, WUNTRACED) == victim && WIFSTOPPED(status);
    if (!ok)
        return trouble(run, "the victim could not be stopped: status %#x", status);
    ok = tell_survivor(run, "stopped") &&
         must_end_well(run, "look at a stopped victim", NULL, run->bench->scenario->look);
    hl_fault_release(board, rule);
    kill(victim, SIGCONT);
    return ok;
}

static hl_fault_action board_action(enum sweep_action action)
{
    switch (action) {
    case SWEEP_KILL:
        return HL_FAULT_KILL;
    case SWEEP_PARK_KILL:
    case SWEEP_PARK_STOP:
        return HL_FAULT_PARK;
    case SWEEP_ERROR:
        return HL_FAULT_ERROR;
    case SWEEP_SHORT:
        return HL_FAULT_SHORT;
    case SWEEP_DROP:
        break;
    }
    return HL_FAULT_DROP;
}

static unsigned arm(hl_fault_board *board, const struct sweep_fault *fault)
{
    return hl_fault_arm(board, hl_fault_point_name(fault->point), fault->nth, board_action(fault->action),
                        fault->argument);
}

/* Arms what the scenario's victim always meets. */
static bool arm_always(struct run *run, hl_fault_board *board)
{
    for (const char *const *text = run->bench->scenario->always; text && *text; text++) {
        struct sweep_case parsed;
        if (!sweep_case_parse(*text, &parsed) || parsed.first.action != SWEEP_ERROR)
            return trouble(run, "\"%s\" is no error to meet always", *text);
        hl_fault_arm_spec(board, &(hl_fault_rule_spec){.point = hl_fault_point_name(parsed.first.point),
                                                       .nth = parsed.first.nth,
                                                       .action = HL_FAULT_ERROR,
                                                       .argument = parsed.first.argument,
                                                       .persistent = true});
    }
    return true;
}

/* Whether the victim's end is one that its fault allows. */
static bool judge_end(struct run *run, enum sweep_action action, int status)
{
    struct sweep_case *one = run->one;
    one->aborted = action == SWEEP_ERROR && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                   sweep_is_listed(run->bench->scenario->aborts, one->first.point);
    if (one->aborted) {
        run->outcome = "killed";
        return true;
    }
    if (action == SWEEP_KILL || action == SWEEP_PARK_KILL) {
        run->outcome = "killed";
        return must_be_killed(run, "victim", status);
    }
    if (WIFSIGNALED(status))
        return trouble(run, "the victim died of signal %d", WTERMSIG(status));
    const int code = WEXITSTATUS(status);
    run->outcome = code == HL_SWEEP_DONE ? "done" : "failed";
    if (code == HL_SWEEP_DONE || (code == HL_SWEEP_FAILED && action == SWEEP_ERROR))
        return true;
    return trouble(run, "the victim exited with %d", code);
}

static bool run_victim(struct run *run, hl_fault_board *board)
{
    const struct sweep_fault *fault = &run->one->first;
    const unsigned rule = arm(board, fault);
    if (!arm_always(run, board))
        return false;
    const pid_t victim = start(run, board, run->bench->scenario->victim);
    bool ok = true;
    if (fault->action == SWEEP_PARK_KILL || fault->action == SWEEP_PARK_STOP) {
        if (!await_parked(run, board, rule, victim)) {
            run->one->fired = hl_fault_fired(board, rule) > 0;
            return false;
        }
        if (fault->action == SWEEP_PARK_KILL)
            kill(victim, SIGKILL);
        else
            ok = stop_look_continue(run, board, rule, victim);
    }
    int status = 0;
    ok &= await(run, "victim", victim, &status);
    run->one->fired = hl_fault_fired(board, rule) == 1;
    if (!run->one->fired)
        ok = trouble(run, "the fault fired %u times", hl_fault_fired(board, rule));
    return judge_end(run, fault->action, status) && ok;
}

static bool look(struct run *run)
{
    return must_end_well(run, "look after a death", NULL, run->bench->scenario->look);
}

/* A recovery that is killed, too; then others look, and the next one must do. */
static bool die_again(struct run *run, hl_fault_board *board)
{
    const unsigned rule = arm(board, &run->one->second);
    int status = 0;
    if (!await(run, "recovery", start(run, board, run->bench->scenario->recover), &status))
        return false;
    run->one->second_fired = hl_fault_fired(board, rule) == 1;
    if (!run->one->second_fired)
        return trouble(run, "the second fault fired %u times", hl_fault_fired(board, rule));
    return must_be_killed(run, "recovery", status) && tell_survivor(run, "killed") && look(run) &&
           must_end_well(run, "second recovery", NULL, run->bench->scenario->recover) &&
           tell_survivor(run, "done");
}

static bool run_recovery(struct run *run, hl_fault_board *board)
{
    struct sweep_case *one = run->one;
    hl_fault_board_reset(board);
    if (one->has_second)
        return die_again(run, board);
    if (!must_end_well(run, "recovery", board, run->bench->scenario->recover))
        return false;
    one->recovery_hits = calloc(hl_fault_point_count(), sizeof *one->recovery_hits);
    for (uint32_t point = 0; one->recovery_hits && point < hl_fault_point_count(); point++) {
        uint32_t hits = hl_fault_hits_at(board, point);
        if (!sweep_is_meant(run->bench->scenario, point))
            hits = 0;
        if (hits > 1 && sweep_is_listed(run->bench->scenario->varying, point))
            hits = 1;
        one->recovery_hits[point] = hits;
    }
    return tell_survivor(run, "done");
}

static bool begin(struct run *run, const struct sweep_bench *bench, unsigned number, struct sweep_case *one)
{
    *run = (struct run){.bench = bench, .one = one, .survivor.channel = -1};
    snprintf(run->folder, sizeof run->folder, "%s/%u.log", bench->folder, number);
    run->log = open(run->folder, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (run->log < 0)
        return trouble(run, "%s: %s", run->folder, strerror(errno));
    unlink(run->folder);
    snprintf(run->folder, sizeof run->folder, "%s/%u", bench->folder, number);
    return sweep_folder_make(run->folder, bench->scenario->owner) ||
           trouble(run, "%s: %s", run->folder, strerror(errno));
}

static void end(struct run *run, bool ok)
{
    struct sweep_case *one = run->one;
    sweep_survivor_kill(&run->survivor);
    if (run->bench->keep)
        printf("kept: %s\n", run->folder);
    else if (!sweep_folder_remove(run->folder) && ok)
        ok = trouble(run, "%s cannot be removed: %s", run->folder, strerror(errno));
    one->passed = ok;
    struct stat st;
    if (run->log >= 0 && (!ok || run->bench->keep) && !fstat(run->log, &st)) {
        one->log = calloc(1, (size_t)st.st_size + 1);
        if (one->log && pread(run->log, one->log, (size_t)st.st_size, 0) < 0)
            one->log[0] = 0;
    }
    if (run->log >= 0)
        close(run->log);
}

void sweep_case_run(const struct sweep_bench *bench, unsigned number, struct sweep_case *one)
{
    struct run run;
    hl_fault_board *board = hl_fault_board_create();
    bool ok = begin(&run, bench, number, one) &&
              must_end_well(&run, "preparation", NULL, bench->scenario->prepare) && start_survivor(&run) &&
              run_victim(&run, board) && tell_survivor(&run, run.outcome);
    const bool died = one->first.action == SWEEP_KILL || one->first.action == SWEEP_PARK_KILL || one->aborted;
    if (ok && died)
        ok = look(&run) && (!bench->scenario->recover || run_recovery(&run, board));
    ok = ok && check(&run);
    hl_fault_board_free(board);
    end(&run, ok);
}

bool sweep_count(const struct sweep_bench *bench, unsigned number, uint32_t *hits, hl_fault_action *suits,
                 struct sweep_case *outcome)
{
    struct run run;
    hl_fault_board *board = hl_fault_board_create();
    bool ok = begin(&run, bench, number, outcome) &&
              must_end_well(&run, "preparation", NULL, bench->scenario->prepare) && start_survivor(&run) &&
              arm_always(&run, board) && must_end_well(&run, "victim", board, bench->scenario->victim);
    for (uint32_t point = 0; point < hl_fault_point_count(); point++) {
        hits[point] = hl_fault_hits_at(board, point);
        suits[point] = hl_fault_suits(board, point);
    }
    run.outcome = "done";
    ok = ok && tell_survivor(&run, "done") && check(&run);
    hl_fault_board_free(board);
    end(&run, ok);
    return ok;
}
