/* How the tool shows things: sizes for people, aligned tables, JSON, and failures with what to do. */
#ifndef CORE_WEIGHTS_CLI_PRINT_H
#define CORE_WEIGHTS_CLI_PRINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/weights/json/json.h"
#include "hostlane/weights.h"

#define WEIGHTS_SIZE_BYTES 24
const char *weights_size(char text[WEIGHTS_SIZE_BYTES], uint64_t bytes);  /* "12.3 GiB" */
const char *weights_limit(char text[WEIGHTS_SIZE_BYTES], uint64_t bytes); /* the same, or "none" */

/* Replaces what could move a terminal's cursor or break a line, in place; others wrote the text. */
char *weights_plain(char *text);

/* A table whose columns are as wide as they must be; the last is not padded. Cells are copied and
 * made plain; right_aligned is a set of bits. */
struct weights_table {
    size_t columns, cells, capacity;
    unsigned right_aligned;
    char **text;
};
void weights_table_add(struct weights_table *table, const char *cell);
void weights_table_print(struct weights_table *table, FILE *to); /* and frees the cells */

/* JSON, written in order. Commas come by themselves. `text` of any bytes: what is no UTF-8 becomes '?'. */
void weights_json_open(struct hl_text *json, const char *key,
                       char bracket); /* key NULL: in an array, or first */
void weights_json_close(struct hl_text *json, char bracket);
void weights_json_string(struct hl_text *json, const char *key, const char *text); /* NULL: null */
void weights_json_number(struct hl_text *json, const char *key, uint64_t number);
void weights_json_limit(struct hl_text *json, const char *key, uint64_t limit); /* NO_LIMIT: null */
void weights_json_bool(struct hl_text *json, const char *key, bool value);
void weights_json_raw(struct hl_text *json, const char *key, const char *document);
void weights_json_failure(struct hl_text *json, const char *key, const hl_weight_failure *failure);
/* Prints the line and frees it; false when memory or standard output failed. */
bool weights_json_print(struct hl_text *json);

/* --- failure.c --- */

/* What to do about a failure, for somebody at the command line. */
const char *weights_remedy(const hl_weight_failure *failure);

/* Says a failure: stage, code, text, details and what to do; as JSON on standard output when `json`, else on
 * standard error. Returns WEIGHTS_FAILED. */
int weights_fail(bool json, const hl_weight_failure *failure);
/* The lines of a failure alone, each after `indent`. */
void weights_print_failure(FILE *to, const char *indent, const hl_weight_failure *failure);

#endif
