/* safetensors_tool: what the C library makes of safetensors files, for comparing with another implementation.
 *
 *   safetensors_tool read
 *       For each line of standard input, the path of a file, one line of JSON:
 *       {"strict":ANSWER,"tolerant":ANSWER}, where an answer is the name of a status and a text, or what was
 *       read.
 *   safetensors_tool write SPEC DATA FILE
 *       Writes FILE. SPEC is a file with {"order":"by_name"|"aligned","metadata":{…},"tensors":[{"name":…,
 *       "dtype":…,"shape":[…]},…]}; DATA is a file with the tensors' bytes, in SPEC's order. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/weights/safetensors/safetensors.h"

enum { MOST_TENSORS = 256, MOST_METADATA = 64 };

static void put_tensor(struct hl_text *text, const struct hl_safetensors_tensor *tensor)
{
    hl_text_print(text, "{\"name\":");
    hl_json_put_string(text, tensor->name, strlen(tensor->name));
    hl_text_print(text, ",\"dtype\":\"%s\",\"begin\":%" PRIu64 ",\"end\":%" PRIu64 ",\"shape\":[",
                  hl_safetensors_dtype_name(tensor->dtype), tensor->begin, tensor->end);
    for (uint32_t i = 0; i < tensor->rank; i++)
        hl_text_print(text, i ? ",%" PRIu64 : "%" PRIu64, tensor->shape[i]);
    hl_text_print(text, "]}");
}

static void put_parsed(struct hl_text *text, const hl_safetensors *parsed)
{
    const struct hl_safetensors_tolerated *t = &parsed->tolerated;
    hl_text_print(text, "{\"data_offset\":%" PRIu64 ",\"tolerated\":%u,\"misaligned\":%u,\"tensors\":[",
                  parsed->data_offset,
                  t->leading_space + t->unaligned_header + t->unknown_fields + t->null_metadata +
                      t->duplicate_metadata,
                  t->misaligned);
    for (size_t i = 0; i < parsed->tensor_count; i++) {
        hl_text_print(text, "%s", i ? "," : "");
        put_tensor(text, &parsed->tensors[i]);
    }
    hl_text_print(text, "],\"metadata\":{");
    for (size_t i = 0; i < parsed->metadata_count; i++) {
        hl_text_print(text, "%s", i ? "," : "");
        hl_json_put_string(text, parsed->metadata[i].key, strlen(parsed->metadata[i].key));
        hl_text_print(text, ":");
        hl_json_put_string(text, parsed->metadata[i].value, strlen(parsed->metadata[i].value));
    }
    hl_text_print(text, "}}");
}

static void put_answer(struct hl_text *text, int fd, uint64_t file_bytes,
                       enum hl_safetensors_strictness strictness)
{
    hl_safetensors *parsed = NULL;
    hl_error err;
    hl_status status = hl_safetensors_read(fd, file_bytes, strictness, &parsed, &err);
    if (status == HL_OK) {
        put_parsed(text, parsed);
    } else {
        char answer[sizeof err.text + 32];
        snprintf(answer, sizeof answer, "%s %s", hl_status_name(status), err.text);
        hl_json_put_string(text, answer, strlen(answer));
    }
    hl_safetensors_free(parsed);
}

static int open_file(const char *path, uint64_t *bytes)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        perror(path);
        exit(2);
    }
    *bytes = (uint64_t)status.st_size;
    return fd;
}

static int read_files(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        struct hl_text text = {0};
        hl_error err;
        uint64_t bytes = 0;
        line[strcspn(line, "\n")] = '\0';
        int fd = open_file(line, &bytes);
        hl_text_print(&text, "{\"strict\":");
        put_answer(&text, fd, bytes, HL_SAFETENSORS_STRICT);
        hl_text_print(&text, ",\"tolerant\":");
        put_answer(&text, fd, bytes, HL_SAFETENSORS_TOLERANT);
        hl_text_print(&text, "}");
        close(fd);
        if (hl_text_status(&text, "tool", &err) != HL_OK)
            return 2;
        puts(text.bytes);
        hl_text_free(&text);
    }
    free(line);
    return fflush(stdout) == 0 ? 0 : 2;
}

struct spec {
    hl_json *document;
    enum hl_safetensors_order order;
    struct hl_safetensors_spec tensors[MOST_TENSORS];
    uint64_t shapes[MOST_TENSORS][HL_WEIGHT_RANK];
    size_t tensor_count;
    struct hl_safetensors_metadata metadata[MOST_METADATA];
    size_t metadata_count;
};

static void *read_whole(const char *path, uint64_t *bytes)
{
    int fd = open_file(path, bytes);
    char *content = malloc(*bytes + 1);
    if (!content || pread(fd, content, *bytes, 0) != (ssize_t)*bytes) {
        perror(path);
        exit(2);
    }
    close(fd);
    return content;
}

static bool read_tensor(struct spec *spec, const hl_json_node *node)
{
    size_t at = spec->tensor_count++;
    struct hl_safetensors_spec *tensor = &spec->tensors[at];
    const hl_json_node *shape = hl_json_member(node, "shape");
    tensor->name = hl_json_string(hl_json_member(node, "name"), NULL);
    tensor->shape = spec->shapes[at];
    for (const hl_json_node *item = hl_json_first(shape); item; item = hl_json_next(item))
        if (!hl_json_u64(item, &spec->shapes[at][tensor->rank++]))
            return false;
    return hl_safetensors_dtype_parse(hl_json_string(hl_json_member(node, "dtype"), NULL), &tensor->dtype);
}

static bool read_spec(const char *path, struct spec *spec)
{
    const struct hl_json_rules rules = {.max_bytes = 1 << 24, .max_depth = 8, .stage = "tool.spec"};
    uint64_t bytes = 0;
    hl_error err;
    char *text = read_whole(path, &bytes);
    hl_status status = hl_json_parse(text, bytes, &rules, &spec->document, &err);
    free(text);
    if (status != HL_OK)
        return false;
    const hl_json_node *root = hl_json_root(spec->document);
    const hl_json_node *tensors = hl_json_member(root, "tensors"),
                       *metadata = hl_json_member(root, "metadata");
    if (hl_json_count(tensors) > MOST_TENSORS || hl_json_count(metadata) > MOST_METADATA)
        return false;
    if (strcmp(hl_json_string(hl_json_member(root, "order"), NULL), "aligned") == 0)
        spec->order = HL_SAFETENSORS_ALIGNED;
    for (const hl_json_node *item = hl_json_first(metadata); item; item = hl_json_next(item))
        spec->metadata[spec->metadata_count++] =
            (struct hl_safetensors_metadata){hl_json_key(item, NULL), hl_json_string(item, NULL)};
    for (const hl_json_node *item = hl_json_first(tensors); item; item = hl_json_next(item))
        if (!read_tensor(spec, item))
            return false;
    return true;
}

static bool write_at(int fd, const char *bytes, uint64_t size, uint64_t offset)
{
    return size == 0 || pwrite(fd, bytes, size, (off_t)offset) == (ssize_t)size;
}

static int write_file(const char *spec_path, const char *data_path, const char *path)
{
    static struct spec spec;
    struct hl_safetensors_layout layout;
    hl_error err;
    uint64_t data_bytes = 0, at = 0;
    if (!read_spec(spec_path, &spec))
        return 2;
    if (hl_safetensors_lay_out(spec.tensors, spec.tensor_count, spec.metadata, spec.metadata_count,
                               spec.order, &layout, &err) != HL_OK) {
        fprintf(stderr, "%s %s\n", hl_status_name(err.status), err.text);
        return 1;
    }
    char *data = read_whole(data_path, &data_bytes);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    bool written = fd >= 0 && layout.header_bytes + data_bytes == layout.file_bytes &&
                   write_at(fd, layout.header, layout.header_bytes, 0);
    for (size_t i = 0; written && i < spec.tensor_count; at += layout.sizes[i++])
        written = write_at(fd, data + at, layout.sizes[i], layout.offsets[i]);
    if (fd >= 0)
        close(fd);
    free(data);
    hl_safetensors_layout_free(&layout);
    hl_json_free(spec.document);
    return written ? 0 : 2;
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "read") == 0)
        return read_files();
    if (count == 5 && strcmp(arguments[1], "write") == 0)
        return write_file(arguments[2], arguments[3], arguments[4]);
    fprintf(stderr, "usage: safetensors_tool read | safetensors_tool write SPEC DATA FILE\n");
    return 2;
}
