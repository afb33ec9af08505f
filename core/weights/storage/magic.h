/* The numbers by which statfs() knows a file system, against its name in mountinfo. */
#ifndef CORE_WEIGHTS_STORAGE_MAGIC_H
#define CORE_WEIGHTS_STORAGE_MAGIC_H

#include <stdbool.h>
#include <stdint.h>

/* Whether `magic` is another than the name's. A name without a known number is never contradicted. */
bool hl_magic_contradicts(const char *type, uint32_t magic);

#endif
