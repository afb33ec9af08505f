#include "manager/cli/tables.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* One column of a table: a key of each row's object. */
struct column {
    const char *key, *title;
    int width; /* negative: to the left */
    enum { PLAIN, BYTES, WHEN } form;
};

static long long integer(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static void say_bytes(long long bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(out, size, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void say_when(long long seconds, char *out, size_t size)
{
    time_t at = (time_t)seconds;
    struct tm parts;
    gmtime_r(&at, &parts);
    strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void say_value(const json_t *row, const struct column *column, char *out, size_t size)
{
    const json_t *value = json_object_get(row, column->key);
    if (column->form == BYTES)
        say_bytes((long long)json_integer_value(value), out, size);
    else if (column->form == WHEN)
        say_when((long long)json_integer_value(value), out, size);
    else if (json_is_integer(value))
        snprintf(out, size, "%lld", (long long)json_integer_value(value));
    else if (json_is_boolean(value))
        snprintf(out, size, "%s", json_is_true(value) ? "yes" : "no");
    else
        snprintf(out, size, "%s", json_is_string(value) ? json_string_value(value) : "-");
}

static void print_table(const json_t *rows, const struct column *columns, size_t count, FILE *to)
{
    size_t index;
    json_t *row;
    for (size_t i = 0; i < count; i++)
        fprintf(to, "%*s%s", columns[i].width, columns[i].title, i + 1 < count ? "  " : "\n");
    json_array_foreach(rows, index, row)
    {
        for (size_t i = 0; i < count; i++) {
            char value[256];
            say_value(row, &columns[i], value, sizeof value);
            fprintf(to, "%*s%s", columns[i].width, value, i + 1 < count ? "  " : "\n");
        }
    }
}
#define PRINT_TABLE(rows, columns, to)                                                                       \
    print_table((rows), (columns), sizeof(columns) / sizeof(columns)[0], (to))

void cli_print_status(const json_t *answer, FILE *to)
{
    static const struct column rows[] = {
        {"epoch", "epoch", 0, PLAIN},
        {"socket", "socket", 0, PLAIN},
        {"pid", "process", 0, PLAIN},
        {"uptime_s", "seconds up", 0, PLAIN},
        {"sessions", "sessions", 0, PLAIN},
        {"unresolved", "of dead engines", 0, PLAIN},
        {"bindings", "bindings", 0, PLAIN},
        {"leases", "leases", 0, PLAIN},
        {"operations", "operations", 0, PLAIN},
        {"quarantined", "in quarantine", 0, PLAIN},
        {"blocks", "blocks", 0, PLAIN},
        {"block_bytes", "of bytes", 0, BYTES},
        {"arena_bytes", "arenas", 0, BYTES},
        {"arena_used_bytes", "used", 0, BYTES},
        {"reserved_bytes", "reserved", 0, BYTES},
        {"plan_bytes", "plans", 0, BYTES},
        {"published_blocks", "published", 0, PLAIN},
        {"evicted_blocks", "evicted", 0, PLAIN},
        {"restored", "restored", 0, PLAIN},
        {"restored_bytes", "of bytes", 0, BYTES},
        {"rejected", "rejected", 0, PLAIN},
        {"revoked", "revoked", 0, PLAIN},
    };
    static const struct column gpus[] = {
        {"name", "GPU", -24, PLAIN},        {"pci_id", "PCI", -14, PLAIN},      {"uuid", "UUID", -32, PLAIN},
        {"restores", "restores", 8, PLAIN}, {"restores_limit", "of", 4, PLAIN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char value[256];
        say_value(answer, &rows[i], value, sizeof value);
        fprintf(to, "%-16s %s\n", rows[i].title, value);
    }
    PRINT_TABLE(json_object_get(answer, "gpus"), gpus, to);
}

void cli_print_sessions(const json_t *answer, FILE *to)
{
    static const struct column columns[] = {
        {"session", "session", 7, PLAIN},
        {"state", "state", -10, PLAIN},
        {"tool", "tool", -4, PLAIN},
        {"pid", "process", 8, PLAIN},
        {"operations", "operations", 10, PLAIN},
        {"quarantined", "quarantine", 10, PLAIN},
        {"reserved_bytes", "reserved", 10, BYTES},
        {"plan_bytes", "plans", 10, BYTES},
        {"name", "name", 0, PLAIN},
    };
    static const struct column of_binding[] = {
        {"binding", "  binding", 9, PLAIN},
        {"rank", "rank", 5, PLAIN},
        {"gpu", "GPU", 3, PLAIN},
        {"operations", "operations", 10, PLAIN},
        {"publishes", "publishes", 9, PLAIN},
        {"closing", "closing", -7, PLAIN},
        {"instance", "instance", 0, PLAIN},
    };
    const json_t *sessions = json_object_get(answer, "sessions");
    size_t index;
    json_t *session;
    PRINT_TABLE(sessions, columns, to);
    json_array_foreach(sessions, index, session)
    {
        const json_t *bindings = json_object_get(session, "bindings");
        if (json_array_size(bindings) == 0)
            continue;
        fprintf(to, "\nsession %lld\n", integer(session, "session"));
        PRINT_TABLE(bindings, of_binding, to);
    }
}

void cli_print_arenas(const json_t *answer, FILE *to)
{
    static const struct column columns[] = {
        {"arena", "arena", -18, PLAIN},
        {"bytes", "size", 10, BYTES},
        {"used_bytes", "used", 10, BYTES},
        {"free_bytes", "free", 10, BYTES},
        {"largest_free", "largest", 10, BYTES},
        {"allocations", "allocations", 11, PLAIN},
        {"free_ranges", "pieces free", 11, PLAIN},
    };
    PRINT_TABLE(json_object_get(answer, "arenas"), columns, to);
}

void cli_print_quarantine(const json_t *answer, FILE *to)
{
    static const struct column columns[] = {
        {"epoch", "epoch", -18, PLAIN},          {"record", "record", 6, PLAIN},
        {"generation", "generation", 10, PLAIN}, {"token8", "token8", -16, PLAIN},
        {"session", "session", 7, PLAIN},        {"pid", "process", 8, PLAIN},
        {"source_bytes", "sources", 10, BYTES},  {"since", "since", -20, WHEN},
        {"instance", "instance", 0, PLAIN},
    };
    const json_t *operations = json_object_get(answer, "quarantine");
    size_t index;
    json_t *operation;
    if (json_array_size(operations) == 0) {
        fputs("nothing is in quarantine\n", to);
        return;
    }
    PRINT_TABLE(operations, columns, to);
    fputs("\nThe sources of each are kept because nobody saw its copies end. Once you know that the GPU no "
          "longer\n"
          "reads them (the process is gone and the GPU was reset or idle since):\n\n",
          to);
    json_array_foreach(operations, index, operation) fprintf(
        to, "  hostlane quarantine release %s %lld %lld %s --yes-release-while-dma-may-run --operator NAME\n",
        text(operation, "epoch"), integer(operation, "record"), integer(operation, "generation"),
        text(operation, "token8"));
}

void cli_print_release(const json_t *answer, FILE *to)
{
    fprintf(to, "released, in the name of %s\n", text(answer, "operator"));
}

void cli_print_check(const json_t *answer, FILE *to)
{
    if (json_is_true(json_object_get(answer, "ok")))
        fputs("every credit has its owner\n", to);
    else
        fprintf(to, "NOT IN ORDER: %s (%s)\n", text(answer, "text"), text(answer, "status"));
}
