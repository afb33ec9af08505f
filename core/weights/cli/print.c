#include "core/weights/cli/print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/cli/arguments.h"

const char *weights_size(char text[WEIGHTS_SIZE_BYTES], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024) {
        value /= 1024;
        unit++;
    }
    snprintf(text, WEIGHTS_SIZE_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

const char *weights_limit(char text[WEIGHTS_SIZE_BYTES], uint64_t bytes)
{
    if (bytes != HL_WEIGHT_NO_LIMIT)
        return weights_size(text, bytes);
    snprintf(text, WEIGHTS_SIZE_BYTES, "none");
    return text;
}

/* --- tables --- */

void weights_table_add(struct weights_table *table, const char *cell)
{
    if (table->cells == table->capacity) {
        const size_t capacity = table->capacity ? 2 * table->capacity : 64;
        char **grown = realloc(table->text, capacity * sizeof *grown);
        if (!grown)
            abort(); /* a tool without memory for its table has nothing left to say */
        table->text = grown;
        table->capacity = capacity;
    }
    char *copy = strdup(cell);
    if (!copy)
        abort();
    table->text[table->cells++] = copy;
}

static int column_width(const struct weights_table *table, size_t column)
{
    size_t width = 0;
    for (size_t i = column; i < table->cells; i += table->columns)
        if (strlen(table->text[i]) > width)
            width = strlen(table->text[i]);
    return (int)width;
}

void weights_table_print(struct weights_table *table, FILE *to)
{
    int *widths = calloc(table->columns, sizeof *widths);
    if (!widths)
        abort();
    for (size_t column = 0; column < table->columns; column++)
        widths[column] = column_width(table, column);
    for (size_t i = 0; i < table->cells; i++) {
        const size_t column = i % table->columns;
        const bool last = column + 1 == table->columns;
        const int width = table->right_aligned & 1u << column ? widths[column] : last ? 0 : -widths[column];
        fprintf(to, "%*s%s", width, table->text[i], last ? "\n" : "  ");
        free(table->text[i]);
    }
    free(widths);
    free(table->text);
    *table = (struct weights_table){0};
}

/* --- JSON --- */

static void put_string(struct hl_text *json, const char *text)
{
    const size_t size = strlen(text);
    if (hl_json_valid_utf8(text, size)) {
        hl_json_put_string(json, text, size);
        return;
    }
    char *ascii = strdup(text);
    if (!ascii) {
        json->failed = true;
        return;
    }
    for (char *at = ascii; *at; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    hl_json_put_string(json, ascii, size);
    free(ascii);
}

/* The comma before a member or element, and the member's key. */
static void put_key(struct hl_text *json, const char *key)
{
    const char last = json->size ? json->bytes[json->size - 1] : '{';
    if (last != '{' && last != '[')
        hl_text_append(json, ",", 1);
    if (key) {
        put_string(json, key);
        hl_text_append(json, ":", 1);
    }
}

void weights_json_open(struct hl_text *json, const char *key, char bracket)
{
    put_key(json, key);
    hl_text_append(json, &bracket, 1);
}

void weights_json_close(struct hl_text *json, char bracket)
{
    hl_text_append(json, &bracket, 1);
}

void weights_json_string(struct hl_text *json, const char *key, const char *text)
{
    put_key(json, key);
    if (text)
        put_string(json, text);
    else
        hl_text_append(json, "null", 4);
}

void weights_json_number(struct hl_text *json, const char *key, uint64_t number)
{
    put_key(json, key);
    hl_text_print(json, "%" PRIu64, number);
}

void weights_json_limit(struct hl_text *json, const char *key, uint64_t limit)
{
    if (limit == HL_WEIGHT_NO_LIMIT)
        weights_json_string(json, key, NULL);
    else
        weights_json_number(json, key, limit);
}

void weights_json_bool(struct hl_text *json, const char *key, bool value)
{
    put_key(json, key);
    hl_text_print(json, "%s", value ? "true" : "false");
}

void weights_json_raw(struct hl_text *json, const char *key, const char *document)
{
    put_key(json, key);
    hl_text_append(json, document, strlen(document));
}

void weights_json_failure(struct hl_text *json, const char *key, const hl_weight_failure *failure)
{
    weights_json_open(json, key, '{');
    weights_json_string(json, "stage", hl_weight_stage_name(failure->stage));
    weights_json_string(json, "code", hl_weight_code_name(failure->code));
    weights_json_string(json, "status", hl_status_name(failure->error.status));
    weights_json_bool(json, "retryable", failure->retryable);
    weights_json_string(json, "text", failure->error.text);
    weights_json_raw(json, "details", failure->details[0] ? failure->details : "{}");
    weights_json_string(json, "remedy", hl_weight_code_remedy(failure->code));
    weights_json_close(json, '}');
}

bool weights_json_print(struct hl_text *json)
{
    const bool good = !json->failed && printf("%s\n", json->bytes) >= 0 && fflush(stdout) == 0;
    hl_text_free(json);
    return good;
}

/* --- failures --- */

void weights_print_failure(FILE *to, const char *indent, const hl_weight_failure *failure)
{
    fprintf(to, "%s%s: %s: %s\n", indent, hl_weight_stage_name(failure->stage),
            hl_weight_code_name(failure->code), failure->error.text);
    if (failure->details[0] && strcmp(failure->details, "{}") != 0)
        fprintf(to, "%sdetails: %s\n", indent, failure->details);
    fprintf(to, "%swhat to do: %s%s\n", indent, hl_weight_code_remedy(failure->code),
            failure->retryable ? " (it may pass: try again)" : "");
}

int weights_fail(bool json, const hl_weight_failure *failure)
{
    if (!json) {
        fputs("hostlane weights: failed\n", stderr);
        weights_print_failure(stderr, "  ", failure);
        return WEIGHTS_FAILED;
    }
    struct hl_text text = {0};
    weights_json_open(&text, NULL, '{');
    weights_json_bool(&text, "ok", false);
    weights_json_failure(&text, "failure", failure);
    weights_json_close(&text, '}');
    weights_json_print(&text);
    return WEIGHTS_FAILED;
}
