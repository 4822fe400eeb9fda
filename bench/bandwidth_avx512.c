/* bandwidth_avx512.c: the read pass with 64-byte loads. */
#include "bandwidth.h"
#include <immintrin.h>

uint64_t iv_bench_read_avx512(const uint8_t *bytes, size_t n) {
    __m512i sum[8] = {0};
    for (size_t i = 0; i < n; i += 512)
        for (size_t j = 0; j < 8; j++) sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(bytes + i + 64 * j));
    for (size_t j = 1; j < 8; j++) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
    uint64_t words[8], all = 0;
    _mm512_storeu_si512(words, sum[0]);
    for (size_t j = 0; j < 8; j++) all ^= words[j];
    return all;
}
