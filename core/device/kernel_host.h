/* What kernel.cu needs to be compiled for the host by kernel_test.cc: a thread of the host for each thread of
 * a block, one block after the other, and bulk copies done by an adversary, who runs a load at any time until
 * it is waited for, reads a store's shared memory and writes what it read as late as the kernel allows, and
 * ends the test when two of them touch the same bytes.
 *
 * It shows that the kernels copy what their descriptors say and reuse shared memory only when they may. It
 * shows nothing about speed, and nothing about memory ordering beyond that. */
#ifndef CORE_DEVICE_KERNEL_HOST_H
#define CORE_DEVICE_KERNEL_HOST_H

#include <pthread.h>

#include <cassert>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#define CORE_DEVICE_KERNEL_PTX_CUH /* its stand-in is below */
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static /* one block at a time */
#define __isGlobal(pointer) true
#define __builtin_assume(truth) ((void)(truth))

struct uint4 {
    uint32_t x, y, z, w;
};

struct HostIndex {
    uint32_t x;
};
static thread_local HostIndex threadIdx, blockIdx;
static HostIndex gridDim;

/* --- a block: its barriers, and a word for each lane that warp operations exchange --- */

constexpr uint32_t kHostWarp = 32, kHostThreads = 512;
static pthread_barrier_t host_block, host_warps[kHostThreads / kHostWarp];
static uint64_t host_lanes[kHostThreads];

static inline void __syncthreads()
{
    pthread_barrier_wait(&host_block);
}

static inline void __syncwarp()
{
    pthread_barrier_wait(&host_warps[threadIdx.x / kHostWarp]);
}

/* Offers `value` to the warp and returns what lane `lane` offered. */
static inline uint64_t host_exchange(uint64_t value, uint32_t lane)
{
    host_lanes[threadIdx.x] = value;
    __syncwarp();
    const uint64_t theirs = host_lanes[threadIdx.x / kHostWarp * kHostWarp + lane];
    __syncwarp();
    return theirs;
}

static inline uint64_t __shfl_sync(uint32_t, uint64_t value, int lane)
{
    return host_exchange(value, static_cast<uint32_t>(lane));
}

static inline uint64_t __shfl_down_sync(uint32_t, uint64_t value, int distance)
{
    const uint32_t lane = threadIdx.x % kHostWarp, other = lane + static_cast<uint32_t>(distance);
    return host_exchange(value, other < kHostWarp ? other : lane);
}

static inline uint32_t __ballot_sync(uint32_t, bool vote)
{
    uint32_t votes = 0;
    host_lanes[threadIdx.x] = vote;
    __syncwarp();
    for (uint32_t lane = 0; lane < kHostWarp; lane++)
        votes |= static_cast<uint32_t>(host_lanes[threadIdx.x / kHostWarp * kHostWarp + lane]) << lane;
    __syncwarp();
    return votes;
}

static inline int __ffs(uint32_t bits)
{
    return __builtin_ffs(static_cast<int>(bits));
}

template <typename Word> static inline Word __ldg(const Word *from)
{
    assert(reinterpret_cast<uintptr_t>(from) % sizeof(Word) == 0);
    return *from;
}

static inline uint4 load_once(const uint4 *from)
{
    return __ldg(from);
}

/* What a test looks at when a block has counted a layer. */
static void (*host_on_count)(uint64_t address);

static inline void count_one(uint64_t address)
{
    __atomic_fetch_add(reinterpret_cast<uint32_t *>(address), 1, __ATOMIC_ACQ_REL);
    if (host_on_count)
        host_on_count(address);
}

/* --- bulk copies --- */

constexpr uint32_t kHostShared = 192 * 1024;
alignas(128) static unsigned char dynamic_shared[kHostShared];

/* The barriers of one block are neighbours; the lowest address that was initialised is number 0. */
struct HostBarrier {
    uint32_t phase;
    bool arrived;
    uint32_t bytes; /* still to come in this phase */
};
struct HostLoad {
    unsigned char *to;
    uint64_t from;
    uint32_t bytes;
    HostBarrier *barrier;
};
struct HostStore {
    uint64_t to;
    const unsigned char *from;
    uint32_t bytes;
};
constexpr uint32_t kHostBarriers = 64;
static HostBarrier host_barriers[kHostBarriers];
static const uint64_t *host_first_barrier;
static std::vector<HostLoad> host_loads; /* issued and not landed */
struct HostWrite {
    uint64_t to;
    std::vector<unsigned char> bytes;
};
static std::deque<HostStore> host_stores; /* issued and not read */
static std::deque<HostWrite> host_writes; /* read and not written */
static std::mt19937 host_choice(1);
static size_t host_most_loads;

static inline HostBarrier &host_barrier(const uint64_t *barrier)
{
    assert(barrier >= host_first_barrier && barrier < host_first_barrier + kHostBarriers);
    return host_barriers[barrier - host_first_barrier];
}

static inline bool host_overlap(const unsigned char *a, uint32_t a_bytes, const unsigned char *b,
                                uint32_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static inline void host_land(size_t index)
{
    const HostLoad load = host_loads[index];
    memcpy(load.to, reinterpret_cast<const void *>(load.from), load.bytes);
    assert(load.barrier->arrived && load.barrier->bytes >= load.bytes);
    load.barrier->bytes -= load.bytes;
    if (load.barrier->bytes == 0) {
        load.barrier->phase++;
        load.barrier->arrived = false;
    }
    host_loads.erase(host_loads.begin() + static_cast<std::ptrdiff_t>(index));
}

static inline void barrier_init(uint64_t *barrier)
{
    if (!host_first_barrier)
        host_first_barrier = barrier;
    host_barrier(barrier) = HostBarrier{};
}

static inline void barrier_init_fence()
{
}

static inline void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    HostBarrier &b = host_barrier(barrier);
    assert(!b.arrived && b.bytes == 0);
    b.arrived = true;
    b.bytes = bytes;
}

static inline void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    HostBarrier &b = host_barrier(barrier);
    for (size_t i = host_loads.size(); i-- > 0;)
        if (host_loads[i].barrier == &b)
            host_land(i);
    assert(parity < 2 && b.phase % 2 != parity); /* else the kernel would wait for ever */
    assert(b.phase > 0);                         /* else it would not have waited at all */
}

static inline void bulk_load(void *to_shared, uint64_t from_global, uint32_t bytes, uint64_t *barrier)
{
    unsigned char *to = static_cast<unsigned char *>(to_shared);
    assert(bytes > 0 && (bytes | from_global | reinterpret_cast<uintptr_t>(to)) % 16 == 0);
    assert(to >= dynamic_shared && to + bytes <= dynamic_shared + kHostShared);
    for (const HostLoad &load : host_loads)
        assert(!host_overlap(to, bytes, load.to, load.bytes));
    for (const HostStore &store : host_stores)
        assert(!host_overlap(to, bytes, store.from, store.bytes));
    host_loads.push_back(HostLoad{to, from_global, bytes, &host_barrier(barrier)});
    if (host_loads.size() > host_most_loads)
        host_most_loads = host_loads.size();
    while (!host_loads.empty() && host_choice() % 16 == 0)
        host_land(host_choice() % host_loads.size());
}

static inline void bulk_store(uint64_t to_global, const void *from_shared, uint32_t bytes)
{
    const unsigned char *from = static_cast<const unsigned char *>(from_shared);
    assert(bytes > 0 && (bytes | to_global | reinterpret_cast<uintptr_t>(from)) % 16 == 0);
    for (const HostLoad &load : host_loads)
        assert(!host_overlap(from, bytes, load.to, load.bytes));
    host_stores.push_back(HostStore{to_global, from, bytes});
}

template <int Newest> static inline void bulk_wait_read()
{
    for (; host_stores.size() > Newest; host_stores.pop_front()) {
        const HostStore &store = host_stores.front();
        host_writes.push_back(
            HostWrite{store.to, std::vector<unsigned char>(store.from, store.from + store.bytes)});
    }
}

template <int Newest> static inline void bulk_wait_written()
{
    bulk_wait_read<Newest>();
    for (; host_stores.size() + host_writes.size() > Newest && !host_writes.empty(); host_writes.pop_front())
        memcpy(reinterpret_cast<void *>(host_writes.front().to), host_writes.front().bytes.data(),
               host_writes.front().bytes.size());
}

static inline void bulk_fence()
{
}

#endif
