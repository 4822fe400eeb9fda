/* bandwidth_avx2.c: the read pass with 32-byte loads. */
#include "bandwidth.h"
#include <immintrin.h>

uint64_t iv_bench_read_avx2(const uint8_t *bytes, size_t n) {
    __m256i sum[4] = {0};
    for (size_t i = 0; i < n; i += 128)
        for (size_t j = 0; j < 4; j++)
            sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256((const __m256i *)(bytes + i + 32 * j)));
    __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    uint64_t words[4];
    _mm256_storeu_si256((__m256i *)words, all);
    return words[0] ^ words[1] ^ words[2] ^ words[3];
}
