/* hopper.cuh: Hopper's features as device functions: mbarriers, TMA, wgmma, clusters, programmatic dependent launch.
 * Constants follow the PTX ISA. Synchronization policy is left to the kernels.
 *
 * wgmma: a warpgroup multiplies 64 rows of A (shared memory or registers) with N rows of B in steps of 16 k; each
 * step is one tc16 step of the law. Shared operands have TMA's 128-byte swizzle: rows of 64 16-bit elements,
 * 1024-byte aligned; K-major (iv_wgmma_desc), or for B also N-major (iv_wgmma_desc_mn). */
#ifndef IV_KERNELS_CUDA_HOPPER_CUH
#define IV_KERNELS_CUDA_HOPPER_CUH

#include "base/dtype.h"
#include "kernels/cuda/law.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- host ------------------------------------------------------------------------------------------------- */

/* cuTensorMapEncodeTiled, from the driver; NULL if it has none. */
static inline PFN_cuTensorMapEncodeTiled_v12000 iv_tensor_map_encoder(void) {
    static void *found; /* racing threads write the same value */
    if (!found) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &result) ==
                cudaSuccess &&
            result == cudaDriverEntryPointSuccess)
            found = p;
    }
    return (PFN_cuTensorMapEncodeTiled_v12000)found;
}

/* ---- addresses ---------------------------------------------------------------------------------------------- */

IV_DEVICE uint32_t iv_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* The corresponding address in another CTA of the cluster. */
IV_DEVICE uint32_t iv_shared_of(uint32_t address, uint32_t cta) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
    return there;
}

IV_DEVICE float4 iv_load_cluster4(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

IV_DEVICE void iv_store_cluster4(uint32_t address, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}
/* To another CTA, whose mbarrier counts its 4 bytes when they are there; who waits at that one for a cluster sees them.
 * It orders no other access of this thread. */
IV_DEVICE void iv_store_async(uint32_t address, float v, uint32_t bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
                 "f"(v), "r"(bar)
                 : "memory");
}

IV_DEVICE void iv_prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* Predicated loads and stores. They stay in program order, so that many loads overlap, and do not branch. If not
 * `there`, memory is not touched and a load returns -0, which changes no sum. */
IV_DEVICE float iv_load_if(const float *p, bool there) {
    float v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.f32 %0, 0f80000000;\n@p ld.global.f32 %0, [%1];\n}\n"
                 : "=f"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
IV_DEVICE void iv_store_if(float *p, float v, bool there) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}\n" ::"l"(p), "f"(v),
                 "r"((int)there)
                 : "memory");
}
IV_DEVICE float4 iv_load4_if(const float *p, bool there) {
    float4 v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.f32 %0, 0f80000000;\nmov.f32 %1, 0f80000000;\n"
                 "mov.f32 %2, 0f80000000;\nmov.f32 %3, 0f80000000;\n@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
IV_DEVICE void iv_store4_if(float *p, float4 v, bool there) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(p),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"((int)there)
                 : "memory");
}
IV_DEVICE void iv_store2_if(float *p, float2 v, bool there) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.f32 [%0], {%1, %2};\n}\n" ::"l"(p), "f"(v.x),
                 "f"(v.y), "r"((int)there)
                 : "memory");
}
/* Transposes 8 x 8 16-bit numbers over a whole warp: a lane has two neighbors of row lane / 4 before, of column lane
 * / 4 after. */
IV_DEVICE uint32_t iv_transpose8(uint32_t pair) {
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}
/* A shared-memory load that stays in program order. */
IV_DEVICE float4 iv_load_shared4(uint32_t p) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(p)
                 : "memory");
    return v;
}

/* ---- mbarriers ---------------------------------------------------------------------------------------------- */

IV_DEVICE void iv_mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/* Makes initialized mbarriers visible to TMA and the cluster; a thread barrier must follow. */
IV_DEVICE void iv_mbar_init_fence(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

IV_DEVICE void iv_mbar_expect(uint32_t bar, uint32_t bytes) { /* also arrives */
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
IV_DEVICE void iv_mbar_arrive(uint32_t bar) { /* may pass loads in flight, which iv_fence_async ends */
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives at an mbarrier of another CTA (iv_shared_of). Does not order ordinary writes, which would need a fence;
 * sufficient for a stage that wgmma has read. */
IV_DEVICE void iv_mbar_release_cluster(uint32_t remote) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
/* The same with all that this thread has written or seen. It waits for its writes to global memory, too. */
IV_DEVICE void iv_mbar_arrive_cluster(uint32_t remote) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
/* Has the phase with this parity ended? `how` may wait a while. */
#define IV_MBAR_ASK(name, how)                                                           \
    IV_DEVICE bool name(uint32_t bar, uint32_t parity) {                                 \
        uint32_t done;                                                                   \
        asm volatile("{\n.reg .pred p;\nmbarrier." how ".shared::cta.b64 p, [%1], %2;\n" \
                     "selp.b32 %0, 1, 0, p;\n}\n"                                        \
                     : "=r"(done)                                                        \
                     : "r"(bar), "r"(parity)                                             \
                     : "memory");                                                        \
        return done != 0;                                                                \
    }
IV_MBAR_ASK(iv_mbar_test, "try_wait.parity.acquire.cta")
IV_MBAR_ASK(iv_mbar_test_cluster, "try_wait.parity.acquire.cluster")
IV_MBAR_ASK(iv_mbar_peek, "test_wait.parity.acquire.cta") /* does not wait: called early, the answer is there in time */
#undef IV_MBAR_ASK

/* Waits for the end of the phase with this parity. */
IV_DEVICE void iv_mbar_wait(uint32_t bar, uint32_t parity) {
    while (!iv_mbar_test(bar, parity)) {}
}
/* The same if other CTAs of the cluster arrive. */
IV_DEVICE void iv_mbar_wait_cluster(uint32_t bar, uint32_t parity) {
    while (!iv_mbar_test_cluster(bar, parity)) {}
}

/* ---- TMA and other asynchronous copies
 * ---------------------------------------------------------------------------- */

/* L2 eviction policies, as createpolicy encodes them for whole fractions. */
#define IV_L2_NORMAL 0x1000000000000000ull
#define IV_L2_FIRST 0x12f0000000000000ull /* evict first: read once */
#define IV_L2_LAST 0x14f0000000000000ull  /* evict last: read by many */

IV_DEVICE void iv_tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
IV_DEVICE void iv_tma_load_2d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, uint64_t l2) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "l"(l2)
                 : "memory");
}
IV_DEVICE void iv_tma_load_3d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z, uint64_t l2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(l2)
                 : "memory");
}
IV_DEVICE void iv_tma_load_4d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z, int w,
                              uint64_t l2) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "l"(l2)
                 : "memory");
}
/* To the same address and mbarrier in every CTA of the mask. */
IV_DEVICE void iv_tma_load_4d_multicast(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z, int w,
                                        uint16_t mask, uint64_t l2) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "h"(mask), "l"(l2)
                 : "memory");
}
/* From shared to global memory, multiples of 16 bytes between 16-byte-aligned addresses. A thread's stores form a
 * group when committed. iv_bulk_wait_read waits until their sources are read (and free), iv_bulk_wait until they are
 * complete. */
IV_DEVICE void iv_bulk_store(void *to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
IV_DEVICE void iv_bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
IV_DEVICE void iv_bulk_wait_read(void) { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(0) : "memory"); }
IV_DEVICE void iv_bulk_wait(void) { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(0) : "memory"); }
IV_DEVICE void iv_copy16(uint32_t to, const void *from, bool there) { /* zeros if not `there` */
    uint32_t bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
IV_DEVICE void iv_copies_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> IV_DEVICE void iv_copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
/* Before a barrier: ordinary writes become visible to TMA and wgmma; ordinary reads end before TMA overwrites theirs.
 */
IV_DEVICE void iv_fence_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* True in one lane of a whole warp, known to the compiler as uniform. */
IV_DEVICE bool iv_elect(void) {
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(chosen));
    return chosen != 0;
}

/* ---- clusters, launches, registers -------------------------------------------------------------------------- */

IV_DEVICE uint32_t iv_cluster_rank(void) {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
IV_DEVICE void iv_cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
IV_DEVICE void iv_cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
IV_DEVICE void iv_cluster_sync(void) {
    iv_cluster_arrive();
    iv_cluster_wait();
}
/* Waits until all CTAs of the cluster are here; then a CTA may exit. It orders no memory, which would cost a trip to
 * L2. Sufficient if peers have only read this CTA's memory and used the values; not if they may have arrived at its
 * mbarriers. */
IV_DEVICE void iv_cluster_leave(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    iv_cluster_wait();
}
/* Waits until the preceding kernel has ended and its writes are visible. No effect in an ordinary launch. */
IV_DEVICE void iv_dependency_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* Lets the next kernel start its prologue. */
IV_DEVICE void iv_dependency_release(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

template <int COUNT> IV_DEVICE void iv_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> IV_DEVICE void iv_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
/* A barrier of some of the CTA's threads; id 0 is __syncthreads. */
IV_DEVICE void iv_named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

IV_DEVICE void iv_named_arrive(int id, int threads) { /* does not wait */
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- wgmma -------------------------------------------------------------------------------------------------- */

/* An operand at a shared address: rows of 128 bytes (64 k), 128-byte swizzle. Add 2 for each 16 k. */
IV_DEVICE uint64_t iv_wgmma_desc(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* N-major B: chunks of 64 n, chunk_bytes apart, with a row of 128 bytes for each k. Add 128 (2048 bytes) for each 16
 * k. */
IV_DEVICE uint64_t iv_wgmma_desc_mn(uint32_t address, uint32_t chunk_bytes) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(chunk_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

IV_DEVICE void iv_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
IV_DEVICE void iv_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> IV_DEVICE void iv_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving uses of an accumulator across this point. */
template <int COUNT> IV_DEVICE void iv_wgmma_hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* The thread index, recomputed at each use: derived values then occupy no registers that accumulators need. */
IV_DEVICE int iv_thread_here(void) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

#define IV_WG_T0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define IV_WG_T1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define IV_WG_T2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define IV_WG_T3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define IV_WG_T4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define IV_WG_T5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define IV_WG_T6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define IV_WG_T7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define IV_WG_T8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define IV_WG_T9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define IV_WG_T10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define IV_WG_T11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define IV_WG_T12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define IV_WG_T13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define IV_WG_T14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define IV_WG_T15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define IV_WG_H0 "%0, %1, %2, %3"
#define IV_WG_L1 IV_WG_T0
#define IV_WG_L2 IV_WG_L1 ", " IV_WG_T1
#define IV_WG_L3 IV_WG_L2 ", " IV_WG_T2
#define IV_WG_L4 IV_WG_L3 ", " IV_WG_T3
#define IV_WG_L5 IV_WG_L4 ", " IV_WG_T4
#define IV_WG_L6 IV_WG_L5 ", " IV_WG_T5
#define IV_WG_L7 IV_WG_L6 ", " IV_WG_T6
#define IV_WG_L8 IV_WG_L7 ", " IV_WG_T7
#define IV_WG_L9 IV_WG_L8 ", " IV_WG_T8
#define IV_WG_L10 IV_WG_L9 ", " IV_WG_T9
#define IV_WG_L11 IV_WG_L10 ", " IV_WG_T10
#define IV_WG_L12 IV_WG_L11 ", " IV_WG_T11
#define IV_WG_L13 IV_WG_L12 ", " IV_WG_T12
#define IV_WG_L14 IV_WG_L13 ", " IV_WG_T13
#define IV_WG_L15 IV_WG_L14 ", " IV_WG_T14
#define IV_WG_L16 IV_WG_L15 ", " IV_WG_T15
#define IV_WG_D4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define IV_WG_D8(d, i) IV_WG_D4(d, i), IV_WG_D4(d, i + 4)
#define IV_WG_O1(d) IV_WG_D8(d, 0)
#define IV_WG_O2(d) IV_WG_O1(d), IV_WG_D8(d, 8)
#define IV_WG_O3(d) IV_WG_O2(d), IV_WG_D8(d, 16)
#define IV_WG_O4(d) IV_WG_O3(d), IV_WG_D8(d, 24)
#define IV_WG_O5(d) IV_WG_O4(d), IV_WG_D8(d, 32)
#define IV_WG_O6(d) IV_WG_O5(d), IV_WG_D8(d, 40)
#define IV_WG_O7(d) IV_WG_O6(d), IV_WG_D8(d, 48)
#define IV_WG_O8(d) IV_WG_O7(d), IV_WG_D8(d, 56)
#define IV_WG_O9(d) IV_WG_O8(d), IV_WG_D8(d, 64)
#define IV_WG_O10(d) IV_WG_O9(d), IV_WG_D8(d, 72)
#define IV_WG_O11(d) IV_WG_O10(d), IV_WG_D8(d, 80)
#define IV_WG_O12(d) IV_WG_O11(d), IV_WG_D8(d, 88)
#define IV_WG_O13(d) IV_WG_O12(d), IV_WG_D8(d, 96)
#define IV_WG_O14(d) IV_WG_O13(d), IV_WG_D8(d, 104)
#define IV_WG_O15(d) IV_WG_O14(d), IV_WG_D8(d, 112)
#define IV_WG_O16(d) IV_WG_O15(d), IV_WG_D8(d, 120)

/* D's register list and operands, and the numbers of the following operands. */
#define IV_WG_SS(N, KIND, LIST, OPS, A, B, S)                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" LIST "}, %" #A ", %" #B \
                 ", p, 1, 1, 0, 0;\n}\n"                                                                      \
                 : OPS                                                                                        \
                 : "l"(a), "l"(b), "r"(add))
#define IV_WG_RS(N, KIND, LIST, OPS, A0, A1, A2, A3, B, S, T)                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" LIST "}, {%" #A0 ", %" #A1 \
                 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #T ";\n}\n"                                        \
                 : OPS                                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_MN))

/* d = (add ? d : 0) + A B^T, one step of 16 k; a and b are descriptors. N is twice the length of d. */
template <iv_dtype TYPE, int COUNT> IV_DEVICE void iv_wgmma(float (&d)[COUNT], uint64_t a, uint64_t b, int add) {
    constexpr bool BF = TYPE == IV_BF16;
    if constexpr (COUNT == 4 && BF)
        IV_WG_SS(8, "bf16", IV_WG_H0, IV_WG_D4(d, 0), 4, 5, 6);
    else if constexpr (COUNT == 4)
        IV_WG_SS(8, "f16", IV_WG_H0, IV_WG_D4(d, 0), 4, 5, 6);
    else if constexpr (COUNT == 8 && BF)
        IV_WG_SS(16, "bf16", IV_WG_L1, IV_WG_O1(d), 8, 9, 10);
    else if constexpr (COUNT == 8)
        IV_WG_SS(16, "f16", IV_WG_L1, IV_WG_O1(d), 8, 9, 10);
    else if constexpr (COUNT == 16 && BF)
        IV_WG_SS(32, "bf16", IV_WG_L2, IV_WG_O2(d), 16, 17, 18);
    else if constexpr (COUNT == 16)
        IV_WG_SS(32, "f16", IV_WG_L2, IV_WG_O2(d), 16, 17, 18);
    else if constexpr (COUNT == 24 && BF)
        IV_WG_SS(48, "bf16", IV_WG_L3, IV_WG_O3(d), 24, 25, 26);
    else if constexpr (COUNT == 24)
        IV_WG_SS(48, "f16", IV_WG_L3, IV_WG_O3(d), 24, 25, 26);
    else if constexpr (COUNT == 32 && BF)
        IV_WG_SS(64, "bf16", IV_WG_L4, IV_WG_O4(d), 32, 33, 34);
    else if constexpr (COUNT == 32)
        IV_WG_SS(64, "f16", IV_WG_L4, IV_WG_O4(d), 32, 33, 34);
    else if constexpr (COUNT == 40 && BF)
        IV_WG_SS(80, "bf16", IV_WG_L5, IV_WG_O5(d), 40, 41, 42);
    else if constexpr (COUNT == 40)
        IV_WG_SS(80, "f16", IV_WG_L5, IV_WG_O5(d), 40, 41, 42);
    else if constexpr (COUNT == 48 && BF)
        IV_WG_SS(96, "bf16", IV_WG_L6, IV_WG_O6(d), 48, 49, 50);
    else if constexpr (COUNT == 48)
        IV_WG_SS(96, "f16", IV_WG_L6, IV_WG_O6(d), 48, 49, 50);
    else if constexpr (COUNT == 56 && BF)
        IV_WG_SS(112, "bf16", IV_WG_L7, IV_WG_O7(d), 56, 57, 58);
    else if constexpr (COUNT == 56)
        IV_WG_SS(112, "f16", IV_WG_L7, IV_WG_O7(d), 56, 57, 58);
    else if constexpr (COUNT == 64 && BF)
        IV_WG_SS(128, "bf16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66);
    else if constexpr (COUNT == 64)
        IV_WG_SS(128, "f16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66);
    else if constexpr (COUNT == 96 && BF)
        IV_WG_SS(192, "bf16", IV_WG_L12, IV_WG_O12(d), 96, 97, 98);
    else if constexpr (COUNT == 96)
        IV_WG_SS(192, "f16", IV_WG_L12, IV_WG_O12(d), 96, 97, 98);
    else if constexpr (COUNT == 128 && BF)
        IV_WG_SS(256, "bf16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130);
    else if constexpr (COUNT == 128)
        IV_WG_SS(256, "f16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130);
    else
        static_assert(COUNT < 0, "no wgmma of this size here");
}

/* The same with A in registers, as four pairs: rows t / 4 and t / 4 + 8, k from 2 (t % 4) and from 8 on. B_MN: b is
 * from iv_wgmma_desc_mn. */
template <iv_dtype TYPE, bool B_MN, int COUNT>
IV_DEVICE void iv_wgmma_a(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, int add) {
    constexpr bool BF = TYPE == IV_BF16;
    if constexpr (COUNT == 4 && BF)
        IV_WG_RS(8, "bf16", IV_WG_H0, IV_WG_D4(d, 0), 4, 5, 6, 7, 8, 9, 10);
    else if constexpr (COUNT == 4)
        IV_WG_RS(8, "f16", IV_WG_H0, IV_WG_D4(d, 0), 4, 5, 6, 7, 8, 9, 10);
    else if constexpr (COUNT == 8 && BF)
        IV_WG_RS(16, "bf16", IV_WG_L1, IV_WG_O1(d), 8, 9, 10, 11, 12, 13, 14);
    else if constexpr (COUNT == 8)
        IV_WG_RS(16, "f16", IV_WG_L1, IV_WG_O1(d), 8, 9, 10, 11, 12, 13, 14);
    else if constexpr (COUNT == 16 && BF)
        IV_WG_RS(32, "bf16", IV_WG_L2, IV_WG_O2(d), 16, 17, 18, 19, 20, 21, 22);
    else if constexpr (COUNT == 16)
        IV_WG_RS(32, "f16", IV_WG_L2, IV_WG_O2(d), 16, 17, 18, 19, 20, 21, 22);
    else if constexpr (COUNT == 32 && BF)
        IV_WG_RS(64, "bf16", IV_WG_L4, IV_WG_O4(d), 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (COUNT == 32)
        IV_WG_RS(64, "f16", IV_WG_L4, IV_WG_O4(d), 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (COUNT == 48 && BF)
        IV_WG_RS(96, "bf16", IV_WG_L6, IV_WG_O6(d), 48, 49, 50, 51, 52, 53, 54);
    else if constexpr (COUNT == 48)
        IV_WG_RS(96, "f16", IV_WG_L6, IV_WG_O6(d), 48, 49, 50, 51, 52, 53, 54);
    else if constexpr (COUNT == 64 && BF)
        IV_WG_RS(128, "bf16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66, 67, 68, 69, 70);
    else if constexpr (COUNT == 64)
        IV_WG_RS(128, "f16", IV_WG_L8, IV_WG_O8(d), 64, 65, 66, 67, 68, 69, 70);
    else if constexpr (COUNT == 96 && BF)
        IV_WG_RS(192, "bf16", IV_WG_L12, IV_WG_O12(d), 96, 97, 98, 99, 100, 101, 102);
    else if constexpr (COUNT == 96)
        IV_WG_RS(192, "f16", IV_WG_L12, IV_WG_O12(d), 96, 97, 98, 99, 100, 101, 102);
    else if constexpr (COUNT == 128 && BF)
        IV_WG_RS(256, "bf16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130, 131, 132, 133, 134);
    else if constexpr (COUNT == 128)
        IV_WG_RS(256, "f16", IV_WG_L16, IV_WG_O16(d), 128, 129, 130, 131, 132, 133, 134);
    else
        static_assert(COUNT < 0, "no wgmma of this size here");
}

#endif
