/* turn_avx2.c: the op `turn` in bfloat16, four words of four rows at once. */
#include "kernels/cpu/x86/x86.h"
#include "kernels/turned_values.h"

#include <immintrin.h>

enum { WORDS = IV_PANEL_COLUMNS / 2 }; /* of a row: four numbers, two elements of two keys */

static inline __m256i load(const uint64_t *p) {
    const __m256i middle = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6,
                                            7, 8, 9, 12, 13, 10, 11, 14, 15);
    return _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(const void *)p), middle);
}

static inline void store(uint64_t *p, __m256i a, __m256i b, int half) {
    __m256i x = half ? _mm256_permute2x128_si256(a, b, 0x31) : _mm256_permute2x128_si256(a, b, 0x20);
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}

static void turn_bf16(const uint64_t *keys, size_t pairs, uint64_t *out) {
    for (size_t i = 0; i < WORDS; i += 4)
        for (size_t e = 0; e < pairs; e += 4) {
            const uint64_t *from = keys + e * WORDS + i;
            uint64_t *to = out + i * WORDS + e;
            __m256i a = load(from), b = load(from + WORDS), c = load(from + 2 * WORDS), d = load(from + 3 * WORDS);
            __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
            __m256i even2 = _mm256_unpacklo_epi64(c, d), odd2 = _mm256_unpackhi_epi64(c, d);
            store(to, even, even2, 0), store(to + WORDS, odd, odd2, 0);
            store(to + 2 * WORDS, even, even2, 1), store(to + 3 * WORDS, odd, odd2, 1);
        }
}

void iv_turn_avx2(iv_dtype type, const void *keys, size_t elements, void *out) {
    if (type == IV_BF16)
        turn_bf16(keys, elements / 2, out);
    else
        iv_turn_scalar(type, keys, elements, out);
}
