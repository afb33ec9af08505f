/* Text fields of the wire: fixed arrays that hold printable ASCII, a NUL, and only zero bytes after it, so
 * that they can be printed and compared byte by byte. */
#ifndef CORE_CHANNEL_TEXT_H
#define CORE_CHANNEL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* NULL when `field` of `size` bytes is such text; else what is wrong with it, for "%s %s" after its name. */
const char *hl_channel_text_fault(const char *field, size_t size);

/* Writes `text` as such a field: cut to fit, other bytes replaced by '?'. */
void hl_channel_text_fill(char *field, size_t size, const char *text);

bool hl_channel_is_zero(const void *bytes, size_t size);

#endif
