/* peak_avx512.c: fp32 FMA on 16 lanes. */
#include "peak.h"
#include <immintrin.h>

double iv_bench_peak_avx512(long rounds) {
    const float third = 1.0f / 3.0f;
    __m512 a = _mm512_set1_ps(third), b = _mm512_set1_ps(0.5f);
#define DECLARE(i) __m512 sum##i = _mm512_set1_ps(i);
#define STEP(i)                             \
    sum##i = _mm512_fmadd_ps(a, sum##i, b); \
    PEAK_KEEP(sum##i);
    PEAK_EACH(DECLARE)
    for (long r = 0; r < rounds; r++) {
        PEAK_EACH(STEP)
    }
    return 2.0 * 16 * PEAK_CHAINS * (double)rounds;
}
