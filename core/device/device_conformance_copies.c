/* Conformance: what copies, fills, gathers and checksums do to bytes. */
#include "core/device/device_conformance.h"

void copies_of_all_sizes_and_alignments_arrive(void)
{
    static const size_t sizes[] = {0, 1, 2, 3, 7, 15, 64, 4095, 4096, 4097, 65537, (1u << 20) + 3};
    struct conformance c;
    conformance_open(&c);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i], extent = bytes + 64;
        hl_devptr there = c.memory + 16 + i % 5, back = c.other + 16 + i % 3;
        const unsigned char *from = c.source + 7 * i;
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, extent, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.other, 0xcc, extent, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, there, (uintptr_t)from, bytes, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_D2D, back, there, bytes, c.stream, &c.err), c.err);
        conformance_read(&c, c.memory, extent);
        CU_ASSERT_TRUE(all_bytes_are(c.result, 0xdd, 16 + i % 5));
        CU_ASSERT_EQUAL(memcmp(c.result + 16 + i % 5, from, bytes), 0);
        CU_ASSERT_TRUE(all_bytes_are(c.result + 16 + i % 5 + bytes, 0xdd, 48 - i % 5));
        conformance_read(&c, c.other, extent);
        CU_ASSERT_TRUE(all_bytes_are(c.result, 0xcc, 16 + i % 3));
        CU_ASSERT_EQUAL(memcmp(c.result + 16 + i % 3, from, bytes), 0);
        CU_ASSERT_TRUE(all_bytes_are(c.result + 16 + i % 3 + bytes, 0xcc, 48 - i % 3));
    }
    conformance_close(&c);
}

struct rows {
    size_t width, dst_pitch, src_pitch, rows;
};

/* Whether each row of `got` equals that of `source`, and the gaps between rows hold `gap`. */
static bool rows_arrived(const unsigned char *got, const unsigned char *source, const struct rows *r,
                         unsigned char gap)
{
    for (size_t i = 0; i < r->rows; i++)
        if (memcmp(got + i * r->dst_pitch, source + i * r->src_pitch, r->width) != 0 ||
            !all_bytes_are(got + i * r->dst_pitch + r->width, gap, r->dst_pitch - r->width))
            return false;
    return true;
}

void strided_copies_touch_only_their_rows(void)
{
    static const struct rows cases[] = {{64, 64, 64, 16},   {64, 256, 64, 16},     {64, 64, 256, 16},
                                        {100, 300, 200, 7}, {4096, 8192, 4096, 1}, {4096, 8192, 12288, 33},
                                        {1, 2, 3, 100},     {1000, 1000, 1000, 0}};
    struct conformance c;
    conformance_open(&c);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rows *r = &cases[i];
        size_t extent = r->rows * r->dst_pitch + 64;
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, extent, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.other, 0xcc, extent, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->copy_rows(c.dev, HL_COPY_H2D, c.memory, r->dst_pitch, (uintptr_t)c.source,
                                      r->src_pitch, r->width, r->rows, c.stream, &c.err),
                     c.err);
        HL_EXPECT_OK(c.ops->copy_rows(c.dev, HL_COPY_D2D, c.other, r->dst_pitch, c.memory, r->dst_pitch,
                                      r->width, r->rows, c.stream, &c.err),
                     c.err);
        conformance_read(&c, c.memory, extent);
        CU_ASSERT_TRUE(rows_arrived(c.result, c.source, r, 0xdd));
        CU_ASSERT_TRUE(all_bytes_are(c.result + extent - 64, 0xdd, 64));
        conformance_read(&c, c.other, extent);
        CU_ASSERT_TRUE(rows_arrived(c.result, c.source, r, 0xcc));
        memset(c.result, 0xee, extent);
        HL_EXPECT_OK(c.ops->copy_rows(c.dev, HL_COPY_D2H, (uintptr_t)c.result, r->dst_pitch, c.memory,
                                      r->dst_pitch, r->width, r->rows, c.stream, &c.err),
                     c.err);
        conformance_sync(&c, c.stream);
        CU_ASSERT_TRUE(rows_arrived(c.result, c.source, r, 0xee));
    }
    conformance_close(&c);
}

enum { PIECES = 300, PIECE_STRIDE = 8192 };

void batches_of_none_one_and_many_arrive(void)
{
    static const size_t counts[] = {0, 1, PIECES};
    static struct hl_copy there[PIECES], back[PIECES];
    static uint32_t order[PIECES];
    struct conformance c;
    hl_random random;
    conformance_open(&c);
    hl_random_seed(&random, 3);
    hl_random_permutation(&random, order, PIECES);
    for (unsigned i = 0; i < PIECES; i++) {
        uint64_t bytes = 1 + hl_random_below(&random, PIECE_STRIDE);
        there[i] = (struct hl_copy){c.memory + PIECE_STRIDE * order[i],
                                    (uintptr_t)c.source + PIECE_STRIDE * i, bytes};
        back[i] = (struct hl_copy){(uintptr_t)c.result + PIECE_STRIDE * i, there[i].dst, bytes};
    }
    for (unsigned n = 0; n < sizeof counts / sizeof counts[0]; n++) {
        size_t count = counts[n], accepted = 77;
        memset(c.result, 0xee, AREA_BYTES);
        HL_EXPECT_OK(c.ops->copy_batch(c.dev, HL_COPY_H2D, there, count, c.stream, &accepted, &c.err), c.err);
        CU_ASSERT_EQUAL(accepted, count);
        HL_EXPECT_OK(c.ops->copy_batch(c.dev, HL_COPY_D2H, back, count, c.stream, &accepted, &c.err), c.err);
        CU_ASSERT_EQUAL(accepted, count);
        conformance_sync(&c, c.stream);
        for (size_t i = 0; i < count; i++) {
            CU_ASSERT_EQUAL(memcmp(c.result + PIECE_STRIDE * i, c.source + PIECE_STRIDE * i, there[i].bytes),
                            0);
            CU_ASSERT_TRUE(all_bytes_are(c.result + PIECE_STRIDE * i + there[i].bytes, 0xee,
                                         PIECE_STRIDE - there[i].bytes));
        }
        CU_ASSERT_TRUE(all_bytes_are(c.result + PIECE_STRIDE * count, 0xee, PIECE_STRIDE));
    }
    conformance_close(&c);
}

void sources_are_read_when_the_copy_runs(void)
{
    struct conformance c;
    conformance_open(&c);
    memset(c.source, 1, 4096);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)c.source, 4096, c.stream, &c.err),
                 c.err);
    memset(c.source, 2, 4096);
    conformance_release(&c, 0, 1);
    conformance_read(&c, c.memory, 4096);
    CU_ASSERT_TRUE(all_bytes_are(c.result, 2, 4096));
    conformance_close(&c);
}

void fill_writes_exactly_its_range(void)
{
    static const size_t sizes[] = {0, 1, 3, 16, 4097, 70001};
    struct conformance c;
    conformance_open(&c);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, sizes[i] + 64, c.stream, &c.err), c.err);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory + 1 + i, (uint8_t)i, sizes[i], c.stream, &c.err), c.err);
        conformance_read(&c, c.memory, sizes[i] + 64);
        CU_ASSERT_TRUE(all_bytes_are(c.result, 0xdd, 1 + i));
        CU_ASSERT_TRUE(all_bytes_are(c.result + 1 + i, (unsigned char)i, sizes[i]));
        CU_ASSERT_TRUE(all_bytes_are(c.result + 1 + i + sizes[i], 0xdd, 63 - i));
    }
    conformance_close(&c);
}

/* --- gathers. Descriptors lie at the end of the source area; pieces before. --- */

enum { DESCRIPTORS = 600, DESCRIPTOR_BYTES = DESCRIPTORS * 24 };
#define DESCRIPTORS_AT (AREA_BYTES - 65536)

struct pieces {
    unsigned count;
    uint64_t dst[DESCRIPTORS], src[DESCRIPTORS], bytes[DESCRIPTORS]; /* offsets in the areas */
};

/* Runs the pieces from `src` to `dst` and leaves the device's or host's destination in c->result. */
static void run_gather(struct conformance *c, const struct pieces *p, hl_devptr dst, hl_devptr src,
                       uint32_t blocks, enum hl_gather_method method)
{
    for (unsigned i = 0; i < p->count; i++) {
        const struct hl_gather piece = {.dst = dst + p->dst[i], .src = src + p->src[i], .bytes = p->bytes[i]};
        memcpy(c->source + DESCRIPTORS_AT + i * sizeof piece, &piece, sizeof piece);
    }
    const struct hl_gather_launch launch = {.descriptors = c->source_mapped + DESCRIPTORS_AT,
                                            .count = p->count,
                                            .blocks = blocks,
                                            .method = method};
    HL_EXPECT_OK(c->ops->gather(c->dev, &launch, c->stream, &c->err), c->err);
    conformance_sync(c, c->stream);
}

/* Checks c->result against the pieces laid over `before`. */
static void expect_gathered(const struct conformance *c, const struct pieces *p, unsigned char before,
                            uint64_t extent)
{
    static unsigned char expected[AREA_BYTES];
    memset(expected, before, extent);
    for (unsigned i = 0; i < p->count; i++)
        memcpy(expected + p->dst[i], c->source + p->src[i], p->bytes[i]);
    CU_ASSERT_EQUAL(memcmp(c->result, expected, extent), 0);
}

/* Lays pieces of the given sizes out at random sources, one after the other at the destination with gaps. */
static uint64_t lay_out(struct pieces *p, const uint64_t *sizes, unsigned size_count, unsigned count,
                        uint64_t align, uint64_t seed)
{
    hl_random random;
    uint64_t at = align;
    hl_random_seed(&random, seed);
    p->count = count;
    for (unsigned i = 0; i < count; i++) {
        p->bytes[i] = sizes[i % size_count];
        p->src[i] = align * hl_random_below(&random, (DESCRIPTORS_AT - p->bytes[i]) / align);
        p->dst[i] = at;
        at += p->bytes[i] + align * (1 + hl_random_below(&random, 3));
    }
    CU_ASSERT_TRUE_FATAL(at <= AREA_BYTES);
    return at;
}

void a_gather_with_loads_takes_any_alignment(void)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 8, 15, 16, 17, 31, 33, 255, 4096, 4099, 20000};
    static const uint32_t blocks[] = {1, 3, 8};
    static struct pieces p;
    struct conformance c;
    conformance_open(&c);
    for (unsigned b = 0; b < 3; b++) {
        uint64_t extent = lay_out(&p, sizes, 14, 14 * 40, 1, b);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, AREA_BYTES, c.stream, &c.err), c.err);
        run_gather(&c, &p, c.memory, c.source_mapped, blocks[b], HL_GATHER_LOADS);
        conformance_read(&c, c.memory, extent);
        expect_gathered(&c, &p, 0xdd, extent);
        /* from device memory, and into host memory */
        HL_EXPECT_OK(
            c.ops->copy(c.dev, HL_COPY_H2D, c.other, (uintptr_t)c.source, AREA_BYTES, c.stream, &c.err),
            c.err);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, AREA_BYTES, c.stream, &c.err), c.err);
        run_gather(&c, &p, c.memory, c.other, blocks[b], HL_GATHER_LOADS);
        conformance_read(&c, c.memory, extent);
        expect_gathered(&c, &p, 0xdd, extent);
        memset(c.result, 0xee, extent);
        run_gather(&c, &p, c.result_mapped, c.other, blocks[b], HL_GATHER_LOADS);
        expect_gathered(&c, &p, 0xee, extent);
    }
    conformance_close(&c);
}

void a_gather_in_bulk_takes_large_pieces(void)
{
    static const uint64_t sizes[] = {16, 32, 48, 1024, 4096, 4112, 16384, 16400, 32768, 65536, 65552, 0};
    static const uint32_t blocks[] = {1, 2, 4, 16};
    static struct pieces p;
    struct conformance c;
    conformance_open(&c);
    if (!c.dev->info.bulk_copy) {
        const struct hl_gather_launch launch = {
            .descriptors = c.source_mapped, .count = 1, .blocks = 1, .method = HL_GATHER_BULK};
        HL_EXPECT_STATUS(c.ops->gather(c.dev, &launch, c.stream, &c.err), HL_E_UNSUPPORTED, c.err);
        conformance_close(&c);
        return;
    }
    for (unsigned b = 0; b < 4; b++) {
        uint64_t extent = lay_out(&p, sizes, 12, 12 * 15, 16, b);
        HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, AREA_BYTES, c.stream, &c.err), c.err);
        run_gather(&c, &p, c.memory, c.source_mapped, blocks[b], HL_GATHER_BULK);
        conformance_read(&c, c.memory, extent);
        expect_gathered(&c, &p, 0xdd, extent);
    }
    static const uint64_t small[] = {16};
    uint64_t extent = lay_out(&p, small, 1, DESCRIPTORS, 16, 9); /* many more descriptors than blocks */
    HL_EXPECT_OK(c.ops->fill(c.dev, c.memory, 0xdd, AREA_BYTES, c.stream, &c.err), c.err);
    run_gather(&c, &p, c.memory, c.source_mapped, 2, HL_GATHER_BULK);
    conformance_read(&c, c.memory, extent);
    expect_gathered(&c, &p, 0xdd, extent);
    conformance_close(&c);
}

/* A second stream waits for each layer's count and reads the layer at once, while the launch goes on. The
 * counters wrap. */
static void count_layers(struct conformance *c, struct pieces *p, uint32_t blocks,
                         enum hl_gather_method method)
{
    static const uint64_t sizes[] = {16, 32768, 48, 1024, 4096, 4112, 16384, 65552, 0};
    const uint32_t ends[] = {0, 20, 20, 21, 80, 90}; /* the first and the third are empty */
    const uint32_t layers = sizeof ends / sizeof ends[0], counted = UINT32_MAX + blocks;
    const hl_devptr counters = c->other + 64;
    uint64_t extent = lay_out(p, sizes, 9, ends[layers - 1], method == HL_GATHER_BULK ? 16 : 1, blocks);
    HL_EXPECT_OK(c->ops->fill(c->dev, c->memory, 0xdd, AREA_BYTES, c->stream, &c->err), c->err);
    HL_EXPECT_OK(c->ops->fill(c->dev, c->other, 0xff, 4096, c->stream, &c->err), c->err);
    conformance_sync(c, c->stream);
    memset(c->result, 0xdd, AREA_BYTES);
    for (unsigned i = 0; i < p->count; i++) {
        const struct hl_gather piece = {
            .dst = c->memory + p->dst[i], .src = c->source_mapped + p->src[i], .bytes = p->bytes[i]};
        memcpy(c->source + DESCRIPTORS_AT + i * sizeof piece, &piece, sizeof piece);
    }
    const struct hl_gather_launch launch = {.descriptors = c->source_mapped + DESCRIPTORS_AT,
                                            .count = p->count,
                                            .blocks = blocks,
                                            .method = method,
                                            .layer_count = layers,
                                            .layer_ends = ends,
                                            .counters = counters};
    HL_EXPECT_OK(c->ops->gather(c->dev, &launch, c->stream, &c->err), c->err);
    for (uint32_t k = 0; k < layers; k++) {
        HL_EXPECT_OK(c->ops->stream_wait_value(c->dev, c->second, counters + 4 * k, counted, &c->err),
                     c->err);
        for (uint32_t i = k ? ends[k - 1] : 0; i < ends[k]; i++)
            HL_EXPECT_OK(c->ops->copy(c->dev, HL_COPY_D2H, (uintptr_t)c->result + p->dst[i],
                                      c->memory + p->dst[i], p->bytes[i], c->second, &c->err),
                         c->err);
    }
    conformance_sync(c, c->second);
    expect_gathered(c, p, 0xdd, extent);
    conformance_sync(c, c->stream);
    conformance_read(c, counters - 4, 4 * (layers + 2));
    for (uint32_t k = 0; k < layers + 2; k++) {
        uint32_t word;
        memcpy(&word, c->result + 4 * k, sizeof word);
        CU_ASSERT_EQUAL(word, k == 0 || k > layers ? UINT32_MAX : counted);
    }
}

void a_launch_counts_its_layers_when_they_have_arrived(void)
{
    static const uint32_t blocks[] = {1, 3, 8};
    static struct pieces p;
    struct conformance c;
    conformance_open(&c);
    for (unsigned b = 0; b < 3; b++) {
        count_layers(&c, &p, blocks[b], HL_GATHER_LOADS);
        if (c.dev->info.bulk_copy)
            count_layers(&c, &p, blocks[b], HL_GATHER_BULK);
    }
    const uint32_t ends[] = {1, 0};
    struct hl_gather_launch bad = {.descriptors = c.source_mapped,
                                   .count = 1,
                                   .blocks = 1,
                                   .layer_count = 1,
                                   .layer_ends = ends,
                                   .counters = c.other + 2};
    HL_EXPECT_STATUS(c.ops->gather(c.dev, &bad, c.stream, &c.err), HL_E_INVALID, c.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.err.text, "counters"));
    bad.counters = c.other;
    bad.layer_count = 2;
    HL_EXPECT_STATUS(c.ops->gather(c.dev, &bad, c.stream, &c.err), HL_E_INVALID, c.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.err.text, "layer_ends[1]"));
    bad.layer_count = 1;
    bad.count = 2;
    HL_EXPECT_STATUS(c.ops->gather(c.dev, &bad, c.stream, &c.err), HL_E_INVALID, c.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.err.text, "layer_ends"));
    bad.layer_count = HL_GATHER_LAYERS + 1;
    HL_EXPECT_STATUS(c.ops->gather(c.dev, &bad, c.stream, &c.err), HL_E_LIMIT, c.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.err.text, "layer_count"));
    conformance_close(&c);
}

void descriptors_are_read_when_the_gather_runs(void)
{
    struct conformance c;
    conformance_open(&c);
    struct hl_gather piece = {.dst = c.memory, .src = c.source_mapped, .bytes = 64};
    memcpy(c.source + DESCRIPTORS_AT, &piece, sizeof piece);
    const struct hl_gather_launch launch = {
        .descriptors = c.source_mapped + DESCRIPTORS_AT, .count = 1, .blocks = 1};
    /* A driver may load a kernel at its first launch, and that may wait for streams: not while one is held.
     */
    HL_EXPECT_OK(c.ops->gather(c.dev, &launch, c.stream, &c.err), c.err);
    conformance_sync(&c, c.stream);
    conformance_hold(&c, c.stream, 0, 1);
    HL_EXPECT_OK(c.ops->gather(c.dev, &launch, c.stream, &c.err), c.err);
    piece.src = c.source_mapped + 1000;
    memcpy(c.source + DESCRIPTORS_AT, &piece, sizeof piece);
    conformance_release(&c, 0, 1);
    conformance_read(&c, c.memory, 64);
    CU_ASSERT_EQUAL(memcmp(c.result, c.source + 1000, 64), 0);
    conformance_close(&c);
}

void an_empty_gather_does_nothing(void)
{
    struct conformance c;
    conformance_open(&c);
    const struct hl_gather_launch launch = {.descriptors = c.source_mapped, .count = 0, .blocks = 4};
    HL_EXPECT_OK(c.ops->gather(c.dev, &launch, c.stream, &c.err), c.err);
    const struct hl_checksum_launch sums = {
        .base = c.memory, .offsets = c.source_mapped, .sums = c.result_mapped, .page_bytes = 64};
    HL_EXPECT_OK(c.ops->checksum(c.dev, &sums, c.stream, &c.err), c.err);
    const struct hl_gather_launch no_blocks = {.descriptors = c.source_mapped, .count = 1, .blocks = 0};
    CU_ASSERT_TRUE(c.ops->gather(c.dev, &no_blocks, c.stream, &c.err) < 0);
    conformance_sync(&c, c.stream);
    CU_ASSERT_TRUE(all_bytes_are(c.result, 0xee, 4096));
    conformance_close(&c);
}

void the_device_computes_the_page_checksum(void)
{
    static const uint64_t page_bytes[] = {8, 24, 4096, 32768};
    enum { PAGES = 40 };
    struct conformance c;
    hl_random random;
    hl_random_seed(&random, 4);
    conformance_open(&c);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)c.source, AREA_BYTES, c.stream, &c.err),
                 c.err);
    conformance_sync(&c, c.stream);
    for (unsigned n = 0; n < 4; n++) {
        uint64_t offsets[PAGES], sums[PAGES];
        for (unsigned i = 0; i < PAGES; i++)
            offsets[i] = 8 * hl_random_below(&random, (DESCRIPTORS_AT - page_bytes[n]) / 8);
        memcpy(c.source + DESCRIPTORS_AT, offsets, sizeof offsets);
        const struct hl_checksum_launch launch = {.base = c.memory,
                                                  .offsets = c.source_mapped + DESCRIPTORS_AT,
                                                  .sums = c.result_mapped,
                                                  .page_bytes = page_bytes[n],
                                                  .count = PAGES};
        HL_EXPECT_OK(c.ops->checksum(c.dev, &launch, c.stream, &c.err), c.err);
        conformance_sync(&c, c.stream);
        memcpy(sums, c.result, sizeof sums);
        for (unsigned i = 0; i < PAGES; i++)
            CU_ASSERT_EQUAL(sums[i], hl_page_checksum(c.source + offsets[i], page_bytes[n]));
        CU_ASSERT_EQUAL(c.result[sizeof sums], 0xee);
    }
    const struct hl_checksum_launch odd = {
        .base = c.memory, .offsets = c.source_mapped, .sums = c.result_mapped, .page_bytes = 12, .count = 1};
    CU_ASSERT_TRUE(c.ops->checksum(c.dev, &odd, c.stream, &c.err) < 0);
    conformance_close(&c);
}
