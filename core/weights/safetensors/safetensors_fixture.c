#include "core/weights/safetensors/safetensors_fixture.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct header_text header_make(const char *text, size_t size, bool pad)
{
    struct header_text header = {.size = pad ? (size + 7) / 8 * 8 : size};
    header.bytes = malloc(header.size ? header.size : 1);
    assert(header.bytes);
    memset(header.bytes, ' ', header.size);
    for (size_t i = 0; i < size; i++)
        header.bytes[i] = text[i] == '`' ? '"' : text[i];
    return header;
}

void header_free(struct header_text *header)
{
    free(header->bytes);
}

hl_status parse_text(const char *text, uint64_t data_bytes, enum hl_safetensors_strictness strictness,
                     hl_safetensors **parsed, hl_error *err)
{
    struct header_text header = header_make(text, strlen(text), true);
    hl_status status = hl_safetensors_parse(header.bytes, header.size, 8 + header.size + data_bytes,
                                            strictness, parsed, err);
    header_free(&header);
    return status;
}

int file_make(const void *bytes, size_t size)
{
    int fd = memfd_create("safetensors", MFD_CLOEXEC);
    assert(fd >= 0);
    ssize_t written = write(fd, bytes, size);
    assert(written == (ssize_t)size);
    return fd;
}

static int compare_strings(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void require_unique_names(const hl_safetensors *parsed)
{
    size_t count = parsed->tensor_count;
    const char **names = malloc((count + 1) * sizeof *names);
    assert(names);
    for (size_t i = 0; i < count; i++)
        names[i] = parsed->tensors[i].name;
    qsort(names, count, sizeof *names, compare_strings);
    for (size_t i = 1; i < count; i++)
        assert(strcmp(names[i - 1], names[i]) != 0);
    free(names);
}

static void require_ordered(const struct hl_safetensors_tensor *left,
                            const struct hl_safetensors_tensor *right)
{
    assert(left->begin <= right->begin);
    if (left->begin == right->begin)
        assert(left->end < right->end || (left->end == right->end && strcmp(left->name, right->name) < 0));
}

void require_sound(const hl_safetensors *parsed)
{
    uint64_t covered = 0;
    uint32_t misaligned = 0;
    for (size_t i = 0; i < parsed->tensor_count; i++) {
        const struct hl_safetensors_tensor *tensor = &parsed->tensors[i];
        uint64_t bytes = 0;
        hl_error err;
        assert(tensor->name[0] && hl_json_valid_utf8(tensor->name, strlen(tensor->name)));
        assert(tensor->begin == covered && tensor->end >= tensor->begin && tensor->end <= parsed->data_bytes);
        assert(hl_safetensors_tensor_bytes(tensor->dtype, tensor->shape, tensor->rank, &bytes, &err) ==
               HL_OK);
        assert(bytes == tensor->end - tensor->begin);
        unsigned alignment = hl_safetensors_bits(tensor->dtype) / 8;
        misaligned += bytes && alignment && (parsed->data_offset + tensor->begin) % alignment != 0;
        if (i > 0)
            require_ordered(tensor - 1, tensor);
        covered = tensor->end;
    }
    assert(covered == parsed->data_bytes);
    assert(misaligned == parsed->tolerated.misaligned);
    for (size_t i = 1; i < parsed->metadata_count; i++)
        assert(strcmp(parsed->metadata[i - 1].key, parsed->metadata[i].key) < 0);
    require_unique_names(parsed);
}
