#include "core/weights/cli/print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

char *weights_plain(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        if (*at < 0x20 || *at == 0x7f)
            *at = '?';
        else if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) /* U+0080 to U+009F, in UTF-8 */
            at[0] = at[1] = '?';
    }
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
    table->text[table->cells++] = weights_plain(copy);
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

bool weights_json_print(struct hl_text *json)
{
    const bool good = !json->failed && printf("%s\n", json->bytes) >= 0 && fflush(stdout) == 0;
    hl_text_free(json);
    return good;
}
