/* fma32.c: fused multiply-add in double arithmetic. A product of two floats is exact in double; the sum
 * is made odd-rounded, after which one more rounding to float is correct (Boldo and Melquiond, 2008). */
#include "numerics/fma32.h"

#include <math.h>

/* x + y rounded to odd: comparisons with even doubles and later roundings see the exact sum. */
static double add_to_odd(double x, double y) {
    double s = x + y;
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    if ((u & 0x7ff0000000000000u) == 0x7ff0000000000000u) return s;
    double t = s - x, rest = (x - (s - t)) + (y - t);
    if (rest == 0.0 || (u & 1)) return s;
    u += ((rest > 0.0) == (s > 0.0)) ? 1u : (uint64_t)-1;
    memcpy(&s, &u, sizeof s);
    return s;
}

float iv_fma(float a, float b, float c) { return (float)add_to_odd((double)a * (double)b, (double)c); }

static float round_ftz(double odd) {
    if (odd < IV_FTZ_BELOW && odd > -IV_FTZ_BELOW) return signbit(odd) ? -0.0f : 0.0f;
    return (float)odd;
}

float iv_fma_ftz_any(float a, float b, float c) { return round_ftz(add_to_odd(iv_daz(a) * iv_daz(b), iv_daz(c))); }

float iv_add_ftz(float a, float b) { return round_ftz(add_to_odd(iv_daz(a), iv_daz(b))); }

float iv_fma32_chain(float acc, const float *a, const float *b, size_t k) {
    for (size_t i = 0; i < k; i += 2) {
        acc = iv_fma_ftz(a[i + 1], b[i + 1], acc);
        acc = iv_fma_ftz(a[i], b[i], acc);
    }
    return acc;
}
