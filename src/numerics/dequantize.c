/* dequantize.c: codes with scales in tensors of their own. */
#include "numerics/dequantize.h"
#include "numerics/floats.h"

#include <string.h>

float iv_e4m3_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = (code >> 3) & 15u, fraction = code & 7u;
    if (exponent == 15 && fraction == 7) return iv_float(IV_NAN_F32_BITS);
    if (exponent) return iv_float(sign | (exponent + 120) << 23 | fraction << 20);
    return iv_float(sign | iv_bits((float)fraction * 0x1p-9f)); /* exact */
}

float iv_e8m0_to_f32(uint8_t code) {
    if (code == 255) return iv_float(IV_NAN_F32_BITS);
    return iv_float(code ? (uint32_t)code << 23 : 0x00400000u);
}

float iv_e2m1_to_f32(uint8_t code) {
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return values[code & 15];
}

float iv_weight_code(iv_weight_format format, const uint8_t *row, size_t at) {
    uint8_t nibble =
        (uint8_t)(row[format == IV_WEIGHT_PACK4 || format == IV_WEIGHT_NVFP4 || format == IV_WEIGHT_MXFP4 ? at / 2
                                                                                                          : at] >>
                  (at % 2 * 4)) &
        15;
    switch (format) {
    case IV_WEIGHT_FP8:
    case IV_WEIGHT_MXFP8: return iv_e4m3_to_f32(row[at]);
    case IV_WEIGHT_INT8: return (float)(int8_t)row[at];
    case IV_WEIGHT_PACK8: return (float)(row[at] - 128);
    case IV_WEIGHT_PACK4: return (float)(nibble - 8);
    default: return iv_e2m1_to_f32(nibble);
    }
}

void iv_dequantize_codes(iv_weight_format format, const uint8_t *row, size_t first, size_t n, const float *scales,
                         const float *zeros, size_t group, float *out) {
    for (size_t i = 0; i < n; i++) {
        size_t g = (first + i) / group;
        float q = iv_weight_code(format, row, first + i);
        out[i] = (zeros ? q - zeros[g] : q) * scales[g];
    }
}

void iv_weights_round(iv_dtype type, const float *values, size_t n, void *out) {
    if (type == IV_F32)
        memcpy(out, values, n * sizeof *values);
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = type == IV_BF16 ? iv_bf16_from_f32(values[i]) : iv_f16_from_f32(values[i]);
}
