/* Strings: UTF-8, escapes, and the text form of both. */
#include <assert.h>
#include <endian.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/json/node.h"

/* Bytes of the well-formed UTF-8 sequence at `at`, of at most `left` bytes; 0 when it is none: overlong,
 * a surrogate, beyond U+10FFFF, cut short. */
static size_t sequence_bytes(const unsigned char *at, size_t left)
{
    if (at[0] < 0x80)
        return 1;
    size_t size = at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (at[0] < 0xc2 || at[0] > 0xf4 || left < size)
        return 0;
    /* The second byte alone tells overlong forms, surrogates and too large ones. */
    unsigned char low = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
    if (at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++) {
        if (at[i] < 0x80 || at[i] > 0xbf)
            return 0;
    }
    return size;
}

bool hl_json_valid_utf8(const char *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t step = sequence_bytes((const unsigned char *)bytes + at, size - at);
        if (step == 0)
            return false;
        at += step;
    }
    return true;
}

/* How many bytes from `at` are printable ASCII and neither quote nor backslash, at least up to the first that
 * is something else or to the last few before `end`: eight at a time. */
static size_t plain_bytes(const char *at, const char *end)
{
    static const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    size_t done = 0;
    for (; end - at >= (ptrdiff_t)(done + 8); done += 8) {
        uint64_t word;
        memcpy(&word, at + done, sizeof word);
        word = le64toh(word);
        /* A byte's high bit: set, about to be set (0x7f), below '"' but for ' ' and '!', a backslash. The
         * lowest mark is right; one above it may come from a borrow. */
        const uint64_t marks =
            (word | (word + ones) | ((word ^ ones * 2) - ones * 0x21) | ((word ^ ones * '\\') - ones)) & high;
        if (marks)
            return done + (size_t)__builtin_ctzll(marks) / 8;
    }
    return done;
}

/* The value of four hexadecimal digits, or -1. The text's NUL ends a short one. */
static int scan_hex4(const char *digits)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = digits[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t encode_utf8(uint32_t point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    size_t size = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (point & 0x3f));
        point >>= 6;
    }
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[size] | point);
    return size;
}

/* Whether the canonical encoding has this \uXXXX, whose first digit is at `digits`. */
static bool is_canonical_unicode(const char *digits, uint32_t point)
{
    for (int i = 0; i < 4; i++) {
        if (digits[i] >= 'A' && digits[i] <= 'F')
            return false;
    }
    return point >= 0x7f || (point < 0x20 && !(point && strchr("\b\t\n\f\r", (int)point)));
}

/* Reads \uXXXX, or two of them that are a surrogate pair, at the backslash. */
static hl_status scan_unicode(struct hl_json_reader *reader, uint32_t *point)
{
    const char *text = reader->document->text;
    int first = scan_hex4(text + reader->at + 2);
    if (first < 0)
        return HL_JSON_CORRUPT(reader, reader->at, "\\u without four hexadecimal digits");
    if (!is_canonical_unicode(text + reader->at + 2, (uint32_t)first))
        reader->document->uncanonical = true;
    if (first < 0xd800 || first > 0xdfff) {
        reader->at += 6;
        *point = (uint32_t)first;
        return HL_OK;
    }
    const char *second_at = text + reader->at + 6;
    int second =
        first < 0xdc00 && second_at[0] == '\\' && second_at[1] == 'u' ? scan_hex4(second_at + 2) : -1;
    if (second < 0xdc00 || second > 0xdfff)
        return HL_JSON_CORRUPT(reader, reader->at, "a surrogate without its other half");
    if (!is_canonical_unicode(second_at + 2, (uint32_t)second))
        reader->document->uncanonical = true;
    reader->at += 12;
    *point = 0x10000 + (((uint32_t)first & 0x3ff) << 10) + ((uint32_t)second & 0x3ff);
    return HL_OK;
}

/* Unescapes the sequence at the backslash to `out`. */
static hl_status scan_escape(struct hl_json_reader *reader, char **out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char letter = reader->document->text[reader->at + 1];
    if (letter == 'u') {
        uint32_t point = 0;
        hl_status status = scan_unicode(reader, &point);
        if (status == HL_OK)
            *out += encode_utf8(point, *out);
        reader->nul |= point == 0;
        return status;
    }
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found)
        return HL_JSON_CORRUPT(reader, reader->at, "an unknown escape in a string");
    if (letter == '/')
        reader->document->uncanonical = true;
    *(*out)++ = meanings[found - letters];
    reader->at += 2;
    return HL_OK;
}

/* Reads on at the first byte of a string that is not plain, moving what follows to `out`; leaves reader->at
 * at the closing quote. */
static hl_status scan_rest(struct hl_json_reader *reader, size_t opened, char **out)
{
    hl_json *document = reader->document;
    char *text = document->text;
    for (;;) {
        unsigned char c = (unsigned char)text[reader->at];
        if (c == '"')
            return HL_OK;
        if (c == '\\' && document->borrowed) {
            reader->escaped = true;
            return HL_E_CANCELLED;
        }
        if (c == '\\') {
            hl_status status = scan_escape(reader, out);
            if (status != HL_OK)
                return status;
            continue;
        }
        if (c < 0x20) {
            if (reader->at == document->bytes)
                return HL_JSON_CORRUPT(reader, opened, "a string that does not end");
            return HL_JSON_CORRUPT(reader, reader->at, "a control character in a string");
        }
        size_t step = sequence_bytes((unsigned char *)text + reader->at, document->bytes - reader->at);
        if (step == 0)
            return HL_JSON_CORRUPT(reader, reader->at, "not UTF-8");
        document->uncanonical |= c >= 0x7f;
        memmove(*out, text + reader->at, step);
        *out += step;
        reader->at += step;
    }
}

hl_status hl_json_scan_string(struct hl_json_reader *reader, uint32_t *size)
{
    char *text = reader->document->text;
    size_t opened = reader->at;
    reader->nul = false;
    assert(text[opened] == '"');
    char *start = text + opened + 1, *out = start + plain_bytes(start, text + reader->document->bytes);
    reader->at = (size_t)(out - text);
    if (*out != '"') {
        hl_status status = scan_rest(reader, opened, &out);
        if (status != HL_OK)
            return status;
    }
    reader->at++;
    *size = (uint32_t)(out - start);
    *out = '\0';
    return HL_OK;
}

const char *hl_json_quote(char quoted[HL_JSON_QUOTE_BYTES], const char *bytes, size_t size)
{
    size_t shown = size < 64 ? size : 64, at = 0;
    quoted[at++] = '"';
    for (size_t i = 0; i < shown; i++)
        quoted[at++] = bytes[i] >= 0x20 && bytes[i] < 0x7f ? bytes[i] : '?';
    quoted[at++] = '"';
    if (shown < size) {
        memcpy(quoted + at, "...", 3);
        at += 3;
    }
    quoted[at] = '\0';
    return quoted;
}

static uint32_t decode_utf8(const unsigned char *at, size_t size)
{
    static const unsigned char payload[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t point = at[0] & payload[size];
    for (size_t i = 1; i < size; i++)
        point = point << 6 | (at[i] & 0x3f);
    return point;
}

static void put_escaped(struct hl_text *text, uint32_t point)
{
    static const char characters[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    const char *found = point && point < 0x80 ? strchr(characters, (int)point) : NULL;
    if (found) {
        hl_text_append(text, (const char[]){'\\', letters[found - characters]}, 2);
        return;
    }
    if (point >= 0x10000) {
        put_escaped(text, 0xd800 + ((point - 0x10000) >> 10));
        point = 0xdc00 + ((point - 0x10000) & 0x3ff);
    }
    char escape[6] = {'\\', 'u'};
    for (int i = 0; i < 4; i++)
        escape[2 + i] = hex[point >> (12 - 4 * i) & 0xf];
    hl_text_append(text, escape, sizeof escape);
}

void hl_json_put_string(struct hl_text *text, const char *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes, *end = at + size;
    hl_text_append(text, "\"", 1);
    while (at < end) {
        const unsigned char *plain = at;
        while (at < end && *at >= 0x20 && *at < 0x7f && *at != '"' && *at != '\\')
            at++;
        hl_text_append(text, plain, (size_t)(at - plain));
        if (at == end)
            break;
        size_t step = sequence_bytes(at, (size_t)(end - at));
        assert(step > 0);
        put_escaped(text, decode_utf8(at, step));
        at += step;
    }
    hl_text_append(text, "\"", 1);
}
