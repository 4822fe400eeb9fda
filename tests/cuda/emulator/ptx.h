// ptx.h: the PTX instructions in the kernels' inline assembly, as functions. Names and operands are made by
// translate.cpp. Fences, hints and register counts do nothing here.
#ifndef IV_EMULATOR_PTX_H
#define IV_EMULATOR_PTX_H

#include "emulator.h"

#include <cmath>

extern "C" {
#include "numerics/dequantize.h"
#include "numerics/ex2.h"
#include "numerics/fma32.h"
}
#undef IV_NAN_F32_BITS // law.cuh defines it

namespace emu {

#define EMU_NOTHING(name) \
    template <class... A> static inline void name(A...) {}
EMU_NOTHING(fence_mbarrier_init_release_cluster)
EMU_NOTHING(prefetch_global_L2)
EMU_NOTHING(prefetch_tensormap)
EMU_NOTHING(cp_async_bulk_prefetch_L2_global)
EMU_NOTHING(setmaxnreg_inc_sync_aligned_u32)
EMU_NOTHING(setmaxnreg_dec_sync_aligned_u32)
#undef EMU_NOTHING
static inline void fence_proxy_async_shared__cta() { fence_proxy(); }

// ---- addresses, loads and stores ----

static inline uint32_t special_cluster_ctarank() { return cluster_rank(); }
static inline void mov_u32(uint32_t &r, uint32_t v) { r = v; }
static inline void mad_lo_u32(uint32_t &r, uint32_t a, uint32_t b, uint32_t c) { r = a * b + c; }
static inline void mul_hi_u32(uint32_t &r, uint32_t a, uint32_t b) { r = (uint32_t)((uint64_t)a * b >> 32); }
static inline void lop3_b32(uint32_t &d, uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    d = 0;
    for (uint32_t i = 0; i < 8; i++) // inputs of which bit 2 is a's, bit 1 b's, bit 0 c's
        if (table >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
}
static inline void mov_f32(float &r, float v) { r = v; }
static inline void elect_sync(uint32_t &chosen, uint32_t) { chosen = lane_id() == 0; } // of a whole warp
static inline void mapa_shared__cluster_u32(uint32_t &there, uint32_t a, uint32_t cta) {
    there = shared_address_of(a, cta);
}

static inline void ld_shared_v4_f32(float &x, float &y, float &z, float &w, uint32_t address) {
    const float *v = (const float *)memory(address, 16, 16);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
static inline void ld_shared_v2_f32(float &x, float &y, uint32_t address) {
    const float *v = (const float *)memory(address, 8, 8);
    x = v[0], y = v[1];
}
static inline void ld_shared_v4_u32(uint32_t &x, uint32_t &y, uint32_t &z, uint32_t &w, uint32_t address) {
    const uint32_t *v = (const uint32_t *)memory(address, 16, 16);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
static inline void ld_shared_v2_u32(uint32_t &x, uint32_t &y, uint32_t address) {
    const uint32_t *v = (const uint32_t *)memory(address, 8, 8);
    x = v[0], y = v[1];
}
static inline void ld_shared_f32(float &x, uint32_t address) { x = *(const float *)memory(address, 4, 4); }
static inline void ld_shared_u16(uint16_t &x, uint32_t address) { x = *(const uint16_t *)memory(address, 2, 2); }
static inline void ld_shared__cluster_v4_f32(float &x, float &y, float &z, float &w, uint32_t address) {
    ld_shared_v4_f32(x, y, z, w, address);
}
static inline void ld_shared__cluster_f32(float &x, uint32_t address) { x = *(const float *)memory(address, 4, 4); }
static inline void st_shared__cluster_v4_f32(uint32_t address, float x, float y, float z, float w) {
    float *v = (float *)memory(address, 16, 16);
    v[0] = x, v[1] = y, v[2] = z, v[3] = w;
}
static inline void st_async_weak_shared__cluster_mbarrier__complete_tx__bytes_f32(uint32_t address, float x,
                                                                                  uint32_t bar) {
    store_async(address, cast<uint32_t>(x), bar);
}
static inline void ld_global_f32(float &v, const float *p) { v = *p; }
static inline void ld_global_v2_f32(float &x, float &y, const float *p) { x = p[0], y = p[1]; }
static inline void ld_global_v4_f32(float &x, float &y, float &z, float &w, const float *p) {
    x = p[0], y = p[1], z = p[2], w = p[3];
}
static inline void st_global_f32(float *p, float v) { *p = v; }
static inline void st_global_v2_f32(float *p, float x, float y) { p[0] = x, p[1] = y; }
static inline void st_global_v4_f32(float *p, float x, float y, float z, float w) {
    p[0] = x, p[1] = y, p[2] = z, p[3] = w;
}
template <class T> static inline void st_release_sys_global_u32(T *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
    wrote_for_peers();
}
template <class T> static inline void ld_acquire_sys_global_u32(uint32_t &v, const T *p) {
    v = spin_for_peer() ? __atomic_load_n(p, __ATOMIC_ACQUIRE) : (uint32_t)INT32_MAX;
}
static inline uint64_t special_globaltimer() { return host_ns(); }
static inline void mov_u64(uint64_t &r, uint64_t v) { r = v; }
template <class T> static inline void ld_acquire_gpu_global_s32(int &v, const T *p) {
    spin();
    v = *p;
}
template <class T> static inline void atom_add_acq_rel_gpu_global_s32(int &before, T *p, int v) {
    before = *p, *p += v;
}

template <class T> static inline void atom_relaxed_gpu_global_inc_u32(unsigned &before, T *p, int last) {
    before = (uint32_t)*p, *p = before >= (uint32_t)last ? 0 : (int)before + 1;
}
// A thread that polls for words that are still zero yields to the others.
static inline bool absent(float x) { return x == 0.0f && !std::signbit(x); }
template <class T> static inline void ld_relaxed_gpu_global_v4_f32(float &x, float &y, float &z, float &w, const T *p) {
    if (absent(p->x) || absent(p->y) || absent(p->z) || absent(p->w)) spin();
    x = p->x, y = p->y, z = p->z, w = p->w;
}
template <class T> static inline void ld_relaxed_gpu_global_v2_f32(float &x, float &y, const T *p) {
    if (absent(p->x) || absent(p->y)) spin();
    x = p->x, y = p->y;
}
static inline void st_relaxed_gpu_global_v2_f32(float *p, float x, float y) { p[0] = x, p[1] = y; }

// ---- barriers ----

static inline void nanosleep_u32(uint32_t) {}
static inline void griddepcontrol_wait() { wait_for_last(); }
static inline void griddepcontrol_launch_dependents() { release_next(); }

static inline void bar_sync(int id, int threads) { barrier(id, threads, true); }
static inline void bar_arrive(int id, int threads) { barrier(id, threads, false); }
static inline void barrier_cluster_arrive_release_aligned() { cluster_barrier(true, false); }
static inline void barrier_cluster_arrive_relaxed_aligned() { cluster_barrier(true, false); }
static inline void barrier_cluster_wait_acquire_aligned() { cluster_barrier(false, true); }

static inline void mbarrier_init_shared__cta_b64(uint32_t bar, uint32_t count) { mbarrier_init(bar, count); }
static inline void mbarrier_arrive_expect_tx_shared__cta_b64(uint32_t bar, uint32_t bytes) {
    mbarrier_arrive(bar, bytes);
}
static inline void mbarrier_arrive_release_cta_shared__cta_b64(uint32_t bar) { mbarrier_arrive(bar, 0); }
static inline void mbarrier_arrive_release_cluster_shared__cluster_b64(uint32_t bar) { mbarrier_arrive(bar, 0); }
static inline void mbarrier_arrive_shared__cluster_b64(uint32_t bar) { mbarrier_arrive(bar, 0); }
static inline void mbarrier_try_wait_parity_acquire_cta_shared__cta_b64(uint32_t &done, uint32_t bar, uint32_t parity) {
    mbarrier_wait(bar, parity);
    done = 1;
}
static inline void mbarrier_try_wait_parity_acquire_cluster_shared__cta_b64(uint32_t &done, uint32_t bar,
                                                                            uint32_t parity) {
    mbarrier_wait(bar, parity);
    done = 1;
}

static inline void mbarrier_test_wait_parity_acquire_cta_shared__cta_b64(uint32_t &done, uint32_t bar,
                                                                         uint32_t parity) {
    done = mbarrier_test(bar, parity);
}

// ---- copies ----

#define EMU_TENSOR(sides) \
    cp_async_bulk_tensor_##sides##d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint
#define EMU_TENSOR_ALL(sides) \
    cp_async_bulk_tensor_##sides##d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint
static inline void EMU_TENSOR(2)(uint32_t to, const CUtensorMap *m, int x, int y, uint32_t bar, uint64_t) {
    copy_box(to, m, bar, {x, y, 0, 0}, 0);
}
static inline void EMU_TENSOR(3)(uint32_t to, const CUtensorMap *m, int x, int y, int z, uint32_t bar, uint64_t) {
    copy_box(to, m, bar, {x, y, z, 0}, 0);
}
static inline void EMU_TENSOR(4)(uint32_t to, const CUtensorMap *m, int x, int y, int z, int w, uint32_t bar,
                                 uint64_t) {
    copy_box(to, m, bar, {x, y, z, w}, 0);
}
static inline void EMU_TENSOR_ALL(3)(uint32_t to, const CUtensorMap *m, int x, int y, int z, uint32_t bar,
                                     uint16_t ctas, uint64_t) {
    copy_box(to, m, bar, {x, y, z, 0}, ctas);
}
static inline void EMU_TENSOR_ALL(4)(uint32_t to, const CUtensorMap *m, int x, int y, int z, int w, uint32_t bar,
                                     uint16_t ctas, uint64_t) {
    copy_box(to, m, bar, {x, y, z, w}, ctas);
}
static inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint64_t) {
    copy_bytes(to, from, bytes, bar);
}
static inline void cp_async_bulk_global_shared__cta_bulk_group(void *to, uint32_t from, uint32_t bytes) {
    store_bytes(to, from, bytes);
}
static inline void cp_async_bulk_commit_group() { stores_commit(); }
static inline void cp_async_bulk_wait_group_read(int pending) { stores_wait(pending); }
static inline void cp_async_bulk_wait_group(int pending) { stores_wait(pending); }
static inline void cp_async_cg_shared_global(uint32_t to, const void *from, int, uint32_t there) {
    copy_own(to, from, there);
}
static inline void cp_async_commit_group() { copies_commit(); }
static inline void cp_async_wait_group(int pending) { copies_wait(pending); }
static inline void cp_async_wait_all() { copies_wait(-1); }

// ---- numbers ----

static inline void min_NaN_f32(float &m, float a, float b) { m = a != a || b != b ? NAN : a < b ? a : b; }
static inline void max_NaN_f32(float &m, float a, float b) { m = a != a || b != b ? NAN : a > b ? a : b; }
// As inexact as the instruction may be: kernels must not rely on more.
static inline void rcp_approx_ftz_f32(float &r, float d) { r = cast<float>(cast<uint32_t>(1.0f / d) ^ 1u); }
static inline void ex2_approx_ftz_f32(float &y, float x) { y = iv_ex2(x); }
static inline void cvt_rn_f16_f32(uint16_t &h, float x) { h = iv_f16_from_f32(x); }
static inline void cvt_rn_bf16_f32(uint16_t &h, float x) { h = iv_bf16_from_f32(x); }
static inline void cvt_f32_f16(float &x, uint16_t h) { x = iv_f16_to_f32(h); }
static inline void cvt_rn_bf16x2_f32(uint32_t &r, float high, float low) {
    r = (uint32_t)iv_bf16_from_f32(high) << 16 | iv_bf16_from_f32(low);
}
static inline void cvt_rn_f16x2_f32(uint32_t &r, float high, float low) {
    r = (uint32_t)iv_f16_from_f32(high) << 16 | iv_f16_from_f32(low);
}
static inline void cvt_rn_f16x2_e4m3x2(uint32_t &r, uint16_t two) {
    r = (uint32_t)iv_f16_from_f32(iv_e4m3_to_f32((uint8_t)(two >> 8))) << 16 |
        iv_f16_from_f32(iv_e4m3_to_f32((uint8_t)two));
}
// In double, where products are exact, and so is a sum of numbers of like size.
static inline uint16_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    double y = (double)iv_bf16_to_f32((uint16_t)a) * iv_bf16_to_f32((uint16_t)b) + iv_bf16_to_f32((uint16_t)c);
    return iv_bf16_from_f32((float)y);
}
static inline void fma_rn_bf16x2(uint32_t &d, uint32_t a, uint32_t b, uint32_t c) {
    d = (uint32_t)fma_bf16(a >> 16, b >> 16, c >> 16) << 16 | fma_bf16(a, b, c);
}
static inline void fma_rn_ftz_f32(float &d, float a, float b, float c) { d = iv_fma_ftz(a, b, c); }
static inline void add_rn_ftz_f32(float &d, float a, float b) { d = iv_add_ftz(a, b); }

// ---- tensor cores ----

static inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3,
                                                            uint32_t address) {
    uint32_t r[4];
    load_matrices(r, address, false);
    r0 = r[0], r1 = r[1], r2 = r[2], r3 = r[3];
}
static inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2,
                                                                  uint32_t &r3, uint32_t address) {
    uint32_t r[4];
    load_matrices(r, address, true);
    r0 = r[0], r1 = r[1], r2 = r[2], r3 = r[3];
}

static inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                            uint32_t r3) {
    uint32_t r[4] = {r0, r1, r2, r3};
    store_matrices(r, address);
}

static inline void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t &turned, uint32_t pair) {
    turned = transpose_matrix(pair);
}

#define EMU_MMA(kind, type)                                                                                          \
    static inline void mma_sync_aligned_m16n8k16_row_col_f32_##kind##_##kind##_f32(                                  \
        float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, \
        uint32_t b1, float c0, float c1, float c2, float c3) {                                                       \
        float d[4];                                                                                                  \
        multiply(type, d, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3});                                             \
        d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                                  \
    }
EMU_MMA(bf16, BF16)
EMU_MMA(f16, F16)
#undef EMU_MMA

static inline void mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(int32_t &d0, int32_t &d1, int32_t &d2, int32_t &d3,
                                                                   uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                                   uint32_t b0, uint32_t b1, int32_t c0, int32_t c1,
                                                                   int32_t c2, int32_t c3) {
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    const int32_t c[4] = {c0, c1, c2, c3};
    int32_t d[4];
    multiply_int8(16, d, a, b, c);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
static inline void mma_sync_aligned_m8n8k16_row_col_s32_s8_s8_s32(int32_t &d0, int32_t &d1, uint32_t a, uint32_t b,
                                                                  int32_t c0, int32_t c1) {
    const int32_t c[2] = {c0, c1};
    int32_t d[2];
    multiply_int8(8, d, &a, &b, c);
    d0 = d[0], d1 = d[1];
}

// The accumulators, two descriptors, whether to add.
template <class... A> static inline void wgmma_mma_async_sync_aligned_m64nk32_s32_s8_s8(A &&...all) {
    constexpr size_t n = sizeof...(A), count = n - 3;
    const void *p[n] = {(const void *)&all...};
    wgmma_step s = {S8, (float *)const_cast<void *>(p[0]), (int)count, true, false, false, false, 0, 0, {}};
    for (size_t i = 0; i < count; i++)
        if (p[i] != s.d + i) fail("accumulators of wgmma that are no array");
    int add = 0;
    memcpy(&s.a, p[count], 8), memcpy(&s.b, p[count + 1], 8), memcpy(&add, p[count + 2], 4);
    s.add = add != 0;
    wgmma(s);
}

// The accumulators, then a descriptor or four words of A, the descriptor of B, whether to add, two signs, and the
// transposed sides.
template <class... A> static inline void wgmma_of(matrix_type type, A &...all) {
    constexpr size_t n = sizeof...(A);
    const void *p[n] = {(const void *)&all...};
    const size_t size[n] = {sizeof all...};
    constexpr size_t count = (n - 6) / 4 * 4; // of accumulators: 7 or 9 operands follow, and accumulators come in fours
    wgmma_step s = {type, (float *)const_cast<void *>(p[0]), (int)count, (n - count) == 7, false, false, false, 0, 0,
                    {}};
    for (size_t i = 0; i < count; i++)
        if (p[i] != s.d + i) fail("accumulators of wgmma that are no array");
    uint64_t v[n - count] = {};
    for (size_t i = count; i < n; i++) memcpy(&v[i - count], p[i], size[i]);
    size_t at = s.a_is_shared ? 1 : 4;
    s.a = s.a_is_shared ? v[0] : 0, s.b = v[at], s.add = v[at + 1] != 0, s.b_turned = v[n - count - 1] != 0;
    s.a_turned = s.a_is_shared && v[at + 4] != 0;
    for (int i = 0; !s.a_is_shared && i < 4; i++) s.a_words[i] = (uint32_t)v[i];
    if ((int)v[at + 2] != 1 || (int)v[at + 3] != 1) fail("a form of wgmma that is not here");
    wgmma(s);
}
template <class... A> static inline void wgmma_mma_async_sync_aligned_m64nk16_f32_bf16_bf16(A &&...a) {
    wgmma_of(BF16, a...);
}
template <class... A> static inline void wgmma_mma_async_sync_aligned_m64nk16_f32_f16_f16(A &&...a) {
    wgmma_of(F16, a...);
}
static inline void wgmma_fence_sync_aligned() {}
static inline void wgmma_commit_group_sync_aligned() { wgmma_commit(); }
static inline void wgmma_wait_group_sync_aligned(int pending) { wgmma_wait(pending); }

} // namespace emu

#endif
