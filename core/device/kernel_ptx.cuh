/* The few instructions of kernel.cu that C++ has no words for. Each wrapper is one PTX instruction; what must
 * hold between them is said in kernel.cu. sm_90 and newer, except load_once and count_one. kernel_host.h has
 * the same for a host. */
#ifndef CORE_DEVICE_KERNEL_PTX_CUH
#define CORE_DEVICE_KERNEL_PTX_CUH

#include <cstdint>

/* 16 bytes that this kernel reads once and nobody writes while it runs: kept out of L1. */
static __device__ __forceinline__ uint4 load_once(const uint4 *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}

/* Adds 1 to a word. Whoever has seen the new value sees what this thread saw and wrote before, and what it
 * was told of by barriers. */
static __device__ __forceinline__ void count_one(uint64_t address)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(address) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* The block's dynamic shared memory, as large as the launch says. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

static __device__ __forceinline__ uint32_t shared_address(const void *in_shared)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

static __device__ __forceinline__ void barrier_init(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

/* After barrier_init and before the first bulk copy that completes on one of them. */
static __device__ __forceinline__ void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The one arrival of this phase; the phase ends when `bytes` have been written too. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of this parity. */
static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    do
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!done);
}

static __device__ __forceinline__ void bulk_load(void *to_shared, uint64_t from_global, uint32_t bytes,
                                                 uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to_shared)),
        "l"(from_global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/* One store and its commit: each store is a bulk group of its own. */
static __device__ __forceinline__ void bulk_store(uint64_t to_global, const void *from_shared, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to_global),
                 "r"(shared_address(from_shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all but the `Newest` last stores have read their shared memory. */
template <int Newest> static __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Newest) : "memory");
}

/* Waits until all but the `Newest` last stores have been written, where this thread sees them. */
template <int Newest> static __device__ __forceinline__ void bulk_wait_written()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Newest) : "memory");
}

/* Orders what this thread saw in shared memory before its next bulk store reads there. */
static __device__ __forceinline__ void bulk_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

#endif
