/* Cases as text, so that one that failed can be run again by hand. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/sweep/case.h"

#define MOST_ERRNO 133

void sweep_action_text(const struct sweep_fault *fault, char *text, size_t size)
{
    switch (fault->action) {
    case SWEEP_KILL:
        snprintf(text, size, "kill");
        break;
    case SWEEP_PARK_KILL:
        snprintf(text, size, "park+kill");
        break;
    case SWEEP_PARK_STOP:
        snprintf(text, size, "park+stop");
        break;
    case SWEEP_ERROR:
        snprintf(text, size, "%s", strerrorname_np((int)fault->argument));
        break;
    case SWEEP_SHORT:
        snprintf(text, size, "short=%llu", (unsigned long long)fault->argument);
        break;
    case SWEEP_DROP:
        snprintf(text, size, "drop");
        break;
    }
}

static int write_fault(char *text, size_t size, const struct sweep_fault *fault)
{
    char action[48];
    sweep_action_text(fault, action, sizeof action);
    return snprintf(text, size, "%s:%u:%s", hl_fault_point_name(fault->point), fault->nth, action);
}

void sweep_case_text(const struct sweep_case *one, char *text, size_t size)
{
    const int used = write_fault(text, size, &one->first);
    if (one->has_second && (size_t)used + 1 < size) {
        text[used] = '/';
        write_fault(text + used + 1, size - (size_t)used - 1, &one->second);
    }
}

static bool parse_action(const char *text, struct sweep_fault *fault)
{
    static const char *const plain[] = {[SWEEP_KILL] = "kill",
                                        [SWEEP_PARK_KILL] = "park+kill",
                                        [SWEEP_PARK_STOP] = "park+stop",
                                        [SWEEP_DROP] = "drop"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (plain[i] && !strcmp(text, plain[i])) {
            fault->action = (enum sweep_action)i;
            return true;
        }
    if (!strncmp(text, "short=", 6)) {
        fault->action = SWEEP_SHORT;
        fault->argument = strtoull(text + 6, NULL, 10);
        return true;
    }
    for (int error = 1; error <= MOST_ERRNO; error++) {
        const char *name = strerrorname_np(error);
        if (name && !strcmp(text, name)) {
            fault->action = SWEEP_ERROR;
            fault->argument = (uint64_t)error;
            return true;
        }
    }
    return false;
}

static bool parse_fault(char *text, struct sweep_fault *fault)
{
    char *rest = NULL;
    const char *point = strtok_r(text, ":", &rest);
    const char *nth = strtok_r(NULL, ":", &rest);
    const char *action = strtok_r(NULL, ":", &rest);
    if (!point || !nth || !action || !hl_fault_point_find(point, &fault->point))
        return false;
    char *end = NULL;
    fault->nth = (uint32_t)strtoul(nth, &end, 10);
    return fault->nth && !*end && parse_action(action, fault);
}

bool sweep_case_parse(const char *text, struct sweep_case *one)
{
    char copy[256];
    *one = (struct sweep_case){0};
    const size_t size = strlen(text) + 1;
    if (size > sizeof copy)
        return false;
    memcpy(copy, text, size);
    char *slash = strchr(copy, '/');
    if (slash) {
        *slash = 0;
        one->has_second = true;
        if (!parse_fault(slash + 1, &one->second) || one->second.action != SWEEP_KILL)
            return false;
    }
    return parse_fault(copy, &one->first) && (!slash || one->first.action == SWEEP_KILL);
}
