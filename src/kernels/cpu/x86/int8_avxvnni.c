/* int8_avxvnni.c: int8 products by vpdpbusd in 256 bits (AVX-VNNI). It takes unsigned codes: rows have 128 more, and
 * the sums begin with -128 times the sum of the weights; modulo 2^32 that is exact. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"

#define INT8_CODE_BYTES 1
#define INT8_ZERO 128
#define INT8_STORE(p, x) store_bytes(p, x)

/* The low byte of each word, plus 128. */
static inline void store_bytes(void *p, __m256i x) {
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    x = _mm256_shuffle_epi8(_mm256_xor_si256(x, _mm256_set1_epi32(0x80)), pick);
    _mm_storel_epi64((__m128i *)p, _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
#include "kernels/cpu/int8.inc.h"

enum { ROWS = 6, COLUMNS = 16, VECTORS = COLUMNS / 8 };

/* As an instruction of its own: of the intrinsic, compilers keep sums in memory too. */
IV_INLINE __m256i dot(__m256i acc, __m256i x, __m256i w) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(w));
    return acc;
}

IV_INLINE void columns(const int rows, const char *x, size_t stride, const int8_t *codes, const int32_t *sums,
                       size_t k_padded, int32_t *out) {
    __m256i acc[ROWS][VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(sums + 8 * v));
        for (int r = 0; r < rows; r++) acc[r][v] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
    }
    for (size_t k = 0; k < k_padded; k += 4, codes += 4 * IV_PANEL_COLUMNS) {
        __m256i w[VECTORS];
        for (int v = 0; v < VECTORS; v++) w[v] = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * v));
        for (int r = 0; r < rows; r++) {
            int four;
            memcpy(&four, x + (size_t)r * stride + k, sizeof four);
            __m256i a = _mm256_set1_epi32(four);
            for (int v = 0; v < VECTORS; v++) acc[r][v] = dot(acc[r][v], a, w[v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            _mm256_storeu_si256((__m256i *)(void *)(out + r * IV_PANEL_COLUMNS + 8 * v), acc[r][v]);
}

static void products(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out) {
    const char *x = codes;
    for (size_t n; rows; rows -= n, x += n * stride, out += n * IV_PANEL_COLUMNS) {
        n = rows < ROWS ? rows : ROWS;
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c += COLUMNS) {
#define CALL(n) columns(n, x, stride, panel->codes + 4 * c, panel->sums + c, k_padded, out + c)
            switch (n) { IV_ROWS_1_TO_6(CALL) }
#undef CALL
        }
    }
}

const iv_int8_kernel iv_int8_avxvnni = {"int8_avxvnni", IV_TILE_ROWS_MAX, 1, magnitude, quantize, products, results};
