/* Numbers: the grammar, and values of those that fit a type. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/json/node.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Moves reader->at over digits; false when there is none. */
static bool skip_digits(struct hl_json_reader *reader)
{
    const char *text = reader->document->text;
    size_t start = reader->at;
    while (is_digit(text[reader->at]))
        reader->at++;
    return reader->at > start;
}

hl_status hl_json_scan_number(struct hl_json_reader *reader, enum hl_json_type *type, uint32_t *small)
{
    const char *text = reader->document->text;
    size_t start = reader->at;
    enum hl_json_type found = HL_JSON_INTEGER;
    reader->at += text[reader->at] == '-';
    size_t first = reader->at;
    if (!skip_digits(reader))
        return HL_JSON_CORRUPT(reader, start, "a sign without a number");
    if (text[first] == '0' && reader->at - first > 1)
        return HL_JSON_CORRUPT(reader, start, "a number with a leading zero");
    if (text[reader->at] == '.') {
        found = HL_JSON_REAL;
        reader->at++;
        if (!skip_digits(reader))
            return HL_JSON_CORRUPT(reader, start, "a number that ends in a point");
    }
    if (text[reader->at] == 'e' || text[reader->at] == 'E') {
        found = HL_JSON_REAL;
        reader->at++;
        reader->at += text[reader->at] == '+' || text[reader->at] == '-';
        if (!skip_digits(reader))
            return HL_JSON_CORRUPT(reader, start, "a number without the digits of its exponent");
    }
    if (found == HL_JSON_REAL && !isfinite(hl_json_real_value(text + start)))
        return HL_JSON_CORRUPT(reader, start, "a number that no double can hold");
    *small = 0;
    if (found == HL_JSON_REAL) {
        reader->document->reals++;
    } else {
        reader->document->integers++;
        for (size_t at = first;
             first == start && reader->at - first <= HL_JSON_SMALL_DIGITS && at < reader->at; at++)
            *small = *small * 10 + (uint32_t)(text[at] - '0');
        reader->document->uncanonical |= first > start && text[first] == '0'; /* -0 */
    }
    *type = found;
    return HL_OK;
}

double hl_json_real_value(const char *text)
{
    /* strtod() would look for the decimal point of the program's locale. The C locale is a constant of the
     * library: making it allocates nothing and cannot fail. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    int kept = errno;
    double value = strtod_l(text, NULL, c);
    errno = kept;
    return value;
}

/* The absolute value of an integer node. */
static bool magnitude(const hl_json_node *node, bool *negative, uint64_t *value)
{
    if (node->type != HL_JSON_INTEGER)
        return false;
    const char *text = hl_json_text_of(node);
    size_t at = node->begin;
    *negative = text[at] == '-';
    uint64_t sum = 0;
    for (at += *negative; at < node->end; at++) {
        if (!hl_mul_u64(sum, 10, &sum) || !hl_add_u64(sum, (uint64_t)(text[at] - '0'), &sum))
            return false;
    }
    *value = sum;
    return true;
}

bool hl_json_large_u64(const hl_json_node *node, uint64_t *value)
{
    bool negative = false;
    uint64_t found = 0;
    if (!magnitude(node, &negative, &found) || (negative && found != 0))
        return false;
    *value = found;
    return true;
}

bool hl_json_i64(const hl_json_node *node, int64_t *value)
{
    bool negative = false;
    uint64_t found = 0;
    if (!magnitude(node, &negative, &found) || found > (uint64_t)INT64_MAX + negative)
        return false;
    *value = negative ? (int64_t)(0 - found) : (int64_t)found;
    return true;
}
