/* Which cases there are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/sweep/case.h"

static const uint64_t short_bytes[] = {1, 7};

static void add(struct sweep_list *list, const struct sweep_case *one)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->cases = realloc(list->cases, list->room * sizeof *list->cases);
        if (!list->cases)
            abort();
    }
    list->cases[list->count++] = *one;
}

void sweep_list_free(struct sweep_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->cases[i].log);
        free(list->cases[i].recovery_hits);
    }
    free(list->cases);
    *list = (struct sweep_list){0};
}

bool sweep_is_listed(const char *const *names, uint32_t point)
{
    for (; names && *names; names++)
        if (!strcmp(*names, hl_fault_point_name(point)))
            return true;
    return false;
}

bool sweep_is_meant(const hl_sweep_scenario *scenario, uint32_t point)
{
    const char *const *start = scenario->points;
    while (start && *start && strncmp(hl_fault_point_name(point), *start, strlen(*start)) != 0)
        start++;
    return !start || *start;
}

bool sweep_hit_is_taken(uint32_t nth, uint32_t hits, uint32_t most)
{
    return !most || nth < most || nth == hits || hits <= most;
}

static void add_first(struct sweep_list *list, uint32_t point, uint32_t nth, enum sweep_action action,
                      uint64_t argument)
{
    add(list,
        &(struct sweep_case){.first = {.point = point, .nth = nth, .action = action, .argument = argument}});
}

void sweep_list_first(struct sweep_list *list, const hl_sweep_scenario *scenario, const uint32_t *hits,
                      const hl_fault_action *suits)
{
    for (uint32_t point = 0; point < hl_fault_point_count(); point++)
        for (uint32_t nth = 1; nth <= hits[point]; nth++) {
            if (!sweep_is_meant(scenario, point) ||
                !sweep_hit_is_taken(nth, hits[point], scenario->hits_a_point))
                continue;
            if (scenario->only_stops) {
                add_first(list, point, nth, SWEEP_PARK_STOP, 0);
                continue;
            }
            add_first(list, point, nth, SWEEP_KILL, 0);
            if (!scenario->light) {
                add_first(list, point, nth, SWEEP_PARK_KILL, 0);
                add_first(list, point, nth, SWEEP_PARK_STOP, 0);
            }
            if (suits[point] == HL_FAULT_ERROR)
                for (const int *error = scenario->errors; *error; error++)
                    add_first(list, point, nth, SWEEP_ERROR, (uint64_t)*error);
            if (suits[point] == HL_FAULT_SHORT)
                for (size_t i = 0; i < sizeof short_bytes / sizeof short_bytes[0]; i++)
                    add_first(list, point, nth, SWEEP_SHORT, short_bytes[i]);
            if (suits[point] == HL_FAULT_DROP)
                add_first(list, point, nth, SWEEP_DROP, 0);
        }
}

static void add_second(struct sweep_list *list, const struct sweep_case *first, uint32_t point, uint32_t nth)
{
    add(list, &(struct sweep_case){.first = first->first,
                                   .has_second = true,
                                   .second = {.point = point, .nth = nth, .action = SWEEP_KILL}});
}

static uint32_t all_hits(const uint32_t *hits)
{
    uint32_t sum = 0;
    for (uint32_t point = 0; point < hl_fault_point_count(); point++)
        sum += hits[point];
    return sum;
}

/* The `index`-th hit of a recovery, over all points in the list's order. */
static void add_one_second(struct sweep_list *list, const struct sweep_case *first, uint32_t index)
{
    for (uint32_t point = 0; point < hl_fault_point_count(); point++) {
        if (index < first->recovery_hits[point]) {
            add_second(list, first, point, index + 1);
            return;
        }
        index -= first->recovery_hits[point];
    }
}

size_t sweep_list_second(struct sweep_list *list, const hl_sweep_scenario *scenario,
                         const struct sweep_list *first)
{
    const size_t bytes = hl_fault_point_count() * sizeof(uint32_t);
    const struct sweep_case **kinds = calloc(first->count + 1, sizeof *kinds);
    size_t kind_count = 0;
    if (!kinds)
        abort();
    for (size_t i = 0; i < first->count; i++) {
        const struct sweep_case *one = &first->cases[i];
        if (one->first.action != SWEEP_KILL || !one->recovery_hits || !all_hits(one->recovery_hits))
            continue;
        size_t kind = 0;
        while (kind < kind_count && memcmp(kinds[kind]->recovery_hits, one->recovery_hits, bytes) != 0)
            kind++;
        if (kind < kind_count) {
            /* Others of its kind were met at other hits: go round. */
            add_one_second(list, one, (uint32_t)i % all_hits(one->recovery_hits));
            continue;
        }
        kinds[kind_count++] = one;
        for (uint32_t point = 0; point < hl_fault_point_count(); point++)
            for (uint32_t nth = 1; nth <= one->recovery_hits[point]; nth++)
                if (sweep_hit_is_taken(nth, one->recovery_hits[point], scenario->second_hits_a_point))
                    add_second(list, one, point, nth);
    }
    free(kinds);
    return kind_count;
}
