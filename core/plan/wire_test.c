/* Parts as hostile bytes: what decode and validate refuse, and that nothing out of bounds gets past both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan_fixture.h"
#include "core/testing/cunit.h"

/* A part with everything in it: 3 layers of which the middle one is empty, K and V in one tensor; pages 0 to
 * 4 are a run, pages 8 and 11 single ranges. */
struct wire {
    hl_layout layout;
    struct hl_fixture_world world;
    unsigned char *bytes;
    size_t size;
};

static void set_wire(struct wire *w)
{
    static const struct hl_fixture_shape shape = {.kind = HL_FIXTURE_CONTIGUOUS,
                                                  .layers = 3,
                                                  .groups = 1,
                                                  .pages = 12,
                                                  .page_tokens = 1,
                                                  .k_bytes = 16,
                                                  .v_bytes = 16,
                                                  .slots = 1,
                                                  .empty_layer = 1};
    static const struct hl_fixture_placement placement = {
        .arenas = 1, .chunk_bytes = 4096, .blocks_per_allocation = 1, .align = 256};
    const uint32_t blocks = 7;
    hl_random random;
    hl_random_seed(&random, 5);
    hl_fixture_layout(&shape, &w->layout);
    hl_fixture_world(&w->layout, &blocks, &placement, false, false, &random, &w->world);
    w->world.blocks[5].page = 8;
    w->world.blocks[6].page = 11;
    struct hl_plan_request request = {.layout = &w->layout, .blocks = w->world.blocks, .block_count = blocks};
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&request, &plan, &err), err);
    const void *bytes = hl_plan_part_bytes(plan, 0, &w->size);
    w->bytes = hl_fixture_private(bytes, w->size);
    hl_plan_free(plan);
}

static void free_wire(struct wire *w)
{
    free(w->bytes);
    hl_fixture_free_world(&w->world);
    hl_fixture_free_layout(&w->layout);
}

/* Mutable views of the arrays of a part whose header is intact. */
static struct hl_plan_header *header_of(struct wire *w)
{
    return (struct hl_plan_header *)w->bytes;
}

static struct hl_plan_allocation *allocations_of(struct wire *w)
{
    return (struct hl_plan_allocation *)(header_of(w) + 1);
}

static struct hl_plan_section *sections_of(struct wire *w)
{
    return (struct hl_plan_section *)(allocations_of(w) + header_of(w)->allocation_count);
}

static struct hl_plan_range *ranges_of(struct wire *w)
{
    return (struct hl_plan_range *)(sections_of(w) + header_of(w)->section_count);
}

static struct hl_plan_run *runs_of(struct wire *w)
{
    return (struct hl_plan_run *)(ranges_of(w) + header_of(w)->range_count);
}

static uint32_t *rows_of(struct wire *w)
{
    return (uint32_t *)(runs_of(w) + header_of(w)->run_count);
}

static hl_status read_wire(struct wire *w, struct hl_plan_part *part, hl_error *err)
{
    hl_status status = hl_plan_decode(w->bytes, w->size, part, err);
    return status == HL_OK ? hl_plan_validate(part, &w->world.tables, err) : status;
}

static void expect_refused(struct wire *w, hl_status status, const char *text)
{
    struct hl_plan_part part = {0};
    hl_error err = {0};
    hl_status got = read_wire(w, &part, &err);
    if (got != status || !strstr(err.text, text))
        fprintf(stderr, "got %s, %s; expected %s, %s\n", hl_status_name(got), err.text,
                hl_status_name(status), text);
    CU_ASSERT_EQUAL(got, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
}

/* Edits a fresh part, seals it again, and expects it to be refused by name. */
#define EXPECT_EDIT_REFUSED(edit, status, text)                                                              \
    do {                                                                                                     \
        struct wire w;                                                                                       \
        set_wire(&w);                                                                                        \
        edit;                                                                                                \
        hl_plan_seal(w.bytes, w.size);                                                                       \
        expect_refused(&w, (status), (text));                                                                \
        free_wire(&w);                                                                                       \
    } while (0)

#define EXPECT_REFUSED(field, value, status, text) EXPECT_EDIT_REFUSED(field = (value), status, text)

static void the_whole_part_is_accepted(void)
{
    struct wire w;
    struct hl_plan_part part;
    hl_error err;
    set_wire(&w);
    HL_REQUIRE_OK(read_wire(&w, &part, &err), err);
    CU_ASSERT_EQUAL(part.header->section_count, 3);
    CU_ASSERT_EQUAL(part.header->run_count, 4);
    CU_ASSERT_EQUAL(part.header->range_count, 8);
    CU_ASSERT_EQUAL(part.header->allocation_count, 7);
    CU_ASSERT_EQUAL(part.header->payload_bytes, 7 * 4 * 16);
    free_wire(&w);
}

static void every_flipped_bit_is_refused(void)
{
    struct wire w;
    set_wire(&w);
    unsigned accepted = 0, unnamed = 0;
    for (size_t bit = 0; bit < 8 * w.size; bit++) {
        struct hl_plan_part part;
        hl_error err = {0};
        w.bytes[bit / 8] ^= 1u << bit % 8;
        accepted += hl_plan_decode(w.bytes, w.size, &part, &err) == HL_OK;
        unnamed += !strstr(err.text, "magic") && !strstr(err.text, "version") &&
                   !strstr(err.text, "part_bytes") && !strstr(err.text, "checksum");
        w.bytes[bit / 8] ^= 1u << bit % 8;
    }
    CU_ASSERT_EQUAL(accepted, 0);
    CU_ASSERT_EQUAL(unnamed, 0);
    free_wire(&w);
}

static void every_truncation_is_refused(void)
{
    struct wire w;
    set_wire(&w);
    for (size_t size = 0; size < w.size; size++) {
        unsigned char *copy =
            hl_fixture_private(w.bytes, size); /* exactly as long, so that a sanitizer sees */
        struct hl_plan_part part;
        hl_error err = {0};
        CU_ASSERT_EQUAL(hl_plan_decode(copy, size, &part, &err), HL_E_CORRUPT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "part_bytes"));
        if (size >= sizeof(struct hl_plan_header)) { /* and with a header that admits it */
            ((struct hl_plan_header *)copy)->part_bytes = (uint32_t)size;
            hl_plan_seal(copy, size);
            CU_ASSERT_EQUAL(hl_plan_decode(copy, size, &part, &err), HL_E_CORRUPT);
        }
        free(copy);
    }
    free_wire(&w);
}

static void the_envelope_is_checked_before_the_checksum(void)
{
    struct wire w;
    struct hl_plan_part part;
    hl_error err = {0};
    set_wire(&w);
    header_of(&w)->version = 3;
    CU_ASSERT_EQUAL(hl_plan_decode(w.bytes, w.size, &part, &err), HL_E_VERSION);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "the part has 3, this build reads 2"));
    header_of(&w)->magic++;
    CU_ASSERT_EQUAL(hl_plan_decode(w.bytes, w.size, &part, &err), HL_E_CORRUPT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "magic"));
    CU_ASSERT_EQUAL(hl_plan_decode(NULL, 4096, &part, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_plan_decode(w.bytes + 4, w.size - 4, &part, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "aligned"));
    free_wire(&w);

    size_t size = HL_PLAN_PART_BYTES + 4; /* longer than any part */
    struct hl_plan_header *large = calloc(1, size);
    *large = (struct hl_plan_header){
        .magic = HL_PLAN_MAGIC, .version = HL_PLAN_VERSION, .part_bytes = (uint32_t)size};
    hl_plan_seal(large, size);
    CU_ASSERT_EQUAL(hl_plan_decode(large, size, &part, &err), HL_E_CORRUPT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "part_bytes"));
    free(large);
}

static void every_field_of_the_header_is_checked(void)
{
    EXPECT_REFUSED(header_of(&w)->part_count, 0, HL_E_CORRUPT, "part_index");
    EXPECT_REFUSED(header_of(&w)->part_count, UINT32_MAX, HL_E_CORRUPT, "part_count");
    EXPECT_REFUSED(header_of(&w)->part_index, 1, HL_E_CORRUPT, "part_index");
    EXPECT_REFUSED(header_of(&w)->layers, 0, HL_E_CORRUPT, "layers");
    EXPECT_REFUSED(header_of(&w)->layers, HL_LAYOUT_LAYERS + 1, HL_E_CORRUPT, "layers");
    EXPECT_REFUSED(header_of(&w)->layers, 2, HL_E_CORRUPT, "section 2: layer 2 of 2");
    EXPECT_REFUSED(header_of(&w)->layers, 4, HL_E_CORRUPT, "ends a plan of 4 layers");
    EXPECT_REFUSED(header_of(&w)->zero, 1, HL_E_CORRUPT, "zero");
    EXPECT_REFUSED(header_of(&w)->section_count, 0, HL_E_CORRUPT, "section_count");
    EXPECT_REFUSED(header_of(&w)->allocation_count, UINT32_MAX, HL_E_CORRUPT, "allocation_count");
    EXPECT_REFUSED(header_of(&w)->section_count, 4, HL_E_CORRUPT, "section_count");
    EXPECT_REFUSED(header_of(&w)->range_count, UINT32_MAX, HL_E_CORRUPT, "range_count");
    EXPECT_REFUSED(header_of(&w)->run_count, UINT32_MAX, HL_E_CORRUPT, "run_count");
    EXPECT_REFUSED(header_of(&w)->row_count, UINT32_MAX, HL_E_CORRUPT, "row_count");
    EXPECT_REFUSED(header_of(&w)->payload_bytes, 449, HL_E_CORRUPT, "payload_bytes");
}

static void every_field_of_a_section_is_checked(void)
{
    EXPECT_REFUSED(sections_of(&w)[0].layer, 1, HL_E_CORRUPT, "section 0: layer");
    EXPECT_REFUSED(sections_of(&w)[1].layer, 0, HL_E_CORRUPT, "section 1: layer");
    EXPECT_REFUSED(sections_of(&w)[1].layer, 2, HL_E_CORRUPT, "section 1: layer");
    EXPECT_REFUSED(sections_of(&w)[1].layer, UINT32_MAX, HL_E_CORRUPT, "section 1: layer");
    EXPECT_REFUSED(sections_of(&w)[0].tensor, HL_LAYOUT_TENSORS, HL_E_CORRUPT, "section 0: tensor");
    EXPECT_REFUSED(sections_of(&w)[1].tensor, 1, HL_E_CORRUPT,
                   "section 1: range_count and run_count are 0, tensor");
    EXPECT_REFUSED(sections_of(&w)[0].first_range, 1, HL_E_CORRUPT, "section 0: first_range");
    EXPECT_REFUSED(sections_of(&w)[0].range_count, 3, HL_E_CORRUPT, "section 1: first_range");
    EXPECT_REFUSED(sections_of(&w)[0].range_count, UINT32_MAX, HL_E_CORRUPT, "section 0: first_range");
    EXPECT_REFUSED(sections_of(&w)[2].range_count, 3, HL_E_CORRUPT, "range_count");
    EXPECT_REFUSED(sections_of(&w)[2].first_run, 0, HL_E_CORRUPT, "section 2: first_run");
    EXPECT_REFUSED(sections_of(&w)[2].run_count, 1, HL_E_CORRUPT, "run_count");
    EXPECT_REFUSED(sections_of(&w)[2].run_count, UINT32_MAX, HL_E_CORRUPT, "section 2: first_run");
    EXPECT_REFUSED(sections_of(&w)[0].flags, 0, HL_E_CORRUPT,
                   "section 1: layer 1 after layer 0, whose flags are 0");
    EXPECT_REFUSED(sections_of(&w)[1].flags, 0, HL_E_CORRUPT, "section 1");
    EXPECT_REFUSED(sections_of(&w)[2].flags, 0, HL_E_CORRUPT, "section 2: layer 2 with flags 0 ends");
    EXPECT_REFUSED(sections_of(&w)[2].flags, 3, HL_E_CORRUPT, "section 2: flags");
    EXPECT_REFUSED(sections_of(&w)[2].zero, 1, HL_E_CORRUPT, "section 2: zero");
}

static void every_field_of_ranges_runs_and_allocations_is_checked(void)
{
    EXPECT_REFUSED(allocations_of(&w)[1].arena_id, 0, HL_E_CORRUPT, "allocation 1: arena_id");
    EXPECT_REFUSED(allocations_of(&w)[1].allocation_id, 0, HL_E_CORRUPT, "allocation 1: allocation_id");
    EXPECT_REFUSED(allocations_of(&w)[1].bytes, 0, HL_E_CORRUPT, "allocation 1: bytes");
    EXPECT_REFUSED(allocations_of(&w)[1].bytes, UINT64_MAX, HL_E_CORRUPT, "allocation 1: offset + bytes");
    EXPECT_REFUSED(ranges_of(&w)[1].allocation, 7, HL_E_CORRUPT, "range 1: allocation 7 of 7");
    EXPECT_REFUSED(ranges_of(&w)[1].bytes, 0, HL_E_CORRUPT, "range 1: bytes");
    EXPECT_REFUSED(ranges_of(&w)[1].src, UINT64_MAX, HL_E_CORRUPT, "range 1: src");
    EXPECT_REFUSED(ranges_of(&w)[1].dst, UINT64_MAX, HL_E_CORRUPT, "range 1: src or dst");
    EXPECT_REFUSED(runs_of(&w)[1].src_pitch, 15, HL_E_CORRUPT, "src_pitch 15");
    EXPECT_REFUSED(runs_of(&w)[1].src_pitch, UINT64_MAX / 4, HL_E_CORRUPT, "src_pitch");
    EXPECT_REFUSED(runs_of(&w)[1].src_pitch, UINT64_MAX, HL_E_CORRUPT, "src_pitch");
    EXPECT_REFUSED(runs_of(&w)[1].dst_pitch, 0, HL_E_CORRUPT, "dst_pitch 0");
    EXPECT_REFUSED(runs_of(&w)[1].dst, UINT64_MAX - 64, HL_E_CORRUPT, "run 1: dst");
    EXPECT_REFUSED(runs_of(&w)[1].row_bytes, 0, HL_E_CORRUPT, "run 1: row_bytes");
    EXPECT_REFUSED(runs_of(&w)[1].rows, 3, HL_E_CORRUPT, "run 1: rows");
    EXPECT_REFUSED(runs_of(&w)[1].rows, UINT32_MAX, HL_E_CORRUPT, "run 1: first_row 5 and rows");
    EXPECT_REFUSED(runs_of(&w)[1].first_row, 0, HL_E_CORRUPT, "run 1: first_row");
    EXPECT_REFUSED(runs_of(&w)[3].rows, 4, HL_E_CORRUPT, "row_count");
    EXPECT_REFUSED(runs_of(&w)[1].zero, 1, HL_E_CORRUPT, "run 1: zero");
    EXPECT_REFUSED(rows_of(&w)[7], 7, HL_E_CORRUPT, "row 7: allocation 7 of 7");
}

static void validate_checks_every_bound_against_the_reader(void)
{
    EXPECT_REFUSED(w.world.tables.layers, 4, HL_E_INVALID, "layers: the part has 3, the binding 4");
    EXPECT_REFUSED(w.world.arenas[0].arena_id, 9, HL_E_NOT_FOUND, "allocation 0: arena_id 100");
    EXPECT_REFUSED(w.world.arenas[0].bytes, 6 * 256 + 63, HL_E_RANGE, "allocation 6: offset 1536");
    EXPECT_REFUSED(w.world.arenas[0].chunk_bytes, 300, HL_E_RANGE,
                   "allocation 1: offset 256 with 64 bytes crosses");
    EXPECT_REFUSED(w.world.arenas[0].chunk_bytes, 256, HL_E_RANGE,
                   "run 0: rows from src 0 to 1024 cross a chunk");
    EXPECT_REFUSED(allocations_of(&w)[0].bytes, 47, HL_E_RANGE, "run 2: row 0");
    EXPECT_REFUSED(allocations_of(&w)[5].offset, 1281, HL_E_RANGE, "range 0: src 1280 with 16 bytes");
    EXPECT_REFUSED(ranges_of(&w)[1].src, 0, HL_E_RANGE, "range 1: src 0");
    EXPECT_REFUSED(ranges_of(&w)[1].dst, 24 * 16 - 15, HL_E_RANGE, "range 1: dst 369");
    EXPECT_REFUSED(w.world.tensor_bytes[2], 24 * 16 - 1, HL_E_RANGE, "range 7: dst 368");
    EXPECT_REFUSED(w.world.tensor_bytes[0], 0, HL_E_RANGE, "range 0: dst");
    EXPECT_REFUSED(w.world.tables.tensor_count, 2, HL_E_NOT_FOUND, "section 2: tensor 2 of 2");
    EXPECT_REFUSED(runs_of(&w)[1].src_pitch, 268, HL_E_RANGE, "run 1: row 3 at src 820");
    EXPECT_REFUSED(runs_of(&w)[1].src, 49, HL_E_RANGE, "run 1: row 0 at src 49");
    EXPECT_REFUSED(runs_of(&w)[0].dst_pitch, 100, HL_E_RANGE, "run 0: dst 0 with 5 rows");
    EXPECT_REFUSED(runs_of(&w)[0].dst, 24 * 16 - 79, HL_E_RANGE, "run 0: dst 305 with 5 rows");
    EXPECT_REFUSED(rows_of(&w)[3], 5, HL_E_RANGE, "run 0: row 3 at src 768");
}

static void a_run_in_two_arenas_is_refused(void)
{
    struct wire w;
    set_wire(&w);
    struct hl_plan_arena arenas[2] = {w.world.arenas[0], w.world.arenas[0]};
    arenas[1].arena_id = 101;
    arenas[1].chunk_bytes = 0; /* the default */
    w.world.tables.arenas = arenas;
    w.world.tables.arena_count = 2;
    allocations_of(&w)[2].arena_id = 101;
    hl_plan_seal(w.bytes, w.size);
    expect_refused(&w, HL_E_RANGE, "run 0: row 2 lies in arena_id 101, row 0 in 100");
    w.world.tables.arena_count = 1;
    w.world.tables.arenas = w.world.arenas;
    free_wire(&w);
}

static void destinations_that_share_bytes_are_refused(void)
{
    EXPECT_REFUSED(ranges_of(&w)[1].dst, ranges_of(&w)[0].dst + 15, HL_E_OVERLAP,
                   "range 0 and range 1 overlap at dst 143");
    EXPECT_REFUSED(ranges_of(&w)[1].dst, ranges_of(&w)[0].dst - 15, HL_E_OVERLAP, "range 1 and range 0");
    EXPECT_REFUSED(ranges_of(&w)[1].dst, 79, HL_E_OVERLAP, "run 0 and range 1 overlap at dst 79");
    EXPECT_REFUSED(sections_of(&w)[2].tensor, 0, HL_E_OVERLAP,
                   "run 0 and run 2 overlap at dst 0 of tensor 0");
    EXPECT_REFUSED(runs_of(&w)[1].dst, 64, HL_E_OVERLAP, "run 0 and run 1 overlap at dst 64");
}

static void expect_accepted(struct wire *w)
{
    struct hl_plan_part part;
    hl_error err;
    hl_plan_seal(w->bytes, w->size);
    HL_EXPECT_OK(read_wire(w, &part, &err), err);
    free_wire(w);
}

static void rows_may_interleave_without_touching(void)
{
    struct wire w;
    set_wire(&w);
    runs_of(&w)[0].dst_pitch = runs_of(&w)[1].dst_pitch = 32; /* K and V of one token after the other */
    runs_of(&w)[1].dst = 16;
    ranges_of(&w)[0].dst = 160;
    ranges_of(&w)[1].dst = 176;
    expect_accepted(&w);

    set_wire(&w);
    runs_of(&w)[0].dst_pitch = 40; /* a range in the gap between two rows */
    ranges_of(&w)[0].dst = 16 + 4;
    ranges_of(&w)[1].dst = 40 + 16;
    expect_accepted(&w);

    set_wire(&w); /* runs at different pitches, of which no row meets another */
    header_of(&w)->payload_bytes -= 10 * 12;
    for (unsigned i = 0; i < 2; i++)
        runs_of(&w)[i].row_bytes = 4;
    runs_of(&w)[0].dst_pitch = 12;
    runs_of(&w)[1].dst_pitch = 24;
    runs_of(&w)[1].dst = 4;
    expect_accepted(&w);
}

static void rows_that_interleave_and_touch_are_refused(void)
{
    EXPECT_EDIT_REFUSED((runs_of(&w)[0].dst_pitch = 40, ranges_of(&w)[0].dst = 16 + 9), HL_E_OVERLAP,
                        "range 0 and run 0 overlap at dst 40");
    EXPECT_EDIT_REFUSED((runs_of(&w)[0].dst_pitch = 40, ranges_of(&w)[0].dst = 15), HL_E_OVERLAP,
                        "run 0 and range 0 overlap at dst 15");
    EXPECT_EDIT_REFUSED((runs_of(&w)[0].dst_pitch = runs_of(&w)[1].dst_pitch = 32, runs_of(&w)[1].dst = 15,
                         ranges_of(&w)[0].dst = 200),
                        HL_E_OVERLAP, "run 0 and run 1 overlap at dst 15");
    EXPECT_EDIT_REFUSED((runs_of(&w)[0].dst_pitch = runs_of(&w)[1].dst_pitch = 32, runs_of(&w)[1].dst = 17,
                         ranges_of(&w)[0].dst = 200),
                        HL_E_OVERLAP, "run 1 and run 0 overlap at dst 32");
}

static bool marked(unsigned char *map, uint64_t from, uint64_t bytes)
{
    bool any = false;
    for (uint64_t i = 0; i < bytes; i++) {
        any |= map[from + i];
        map[from + i] = 1;
    }
    return any;
}

/* One copy, checked the slow way against what the reader knows. */
static bool copy_is_harmless(const struct wire *w, const struct hl_plan_part *part, uint32_t allocation,
                             uint64_t src, uint64_t dst, uint64_t bytes, uint32_t tensor, unsigned char *map)
{
    typedef unsigned __int128 wide;
    if (allocation >= part->header->allocation_count || tensor >= w->world.tables.tensor_count || bytes == 0)
        return false;
    const struct hl_plan_allocation *a = &part->allocations[allocation];
    const struct hl_plan_arena *arena = &w->world.arenas[0];
    return a->arena_id == arena->arena_id && (wide)a->offset + a->bytes <= arena->bytes && src >= a->offset &&
           (wide)src + bytes <= (wide)a->offset + a->bytes &&
           (wide)dst + bytes <= w->world.tensor_bytes[tensor] &&
           src / arena->chunk_bytes == (src + bytes - 1) / arena->chunk_bytes &&
           !marked(map + tensor * 4096, dst, bytes);
}

static bool part_is_harmless(const struct wire *w, const struct hl_plan_part *part)
{
    static unsigned char map[3 * 4096];
    uint32_t completed = 0;
    bool ok = part->header->layers == w->world.tables.layers;
    memset(map, 0, sizeof map);
    for (uint32_t i = 0; ok && i < part->header->section_count; i++) {
        const struct hl_plan_section *s = &part->sections[i];
        ok &= s->layer == completed;
        completed += s->flags & HL_PLAN_LAYER_LAST;
        for (uint32_t k = 0; ok && k < s->range_count; k++) {
            ok &= s->first_range + k < part->header->range_count;
            const struct hl_plan_range *r = &part->ranges[s->first_range + k];
            ok = ok && copy_is_harmless(w, part, r->allocation, r->src, r->dst, r->bytes, s->tensor, map);
        }
        for (uint32_t k = 0; ok && k < s->run_count; k++) {
            ok &= s->first_run + k < part->header->run_count;
            const struct hl_plan_run *r = &part->runs[s->first_run + k];
            for (uint32_t row = 0; ok && row < r->rows; row++)
                ok = r->first_row + row < part->header->row_count &&
                     copy_is_harmless(w, part, part->rows[r->first_row + row], r->src + row * r->src_pitch,
                                      r->dst + row * r->dst_pitch, r->row_bytes, s->tensor, map);
        }
    }
    return ok;
}

/* Reads an edited, sealed part; counts it when it was accepted, and when it was so wrongly. */
static void try_edited(struct wire *w, unsigned *accepted, unsigned *wrong)
{
    struct hl_plan_part part;
    hl_error err = {0};
    hl_plan_seal(w->bytes, w->size);
    if (read_wire(w, &part, &err) == HL_OK) {
        ++*accepted;
        *wrong += !part_is_harmless(w, &part);
    } else {
        *wrong += err.text[0] == '\0';
    }
}

static void no_edited_word_gets_out_of_bounds(void)
{
    static const uint32_t hostile[] = {0,  1,   2,   3,          5,          7,          15,        16,
                                       17, 100, 101, 0x7fffffff, 0x80000000, 0xfffffff0, UINT32_MAX};
    enum { HOSTILE = sizeof hostile / sizeof hostile[0] };
    struct wire w;
    set_wire(&w);
    unsigned accepted = 0, wrong = 0;
    uint32_t *words = (uint32_t *)w.bytes;
    for (size_t i = 0; i < w.size / 4; i++) {
        uint32_t before = words[i];
        for (unsigned k = 0; k < HOSTILE; k++) {
            words[i] = hostile[k];
            try_edited(&w, &accepted, &wrong);
            words[i] = before + hostile[k];
            try_edited(&w, &accepted, &wrong);
            words[i] = before - hostile[k];
            try_edited(&w, &accepted, &wrong);
        }
        for (unsigned bit = 0; bit < 32; bit++) {
            words[i] = before ^ 1u << bit;
            try_edited(&w, &accepted, &wrong);
        }
        words[i] = before;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(accepted > 100); /* identities and harmless moves: the oracle has been asked */
    free_wire(&w);
}

static void no_pair_of_edited_words_gets_out_of_bounds(void)
{
    struct wire w;
    hl_random random;
    hl_random_seed(&random, 77);
    set_wire(&w);
    unsigned accepted = 0, wrong = 0;
    uint32_t *words = (uint32_t *)w.bytes;
    for (unsigned i = 0; i < 200000; i++) {
        size_t at[2] = {hl_random_below(&random, w.size / 4), hl_random_below(&random, w.size / 4)};
        uint32_t before[2] = {words[at[0]], words[at[1]]};
        for (unsigned k = 0; k < 2; k++)
            words[at[k]] = hl_random_below(&random, 2)
                               ? words[hl_random_below(&random, w.size / 4)]
                               : words[at[k]] + (uint32_t)hl_random_below(&random, 65) - 32;
        try_edited(&w, &accepted, &wrong);
        words[at[1]] = before[1];
        words[at[0]] = before[0];
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(accepted > 100);
    free_wire(&w);
}

HL_TESTS(plan_wire, HL_CASE(the_whole_part_is_accepted), HL_CASE(every_flipped_bit_is_refused),
         HL_CASE(every_truncation_is_refused), HL_CASE(the_envelope_is_checked_before_the_checksum),
         HL_CASE(every_field_of_the_header_is_checked), HL_CASE(every_field_of_a_section_is_checked),
         HL_CASE(every_field_of_ranges_runs_and_allocations_is_checked),
         HL_CASE(validate_checks_every_bound_against_the_reader), HL_CASE(a_run_in_two_arenas_is_refused),
         HL_CASE(destinations_that_share_bytes_are_refused), HL_CASE(rows_may_interleave_without_touching),
         HL_CASE(rows_that_interleave_and_touch_are_refused), HL_CASE(no_edited_word_gets_out_of_bounds),
         HL_CASE(no_pair_of_edited_words_gets_out_of_bounds));
