#include "core/channel/text.h"

#include <string.h>

static bool is_printable(char c)
{
    return c >= 0x20 && c <= 0x7e;
}

const char *hl_channel_text_fault(const char *field, size_t size)
{
    const char *end = memchr(field, '\0', size);
    if (!end)
        return "has no NUL";
    for (const char *c = field; c < end; c++)
        if (!is_printable(*c))
            return "has a byte that is not printable ASCII";
    if (!hl_channel_is_zero(end, size - (size_t)(end - field)))
        return "has bytes after its NUL";
    return NULL;
}

void hl_channel_text_fill(char *field, size_t size, const char *text)
{
    memset(field, 0, size);
    for (size_t i = 0; i + 1 < size && text[i]; i++)
        field[i] = is_printable(text[i]) ? text[i] : '?';
}

bool hl_channel_is_zero(const void *bytes, size_t size)
{
    /* Every byte equals the one before it. A restore's descriptor has a kilobyte of them to look at. */
    const unsigned char *byte = bytes;
    return size == 0 || (byte[0] == 0 && memcmp(byte, byte + 1, size - 1) == 0);
}
