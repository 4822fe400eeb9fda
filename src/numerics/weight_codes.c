/* weight_codes.c: codes, scales and seconds of GGUF's blocks, a function a format. */
#include "numerics/weight_codes.h"
#include "base/status.h"
#include "numerics/dequantize.h"
#include "numerics/gguf_fields.h"

#include <stdlib.h>

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

static float number_of(iv_code_kind kind, uint8_t code) {
    switch (kind) {
    case IV_CODES_INT8: return (float)(int8_t)code;
    case IV_CODES_E4M3: return iv_e4m3_to_f32(code);
    case IV_CODES_INT5: return (float)((code & 31) - 16);
    case IV_CODES_UINT5: return (float)(code & 31);
    case IV_CODES_INT6: return (float)((code & 63) - 32);
    default: return iv_code_table(kind)[code & 15];
    }
}

float iv_code_value(const iv_code_form *form, uint8_t code, float scale, float second) {
    float t = number_of(form->kind, code);
    if (form->second == IV_SECOND_NONE) return t * scale;
    if (form->second == IV_SECOND_ZERO) return (t - second) * scale;
    return scale * t + second;
}

float iv_code_scale(const iv_code_form *form, float outer, float inner) {
    switch (form->inner) {
    case IV_INNER_NONE: return inner;
    case IV_INNER_E4M3: return iv_e4m3_to_f32((uint8_t)inner) * outer;
    case IV_INNER_E4M3_DIVIDED: return iv_e4m3_to_f32((uint8_t)inner) / outer;
    default: return outer * inner;
    }
}

float iv_code_second_of(const iv_code_form *form, float outer, float inner) {
    return form->inner == IV_INNER_NONE ? inner : -(outer * inner);
}

bool iv_row_codes_alloc(const iv_code_form *form, size_t rows, size_t columns, iv_row_codes *out) {
    size_t groups = rows * iv_code_groups(form, columns), outers = rows * iv_code_outers(form, columns);
    *out = (iv_row_codes){calloc(rows, columns), calloc(groups, sizeof(float)), calloc(groups, sizeof(float)),
                          calloc(outers, sizeof(float)), calloc(outers, sizeof(float))};
    return out->codes && out->scales && out->seconds && out->outer_scales && out->outer_seconds;
}

void iv_row_codes_free(iv_row_codes *c) {
    free(c->codes), free(c->scales), free(c->seconds), free(c->outer_scales), free(c->outer_seconds);
}

/* ---- GGUF ----------------------------------------------------------------------------------------------- */

enum { QK = 32, QK_K = 256 };

typedef void block_fn(const uint8_t *b, const iv_row_codes *o);

static void q8_0(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half(b);
    for (int i = 0; i < QK; i++) o->codes[i] = b[2 + i];
}

static void nibbles(const uint8_t *q, uint8_t *codes) {
    for (int i = 0; i < QK; i++) codes[i] = (uint8_t)iv_gguf_nibble(q, i);
}

static void q4_0(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half(b);
    nibbles(b + 2, o->codes);
}

static void q4_1(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half(b), *o->seconds = iv_gguf_half(b + 2);
    nibbles(b + 4, o->codes);
}

static void q5_0(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half(b);
    for (int i = 0; i < QK; i++) o->codes[i] = (uint8_t)(iv_gguf_nibble(b + 6, i) | iv_gguf_fifth(b + 2, i));
}

static void q5_1(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half(b), *o->seconds = iv_gguf_half(b + 2);
    for (int i = 0; i < QK; i++) o->codes[i] = (uint8_t)(iv_gguf_nibble(b + 8, i) | iv_gguf_fifth(b + 4, i));
}

static void mxfp4(const uint8_t *b, const iv_row_codes *o) {
    *o->scales = iv_gguf_half_e8m0(b[0]);
    nibbles(b + 1, o->codes);
}

static void q2_k(const uint8_t *b, const iv_row_codes *o) {
    *o->outer_scales = iv_gguf_half(b + 80), *o->outer_seconds = iv_gguf_half(b + 82);
    for (int i = 0; i < QK_K; i++) o->codes[i] = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    for (int k = 0; k < 16; k++) o->scales[k] = (float)(b[k] & 15), o->seconds[k] = (float)(b[k] >> 4);
}

static void q3_k(const uint8_t *b, const iv_row_codes *o) {
    const uint8_t *high = b, *qs = b + 32, *s = b + 96;
    *o->outer_scales = iv_gguf_half(b + 108);
    for (int i = 0; i < QK_K; i++) {
        int low = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, set = high[i % 32] >> (i / 32) & 1;
        o->codes[i] = (uint8_t)(low + (set ? 8 : 4));
    }
    for (int k = 0; k < 16; k++) {
        int scale = (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
        o->scales[k] = (float)(scale - 32);
    }
}

static void six_bit_scales(const uint8_t *b, const iv_row_codes *o) {
    *o->outer_scales = iv_gguf_half(b), *o->outer_seconds = iv_gguf_half(b + 2);
    for (int k = 0; k < 8; k++) {
        int scale, min;
        iv_gguf_six_bits(b + 4, k, &scale, &min);
        o->scales[k] = (float)scale, o->seconds[k] = (float)min;
    }
}

static void q4_k(const uint8_t *b, const iv_row_codes *o) {
    for (int i = 0; i < QK_K; i++) o->codes[i] = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    six_bit_scales(b, o);
}

static void q5_k(const uint8_t *b, const iv_row_codes *o) {
    for (int i = 0; i < QK_K; i++) {
        int q = b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        o->codes[i] = (uint8_t)(q | (b[16 + i % 32] >> (i / 32) & 1) << 4);
    }
    six_bit_scales(b, o);
}

static void q6_k(const uint8_t *b, const iv_row_codes *o) {
    const uint8_t *low = b, *high = b + 128, *s = b + 192;
    *o->outer_scales = iv_gguf_half(b + 208);
    for (int i = 0; i < QK_K; i++) {
        int q = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        o->codes[i] = (uint8_t)(q | (high[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4);
    }
    for (int k = 0; k < 16; k++) o->scales[k] = (float)(int8_t)s[k];
}

static void iq4_xs(const uint8_t *b, const iv_row_codes *o) {
    *o->outer_scales = iv_gguf_half(b);
    for (int k = 0; k < QK_K / 32; k++) {
        int scale = (b[4 + k / 2] >> (k % 2 * 4) & 15) | (iv_gguf_u16(b + 2) >> (2 * k) & 3) << 4;
        o->scales[k] = (float)(scale - 32);
        nibbles(b + 8 + k * 16, o->codes + k * 32);
    }
}

static const struct {
    block_fn *block;
    iv_code_kind kind;
    iv_code_second second;
    iv_dtype scale_type;
    size_t group;
    iv_code_inner inner;
} gguf[IV_WEIGHT_FORMAT_COUNT] = {
    [IV_WEIGHT_Q8_0] = {q8_0, IV_CODES_INT8, IV_SECOND_NONE, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_Q4_0] = {q4_0, IV_CODES_INT4, IV_SECOND_NONE, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_Q4_1] = {q4_1, IV_CODES_UINT4, IV_SECOND_MIN, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_Q5_0] = {q5_0, IV_CODES_INT5, IV_SECOND_NONE, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_Q5_1] = {q5_1, IV_CODES_UINT5, IV_SECOND_MIN, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_Q2_K] = {q2_k, IV_CODES_UINT4, IV_SECOND_MIN, IV_F16, 16, IV_INNER_UINT8},
    [IV_WEIGHT_Q3_K] = {q3_k, IV_CODES_INT4, IV_SECOND_NONE, IV_F16, 16, IV_INNER_INT8},
    [IV_WEIGHT_Q4_K] = {q4_k, IV_CODES_UINT4, IV_SECOND_MIN, IV_F16, 32, IV_INNER_UINT8},
    [IV_WEIGHT_Q5_K] = {q5_k, IV_CODES_UINT5, IV_SECOND_MIN, IV_F16, 32, IV_INNER_UINT8},
    [IV_WEIGHT_Q6_K] = {q6_k, IV_CODES_INT6, IV_SECOND_NONE, IV_F16, 16, IV_INNER_INT8},
    [IV_WEIGHT_IQ4_NL] = {q4_0, IV_CODES_NONLINEAR, IV_SECOND_NONE, IV_F16, 32, IV_INNER_NONE},
    [IV_WEIGHT_IQ4_XS] = {iq4_xs, IV_CODES_NONLINEAR, IV_SECOND_NONE, IV_F16, 32, IV_INNER_INT8},
    [IV_WEIGHT_MXFP4_GGUF] = {mxfp4, IV_CODES_E2M1_DOUBLED, IV_SECOND_NONE, IV_BF16, 32, IV_INNER_NONE},
};

iv_code_form iv_gguf_form(iv_weight_format format) {
    IV_ASSERT(iv_weight_is_gguf_block(format));
    return (iv_code_form){.format = format,
                          .kind = gguf[format].kind,
                          .second = gguf[format].second,
                          .inner = gguf[format].inner,
                          .scale_type = gguf[format].scale_type,
                          .group = gguf[format].group,
                          .outer = iv_weight_facts_of(format)->block};
}

void iv_gguf_codes(iv_weight_format format, const uint8_t *blocks, size_t n, iv_row_codes o) {
    const iv_weight_facts *f = iv_weight_facts_of(format);
    size_t groups = f->block / gguf[format].group;
    for (size_t i = 0; i < n; i += f->block, blocks += f->block_bytes, o.codes += f->block) {
        gguf[format].block(blocks, &o);
        o.scales += groups;
        if (gguf[format].second) o.seconds += groups;
        if (gguf[format].inner) o.outer_scales++, o.outer_seconds += gguf[format].second ? 1 : 0;
    }
}
