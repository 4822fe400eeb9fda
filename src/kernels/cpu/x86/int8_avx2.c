/* int8_avx2.c: int8 products for AVX2. Codes of rows are int16, weights are widened to it: vpmaddwd's sums of two
 * products are exact, those of vpmaddubsw saturate. */
#include "kernels/cpu/x86/vec_avx2.h"
#include "kernels/cpu/x86/x86.h"
#include "kernels/cpu/tile_common.h"

#define INT8_CODE_BYTES 2
#define INT8_ZERO 0
#define INT8_STORE(p, x) store_words(p, x)

/* The low byte of each word with its sign, as eight int16. */
static inline void store_words(void *p, __m256i x) {
    x = _mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24);
    x = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, x), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(x));
}
#include "kernels/cpu/int8.inc.h"

enum { ROWS = 3, COLUMNS = 16, VECTORS = COLUMNS / 4 };

/* 16 columns: each vector has two sums of four columns. */
IV_INLINE void columns(const int rows, const char *x, size_t stride, const int8_t *codes, size_t k_padded,
                       int32_t *out) {
    __m256i acc[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = _mm256_setzero_si256();
    for (size_t k = 0; k < k_padded; k += 4, codes += 4 * IV_PANEL_COLUMNS) {
        __m256i a[ROWS];
        for (int r = 0; r < rows; r++) {
            long long four;
            memcpy(&four, x + (size_t)r * stride + 2 * k, sizeof four);
            a[r] = _mm256_set1_epi64x(four);
        }
        for (int v = 0; v < VECTORS; v++) {
            __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(codes + 16 * v)));
            for (int r = 0; r < rows; r++) acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(w, a[r]));
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v += 2) {
            __m256i sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][v], acc[r][v + 1]), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(out + r * IV_PANEL_COLUMNS + 4 * v), sums);
        }
}

static void products(const void *codes, size_t stride, size_t rows, const iv_int8_panel *panel, size_t k_padded,
                     int32_t *out) {
    const char *x = codes;
    for (size_t n; rows; rows -= n, x += n * stride, out += n * IV_PANEL_COLUMNS) {
        n = rows < ROWS ? rows : ROWS;
        for (size_t c = 0; c < IV_PANEL_COLUMNS; c += COLUMNS) {
#define CALL(n) columns(n, x, stride, panel->codes + 4 * c, k_padded, out + c)
            switch (n) { IV_ROWS_CASE(1, CALL) IV_ROWS_CASE(2, CALL) IV_ROWS_CASE(3, CALL) }
#undef CALL
        }
    }
}

const iv_int8_kernel iv_int8_avx2 = {"int8_avx2", IV_TILE_ROWS_MAX, 2, magnitude, quantize, products, results};
