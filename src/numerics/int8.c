/* int8.c: codes and sums in plain C. */
#include "numerics/int8.h"
#include "numerics/floats.h"

#include <math.h>

/* To the nearest integer, ties to even; |x| is at most 2^22. */
static float nearest(float x) {
    const float m = 0x1.8p23f;
    return (x + m) - m;
}

uint32_t iv_ref_int8_magnitude(iv_dtype type, const void *x, size_t n) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = iv_bits(iv_element(type, x, i)) & 0x7fffffffu;
        if (u > largest) largest = u;
    }
    return largest;
}

iv_int8_scale iv_ref_int8_scale(uint32_t magnitude, int terms) {
    float a = iv_float(magnitude);
    if (magnitude >= 0x7f800000u) return (iv_int8_scale){0.0f, iv_float(IV_NAN_F32_BITS)};
    if (a < 0x1p-100f) return (iv_int8_scale){0.0f, 0.0f};
    return (iv_int8_scale){127.0f / a, a / (terms == 1 ? 127.0f : 127.0f * IV_INT8_LOW)};
}

void iv_ref_int8_codes(iv_dtype type, const void *x, size_t n, float inverse, int terms, int8_t *high, int8_t *low) {
    for (size_t i = 0; i < n; i++) {
        float p = inverse == 0.0f ? 0.0f : iv_element(type, x, i) * inverse, h = nearest(p);
        high[i] = (int8_t)h;
        if (terms == 2) low[i] = (int8_t)nearest((p - h) * IV_INT8_LOW);
    }
}

int32_t iv_ref_int8_sum(const int8_t *a, const int8_t *b, size_t k) {
    uint32_t sum = 0;
    for (size_t i = 0; i < k; i++) sum += (uint32_t)((int32_t)a[i] * b[i]);
    return (int32_t)sum;
}

float iv_ref_int8_result(const int32_t *sums, int terms, float row_scale, float output_scale) {
    float t = (float)sums[0];
    if (terms == 2) t = fmaf(t, IV_INT8_LOW, (float)sums[1]);
    return iv_canonical(t * row_scale * output_scale);
}
