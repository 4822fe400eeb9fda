/* tile_avx512bf16.c: fma32 tiles where the machine has vdpbf16ps: one instruction a pair of k.
 *
 * vdpbf16ps flushes subnormals regardless of MXCSR; the tree's adds need the flush set. */
#include "kernels/cpu/x86/codes_avx512.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/codes.inc.h"
#include "kernels/packed_panel.h"

#include <string.h>

enum { ROWS = 12, PAIR_BYTES = 4 * IV_PANEL_COLUMNS, PREFETCH = 2048 };

/* Four rows of 16 words become, in each of four vectors, words w, w + 4, w + 8 and w + 12 of all four rows. */
IV_INLINE void turn_four(const vi *row, vi *out) {
    vi a = _mm512_unpacklo_epi32(row[0], row[1]), b = _mm512_unpackhi_epi32(row[0], row[1]);
    vi c = _mm512_unpacklo_epi32(row[2], row[3]), d = _mm512_unpackhi_epi32(row[2], row[3]);
    out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}

/* Sixteen pairs of k of up to twelve rows. */
IV_INLINE void pack_sixteen(const uint16_t *a, size_t stride, size_t rows, uint32_t *out) {
    vi quad[3][4], zero = vi_set(0);
    for (size_t q = 0; q < 3; q++) {
        vi row[4];
        for (size_t r = 0; r < 4; r++) row[r] = 4 * q + r < rows ? vi_load(a + (4 * q + r) * stride) : zero;
        turn_four(row, quad[q]);
    }
    __mmask16 used = (__mmask16)((1u << rows) - 1);
    for (int w = 0; w < 4; w++) {
        vi low01 = _mm512_shuffle_i32x4(quad[0][w], quad[1][w], 0x44),
           high01 = _mm512_shuffle_i32x4(quad[0][w], quad[1][w], 0xee);
        vi low2 = _mm512_shuffle_i32x4(quad[2][w], zero, 0x44), high2 = _mm512_shuffle_i32x4(quad[2][w], zero, 0xee);
        uint32_t *at = out + (size_t)w * rows;
        _mm512_mask_storeu_epi32(at, used, _mm512_shuffle_i32x4(low01, low2, 0x88));
        _mm512_mask_storeu_epi32(at + 4 * rows, used, _mm512_shuffle_i32x4(low01, low2, 0xdd));
        _mm512_mask_storeu_epi32(at + 8 * rows, used, _mm512_shuffle_i32x4(high01, high2, 0x88));
        _mm512_mask_storeu_epi32(at + 12 * rows, used, _mm512_shuffle_i32x4(high01, high2, 0xdd));
    }
}

/* Pairs of k as 32-bit words, [k/2][rows]. */
static void pack(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded, void *packed) {
    IV_ASSERT(type == IV_BF16 && rows <= ROWS);
    uint32_t *out = packed;
    size_t whole = k / 32 * 16;
    for (size_t i = 0; rows == ROWS && i < whole; i += 16)
        pack_sixteen((const uint16_t *)a + 2 * i, stride, ROWS, out + i * ROWS);
    for (size_t i = 0; rows < ROWS && i < whole; i += 16)
        pack_sixteen((const uint16_t *)a + 2 * i, stride, rows, out + i * rows);
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *row = (const uint16_t *)a + r * stride;
        size_t i = whole;
        for (; i < k / 2; i++) memcpy(&out[i * rows + r], row + 2 * i, 4);
        if (k % 2) out[i++ * rows + r] = row[k - 1];
        for (; i < k_padded / 2; i++) out[i * rows + r] = 0;
    }
}

static void pack_columns(iv_dtype type, const void *const *columns, size_t rows, size_t k, void *packed) {
    IV_ASSERT(type == IV_BF16 && rows <= ROWS && k % 2 == 0);
    uint32_t *out = packed;
    __mmask16 used = (__mmask16)((1u << rows) - 1);
    for (size_t i = 0; i < k; i += 2, out += rows) {
        vi low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(used, columns[i]));
        vi high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(used, columns[i + 1]));
        _mm512_mask_storeu_epi32(out, used, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

IV_INLINE vf dot(vf acc, uint32_t a, vi b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
}

/* ahead: as in iv_tile_pending, for k = from. */
IV_INLINE void run(const int rows, const uint32_t *a, const uint32_t *panel, size_t from, size_t to, uintptr_t ahead,
                   size_t ahead_step, vf acc[][2]) {
    for (size_t k = from / 2; k < to / 2; k++) {
        iv_fetch(ahead, PAIR_BYTES), ahead += ahead_step;
        vi b0 = vi_load(panel + k * IV_PANEL_COLUMNS), b1 = vi_load(panel + k * IV_PANEL_COLUMNS + V_LANES);
        for (int r = 0; r < rows; r++) {
            acc[r][0] = dot(acc[r][0], a[k * (size_t)rows + (size_t)r], b0);
            acc[r][1] = dot(acc[r][1], a[k * (size_t)rows + (size_t)r], b1);
        }
    }
}

/* sum[rows][32] += chain over k in [from, to); from zero where `begins`. */
IV_INLINE void chain_rows(const int rows, const uint32_t *a, const uint32_t *panel, size_t from, size_t to,
                          uintptr_t ahead, size_t ahead_step, bool begins, float *sum) {
    vf acc[ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) acc[r][v] = begins ? v_set(0.0f) : v_load(sum + r * IV_PANEL_COLUMNS + v * V_LANES);
    run(rows, a, panel, from, to, ahead, ahead_step, acc);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) v_store(sum + r * IV_PANEL_COLUMNS + v * V_LANES, acc[r][v]);
}

static __attribute__((noinline)) void chain_body(const uint32_t *a, size_t rows, const uint32_t *panel, size_t from,
                                                 size_t to, uintptr_t ahead, size_t ahead_step, bool begins,
                                                 float *sum) {
#define CALL(n) chain_rows(n, a, panel, from, to, ahead, ahead_step, begins, sum)
    switch (rows) { IV_ROWS_1_TO_6(CALL) IV_ROWS_7_TO_12(CALL) }
#undef CALL
}

static __attribute__((noinline)) void linear_body(const uint32_t *a, size_t rows, const uint32_t *panel, size_t k,
                                                  int leaves, iv_tile_prefetch prefetch, float *out) {
    _Alignas(64) float sum[IV_LEAVES_MAX * ROWS * IV_PANEL_COLUMNS];
    size_t leaf_k = k / (size_t)leaves, n = rows * IV_PANEL_COLUMNS;
    for (size_t leaf = 0; leaf < (size_t)leaves; leaf++) {
        uintptr_t ahead = prefetch.at + leaf * leaf_k / 2 * prefetch.step;
        chain_body(a, rows, panel, leaf * leaf_k, (leaf + 1) * leaf_k, ahead, prefetch.step, true, sum + leaf * n);
    }
    TILE_TREE(sum, leaves, n, out);
}

static void linear(const void *a, size_t rows, const void *panel, size_t k, int leaves, iv_tile_prefetch prefetch,
                   float *out) {
    IV_WITH_FP(IV_FP_FLUSH, linear_body(a, rows, panel, k, leaves, prefetch, out));
}

static void chain(const void *a, size_t rows, const void *panel, size_t k, float *acc) {
    chain_body(a, rows, panel, 0, k, (uintptr_t)panel + PREFETCH, PAIR_BYTES, false, acc);
}

/* ---- packed panels -------------------------------------------------------------------------------------- */

typedef vi packed_pair;

/* Rounds, and brings the weights of k and k + 1 next to one another. */
IV_INLINE vi packed_join(vf even, vf odd) {
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                      20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (vi)_mm512_cvtne2ps_pbh(odd, even));
}

IV_INLINE vf packed_add(vf acc, const void *a, const int rows, int r, size_t k, vi p) {
    return dot(acc, ((const uint32_t *)a)[k / 2 * (size_t)rows + (size_t)r], p);
}

IV_INLINE void packed_chain_body(const void *a, size_t rows, const void *panel, size_t from, size_t to, uintptr_t ahead,
                                 size_t ahead_step, bool begins, float *sum) {
    chain_body(a, rows, panel, from, to, ahead, ahead_step, begins, sum);
}

#define TILE(x) packed_##x
#define TILE_TYPE IV_BF16
#define TILE_K_BYTES sizeof(uint16_t)
#include "kernels/cpu/tile_packed.inc.h"

const iv_tile_kernel iv_tile_bf16_fma32_avx512bf16 = {"linear_bf16_fma32_avx512bf16",
                                                      ROWS,
                                                      2,
                                                      PREFETCH,
                                                      pack,
                                                      linear,
                                                      chain,
                                                      pack_columns,
                                                      packed_packed,
                                                      packed_PACKED_ROWS};
