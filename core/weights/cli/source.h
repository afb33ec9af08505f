/* A folder of safetensors files as Hugging Face lays it out: BASE.safetensors alone, or the files that
 * BASE.safetensors.index.json lists, BASE being "model" or "diffusion_pytorch_model". Links are followed, as
 * the snapshots of its cache need; what they lead to are regular files. Nothing is written. */
#ifndef CORE_WEIGHTS_CLI_SOURCE_H
#define CORE_WEIGHTS_CLI_SOURCE_H

#include <sys/stat.h>

#include "core/weights/safetensors/safetensors.h"

/* What a file was when it was first looked at. */
struct weights_source_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
};

struct weights_source_file {
    char *name;
    struct weights_source_stamp stamp;
    hl_safetensors *header;
    uint64_t tensor_bytes;
};

struct weights_source {
    int folder;
    char *index_name; /* NULL: one file without an index */
    struct weights_source_stamp index_stamp;
    struct weights_source_file *files; /* sorted by name */
    size_t file_count;
    size_t tensor_count;
    uint64_t tensor_bytes;
    uint64_t claimed_bytes; /* the index's total_size; 0: it has none */
};

/* Reads the index and every header. HL_E_NOT_FOUND: no such files; HL_E_INVALID: index and files disagree, or
 * it is not clear which are meant; HL_E_CORRUPT, HL_E_RANGE, HL_E_LIMIT, HL_E_OVERFLOW: a malformed file;
 * HL_E_SYSTEM, HL_E_NOMEM. The text names file and tensor. */
hl_status weights_source_open(const char *path, struct weights_source *source, hl_error *err);
void weights_source_close(struct weights_source *source);

/* Opens a file again, if it is still the same one. HL_E_STATE: it changed. */
hl_status weights_source_open_file(const struct weights_source *source,
                                   const struct weights_source_file *file, int *fd, hl_error *err);
/* HL_E_STATE when any file of the folder, or the index, is not what it was when the folder was opened. */
hl_status weights_source_check_unchanged(const struct weights_source *source, hl_error *err);

#endif
