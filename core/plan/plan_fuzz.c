/* libFuzzer target: decode and validate of hostile parts. The input is a part; its checksum is made right,
 * since a peer can do so too, and so are magic, version and length in most inputs. What passes is read to its
 * end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads every destination and source that the part names, in tables small enough to map a byte to a byte. */
static void use_part(const struct hl_plan_part *part, const struct hl_plan_tables *tables)
{
    static unsigned char arena[4096], tensors[4][4096];
    for (uint32_t i = 0; i < part->header->section_count; i++) {
        const struct hl_plan_section *s = &part->sections[i];
        for (uint32_t k = s->first_range; k < s->first_range + s->range_count; k++) {
            const struct hl_plan_range *r = &part->ranges[k];
            memcpy(tensors[s->tensor] + r->dst, arena + r->src, r->bytes);
        }
        for (uint32_t k = s->first_run; k < s->first_run + s->run_count; k++) {
            const struct hl_plan_run *r = &part->runs[k];
            for (uint32_t row = 0; row < r->rows; row++)
                if (part->allocations[part->rows[r->first_row + row]].arena_id == tables->arenas[0].arena_id)
                    memcpy(tensors[s->tensor] + r->dst + row * r->dst_pitch,
                           arena + r->src + row * r->src_pitch, r->row_bytes);
        }
    }
}

/* Makes right what a peer that builds parts would: a fuzzer would have to guess it. Small inputs of the
 * identity leave some of it wrong. */
static void forge(struct hl_plan_header *header, size_t size)
{
    uint32_t leave = header->identity.generation % 8;
    if (leave != 1) {
        header->magic = HL_PLAN_MAGIC;
        header->version = HL_PLAN_VERSION;
        header->part_bytes = (uint32_t)size;
        header->zero = 0;
    }
    if (leave != 2) {
        header->part_count = header->part_count % 3 + 1;
        header->part_index %= header->part_count;
        header->layers = header->layers % 4 + 1;
        header->allocation_count %= 4;
        header->section_count = header->section_count % 4 + 1;
        header->run_count %= 3;
        uint64_t fixed = sizeof *header + header->allocation_count * sizeof(struct hl_plan_allocation) +
                         header->section_count * sizeof(struct hl_plan_section) +
                         header->run_count * sizeof(struct hl_plan_run);
        uint64_t rest = size > fixed ? size - fixed : 0;
        header->row_count %= 16;
        header->range_count = rest > 4 * header->row_count
                                  ? (uint32_t)((rest - 4 * header->row_count) / sizeof(struct hl_plan_range))
                                  : 0;
        header->row_count = (uint32_t)((rest - header->range_count * sizeof(struct hl_plan_range)) / 4);
    }
}

/* The error for a wrong payload names the right one; with it the part goes further. */
static hl_status decode_with_payload(void *bytes, size_t size, struct hl_plan_part *part)
{
    struct hl_plan_header *header = bytes;
    hl_error err = {0};
    unsigned long long stated, held;
    hl_plan_seal(bytes, size);
    hl_status status = hl_plan_decode(bytes, size, part, &err);
    if (status == HL_OK ||
        sscanf(err.text, "payload_bytes is %llu, the ranges and runs have %llu", &stated, &held) != 2)
        return status;
    header->payload_bytes = held;
    hl_plan_seal(bytes, size);
    return hl_plan_decode(bytes, size, part, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hl_plan_arena arenas[] = {{.arena_id = 1, .bytes = 4096, .chunk_bytes = 1024}};
    static const uint64_t tensor_bytes[] = {4096, 4096, 1000, 16};
    struct hl_plan_part part;
    hl_error err;
    void *copy = malloc(size ? size : 1);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    hl_status status;
    if (size >= sizeof(struct hl_plan_header)) {
        forge(copy, size);
        status = decode_with_payload(copy, size, &part);
    } else {
        status = hl_plan_decode(copy, size, &part, &err);
    }
    if (status == HL_OK) {
        struct hl_plan_tables tables = {.arenas = arenas,
                                        .arena_count = 1,
                                        .tensor_bytes = tensor_bytes,
                                        .tensor_count = 4,
                                        .layers = part.header->layers};
        if (hl_plan_validate(&part, &tables, &err) == HL_OK)
            use_part(&part, &tables);
    }
    free(copy);
    return 0;
}
