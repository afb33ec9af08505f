/* BASE.safetensors.index.json: which file has which tensor. */
#ifndef CORE_WEIGHTS_CLI_INDEX_H
#define CORE_WEIGHTS_CLI_INDEX_H

#include "core/weights/cli/source.h"
#include "core/weights/json/json.h"

struct weights_index_entry {
    const char *tensor, *file;
    bool found;
};

struct weights_index {
    hl_json *document; /* what the strings point into */
    const char *name;
    struct weights_index_entry *entries; /* sorted by tensor */
    size_t count;
    uint64_t total_size; /* 0: none given */
};

/* HL_E_CORRUPT: no JSON, or not of this form; HL_E_INVALID: a name that can't be a file of the folder.
 * `name` is kept. */
hl_status weights_index_parse(const char *text, size_t bytes, const char *name, struct weights_index *index,
                              hl_error *err);
void weights_index_free(struct weights_index *index);

/* Marks the tensors of a file as found. HL_E_INVALID: one that the index lacks or has in another file. */
hl_status weights_index_match(struct weights_index *index, const struct weights_source_file *file,
                              hl_error *err);
/* HL_E_INVALID when a tensor of the index was in no file. */
hl_status weights_index_check_complete(const struct weights_index *index, hl_error *err);

#endif
