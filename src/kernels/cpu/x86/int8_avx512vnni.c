/* int8_avx512vnni.c: int8 products by vpdpbusd in 512 bits. It takes unsigned codes: rows have 128 more, and the sums
 * begin with -128 times the sum of the weights; modulo 2^32 that is exact. */
#include "kernels/cpu/x86/vec_avx512.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"

#define INT8_CODE_BYTES 1
#define INT8_ZERO 128
#define INT8_STORE(p, x) store_bytes(p, x)

/* The low byte of each word, plus 128. */
static inline void store_bytes(void *p, __m512i x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_xor_si512(x, _mm512_set1_epi32(0x80))));
}
#include "kernels/cpu/int8.inc.h"

enum { VECTORS = IV_PANEL_COLUMNS / 16, FETCH_BYTES = 4096 };

/* As an instruction of its own: of the intrinsic, compilers keep sums in memory too. */
IV_INLINE __m512i dot(__m512i acc, __m512i x, __m512i w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
}

IV_INLINE void tile(const int rows, const char *x, size_t stride, const iv_int8_panel *panel, size_t k_padded,
                    int32_t *out) {
    __m512i acc[IV_TILE_ROWS_MAX][VECTORS];
    const int8_t *codes = panel->codes;
    for (int v = 0; v < VECTORS; v++) {
        __m512i sum = _mm512_loadu_si512(panel->sums + 16 * v);
        for (int r = 0; r < rows; r++) acc[r][v] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
    }
    for (size_t k = 0; k < k_padded; k += 4, codes += 4 * IV_PANEL_COLUMNS) {
        __m512i w[VECTORS];
        if (rows <= 2) iv_fetch((uintptr_t)codes + FETCH_BYTES, 4 * IV_PANEL_COLUMNS);
        for (int v = 0; v < VECTORS; v++) w[v] = _mm512_loadu_si512(codes + 64 * v);
        for (int r = 0; r < rows; r++) {
            int four;
            memcpy(&four, x + (size_t)r * stride + k, sizeof four);
            __m512i a = _mm512_set1_epi32(four);
            for (int v = 0; v < VECTORS; v++) acc[r][v] = dot(acc[r][v], a, w[v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_si512(out + r * IV_PANEL_COLUMNS + 16 * v, acc[r][v]);
}

static void products(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out) {
#define CALL(n) tile(n, codes, stride, panel, k_padded, out)
    switch (rows) { IV_ROWS_1_TO_6(CALL) IV_ROWS_7_TO_12(CALL) }
#undef CALL
}

const iv_int8_kernel iv_int8_avx512vnni = {"int8_avx512vnni", IV_TILE_ROWS_MAX, 1,      magnitude,
                                           quantize,          products,         results};
