/* peak_avx512bf16.c: vdpbf16ps, two bf16 products a lane on 16 lanes. */
#include "peak.h"
#include <immintrin.h>

double iv_bench_peak_avx512bf16(long rounds) {
    /* 1.0 and 0.5 in bf16: the sums grow slowly and stay finite. */
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3f00);
#define DECLARE(i) __m512 sum##i = _mm512_set1_ps(i);
#define STEP(i)                              \
    sum##i = _mm512_dpbf16_ps(sum##i, a, b); \
    PEAK_KEEP(sum##i);
    PEAK_EACH(DECLARE)
    for (long r = 0; r < rounds; r++) {
        PEAK_EACH(STEP)
    }
    return 4.0 * 16 * PEAK_CHAINS * (double)rounds;
}
