/* Reals as Python's repr() writes them: the shortest digits that give the same double, and of those the
 * nearest; an exponent below 1e-4 and from 1e16 on. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/json/node.h"

enum { MOST_DIGITS = 17 };

/* value = 0.DIGITS * 10^point */
struct decimal {
    char digits[MOST_DIGITS + 1];
    int count;
    int point;
};

/* `value` correctly rounded to `count` digits. The character between the first and the second digit is the
 * locale's business and is skipped. */
static struct decimal round_to(double value, int count)
{
    char text[64];
    struct decimal d = {.count = 0};
    snprintf(text, sizeof text, "%.*e", count - 1, value);
    const char *at = text;
    for (; *at != 'e'; at++) {
        if (*at >= '0' && *at <= '9')
            d.digits[d.count++] = *at;
    }
    assert(d.count == count);
    d.point = (int)strtol(at + 1, NULL, 10) + 1;
    return d;
}

static double value_of(const struct decimal *d)
{
    char text[64];
    snprintf(text, sizeof text, "0.%.*se%d", d->count, d->digits, d->point);
    return hl_json_real_value(text);
}

/* The next larger decimal of as many digits. */
static void step_up(struct decimal *d)
{
    int i = d->count - 1;
    while (i >= 0 && d->digits[i] == '9')
        d->digits[i--] = '0';
    if (i >= 0) {
        d->digits[i]++;
    } else {
        d->digits[0] = '1';
        d->point++;
    }
}

/* Whether `count` digits are enough for `value`, and which. Below a power of two doubles lie twice as dense
 * as above it, so that there the nearest decimal may belong to a neighbour while the next one above does not.
 */
static bool represent(double value, int count, struct decimal *d)
{
    *d = round_to(value, count);
    if (value_of(d) == value)
        return true;
    int exponent = 0;
    if (frexp(value, &exponent) != 0.5)
        return false;
    step_up(d);
    return value_of(d) == value;
}

static struct decimal shortest(double value)
{
    struct decimal d = {.count = 0};
    /* Of a normal double, DBL_DIG digits show a shorter decimal with zeros behind it. Subnormal ones have
     * less precision than that, so that every length is tried. */
    int count = value < DBL_MIN ? 1 : DBL_DIG;
    while (count < MOST_DIGITS && !represent(value, count, &d))
        count++;
    if (count == MOST_DIGITS)
        d = round_to(value, MOST_DIGITS);
    while (d.count > 1 && d.digits[d.count - 1] == '0')
        d.count--;
    return d;
}

size_t hl_json_print_real(double value, char text[HL_JSON_REAL_BYTES])
{
    assert(isfinite(value));
    const char *sign = signbit(value) ? "-" : "";
    if (value == 0)
        return (size_t)snprintf(text, HL_JSON_REAL_BYTES, "%s0.0", sign);
    struct decimal d = shortest(fabs(value));
    int size;
    if (d.point > 16 || d.point <= -4)
        size = snprintf(text, HL_JSON_REAL_BYTES, "%s%c%s%.*se%+03d", sign, d.digits[0],
                        d.count > 1 ? "." : "", d.count - 1, d.digits + 1, d.point - 1);
    else if (d.point <= 0)
        size = snprintf(text, HL_JSON_REAL_BYTES, "%s0.%.*s%.*s", sign, -d.point, "000", d.count, d.digits);
    else if (d.count <= d.point)
        size = snprintf(text, HL_JSON_REAL_BYTES, "%s%.*s%.*s.0", sign, d.count, d.digits, d.point - d.count,
                        "0000000000000000");
    else
        size = snprintf(text, HL_JSON_REAL_BYTES, "%s%.*s.%.*s", sign, d.point, d.digits, d.count - d.point,
                        d.digits + d.point);
    assert(size > 0 && size < HL_JSON_REAL_BYTES);
    return (size_t)size;
}
