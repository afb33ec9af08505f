/* The kernels' own logic, run on the host (kernel_host.h says how and what that shows): every byte of every
 * piece arrives, nothing else is written, for any sizes, alignments and numbers of blocks. */
#include "core/device/kernel_host.h"
/* after it: the kernels are written for what it defines */
#include "core/device/kernel.cu"

#include <algorithm>
#include <functional>

#include "core/testing/cunit.h"

namespace
{

constexpr uint64_t kArea = 2 << 20;
alignas(4096) unsigned char source[kArea], destination[kArea], expected[kArea];

struct Thread {
    uint32_t thread, block;
    const std::function<void()> *kernel;
};

void *run_thread(void *arg)
{
    const Thread &self = *static_cast<const Thread *>(arg);
    threadIdx.x = self.thread;
    blockIdx.x = self.block;
    (*self.kernel)();
    return nullptr;
}

void launch(uint32_t blocks, uint32_t threads, const std::function<void()> &kernel)
{
    gridDim.x = blocks;
    pthread_barrier_init(&host_block, nullptr, threads);
    for (uint32_t warp = 0; warp < threads / kHostWarp; warp++)
        pthread_barrier_init(&host_warps[warp], nullptr, kHostWarp);
    for (uint32_t block = 0; block < blocks; block++) {
        std::vector<Thread> arguments(threads);
        std::vector<pthread_t> ids(threads);
        host_first_barrier = nullptr;
        for (uint32_t thread = 0; thread < threads; thread++) {
            arguments[thread] = Thread{thread, block, &kernel};
            CU_ASSERT_EQUAL_FATAL(pthread_create(&ids[thread], nullptr, run_thread, &arguments[thread]), 0);
        }
        for (pthread_t id : ids)
            pthread_join(id, nullptr);
        CU_ASSERT_TRUE(host_loads.empty() && host_stores.empty() && host_writes.empty());
    }
    for (uint32_t warp = 0; warp < threads / kHostWarp; warp++)
        pthread_barrier_destroy(&host_warps[warp]);
    pthread_barrier_destroy(&host_block);
}

/* Up to `count` pieces that fit, of sizes drawn from `sizes`, on multiples of `align` with gaps, in random
 * order; what they should do is in `expected`. */
std::vector<Piece> lay_out(const std::vector<uint64_t> &sizes, uint32_t count, uint64_t align,
                           std::mt19937 &random)
{
    std::vector<Piece> pieces;
    uint64_t at = 0;
    memset(destination, 0xdd, kArea);
    memset(expected, 0xdd, kArea);
    for (uint64_t i = 0; i < kArea; i++)
        source[i] = static_cast<unsigned char>(i * 131 + i / 251);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes = sizes[random() % sizes.size()];
        at = (at + align - 1) / align * align + random() % 3 * align;
        if (at + bytes > kArea)
            break;
        const uint64_t from = align * (random() % ((kArea - bytes) / align));
        memcpy(expected + at, source + from, bytes);
        pieces.push_back(Piece{reinterpret_cast<uint64_t>(destination) + at,
                               reinterpret_cast<uint64_t>(source) + from, bytes});
        at += bytes;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    return pieces;
}

void expect_gathered()
{
    CU_ASSERT_EQUAL(memcmp(destination, expected, kArea), 0);
}

/* One layer that nobody counts. */
Layers uncounted(const std::vector<Piece> &pieces)
{
    Layers layers = {};
    layers.count = 1;
    layers.ends[0] = static_cast<uint32_t>(pieces.size());
    return layers;
}

void gather_in_bulk(const std::vector<Piece> &pieces, uint32_t blocks)
{
    const Layers layers = uncounted(pieces);
    launch(blocks, kWarp, [&] { hl_gather_bulk(pieces.data(), layers); });
    expect_gathered();
}

void gather_by_loads(const std::vector<Piece> &pieces, uint32_t blocks)
{
    const Layers layers = uncounted(pieces);
    launch(blocks, kLoadThreads, [&] { hl_gather_loads(pieces.data(), layers); });
    expect_gathered();
}

/* The launch under test, for look_at_count(). */
const std::vector<Piece> *counted_pieces;
const Layers *counted_layers;
uint32_t counters[kMostLayers];
bool early; /* a layer was counted before its bytes had been written, or out of order */
constexpr uint32_t kCountedBefore = UINT32_MAX;

/* Blocks run one after the other here: when the last one counts a layer, all of it must have been written. */
void look_at_count(uint64_t address)
{
    const uint32_t layer = static_cast<uint32_t>((address - reinterpret_cast<uint64_t>(counters)) / 4);
    early |= layer >= counted_layers->count;
    for (uint32_t before = 0; before < layer; before++)
        early |= counters[before] != counters[layer];
    if (early || counters[layer] != kCountedBefore + gridDim.x)
        return;
    for (uint32_t i = layer ? counted_layers->ends[layer - 1] : 0; i < counted_layers->ends[layer]; i++) {
        const Piece &piece = (*counted_pieces)[i];
        const uint64_t at = piece.dst - reinterpret_cast<uint64_t>(destination);
        early |= memcmp(destination + at, expected + at, piece.bytes) != 0;
    }
}

/* In up to `most` layers of random lengths, some of them empty; each must be counted once a block. */
void gather_layers(const std::vector<Piece> &pieces, uint32_t most, uint32_t blocks, bool bulk,
                   std::mt19937 &random)
{
    const uint32_t count = static_cast<uint32_t>(pieces.size());
    Layers layers = {};
    layers.counters = reinterpret_cast<uint64_t>(counters);
    layers.count = 1 + random() % most;
    for (uint32_t i = 0; i < layers.count; i++)
        layers.ends[i] = random() % (count + 1);
    layers.ends[layers.count - 1] = count;
    std::sort(layers.ends, layers.ends + layers.count);
    std::fill(counters, counters + kMostLayers, kCountedBefore);
    counted_pieces = &pieces;
    counted_layers = &layers;
    early = false;
    host_on_count = look_at_count;
    if (bulk)
        launch(blocks, kWarp, [&] { hl_gather_bulk(pieces.data(), layers); });
    else
        launch(blocks, kLoadThreads, [&] { hl_gather_loads(pieces.data(), layers); });
    host_on_count = nullptr;
    expect_gathered();
    CU_ASSERT_FALSE(early);
    for (uint32_t i = 0; i < kMostLayers; i++)
        CU_ASSERT_EQUAL(counters[i], kCountedBefore + (i < layers.count ? blocks : 0));
}

const std::vector<uint64_t> kAligned = {0,    16,    32,    48,    1024,  2048,  4096,
                                        4112, 16384, 16400, 32768, 65552, 131072};
const std::vector<uint64_t> kAny = {0, 1, 2, 3, 8, 15, 16, 17, 31, 33, 255, 512, 4096, 4099, 20000};

void bulk_gathers_of_one_size_arrive()
{
    std::mt19937 random(1);
    for (uint64_t bytes : kAligned)
        for (uint32_t blocks : {1u, 4u})
            gather_in_bulk(lay_out({bytes}, 400, 16, random), blocks);
}

void bulk_gathers_of_mixed_sizes_arrive()
{
    std::mt19937 random(2);
    for (uint32_t round = 0; round < 20; round++)
        gather_in_bulk(lay_out(kAligned, random() % 300, 16, random), 1 + random() % 9);
}

void a_bulk_gather_also_takes_what_bulk_copies_cannot()
{
    std::mt19937 random(3);
    for (uint32_t round = 0; round < 6; round++)
        gather_in_bulk(lay_out(kAny, 200, 1 + 15 * (round % 2), random), 1 + random() % 4);
}

/* Fewer pieces than blocks: each is cut into slices, the last with what is left over. */
void few_large_pieces_are_shared_by_all_blocks()
{
    std::mt19937 random(4);
    for (uint32_t count = 1; count < 6; count++) {
        gather_in_bulk(lay_out({300000 / 16 * 16, 131072 + 16}, count, 16, random), 7);
        gather_in_bulk(lay_out({1024, 7 * 1024, 7 * 1024 + 112}, count, 16, random), 7);
    }
    gather_by_loads(lay_out({300001}, 1, 1, random), 3);
}

void the_ring_holds_as_many_loads_as_fit()
{
    std::mt19937 random(5);
    host_most_loads = 0;
    gather_in_bulk(lay_out({16384}, 100, 16, random), 1);
    CU_ASSERT_TRUE(host_most_loads >= 9 && host_most_loads <= 12);
    host_most_loads = 0;
    gather_in_bulk(lay_out({2048}, 500, 16, random), 1);
    CU_ASSERT_TRUE(host_most_loads >= 40 && host_most_loads <= 64);
}

void gathers_by_loads_arrive()
{
    std::mt19937 random(6);
    for (uint32_t blocks : {1u, 3u}) {
        gather_by_loads(lay_out(kAny, 1100, 1, random), blocks); /* more than two batches of descriptors */
        gather_by_loads(lay_out(kAligned, 100, 16, random), blocks);
    }
}

void layers_are_counted_when_they_have_been_written()
{
    std::mt19937 random(8);
    for (uint32_t round = 0; round < 10; round++) {
        const bool aligned = random() % 3 != 0;
        const uint32_t most = round % 5 == 0 ? kMostLayers : 6;
        const std::vector<Piece> pieces =
            lay_out(aligned ? kAligned : kAny, 1 + random() % 200, aligned ? 16 : 1, random);
        gather_layers(pieces, most, 1 + random() % 5, true, random);
    }
    gather_layers(lay_out(kAny, 700, 1, random), 5, 2, false, random);
}

void checksums_are_those_of_the_interface()
{
    std::mt19937 random(7);
    lay_out({0}, 0, 1, random);
    for (uint64_t bytes : {uint64_t{0}, uint64_t{8}, uint64_t{24}, uint64_t{4096}, uint64_t{32768 + 8}}) {
        uint64_t offsets[3], sums[4] = {1, 1, 1, 1};
        for (uint64_t &offset : offsets)
            offset = 8 * (random() % ((kArea - bytes) / 8));
        launch(3, kChecksumThreads,
               [&] { hl_checksum_pages(reinterpret_cast<uint64_t>(source), offsets, sums, bytes); });
        for (uint32_t page = 0; page < 3; page++) {
            uint64_t sum = 0, word;
            for (uint64_t i = 0; i < bytes / 8; i++) {
                memcpy(&word, source + offsets[page] + 8 * i, 8);
                sum += word * (2 * i + 1);
            }
            CU_ASSERT_EQUAL(sums[page], sum);
        }
        CU_ASSERT_EQUAL(sums[3], 1);
    }
}

} // namespace

HL_TESTS(kernel, HL_CASE(bulk_gathers_of_one_size_arrive), HL_CASE(bulk_gathers_of_mixed_sizes_arrive),
         HL_CASE(a_bulk_gather_also_takes_what_bulk_copies_cannot),
         HL_CASE(few_large_pieces_are_shared_by_all_blocks), HL_CASE(the_ring_holds_as_many_loads_as_fit),
         HL_CASE(gathers_by_loads_arrive), HL_CASE(layers_are_counted_when_they_have_been_written),
         HL_CASE(checksums_are_those_of_the_interface));
