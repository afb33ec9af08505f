/* libFuzzer target: decode and validate of hostile parts. The first input byte chooses: 0 takes the rest as a
 * part as it is; otherwise the rest is read as choices from which a consistent part is built, with offsets,
 * pitches and sizes as they come and a few words overwritten. Checksums are made right, since a peer can do
 * so too. What passes both is copied as it says, under the sanitizer. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS = 3, ARENA_BYTES = 4096, MOST_SECTIONS = 6, MOST_RANGES = 24, MOST_RUNS = 12, MOST_ROWS = 96 };

static unsigned char arena_memory[ARENA_BYTES], tensor_0[ARENA_BYTES], tensor_1[1000], tensor_2[16];
static unsigned char *const tensors[TENSORS] = {tensor_0, tensor_1, tensor_2};

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

/* Mostly small and often a multiple of 16, so that something fits; sometimes anything. */
static uint64_t take_number(struct input *input)
{
    uint8_t byte = take(input);
    return byte == 255 ? take_raw(input) : byte < 128 ? byte * 16ull : byte - 128u;
}

static struct hl_plan_range take_range(struct input *input, uint32_t allocations)
{
    struct hl_plan_range r = {.allocation = take(input) % allocations};
    r.bytes = (uint32_t)take_number(input) + 1;
    r.src = take_number(input);
    r.dst = take_number(input);
    return r;
}

static struct hl_plan_run take_run(struct input *input, uint32_t first_row)
{
    struct hl_plan_run r = {.first_row = first_row, .rows = HL_PLAN_MIN_RUN_ROWS + take(input) % 4};
    r.row_bytes = take(input) % 32 + 1;
    r.src = take_number(input);
    r.dst = take_number(input);
    r.src_pitch = r.row_bytes + take_number(input);
    r.dst_pitch = r.row_bytes + take_number(input);
    return r;
}

struct draft {
    struct hl_plan_header header;
    struct hl_plan_allocation allocations[4];
    struct hl_plan_section sections[MOST_SECTIONS];
    struct hl_plan_range ranges[MOST_RANGES];
    struct hl_plan_run runs[MOST_RUNS];
    uint32_t rows[MOST_ROWS];
};

static void draft_section(struct draft *d, struct input *input, uint32_t layer, uint32_t flags)
{
    struct hl_plan_header *h = &d->header;
    struct hl_plan_section s = {
        .layer = layer, .flags = flags, .first_range = h->range_count, .first_run = h->run_count};
    s.range_count = take(input) % 5;
    s.run_count = take(input) % 3;
    for (uint32_t i = 0; i < s.range_count; i++) {
        d->ranges[h->range_count] = take_range(input, h->allocation_count);
        h->payload_bytes += d->ranges[h->range_count++].bytes;
    }
    for (uint32_t i = 0; i < s.run_count; i++) {
        struct hl_plan_run r = take_run(input, h->row_count);
        for (uint32_t row = 0; row < r.rows; row++)
            d->rows[h->row_count++] = take(input) % h->allocation_count;
        h->payload_bytes += (uint64_t)r.rows * r.row_bytes;
        d->runs[h->run_count++] = r;
    }
    s.tensor = s.range_count || s.run_count ? take(input) % (TENSORS + 1) : 0;
    d->sections[h->section_count++] = s;
}

static unsigned char *append(unsigned char *out, const void *array, size_t bytes)
{
    memcpy(out, array, bytes);
    return out + bytes;
}

/* Writes a part into `out`, which is large enough for a draft, and returns its size. */
static size_t build(struct input *input, unsigned char *out)
{
    struct draft d = {.header = {.magic = HL_PLAN_MAGIC, .version = HL_PLAN_VERSION, .part_count = 1}};
    struct hl_plan_header *h = &d.header;
    unsigned char *start = out;
    h->layers = take(input) % 3 + 1;
    h->allocation_count = take(input) % 4 + 1;
    for (uint32_t i = 0; i < h->allocation_count; i++) {
        d.allocations[i] =
            (struct hl_plan_allocation){.arena_id = take(input) % 8 == 7 ? 2 : 1, .allocation_id = 1 + i};
        d.allocations[i].offset = take_number(input);
        d.allocations[i].bytes = take_number(input) + 1;
    }
    for (uint32_t layer = 0; layer < h->layers; layer++)
        for (uint32_t last = take(input) % 2, i = 0; i <= last; i++)
            draft_section(&d, input, layer, i == last ? HL_PLAN_LAYER_LAST : 0);
    out = append(out + sizeof *h, d.allocations, h->allocation_count * sizeof d.allocations[0]);
    out = append(out, d.sections, h->section_count * sizeof d.sections[0]);
    out = append(out, d.ranges, h->range_count * sizeof d.ranges[0]);
    out = append(out, d.runs, h->run_count * sizeof d.runs[0]);
    out = append(out, d.rows, h->row_count * sizeof d.rows[0]);
    h->part_bytes = (uint32_t)(out - start);
    memcpy(start, h, sizeof *h);
    for (uint32_t edits = take(input) % 4; edits; edits--) {
        uint32_t word = (uint32_t)take_number(input), at = take(input) << 8 | take(input);
        memcpy(start + at % (h->part_bytes / 4) * 4, &word, 4);
    }
    return h->part_bytes;
}

static void use_part(const struct hl_plan_part *part)
{
    for (uint32_t i = 0; i < part->header->section_count; i++) {
        const struct hl_plan_section *s = &part->sections[i];
        for (uint32_t k = s->first_range; k < s->first_range + s->range_count; k++) {
            const struct hl_plan_range *r = &part->ranges[k];
            memcpy(tensors[s->tensor] + r->dst, arena_memory + r->src, r->bytes);
        }
        for (uint32_t k = s->first_run; k < s->first_run + s->run_count; k++) {
            const struct hl_plan_run *r = &part->runs[k];
            for (uint32_t row = 0; row < r->rows; row++)
                memcpy(tensors[s->tensor] + r->dst + row * r->dst_pitch,
                       arena_memory + r->src + row * r->src_pitch, r->row_bytes);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hl_plan_arena arena = {.arena_id = 1, .bytes = ARENA_BYTES, .chunk_bytes = 1024};
    static const uint64_t tensor_bytes[TENSORS] = {sizeof tensor_0, sizeof tensor_1, sizeof tensor_2};
    struct input input = {data, size};
    bool built = take(&input) != 0;
    unsigned char *draft = malloc(sizeof(struct draft) + input.size), *part_bytes = NULL;
    if (!draft)
        return 0;
    if (!built)
        memcpy(draft, input.data, input.size);
    size_t part_size = built ? build(&input, draft) : input.size;
    part_bytes = malloc(part_size + 1); /* of its own size, so that a read past it is seen; + 1: never 0 */
    if (part_bytes) {
        struct hl_plan_part part;
        hl_error err;
        memcpy(part_bytes, draft, part_size);
        if (part_size >= sizeof(struct hl_plan_header))
            hl_plan_seal(part_bytes, part_size);
        if (hl_plan_decode(part_bytes, part_size, &part, &err) == HL_OK) {
            struct hl_plan_tables tables = {.arenas = &arena,
                                            .arena_count = 1,
                                            .tensor_bytes = tensor_bytes,
                                            .tensor_count = TENSORS,
                                            .layers = part.header->layers};
            if (hl_plan_validate(&part, &tables, &err) == HL_OK)
                use_part(&part);
        }
    }
    free(part_bytes);
    free(draft);
    return 0;
}
