/* The order of a sweep: count, first faults, second faults, report. */
#include "faults/sweep/sweep.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/sweep/case.h"

#define JOBS 2
#define SHOWN_FAILURES 20
#define SHOWN_LOG_BYTES 2000
#define VARYING_HITS 3u

struct hl_sweep_totals {
    unsigned scenarios;
    uint64_t runs, fired, not_fired, failed;
    uint64_t hits[]; /* a point each, over the unarmed runs and the recoveries */
};

hl_sweep_totals *hl_sweep_totals_create(void)
{
    hl_sweep_totals *totals = calloc(1, sizeof *totals + hl_fault_point_count() * sizeof totals->hits[0]);
    if (!totals)
        abort();
    return totals;
}

void hl_sweep_totals_free(hl_sweep_totals *totals)
{
    free(totals);
}

/* --- two jobs --- */

struct jobs {
    const struct sweep_bench *bench;
    struct sweep_list *list;
    unsigned base; /* the number of the first case */
    atomic_size_t next;
};

static void *work(void *argument)
{
    struct jobs *jobs = argument;
    for (size_t i; (i = atomic_fetch_add(&jobs->next, 1)) < jobs->list->count;)
        sweep_case_run(jobs->bench, jobs->base + (unsigned)i, &jobs->list->cases[i]);
    return NULL;
}

static void run_all(const struct sweep_bench *bench, struct sweep_list *list, unsigned base)
{
    struct jobs jobs = {.bench = bench, .list = list, .base = base};
    pthread_t threads[JOBS];
    for (unsigned i = 0; i < JOBS; i++)
        if (pthread_create(&threads[i], NULL, work, &jobs))
            abort();
    for (unsigned i = 0; i < JOBS; i++)
        pthread_join(threads[i], NULL);
}

/* --- what came of it --- */

static void show_failure(const hl_sweep_scenario *scenario, const struct sweep_case *one)
{
    char text[256];
    sweep_case_text(one, text, sizeof text);
    printf("FAILED %s %s: %s\n    HL_FAULT_REPLAY='%s' %s\n", scenario->name, text, one->trouble, text,
           scenario->replay);
    if (one->log && one->log[0])
        printf("%.*s\n", SHOWN_LOG_BYTES, one->log);
}

static unsigned count_list(const hl_sweep_scenario *scenario, const struct sweep_list *list, unsigned shown,
                           hl_sweep_totals *totals)
{
    unsigned failed = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct sweep_case *one = &list->cases[i];
        const bool fired = one->fired && (!one->has_second || one->second_fired);
        totals->runs++;
        totals->fired += fired;
        totals->not_fired += !fired;
        for (uint32_t point = 0; one->recovery_hits && point < hl_fault_point_count(); point++)
            totals->hits[point] += one->recovery_hits[point];
        if (!one->passed && shown + failed++ < SHOWN_FAILURES)
            show_failure(scenario, one);
    }
    totals->failed += failed;
    return failed;
}

static unsigned of_action(const struct sweep_list *list, enum sweep_action action)
{
    unsigned count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += list->cases[i].first.action == action;
    return count;
}

static unsigned aborts(const struct sweep_list *list)
{
    unsigned count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += list->cases[i].aborted;
    return count;
}

static void show_caps(const uint32_t *hits, uint32_t most)
{
    for (uint32_t point = 0; point < hl_fault_point_count(); point++)
        if (most && hits[point] > most)
            printf("    %s: %u hits, of which the first %u and the last are taken\n",
                   hl_fault_point_name(point), hits[point], most - 1);
}

static void show_counts(const hl_sweep_scenario *scenario, const uint32_t *hits,
                        const struct sweep_list *first, const struct sweep_list *second, size_t kinds,
                        uint64_t not_fired, unsigned failed)
{
    unsigned points = 0, sum = 0;
    for (uint32_t point = 0; point < hl_fault_point_count(); point++) {
        points += hits[point] > 0;
        sum += hits[point];
    }
    printf("sweep %s: %u of %u points, %u hits%s\n", scenario->name, points, hl_fault_point_count(), sum,
           scenario->light ? "; light: neither parks nor second kills" : "");
    for (const char *const *start = scenario->points; start && *start; start++)
        printf("    only points %s…\n", *start);
    show_caps(hits, scenario->hits_a_point);
    if (scenario->aborts)
        printf("    %u errors ended the victim with SIGABRT, where that is declared\n", aborts(first));
    printf("    runs: %u kill, %u park and kill, %u park, stop and continue, %u error, %u short, %u drop\n",
           of_action(first, SWEEP_KILL), of_action(first, SWEEP_PARK_KILL), of_action(first, SWEEP_PARK_STOP),
           of_action(first, SWEEP_ERROR), of_action(first, SWEEP_SHORT), of_action(first, SWEEP_DROP));
    printf("    second kill in the recovery: %zu runs over %zu kinds of recovery", second->count, kinds);
    if (scenario->second_hits_a_point)
        printf(", at most %u hits of a point of each kind", scenario->second_hits_a_point);
    printf("\n    not fired %llu, failed %u\n", (unsigned long long)not_fired, failed);
    fflush(stdout);
}

static bool replay(struct sweep_bench *bench, const char *text)
{
    struct sweep_case one;
    if (!sweep_case_parse(text, &one)) {
        printf("HL_FAULT_REPLAY is no case: %s\n", text);
        return false;
    }
    bench->keep = true;
    sweep_case_run(bench, 0, &one);
    const bool passed = one.passed;
    if (passed)
        printf("passed %s %s\n%s\n", bench->scenario->name, text, one.log ? one.log : "");
    else
        show_failure(bench->scenario, &one);
    fflush(stdout);
    free(one.log);
    free(one.recovery_hits);
    return passed;
}

/* Whether `again` is what the enumeration stands on. What may vary is reduced to hits that every run will
 * have: half of the lesser count. */
static bool same_hits(const hl_sweep_scenario *scenario, uint32_t *hits, const uint32_t *again)
{
    bool same = true;
    for (uint32_t point = 0; point < hl_fault_point_count(); point++) {
        const bool varying = sweep_is_listed(scenario->varying, point);
        if (hits[point] != again[point] && !varying) {
            printf("FAILED %s: two runs without faults differ in their hits: %s was hit %u and %u times\n",
                   scenario->name, hl_fault_point_name(point), hits[point], again[point]);
            same = false;
        }
        if (!varying)
            continue;
        if (again[point] < hits[point])
            hits[point] = again[point];
        hits[point] = (hits[point] + 1) / 2;
        if (hits[point] > VARYING_HITS)
            hits[point] = VARYING_HITS;
        if (hits[point])
            printf("    %s: its hits may vary, of which the first %u are taken\n", hl_fault_point_name(point),
                   hits[point]);
    }
    return same;
}

/* Twice, as the enumeration stands on it that a run repeats itself. */
static bool count_hits(const struct sweep_bench *bench, uint32_t *hits, hl_fault_action *suits)
{
    const size_t bytes = hl_fault_point_count() * sizeof *hits;
    uint32_t *again = malloc(bytes);
    if (!again)
        abort();
    bool ok = true;
    for (unsigned i = 0; ok && i < 2; i++) {
        struct sweep_case outcome = {0};
        ok = sweep_count(bench, i, i ? again : hits, suits, &outcome);
        if (!ok)
            printf("FAILED %s without any fault: %s\n%s\n", bench->scenario->name, outcome.trouble,
                   outcome.log ? outcome.log : "");
        free(outcome.log);
    }
    ok = ok && same_hits(bench->scenario, hits, again);
    free(again);
    return ok;
}

bool hl_sweep_run(const hl_sweep_scenario *scenario, const char *folder, hl_sweep_totals *totals)
{
    struct sweep_bench bench = {.scenario = scenario};
    snprintf(bench.folder, sizeof bench.folder, "%s/%s", folder, scenario->name);
    if (!sweep_folder_make(bench.folder, scenario->owner)) {
        printf("%s: %s\n", bench.folder, strerror(errno));
        return false;
    }
    const char *text = getenv("HL_FAULT_REPLAY");
    if (text)
        return replay(&bench, text);

    uint32_t *hits = calloc(hl_fault_point_count(), sizeof *hits);
    hl_fault_action *suits = calloc(hl_fault_point_count(), sizeof *suits);
    if (!hits || !suits)
        abort();
    struct sweep_list first = {0}, second = {0};
    bool ok = count_hits(&bench, hits, suits);
    if (ok) {
        const uint64_t not_fired = totals->not_fired;
        sweep_list_first(&first, scenario, hits, suits);
        run_all(&bench, &first, 2);
        unsigned failed = count_list(scenario, &first, 0, totals);
        const size_t kinds = scenario->light ? 0 : sweep_list_second(&second, scenario, &first);
        run_all(&bench, &second, 2 + (unsigned)first.count);
        failed += count_list(scenario, &second, failed, totals);
        for (uint32_t point = 0; point < hl_fault_point_count(); point++)
            totals->hits[point] += hits[point];
        totals->scenarios++;
        show_counts(scenario, hits, &first, &second, kinds, totals->not_fired - not_fired, failed);
        ok = !failed && first.count;
    }
    sweep_list_free(&first);
    sweep_list_free(&second);
    free(hits);
    free(suits);
    sweep_folder_remove(bench.folder);
    return ok;
}

unsigned hl_sweep_report(const hl_sweep_totals *totals, const char *prefix, const char *const *excused)
{
    unsigned wrong = 0, points = 0, hit = 0;
    for (uint32_t point = 0; point < hl_fault_point_count(); point++) {
        const char *name = hl_fault_point_name(point);
        if (strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        bool listed = false;
        for (size_t i = 0; excused && excused[i]; i++)
            listed |= !strcmp(name, excused[i]);
        points++;
        hit += totals->hits[point] > 0;
        if (!totals->hits[point] && !listed)
            printf("never hit: %s\n", name);
        if (totals->hits[point] && listed)
            printf("excused, and hit: %s\n", name);
        wrong += (totals->hits[point] > 0) == listed;
    }
    printf("%u scenarios, %u of %u points %s…, %llu runs, %llu fired, not fired %llu, failed %llu\n",
           totals->scenarios, hit, points, prefix, (unsigned long long)totals->runs,
           (unsigned long long)totals->fired, (unsigned long long)totals->not_fired,
           (unsigned long long)totals->failed);
    fflush(stdout);
    return wrong;
}
