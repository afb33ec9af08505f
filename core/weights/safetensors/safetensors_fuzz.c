/* libFuzzer target: headers from anybody. The first input byte chooses: 0 takes the rest as a file, read
 * through a descriptor; 1 as a header, with as many bytes of data as the next two bytes say; any other lays
 * out tensors as the rest chooses, then overwrites a few bytes of the header. What a reader accepts must be
 * sound, must be accepted by the tolerant reader when the strict one does, and must be accepted again when it
 * is laid out anew. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/weights/safetensors/safetensors_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TENSORS = 12, MOST_RANK = 4 };

struct input {
    const uint8_t *data;
    size_t size;
};

/* The next byte, or 0 when the input is used up. */
static uint8_t take(struct input *input)
{
    if (input->size == 0)
        return 0;
    input->size--;
    return *input->data++;
}

static uint64_t take_raw(struct input *input)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | take(input);
    return value;
}

static void expect_same(const hl_safetensors *left, const hl_safetensors *right)
{
    assert(left->tensor_count == right->tensor_count && left->metadata_count == right->metadata_count);
    assert(left->data_bytes == right->data_bytes && left->data_offset == right->data_offset);
    for (size_t i = 0; i < left->tensor_count; i++) {
        const struct hl_safetensors_tensor *a = &left->tensors[i], *b = &right->tensors[i];
        assert(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank);
        assert(a->begin == b->begin && a->end == b->end);
        assert(a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0);
    }
}

/* Lays out what was parsed; the new header must parse strictly and say the same. */
static void lay_out_again(const hl_safetensors *parsed, enum hl_safetensors_order order)
{
    struct hl_safetensors_spec *specs = malloc((parsed->tensor_count + 1) * sizeof *specs);
    struct hl_safetensors_layout layout;
    hl_safetensors *again = NULL;
    hl_error err;
    assert(specs);
    for (size_t i = 0; i < parsed->tensor_count; i++) {
        const struct hl_safetensors_tensor *tensor = &parsed->tensors[i];
        specs[i] = (struct hl_safetensors_spec){tensor->name, tensor->dtype, tensor->rank, tensor->shape};
    }
    hl_status status = hl_safetensors_lay_out(specs, parsed->tensor_count, parsed->metadata,
                                              parsed->metadata_count, order, &layout, &err);
    /* Only a header that the new text makes longer than a file can be is refused. */
    assert(status == HL_OK || (status == HL_E_OVERFLOW && parsed->data_bytes > UINT64_MAX / 2));
    if (status == HL_OK) {
        status = hl_safetensors_parse(layout.header + 8, layout.header_bytes - 8, layout.file_bytes,
                                      HL_SAFETENSORS_STRICT, &again, &err);
        assert(status == HL_OK);
        require_sound(again);
        assert(again->tensor_count == parsed->tensor_count && again->data_bytes == parsed->data_bytes);
        assert(again->metadata_count == parsed->metadata_count);
        assert(order == HL_SAFETENSORS_BY_NAME || again->tolerated.misaligned == 0);
        hl_safetensors_free(again);
        hl_safetensors_layout_free(&layout);
    }
    free(specs);
}

static void use_parsed(hl_safetensors *strict, hl_safetensors *tolerant)
{
    if (strict) {
        assert(tolerant);
        require_sound(strict);
        expect_same(strict, tolerant);
        struct hl_safetensors_tolerated nothing = {.misaligned = strict->tolerated.misaligned};
        assert(memcmp(&strict->tolerated, &nothing, sizeof nothing) == 0);
    }
    if (tolerant) {
        require_sound(tolerant);
        lay_out_again(tolerant, HL_SAFETENSORS_BY_NAME);
        lay_out_again(tolerant, HL_SAFETENSORS_ALIGNED);
    }
    hl_safetensors_free(strict);
    hl_safetensors_free(tolerant);
}

static void use_header(const void *bytes, size_t size, uint64_t file_bytes)
{
    hl_safetensors *strict = NULL, *tolerant = NULL;
    hl_error err;
    char *header = malloc(size ? size : 1); /* of its own size, so that a read past it is seen */
    assert(header);
    memcpy(header, bytes, size);
    hl_safetensors_parse(header, size, file_bytes, HL_SAFETENSORS_STRICT, &strict, &err);
    hl_safetensors_parse(header, size, file_bytes, HL_SAFETENSORS_TOLERANT, &tolerant, &err);
    free(header);
    use_parsed(strict, tolerant);
}

static void use_file(const struct input *input)
{
    static int fd = -1;
    hl_safetensors *strict = NULL, *tolerant = NULL;
    hl_error err;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    int cut = ftruncate(fd, 0);
    ssize_t written = pwrite(fd, input->data, input->size, 0);
    assert(cut == 0 && written == (ssize_t)input->size);
    hl_safetensors_read(fd, input->size, HL_SAFETENSORS_STRICT, &strict, &err);
    hl_safetensors_read(fd, input->size, HL_SAFETENSORS_TOLERANT, &tolerant, &err);
    use_parsed(strict, tolerant);
}

/* A name of a few bytes, of which some are escaped in the header, and one that makes it unique. */
static void take_name(struct input *input, char name[8], size_t index)
{
    static const char *const parts[] = {"", "a", "_", "\"", "\xc3\xa9", "\xf0\x9f\x98\x80", "\n", "\x7f"};
    const char *part = parts[take(input) % (sizeof parts / sizeof parts[0])];
    snprintf(name, 8, "%s%c", part, (int)('A' + index));
}

static void use_layout(struct input *input)
{
    struct hl_safetensors_spec specs[MOST_TENSORS];
    uint64_t shapes[MOST_TENSORS][MOST_RANK] = {{0}};
    char names[MOST_TENSORS][8];
    struct hl_safetensors_layout layout;
    hl_error err;
    size_t count = take(input) % (MOST_TENSORS + 1);
    for (size_t i = 0; i < count; i++) {
        take_name(input, names[i], i);
        uint32_t rank = take(input) % (MOST_RANK + 1);
        enum hl_safetensors_dtype dtype =
            (enum hl_safetensors_dtype)(take(input) % HL_SAFETENSORS_DTYPE_COUNT);
        for (uint32_t d = 0; d < rank; d++)
            shapes[i][d] = take(input) == 255 ? take_raw(input) : take(input) % 9;
        specs[i] = (struct hl_safetensors_spec){names[i], dtype, rank, shapes[i]};
    }
    const struct hl_safetensors_metadata metadata[] = {{"format", "pt"}, {"\xc3\xa9", ""}};
    enum hl_safetensors_order order = take(input) % 2 ? HL_SAFETENSORS_ALIGNED : HL_SAFETENSORS_BY_NAME;
    if (hl_safetensors_lay_out(specs, count, metadata, take(input) % 3, order, &layout, &err) != HL_OK)
        return;
    for (uint32_t edits = take(input) % 4; edits; edits--) {
        size_t at = (size_t)take(input) << 8 | take(input);
        layout.header[8 + at % (layout.header_bytes - 8)] = (char)take(input);
    }
    use_header(layout.header + 8, layout.header_bytes - 8, layout.file_bytes);
    hl_safetensors_layout_free(&layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    uint8_t choice = take(&input);
    if (choice == 0) {
        use_file(&input);
    } else if (choice == 1) {
        uint64_t data_bytes = (uint64_t)take(&input) << 8;
        data_bytes |= take(&input);
        use_header(input.data, input.size, 8 + input.size + data_bytes);
    } else {
        use_layout(&input);
    }
    return 0;
}
