/* quantize.c: the nearest codes. */
#include "numerics/quantize.h"
#include "base/status.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"

#include <math.h>

uint8_t iv_e4m3_from_f32(float x) {
    uint32_t u = iv_bits(x), sign = u >> 24 & 0x80u;
    float size = iv_float(u & 0x7fffffffu);
    if (size >= 448.0f) return (uint8_t)(sign | 0x7e);
    if (size < 0x1p-6f) return (uint8_t)(sign | (uint32_t)rintf(size * 0x1p9f)); /* 8 is the smallest normal number */
    u = iv_bits(size);
    u += 0x7ffffu + (u >> 20 & 1u); /* three bits of fraction stay */
    return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}

uint8_t iv_e2m1_from_f32(float x) {
    float size = fabsf(x);
    uint8_t sign = iv_bits(x) >> 31 ? 8 : 0, code = 7;
    if (size < 1.75f)
        code = (uint8_t)rintf(size * 2); /* 0, 0.5, 1, 1.5; 1.75 is even at 2 */
    else if (size < 3.5f)
        code = (uint8_t)(2 + rintf(size)); /* 2, 3; 3.5 is even at 4 */
    else if (size <= 5.0f)
        code = 6; /* 4 */
    return sign | code;
}

static float rounded(iv_dtype type, float x) {
    if (type == IV_F32) return x;
    return type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(x)) : iv_f16_to_f32(iv_f16_from_f32(x));
}

static float largest_size(const float *x, size_t n) {
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* A group of zeros, or of numbers so small that their scale is zero, has the scale 1. */
static float number_scale(float m, float divisor, iv_dtype type) {
    float s = rounded(type, m / divisor);
    return s == 0 ? 1.0f : s;
}

float iv_quantize_scale(iv_weight_format format, const float *x, size_t n, float global, iv_dtype type, float *stored) {
    float m = largest_size(x, n);
    int exponent = 0;
    switch (format) {
    case IV_WEIGHT_FP8: return *stored = number_scale(m, 448.0f, type);
    case IV_WEIGHT_INT8: return *stored = number_scale(m, 127.5f, type);
    case IV_WEIGHT_PACK4: return *stored = number_scale(m, 7.5f, type);
    case IV_WEIGHT_MXFP4:
        frexpf(m, &exponent); /* m in [2^(exponent - 1), 2^exponent) */
        exponent = m == 0 ? 127 : exponent - 3 + 127;
        *stored = (float)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
        return iv_e8m0_to_f32((uint8_t)*stored);
    default: {
        IV_ASSERT(format == IV_WEIGHT_NVFP4);
        uint8_t code = iv_e4m3_from_f32(m / 6.0f * global);
        if (code == 0) code = m == 0 ? 0x38 : 1;
        *stored = (float)code;
        return iv_e4m3_to_f32(code) / global;
    }
    }
}

static uint8_t integer(float x, int least, int most) {
    float q = rintf(x);
    int i = q < (float)least ? least : q > (float)most ? most : (int)q;
    return (uint8_t)(i - (least == -8 ? least : 0));
}

void iv_quantize_codes(iv_weight_format format, const float *x, size_t n, float scale, uint8_t *out) {
    for (size_t i = 0; i < n; i++) {
        float q = x[i] / scale;
        switch (format) {
        case IV_WEIGHT_FP8: out[i] = iv_e4m3_from_f32(q); break;
        case IV_WEIGHT_INT8: out[i] = integer(q, -128, 127); break;
        case IV_WEIGHT_PACK4: out[i] = integer(q, -8, 7); break;
        default: out[i] = iv_e2m1_from_f32(q);
        }
    }
}
