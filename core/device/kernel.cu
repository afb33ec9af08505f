/* The kernels of the CUDA device: two ways to gather scattered pieces, and the page checksum. Compiled to a
 * fatbin that cuda_kernels.c loads through the driver; nothing here uses the CUDA runtime. The names and
 * parameters below are what cuda_kernels.c launches; keep both in step.
 *
 * How a gather is shared out. Of `count` pieces each of the G blocks takes count / G neighbouring ones, so
 * that it reads its descriptors (often in host memory, 1.5 us away) in whole lines and no other block reads
 * them too. What does not divide evenly, fewer than G pieces at the end of the list, is cut into G slices,
 * one a block: all blocks finish together, whether the list is 900 pieces or one. The next batch of
 * descriptors is read while the present one is copied.
 *
 * Layers. The list is a row of layers, each shared out as above, so that all blocks work at the same one; a
 * batch does not reach past its layer. When a block's share of a layer has been written it adds 1 to the
 * layer's counter, and who sees the counter grown by G sees the layer: each block's stores come before its
 * count, by program order, barriers and completed bulk groups, and the count is a release at system scope
 * (count_one). No pipeline drains between layers: the count comes when the block is already busy with what
 * follows. */
#include <cstdint>

#include "core/device/kernel_ptx.cuh"

/* struct hl_gather of device.h. */
struct Piece {
    uint64_t dst;
    uint64_t src;
    uint64_t bytes;
};
static_assert(sizeof(Piece) == 24, "device.h says 24 bytes");

/* Where the layers of a list end, and their counters; 0 where nothing is counted. Most as device.h says. */
constexpr uint32_t kMostLayers = 32;
struct Layers {
    uint64_t counters;
    uint32_t count; /* at least 1 */
    uint32_t ends[kMostLayers];
};
static_assert(sizeof(Layers) == 144, "cuda_kernels.c passes it");

namespace
{

constexpr uint32_t kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

/* Slices start on whole lines; a piece too small for 1 KiB a slice goes to one block. */
constexpr uint64_t kSliceUnit = 128;
constexpr uint64_t kSliceSmallest = 1024;

/* What this block copies, batch by batch: of each layer pieces [0, total) of its own numbering, the shared
 * ones last. A layer without a piece for this block is one empty batch. */
class Walk
{
  public:
    __device__ Walk(const Piece *pieces, const Layers &all) : list(pieces), layers(all)
    {
        begin_layer(0);
    }

    __device__ bool done() const
    {
        return layer >= layers.count;
    }

    /* Pieces of the present batch, of at most `most`. */
    __device__ uint32_t here(uint32_t most) const
    {
        return total - base < most ? total - base : most;
    }

    /* Whether the present batch is its layer's last. */
    __device__ bool ends_layer(uint32_t most) const
    {
        return total - base <= most;
    }

    /* Piece k of the present batch; past its end, and where a shared piece has nothing for this block, one of
     * 0 bytes. */
    __device__ Piece read(uint32_t k) const
    {
        if (done() || k >= total - base)
            return Piece{0, 0, 0};
        k += base;
        if (k < own)
            return list[first + blockIdx.x * own + k];
        const uint32_t rank = k - own;
        return slice(list[first + gridDim.x * own + rank], rank);
    }

    /* To the batch after the present one, of at most `most` pieces. */
    __device__ void advance(uint32_t most)
    {
        if (ends_layer(most))
            begin_layer(layer + 1);
        else
            base += most;
    }

  private:
    __device__ void begin_layer(uint32_t index)
    {
        layer = index;
        base = 0;
        if (done())
            return;
        first = layer ? layers.ends[layer - 1] : 0;
        const uint32_t count = layers.ends[layer] - first;
        own = count / gridDim.x;
        total = own + count % gridDim.x;
    }

    __device__ static Piece slice(Piece piece, uint32_t rank)
    {
        const uint64_t blocks = gridDim.x, block = blockIdx.x;
        if (piece.bytes < blocks * kSliceSmallest)
            return block == rank ? piece : Piece{0, 0, 0};
        const uint64_t units = piece.bytes / kSliceUnit;
        const uint64_t each = units / blocks, extra = units % blocks;
        const uint64_t start = (block * each + (block < extra ? block : extra)) * kSliceUnit;
        uint64_t bytes = (each + (block < extra ? 1 : 0)) * kSliceUnit;
        if (block == blocks - 1)
            bytes += piece.bytes % kSliceUnit;
        return Piece{piece.dst + start, piece.src + start, bytes};
    }

    const Piece *list;
    const Layers &layers;
    uint32_t layer = 0;
    uint64_t first = 0; /* of the layer in the list */
    uint32_t base = 0;  /* of the batch in this block's numbering */
    uint32_t own = 0;
    uint32_t total = 0;
};

/* One thread of the block, after the block's stores of the layer. */
__device__ __forceinline__ void count_layer(const Layers &layers, uint32_t layer)
{
    if (layers.counters)
        count_one(layers.counters + layer * sizeof(uint32_t));
}

__device__ __forceinline__ uint4 load(const uint4 *from)
{
    return load_once(from);
}

template <typename Word> __device__ __forceinline__ Word load(const Word *from)
{
    return __ldg(from);
}

/* Bytes [start, end) of a copy, fewer than one warp has lanes. */
__device__ __forceinline__ void copy_few(uint64_t dst, uint64_t src, uint64_t start, uint64_t end,
                                         uint32_t lane)
{
    if (lane < end - start)
        reinterpret_cast<uint8_t *>(dst + start)[lane] =
            load(reinterpret_cast<const uint8_t *>(src + start) + lane);
}

/* While `words` words are left, one warp copies Flight of them a lane: all the loads first, then the stores.
 * No load has a condition, which would cost predicates and with them the loads' overlap. */
template <uint32_t Flight, typename Word>
__device__ __forceinline__ void copy_rounds(Word *&to, const Word *&from, uint64_t &words)
{
#pragma unroll 1
    while (words >= Flight * kWarp) {
        Word flight[Flight];
#pragma unroll
        for (uint32_t i = 0; i < Flight; i++)
            flight[i] = load(from + i * kWarp);
#pragma unroll
        for (uint32_t i = 0; i < Flight; i++)
            to[i * kWarp] = flight[i];
        to += Flight * kWarp;
        from += Flight * kWarp;
        words -= Flight * kWarp;
    }
}

/* One warp copies `bytes` bytes whose source and destination have the same offset within a Word: bytes up to
 * the first whole word, words, bytes after the last one. */
template <typename Word> __device__ void copy_words(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t lane)
{
    const uint64_t before = (0 - dst) % sizeof(Word);
    const uint64_t head = before < bytes ? before : bytes;
    copy_few(dst, src, 0, head, lane);
    uint64_t words = (bytes - head) / sizeof(Word);
    copy_few(dst, src, head + words * sizeof(Word), bytes, lane);
    Word *to = reinterpret_cast<Word *>(dst + head) + lane;
    const Word *from = reinterpret_cast<const Word *>(src + head) + lane;
    __builtin_assume(__isGlobal(to));
    copy_rounds<8>(to, from, words);
    copy_rounds<4>(to, from, words);
    copy_rounds<2>(to, from, words);
    copy_rounds<1>(to, from, words);
    if (lane < words)
        *to = load(from);
}

/* One warp copies with the widest word that both addresses allow. */
__device__ void copy_by_loads(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t lane)
{
    const uint64_t skew = dst ^ src;
    if (skew % sizeof(uint4) == 0)
        copy_words<uint4>(dst, src, bytes, lane);
    else if (skew % sizeof(uint64_t) == 0)
        copy_words<uint64_t>(dst, src, bytes, lane);
    else if (skew % sizeof(uint32_t) == 0)
        copy_words<uint32_t>(dst, src, bytes, lane);
    else
        copy_words<uint8_t>(dst, src, bytes, lane);
}

/* A multiple of kSliceUnit, and what one warp has in flight with 16-byte words. */
constexpr uint32_t kChunk = 4096;
constexpr uint32_t kLoadThreads = 512;

} // namespace

/* Plain loads and stores; any device, any alignment. 512 threads. The chunks of 4 KiB that a batch of
 * descriptors adds up to are dealt to the warps in turn, so that small pieces keep as many loads in flight as
 * large ones. */
extern "C" __global__ void __launch_bounds__(kLoadThreads, 1)
    hl_gather_loads(const Piece *pieces, const __grid_constant__ Layers layers)
{
    __shared__ Piece batch[kLoadThreads];
    Walk walk(pieces, layers);
    const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    constexpr uint32_t kWarps = kLoadThreads / kWarp;

    uint32_t copied = 0; /* layers that all threads have left behind at the next barrier */
    uint32_t counted = 0;
    Piece next = walk.read(threadIdx.x);
    while (!walk.done()) {
        const uint32_t here = walk.here(kLoadThreads);
        __syncthreads();
        if (threadIdx.x == 0 && counted != copied)
            count_layer(layers, counted);
        counted = copied;
        batch[threadIdx.x] = next;
        __syncthreads();
        if (walk.ends_layer(kLoadThreads))
            copied++;
        walk.advance(kLoadThreads);
        next = walk.read(threadIdx.x);

        uint64_t turn = warp; /* chunks from the start of piece i to this warp's next one */
#pragma unroll 1
        for (uint32_t i = 0; i < here; i++) {
            const uint64_t bytes = batch[i].bytes;
            const uint64_t chunks = bytes / kChunk + (bytes % kChunk != 0);
            for (; turn < chunks; turn += kWarps) {
                const uint64_t at = turn * kChunk;
                copy_by_loads(batch[i].dst + at, batch[i].src + at, bytes - at < kChunk ? bytes - at : kChunk,
                              lane);
            }
            turn -= chunks;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        count_layer(layers, counted);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

namespace
{

constexpr uint32_t kRingBytes = 192 * 1024; /* HL_CUDA_BULK_SHARED of cuda_device.h */
constexpr uint32_t kLoadBytes = 16 * 1024;  /* most bytes of one bulk load */
constexpr uint32_t kLoads = 64;             /* most loads in the ring; a power of two */
constexpr uint32_t kRingAlign = 128;

/* A layer is counted when this many later stores have been issued: waiting for its own then takes no time. */
constexpr int kCountBehind = 4;

/* One load in the ring, from its issue until its store has read the shared memory. */
struct Slot {
    uint64_t dst;
    uint32_t offset; /* in the ring */
    uint32_t bytes;
    uint32_t span; /* bytes of the ring that become free with it: alignment and what was skipped at the ring's
                      end */
};

/* The ring in shared memory, used by one thread. Loads enter in order, each waits on its own barrier, is
 * stored when it is the oldest that has not been, and leaves when its store has read it. Ring space is given
 * by the byte, so that the ring holds 12 loads of 16 KiB or 64 of up to 3 KiB without being told which.
 *
 *     freed <= stored <= loaded <= freed + kLoads, each counting loads since the start, modulo 2^32. */
class Ring
{
  public:
    __device__ Ring(unsigned char *ring, Slot *ring_slots, uint64_t *ring_barriers, uint32_t *layer_marks,
                    const Layers &all)
        : space(ring), slots(ring_slots), barriers(ring_barriers), marks(layer_marks), layers(all)
    {
    }

    __device__ void start()
    {
#pragma unroll 1
        for (uint32_t i = 0; i < kLoads; i++)
            barrier_init(&barriers[i]);
        barrier_init_fence();
    }

    /* Both addresses and the size are multiples of 16. */
    __device__ void push(Piece piece)
    {
#pragma unroll 1
        while (piece.bytes != 0) {
            const uint32_t bytes = piece.bytes < kLoadBytes ? static_cast<uint32_t>(piece.bytes) : kLoadBytes;
            load(piece.dst, piece.src, bytes);
            piece.dst += bytes;
            piece.src += bytes;
            piece.bytes -= bytes;
        }
        if (counted != marked && static_cast<int32_t>(stored - marks[counted]) >= kCountBehind) {
            bulk_wait_written<kCountBehind>();
            count_layer(layers, counted++);
        }
    }

    /* The layer ends with what has been pushed so far. */
    __device__ void end_layer()
    {
        marks[marked++] = loaded;
    }

    /* After this every byte pushed has been written, every layer counted, and the shared memory may go. */
    __device__ void drain()
    {
        while (stored != loaded)
            store_oldest();
        bulk_wait_written<0>();
        while (counted != marked)
            count_layer(layers, counted++);
    }

  private:
    __device__ void load(uint64_t dst, uint64_t src, uint32_t bytes)
    {
        const uint32_t room = (bytes + kRingAlign - 1) / kRingAlign * kRingAlign;
        const bool wraps = position + room > kRingBytes;
        const uint32_t span = room + (wraps ? kRingBytes - position : 0);
        make_room(span);
        const uint32_t offset = wraps ? 0 : position;
        const uint32_t index = loaded % kLoads;
        slots[index] = Slot{dst, offset, bytes, span};
        barrier_expect(&barriers[index], bytes);
        bulk_load(space + offset, src, bytes, &barriers[index]);
        position = offset + room;
        used += span;
        loaded++;
    }

    /* `span` is at most two loads' worth, so an empty ring always has it. */
    __device__ void make_room(uint32_t span)
    {
        while (used + span > kRingBytes || loaded - freed == kLoads) {
            if (stored == loaded) {
                bulk_wait_read<0>();
                free_up_to(stored);
            } else if (store_oldest() > kLoadBytes / 4) {
                /* Large loads: let one store be read while the next load lands; the rest of the ring is
                 * loads. */
                bulk_wait_read<1>();
                free_all_but(1);
            } else {
                bulk_wait_read<7>();
                free_all_but(7);
            }
        }
    }

    /* Waits for the oldest load that has not been stored, starts its store and returns its size. */
    __device__ uint32_t store_oldest()
    {
        const uint32_t index = stored % kLoads;
        const Slot slot = slots[index];
        barrier_wait(&barriers[index], stored / kLoads % 2);
        bulk_fence();
        bulk_store(slot.dst, space + slot.offset, slot.bytes);
        stored++;
        return slot.bytes;
    }

    __device__ void free_all_but(uint32_t newest)
    {
        if (stored - freed > newest)
            free_up_to(stored - newest);
    }

    __device__ void free_up_to(uint32_t end)
    {
#pragma unroll 1
        for (; freed != end; freed++)
            used -= slots[freed % kLoads].span;
    }

    unsigned char *space;
    Slot *slots;
    uint64_t *barriers;
    uint32_t *marks; /* of each ended layer: the loads up to its end */
    const Layers &layers;
    uint32_t marked = 0, counted = 0; /* layers ended; of them, counted */
    uint32_t loaded = 0, stored = 0, freed = 0;
    uint32_t position = 0; /* where the next load goes; may be kRingBytes */
    uint32_t used = 0;     /* sum of the spans of the loads in [freed, loaded) */
};

} // namespace

#endif

/* Hopper's bulk copies: lane 0 drives the ring, all lanes read descriptors ahead. 32 threads and kRingBytes
 * of dynamic shared memory. A piece that bulk copies cannot take (not of 16 bytes) is copied by the warp with
 * loads, as is every piece in the code for devices without them, where the host does not launch this. */
extern "C" __global__ void __launch_bounds__(kWarp)
    hl_gather_bulk(const Piece *pieces, const __grid_constant__ Layers layers)
{
    Walk walk(pieces, layers);
    const uint32_t lane = threadIdx.x;
    Piece next = walk.read(lane);
    [[maybe_unused]] uint32_t counted = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ Slot slots[kLoads];
    __shared__ uint64_t barriers[kLoads];
    __shared__ uint32_t marks[kMostLayers];
    __shared__ Piece batch[kWarp];
    Ring ring(dynamic_shared, slots, barriers, marks, layers);
    if (lane == 0)
        ring.start();
#endif
    while (!walk.done()) {
        const Piece mine = next;
        const uint32_t here = walk.here(kWarp);
        const bool ends_layer = walk.ends_layer(kWarp);
        walk.advance(kWarp);
        next = walk.read(lane);
        bool by_loads = mine.bytes != 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        by_loads = (mine.dst | mine.src | mine.bytes) % 16 != 0;
        batch[lane] = by_loads ? Piece{0, 0, 0} : mine;
        __syncwarp();
        if (lane == 0)
#pragma unroll 1
            for (uint32_t i = 0; i < here; i++)
                ring.push(batch[i]);
        __syncwarp();
#endif
        for (uint32_t odd = __ballot_sync(kAllLanes, by_loads); odd != 0; odd &= odd - 1) {
            const int owner = __ffs(odd) - 1;
            copy_by_loads(__shfl_sync(kAllLanes, mine.dst, owner), __shfl_sync(kAllLanes, mine.src, owner),
                          __shfl_sync(kAllLanes, mine.bytes, owner), lane);
        }
        if (!ends_layer)
            continue;
        __syncwarp(); /* lane 0 counts what all lanes have copied */
        if (lane == 0)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
            ring.end_layer();
#else
            count_layer(layers, counted++);
#endif
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0)
        ring.drain();
#endif
}

/* hl_page_checksum() of device.h for page blockIdx.x. 256 threads. */
constexpr uint32_t kChecksumThreads = 256;

extern "C" __global__ void __launch_bounds__(kChecksumThreads)
    hl_checksum_pages(uint64_t base, const uint64_t *offsets, uint64_t *sums, uint64_t page_bytes)
{
    const uint64_t *words = reinterpret_cast<const uint64_t *>(base + offsets[blockIdx.x]);
    const uint64_t count = page_bytes / sizeof(uint64_t);
    __builtin_assume(__isGlobal(words));
    uint64_t sum = 0;
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < count; i += kChecksumThreads)
        sum += words[i] * (2 * i + 1);
    for (int step = kWarp / 2; step > 0; step /= 2)
        sum += __shfl_down_sync(kAllLanes, sum, step);
    __shared__ uint64_t warp_sums[kChecksumThreads / kWarp];
    if (threadIdx.x % kWarp == 0)
        warp_sums[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 1; i < kChecksumThreads / kWarp; i++)
            sum += warp_sums[i];
        sums[blockIdx.x] = sum;
    }
}
