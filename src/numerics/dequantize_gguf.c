/* dequantize_gguf.c: GGUF's blocks. A function a format: one block of its elements. */
#include "numerics/dequantize.h"
#include "numerics/gguf_fields.h"

enum { QK = 32, QK_K = 256 };

static uint16_t u16(const uint8_t *p) { return iv_gguf_u16(p); }
static float half(const uint8_t *p) { return iv_gguf_half(p); }
static int nibble(const uint8_t *q, int i) { return iv_gguf_nibble(q, i); }
static int fifth(const uint8_t *qh, int i) { return iv_gguf_fifth(qh, i); }

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void q8_0(const uint8_t *b, float *y) {
    float d = half(b);
    for (int i = 0; i < QK; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

static void q4_0(const uint8_t *b, float *y) {
    float d = half(b);
    for (int i = 0; i < QK; i++) y[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void q4_1(const uint8_t *b, float *y) {
    float d = half(b), m = half(b + 2);
    for (int i = 0; i < QK; i++) y[i] = d * (float)nibble(b + 4, i) + m;
}

static void q5_0(const uint8_t *b, float *y) {
    float d = half(b);
    for (int i = 0; i < QK; i++) y[i] = d * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
}

static void q5_1(const uint8_t *b, float *y) {
    float d = half(b), m = half(b + 2);
    for (int i = 0; i < QK; i++) y[i] = d * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + m;
}

static void iq4_nl(const uint8_t *b, float *y) {
    float d = half(b);
    for (int i = 0; i < QK; i++) y[i] = d * (float)nonlinear[nibble(b + 2, i)];
}

static void mxfp4(const uint8_t *b, float *y) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float d = iv_gguf_half_e8m0(b[0]);
    for (int i = 0; i < QK; i++) y[i] = d * (float)doubled[nibble(b + 1, i)];
}

static void q2_k(const uint8_t *b, float *y) {
    const uint8_t *scales = b, *qs = b + 16;
    float d = half(b + 80), dmin = half(b + 82);
    for (int i = 0; i < QK_K; i++) {
        float dl = d * (float)(scales[i / 16] & 15), ml = dmin * (float)(scales[i / 16] >> 4);
        int q = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        y[i] = dl * (float)q - ml;
    }
}

static void q3_k(const uint8_t *b, float *y) {
    const uint8_t *high = b, *qs = b + 32, *s = b + 96;
    float d = half(b + 108);
    for (int i = 0; i < QK_K; i++) {
        int k = i / 16, scale = (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
        int low = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        int set = high[i % 32] >> (i / 32) & 1;
        y[i] = d * (float)(scale - 32) * (float)(low - (set ? 0 : 4));
    }
}

static void q4_k(const uint8_t *b, float *y) {
    float d = half(b), dmin = half(b + 2);
    for (int i = 0; i < QK_K; i++) {
        int scale, min, q = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        iv_gguf_six_bits(b + 4, i / 32, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        y[i] = dl * (float)q - ml;
    }
}

static void q5_k(const uint8_t *b, float *y) {
    float d = half(b), dmin = half(b + 2);
    for (int i = 0; i < QK_K; i++) {
        int scale, min, q = b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        q |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
        iv_gguf_six_bits(b + 4, i / 32, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        y[i] = dl * (float)q - ml;
    }
}

static void q6_k(const uint8_t *b, float *y) {
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    float d = half(b + 208);
    for (int i = 0; i < QK_K; i++) {
        int q = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        q |= (high[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4;
        y[i] = d * (float)(int8_t)scales[i / 16] * (float)(q - 32);
    }
}

static void iq4_xs(const uint8_t *b, float *y) {
    float d = half(b);
    for (int k = 0; k < QK_K / 32; k++) {
        int scale = (b[4 + k / 2] >> (k % 2 * 4) & 15) | (u16(b + 2) >> (2 * k) & 3) << 4;
        float dl = d * (float)(scale - 32);
        for (int i = 0; i < 32; i++) y[k * 32 + i] = dl * (float)nonlinear[nibble(b + 8 + k * 16, i)];
    }
}

void iv_dequantize_gguf(iv_weight_format format, const uint8_t *blocks, size_t n, float *out) {
    static void (*const of[IV_WEIGHT_FORMAT_COUNT])(const uint8_t *, float *) = {
        [IV_WEIGHT_Q8_0] = q8_0,       [IV_WEIGHT_Q4_0] = q4_0,     [IV_WEIGHT_Q4_1] = q4_1,
        [IV_WEIGHT_Q5_0] = q5_0,       [IV_WEIGHT_Q5_1] = q5_1,     [IV_WEIGHT_Q2_K] = q2_k,
        [IV_WEIGHT_Q3_K] = q3_k,       [IV_WEIGHT_Q4_K] = q4_k,     [IV_WEIGHT_Q5_K] = q5_k,
        [IV_WEIGHT_Q6_K] = q6_k,       [IV_WEIGHT_IQ4_NL] = iq4_nl, [IV_WEIGHT_IQ4_XS] = iq4_xs,
        [IV_WEIGHT_MXFP4_GGUF] = mxfp4};
    const iv_weight_facts *f = iv_weight_facts_of(format);
    for (size_t i = 0; i < n; i += f->block, blocks += f->block_bytes) of[format](blocks, out + i);
}
