/* Headers and files of the tests. A text in a test has ` for ", since JSON in C is hard to read otherwise. */
#ifndef CORE_WEIGHTS_SAFETENSORS_SAFETENSORS_FIXTURE_H
#define CORE_WEIGHTS_SAFETENSORS_SAFETENSORS_FIXTURE_H

#include "core/weights/safetensors/safetensors.h"

struct header_text {
    char *bytes; /* of exactly this size, so that the sanitizer sees a read past it */
    size_t size;
};

/* A header from a text of `size` bytes with ` for ", padded with spaces to a multiple of 8 when `pad`. */
struct header_text header_make(const char *text, size_t size, bool pad);
void header_free(struct header_text *header);

/* The same, parsed, in a file with `data_bytes` bytes of data. */
hl_status parse_text(const char *text, uint64_t data_bytes, enum hl_safetensors_strictness strictness,
                     hl_safetensors **parsed, hl_error *err);

/* An unnamed file of these bytes, to read. */
int file_make(const void *bytes, size_t size);

/* Ends the test program when an invariant of a parsed header does not hold: the cover is exact, the order is
 * as promised, sizes are what shapes take, names are unique, counts are what they say. */
void require_sound(const hl_safetensors *parsed);

#endif
