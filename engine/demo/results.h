/* The pieces of the results file that both modes of the demo write. Each returns a new reference, or NULL
 * without memory or where a text is not UTF-8. */
#ifndef ENGINE_DEMO_RESULTS_H
#define ENGINE_DEMO_RESULTS_H

#include <jansson.h>

#include "engine/demo/demo.h"

json_t *hl_demo_describe_options(const struct hl_demo_options *options);
json_t *hl_demo_describe_device(const struct hl_device_info *info);
json_t *hl_demo_describe_host(const hl_demo *demo, hl_error *err); /* fills *err when it returns NULL */
/* "arena_bytes" is 0 where the arena is another process's. */
json_t *hl_demo_describe_geometry(const hl_demo *demo);
json_t *hl_demo_numbers(const int64_t *values, uint32_t count);
/* HL_E_SYSTEM when the file cannot be written. */
hl_status hl_demo_write_json(const json_t *root, const char *path, hl_error *err);

#endif
