/* weight_codes.c: codes, scales and seconds of GGUF's blocks, a function a format. */
#include "numerics/weight_codes.h"
#include "base/status.h"
#include "numerics/dequantize.h"
#include "numerics/gguf_fields.h"

const float *iv_code_table(iv_code_kind kind) {
    static const float tables[IV_CODES_INT8][16] = {
        [IV_CODES_INT4] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
        [IV_CODES_UINT4] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        [IV_CODES_E2M1] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f,
                           -4.0f, -6.0f},
        [IV_CODES_E2M1_DOUBLED] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
        [IV_CODES_NONLINEAR] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    };
    return tables[kind];
}

float iv_code_value(const iv_code_form *form, uint8_t code, float scale, float second) {
    float t = form->kind < IV_CODES_INT8    ? iv_code_table(form->kind)[code & 15]
              : form->kind == IV_CODES_INT8 ? (float)(int8_t)code
                                            : iv_e4m3_to_f32(code);
    if (form->second == IV_SECOND_NONE) return t * scale;
    if (form->second == IV_SECOND_ZERO) return (t - second) * scale;
    return scale * t + second;
}

/* ---- GGUF ----------------------------------------------------------------------------------------------- */

enum { QK = 32, QK_K = 256 };

typedef void block_fn(const uint8_t *b, uint8_t *codes, float *scales, float *seconds);

static void q8_0(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    *scales = iv_gguf_half(b);
    for (int i = 0; i < QK; i++) codes[i] = b[2 + i];
}

static void nibbles(const uint8_t *q, uint8_t *codes) {
    for (int i = 0; i < QK; i++) codes[i] = (uint8_t)iv_gguf_nibble(q, i);
}

static void q4_0(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    *scales = iv_gguf_half(b);
    nibbles(b + 2, codes);
}

static void q4_1(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    *scales = iv_gguf_half(b), *seconds = iv_gguf_half(b + 2);
    nibbles(b + 4, codes);
}

static void q5_0(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    *scales = iv_gguf_half(b);
    for (int i = 0; i < QK; i++) codes[i] = (uint8_t)((iv_gguf_nibble(b + 6, i) | iv_gguf_fifth(b + 2, i)) - 16);
}

static void q5_1(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    *scales = iv_gguf_half(b), *seconds = iv_gguf_half(b + 2);
    for (int i = 0; i < QK; i++) codes[i] = (uint8_t)(iv_gguf_nibble(b + 8, i) | iv_gguf_fifth(b + 4, i));
}

static void mxfp4(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    *scales = iv_gguf_half_e8m0(b[0]);
    nibbles(b + 1, codes);
}

static void q2_k(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    float d = iv_gguf_half(b + 80), dmin = iv_gguf_half(b + 82);
    for (int i = 0; i < QK_K; i++) codes[i] = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    for (int k = 0; k < 16; k++) scales[k] = d * (float)(b[k] & 15), seconds[k] = -(dmin * (float)(b[k] >> 4));
}

static void q3_k(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    const uint8_t *high = b, *qs = b + 32, *s = b + 96;
    float d = iv_gguf_half(b + 108);
    for (int i = 0; i < QK_K; i++) {
        int low = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, set = high[i % 32] >> (i / 32) & 1;
        codes[i] = (uint8_t)(low + (set ? 8 : 4));
    }
    for (int k = 0; k < 16; k++) {
        int scale = (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
        scales[k] = d * (float)(scale - 32);
    }
}

static void six_bit_scales(const uint8_t *b, float *scales, float *seconds) {
    float d = iv_gguf_half(b), dmin = iv_gguf_half(b + 2);
    for (int k = 0; k < 8; k++) {
        int scale, min;
        iv_gguf_six_bits(b + 4, k, &scale, &min);
        scales[k] = d * (float)scale, seconds[k] = -(dmin * (float)min);
    }
}

static void q4_k(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    for (int i = 0; i < QK_K; i++) codes[i] = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    six_bit_scales(b, scales, seconds);
}

static void q5_k(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    for (int i = 0; i < QK_K; i++) {
        int q = b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        codes[i] = (uint8_t)(q | (b[16 + i % 32] >> (i / 32) & 1) << 4);
    }
    six_bit_scales(b, scales, seconds);
}

static void q6_k(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    const uint8_t *low = b, *high = b + 128, *s = b + 192;
    float d = iv_gguf_half(b + 208);
    for (int i = 0; i < QK_K; i++) {
        int q = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        codes[i] = (uint8_t)((q | (high[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4) - 32);
    }
    for (int k = 0; k < 16; k++) scales[k] = d * (float)(int8_t)s[k];
}

static void iq4_xs(const uint8_t *b, uint8_t *codes, float *scales, float *seconds) {
    (void)seconds;
    float d = iv_gguf_half(b);
    for (int k = 0; k < QK_K / 32; k++) {
        int scale = (b[4 + k / 2] >> (k % 2 * 4) & 15) | (iv_gguf_u16(b + 2) >> (2 * k) & 3) << 4;
        scales[k] = d * (float)(scale - 32);
        nibbles(b + 8 + k * 16, codes + k * 32);
    }
}

static const struct {
    block_fn *block;
    iv_code_kind kind;
    iv_code_second second;
    iv_dtype scale_type;
    size_t group;
} gguf[IV_WEIGHT_FORMAT_COUNT] = {
    [IV_WEIGHT_Q8_0] = {q8_0, IV_CODES_INT8, IV_SECOND_NONE, IV_F16, 32},
    [IV_WEIGHT_Q4_0] = {q4_0, IV_CODES_INT4, IV_SECOND_NONE, IV_F16, 32},
    [IV_WEIGHT_Q4_1] = {q4_1, IV_CODES_UINT4, IV_SECOND_MIN, IV_F16, 32},
    [IV_WEIGHT_Q5_0] = {q5_0, IV_CODES_INT8, IV_SECOND_NONE, IV_F16, 32},
    [IV_WEIGHT_Q5_1] = {q5_1, IV_CODES_INT8, IV_SECOND_MIN, IV_F16, 32},
    [IV_WEIGHT_Q2_K] = {q2_k, IV_CODES_UINT4, IV_SECOND_MIN, IV_F32, 16},
    [IV_WEIGHT_Q3_K] = {q3_k, IV_CODES_INT4, IV_SECOND_NONE, IV_F32, 16},
    [IV_WEIGHT_Q4_K] = {q4_k, IV_CODES_UINT4, IV_SECOND_MIN, IV_F32, 32},
    [IV_WEIGHT_Q5_K] = {q5_k, IV_CODES_INT8, IV_SECOND_MIN, IV_F32, 32},
    [IV_WEIGHT_Q6_K] = {q6_k, IV_CODES_INT8, IV_SECOND_NONE, IV_F32, 16},
    [IV_WEIGHT_IQ4_NL] = {q4_0, IV_CODES_NONLINEAR, IV_SECOND_NONE, IV_F16, 32},
    [IV_WEIGHT_IQ4_XS] = {iq4_xs, IV_CODES_NONLINEAR, IV_SECOND_NONE, IV_F32, 32},
    [IV_WEIGHT_MXFP4_GGUF] = {mxfp4, IV_CODES_E2M1_DOUBLED, IV_SECOND_NONE, IV_BF16, 32},
};

iv_code_form iv_gguf_form(iv_weight_format format) {
    IV_ASSERT(iv_weight_is_gguf_block(format));
    return (iv_code_form){.format = format,
                          .kind = gguf[format].kind,
                          .second = gguf[format].second,
                          .scale_type = gguf[format].scale_type,
                          .group = gguf[format].group};
}

void iv_gguf_codes(iv_weight_format format, const uint8_t *blocks, size_t n, uint8_t *codes, float *scales,
                   float *seconds) {
    const iv_weight_facts *f = iv_weight_facts_of(format);
    size_t groups = f->block / gguf[format].group, seconds_step = gguf[format].second ? groups : 0;
    for (size_t i = 0; i < n; i += f->block, blocks += f->block_bytes, codes += f->block) {
        gguf[format].block(blocks, codes, scales, seconds);
        scales += groups;
        if (seconds) seconds += seconds_step;
    }
}
