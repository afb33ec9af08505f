/* hl_text: a text that grows, and remembers that it could not. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/json/json.h"

/* Room for `size` more bytes and the NUL. */
static bool reserve(struct hl_text *text, size_t size)
{
    if (text->failed)
        return false;
    if (size < text->capacity - text->size)
        return true;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity - text->size <= size) {
        if (__builtin_mul_overflow(capacity, 2, &capacity))
            goto err_remember;
    }
    char *bytes = realloc(text->bytes, capacity);
    if (!bytes)
        goto err_remember;
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
err_remember:
    text->failed = true;
    return false;
}

void hl_text_append(struct hl_text *text, const void *bytes, size_t size)
{
    if (!reserve(text, size))
        return;
    if (size > 0)
        memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = '\0';
}

void hl_text_print(struct hl_text *text, const char *format, ...)
{
    va_list args, again;
    if (text->failed)
        return;
    va_start(args, format);
    va_copy(again, args);
    const size_t room = text->capacity - text->size;
    int size = vsnprintf(room ? text->bytes + text->size : NULL, room, format, args);
    assert(size >= 0);
    if ((size_t)size < room) {
        text->size += (size_t)size;
    } else if (reserve(text, (size_t)size)) {
        vsnprintf(text->bytes + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    } else if (room) {
        text->bytes[text->size] = '\0'; /* nothing was appended */
    }
    va_end(again);
    va_end(args);
}

hl_status hl_text_status(const struct hl_text *text, const char *stage, hl_error *err)
{
    if (text->failed)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a text of more than %zu bytes", text->size);
    return HL_OK;
}

void hl_text_free(struct hl_text *text)
{
    free(text->bytes);
    *text = (struct hl_text){0};
}
