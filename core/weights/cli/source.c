#include "core/weights/cli/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/cli/index.h"
#include "hostlane/limits.h"

#define STAGE "weights.import"

/* --- stamps --- */

static struct weights_source_stamp stamp_of(const struct stat *st)
{
    return (struct weights_source_stamp){
        .device = st->st_dev, .inode = st->st_ino, .size = st->st_size, .modified = st->st_mtim};
}

static bool same(const struct weights_source_stamp *a, const struct weights_source_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

/* A pipe in the place of a file must not block the open. */
static hl_status open_regular(int folder, const char *name, struct weights_source_stamp *stamp, int *fd,
                              hl_error *err)
{
    struct stat st;
    const int opened = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return HL_FAIL_ERRNO(err, errno == ENOENT ? HL_E_NOT_FOUND : HL_E_SYSTEM, STAGE, errno,
                             "cannot open %.120s", name);
    if (fstat(opened, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(opened);
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%.120s is no regular file", name);
    }
    *stamp = stamp_of(&st);
    *fd = opened;
    return HL_OK;
}

static hl_status changed(const char *name, hl_error *err)
{
    return HL_FAIL(err, HL_E_STATE, STAGE, "%.120s changed while it was imported", name);
}

hl_status weights_source_open_file(const struct weights_source *source,
                                   const struct weights_source_file *file, int *fd, hl_error *err)
{
    struct weights_source_stamp now;
    int opened;
    const hl_status status = open_regular(source->folder, file->name, &now, &opened, err);
    if (status != HL_OK)
        return status;
    if (!same(&now, &file->stamp)) {
        close(opened);
        return changed(file->name, err);
    }
    *fd = opened;
    return HL_OK;
}

/* By name, so that a link that leads elsewhere now, or a file that took the old one's place, is seen too. */
static hl_status check_stamp(const struct weights_source *source, const char *name,
                             const struct weights_source_stamp *stamp, hl_error *err)
{
    struct stat st;
    if (fstatat(source->folder, name, &st, 0) != 0)
        return HL_FAIL_ERRNO(err, HL_E_STATE, STAGE, errno, "%.120s vanished while it was imported", name);
    const struct weights_source_stamp now = stamp_of(&st);
    return same(&now, stamp) ? HL_OK : changed(name, err);
}

hl_status weights_source_check_unchanged(const struct weights_source *source, hl_error *err)
{
    hl_status status =
        source->index_name ? check_stamp(source, source->index_name, &source->index_stamp, err) : HL_OK;
    for (size_t i = 0; status == HL_OK && i < source->file_count; i++)
        status = check_stamp(source, source->files[i].name, &source->files[i].stamp, err);
    return status;
}

/* --- which files --- */

static bool exists(int folder, const char *name)
{
    struct stat st;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) ==
           0; /* a broken link is an error later, not absent */
}

/* The one file or index of the folder. */
static hl_status choose(const char *path, struct weights_source *source, char name[64], hl_error *err)
{
    static const char *const candidates[] = {"model.safetensors.index.json", "model.safetensors",
                                             "diffusion_pytorch_model.safetensors.index.json",
                                             "diffusion_pytorch_model.safetensors"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        if (!exists(source->folder, candidates[i]))
            continue;
        if (found)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%.80s holds both %s and %s: which is meant?", path,
                           found, candidates[i]);
        found = candidates[i];
    }
    if (!found)
        return HL_FAIL(err, HL_E_NOT_FOUND, STAGE,
                       "%.80s holds neither model.safetensors nor model.safetensors.index.json", path);
    snprintf(name, 64, "%s", found);
    return HL_OK;
}

/* --- reading --- */

static hl_status read_text(int fd, const char *name, uint64_t bytes, char **text, hl_error *err)
{
    if (bytes > HL_WEIGHT_DOCUMENT_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%s has %llu bytes, more than %llu", name,
                       (unsigned long long)bytes, HL_WEIGHT_DOCUMENT_BYTES);
    char *read_text = malloc(bytes + 1);
    if (!read_text)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "%llu bytes of %s", (unsigned long long)bytes, name);
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, read_text + done, bytes - done, (off_t)done);
        if (got > 0) {
            done += (size_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        free(read_text);
        return got == 0 ? changed(name, err)
                        : HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %s", name);
    }
    *text = read_text;
    return HL_OK;
}

static hl_status read_header(const struct weights_source *source, struct weights_source_file *file,
                             hl_error *err)
{
    int fd;
    hl_error why = {0};
    hl_status status = open_regular(source->folder, file->name, &file->stamp, &fd, err);
    if (status != HL_OK)
        return status;
    status =
        hl_safetensors_read(fd, (uint64_t)file->stamp.size, HL_SAFETENSORS_TOLERANT, &file->header, &why);
    close(fd);
    if (status != HL_OK)
        return HL_FAIL_ERRNO(err, status, STAGE, why.sys_errno, "%.100s: %s", file->name, why.text);
    for (size_t i = 0; i < file->header->tensor_count; i++)
        file->tensor_bytes += file->header->tensors[i].end - file->header->tensors[i].begin;
    return file->header->tensor_count
               ? HL_OK
               : HL_FAIL(err, HL_E_INVALID, STAGE, "%.100s holds no tensor", file->name);
}

static hl_status add_file(struct weights_source *source, const char *name, hl_error *err)
{
    struct weights_source_file *file = &source->files[source->file_count];
    *file = (struct weights_source_file){.name = strdup(name)};
    if (!file->name)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "a file's name");
    source->file_count++;
    const hl_status status = read_header(source, file, err);
    if (status != HL_OK)
        return status;
    source->tensor_count += file->header->tensor_count;
    source->tensor_bytes += file->tensor_bytes; /* each is below its file's size */
    return HL_OK;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The index's files, each once, in the order of their names. */
static hl_status add_files_of(struct weights_source *source, struct weights_index *index, hl_error *err)
{
    const char **names = malloc(index->count * sizeof *names);
    if (!names)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu names", index->count);
    for (size_t i = 0; i < index->count; i++)
        names[i] = index->entries[i].file;
    qsort(names, index->count, sizeof *names, compare_names);
    size_t count = 0;
    for (size_t i = 0; i < index->count; i++)
        if (i == 0 || strcmp(names[i], names[count - 1]) != 0)
            names[count++] = names[i];
    hl_status status = HL_OK;
    if (count > HL_WEIGHT_FILES)
        status = HL_FAIL(err, HL_E_LIMIT, STAGE, "%zu files, more than %u", count, HL_WEIGHT_FILES);
    else if (!(source->files = calloc(count, sizeof *source->files)))
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu files", count);
    for (size_t i = 0; status == HL_OK && i < count; i++) {
        status = add_file(source, names[i], err);
        if (status == HL_OK)
            status = weights_index_match(index, &source->files[i], err);
    }
    free(names);
    return status == HL_OK ? weights_index_check_complete(index, err) : status;
}

static hl_status open_index(struct weights_source *source, const char *name, hl_error *err)
{
    struct weights_index index = {0};
    char *text = NULL;
    int fd;
    source->index_name = strdup(name);
    if (!source->index_name)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "the index's name");
    hl_status status = open_regular(source->folder, name, &source->index_stamp, &fd, err);
    if (status != HL_OK)
        return status;
    const uint64_t bytes = (uint64_t)source->index_stamp.size;
    status = read_text(fd, name, bytes, &text, err);
    close(fd);
    if (status == HL_OK)
        status = weights_index_parse(text, bytes, source->index_name, &index, err);
    if (status == HL_OK) {
        source->claimed_bytes = index.total_size;
        status = add_files_of(source, &index, err);
    }
    weights_index_free(&index);
    free(text);
    return status;
}

static hl_status open_one_file(struct weights_source *source, const char *name, hl_error *err)
{
    source->files = calloc(1, sizeof *source->files);
    return source->files ? add_file(source, name, err) : HL_FAIL(err, HL_E_NOMEM, STAGE, "one file");
}

hl_status weights_source_open(const char *path, struct weights_source *source, hl_error *err)
{
    char name[64];
    *source = (struct weights_source){.folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (source->folder < 0)
        return HL_FAIL_ERRNO(err, errno == ENOENT ? HL_E_NOT_FOUND : HL_E_SYSTEM, STAGE, errno,
                             "cannot open the folder %.160s", path);
    hl_status status = choose(path, source, name, err);
    if (status == HL_OK)
        status =
            strstr(name, ".index.json") ? open_index(source, name, err) : open_one_file(source, name, err);
    if (status != HL_OK)
        weights_source_close(source);
    return status;
}

void weights_source_close(struct weights_source *source)
{
    for (size_t i = 0; i < source->file_count; i++) {
        hl_safetensors_free(source->files[i].header);
        free(source->files[i].name);
    }
    free(source->files);
    free(source->index_name);
    if (source->folder >= 0)
        close(source->folder);
    *source = (struct weights_source){.folder = -1};
}
