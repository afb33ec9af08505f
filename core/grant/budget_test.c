#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/grant/grant.h"
#include "core/testing/cunit.h"

/* Runs before any thread has started. */
static void giving_more_than_was_taken_aborts(void)
{
    int status = 0;
    pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        hl_budget budget;
        setrlimit(RLIMIT_CORE, &no_core);
        close(STDERR_FILENO);
        hl_budget_init(&budget, 100);
        if (!hl_budget_take(&budget, 10))
            _exit(2);
        hl_budget_give(&budget, 10);
        hl_budget_give(&budget, 1);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void the_limit_can_be_reached_and_not_passed(void)
{
    hl_budget budget;
    hl_budget_init(&budget, 100);
    CU_ASSERT_EQUAL(hl_budget_used(&budget), 0);
    CU_ASSERT_FALSE(hl_budget_take(&budget, 101));
    CU_ASSERT_EQUAL(hl_budget_used(&budget), 0);
    CU_ASSERT_TRUE(hl_budget_take(&budget, 100));
    CU_ASSERT_FALSE(hl_budget_take(&budget, 1));
    CU_ASSERT_TRUE(hl_budget_take(&budget, 0));
    CU_ASSERT_EQUAL(hl_budget_used(&budget), 100);
    hl_budget_give(&budget, 1);
    CU_ASSERT_FALSE(hl_budget_take(&budget, 2));
    CU_ASSERT_TRUE(hl_budget_take(&budget, 1));
    hl_budget_give(&budget, 100);
    CU_ASSERT_EQUAL(hl_budget_used(&budget), 0);
}

static void no_amount_wraps(void)
{
    hl_budget budget;
    hl_budget_init(&budget, UINT64_MAX);
    CU_ASSERT_TRUE(hl_budget_take(&budget, UINT64_MAX));
    CU_ASSERT_FALSE(hl_budget_take(&budget, 1));
    CU_ASSERT_FALSE(hl_budget_take(&budget, UINT64_MAX));
    hl_budget_give(&budget, UINT64_MAX);
    CU_ASSERT_TRUE(hl_budget_take(&budget, 5));
    CU_ASSERT_FALSE(hl_budget_take(&budget, UINT64_MAX - 4));
    CU_ASSERT_TRUE(hl_budget_take(&budget, UINT64_MAX - 5));
    hl_budget_init(&budget, 0);
    CU_ASSERT_FALSE(hl_budget_take(&budget, 1));
    CU_ASSERT_TRUE(hl_budget_take(&budget, 0));
}

/* --- threads --- */

enum { THREADS = 4, TURNS = 20000, LIMIT = 1000 };

struct shared {
    hl_budget budget;
    atomic_uint started;
    atomic_uint passed; /* times that more than the limit was seen taken */
};

/* Holds a few amounts at a time and returns all in the end. */
static void *take_and_give(void *user)
{
    struct shared *shared = user;
    uint64_t held[8] = {0};
    hl_random random;
    hl_random_seed(&random, atomic_fetch_add(&shared->started, 1));
    for (unsigned turn = 0; turn < TURNS; turn++) {
        uint64_t *slot = &held[hl_random_below(&random, 8)];
        if (*slot > 0) {
            hl_budget_give(&shared->budget, *slot);
            *slot = 0;
        } else {
            uint64_t amount = 1 + hl_random_below(&random, LIMIT / 3);
            if (hl_budget_take(&shared->budget, amount))
                *slot = amount;
        }
        if (hl_budget_used(&shared->budget) > LIMIT)
            atomic_fetch_add(&shared->passed, 1);
    }
    for (unsigned i = 0; i < 8; i++)
        hl_budget_give(&shared->budget, held[i]);
    return NULL;
}

static void threads_conserve_it_and_never_pass_the_limit(void)
{
    struct shared shared = {.passed = 0};
    pthread_t threads[THREADS];
    hl_budget_init(&shared.budget, LIMIT);
    for (unsigned i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, take_and_give, &shared), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(atomic_load(&shared.passed), 0);
    CU_ASSERT_EQUAL(hl_budget_used(&shared.budget), 0);
}

struct slot {
    hl_budget budget;
    uint64_t uses; /* plain: guarded by a budget of one */
};

static void *use_in_turn(void *user)
{
    struct slot *slot = user;
    for (unsigned turn = 0; turn < 2000; turn++) {
        while (!hl_budget_take(&slot->budget, 1))
            sched_yield();
        slot->uses++;
        hl_budget_give(&slot->budget, 1);
    }
    return NULL;
}

/* What the last holder did happens before what the next one does. */
static void a_credit_hands_over_what_it_stands_for(void)
{
    struct slot slot = {.uses = 0};
    pthread_t threads[THREADS];
    hl_budget_init(&slot.budget, 1);
    for (unsigned i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, use_in_turn, &slot), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(slot.uses, THREADS * 2000);
}

HL_TESTS(budget, HL_CASE(giving_more_than_was_taken_aborts), HL_CASE(the_limit_can_be_reached_and_not_passed),
         HL_CASE(no_amount_wraps), HL_CASE(threads_conserve_it_and_never_pass_the_limit),
         HL_CASE(a_credit_hands_over_what_it_stands_for));
