/* quantize_gguf.c: blocks of 32 as ggml's reference makes them. Products and sums are float32, each rounded. */
#include "numerics/floats.h"
#include "numerics/quantize.h"

#include <math.h>

enum { QK = 32 };

static void put_half(uint8_t *out, float x) {
    uint16_t h = iv_f16_from_f32(x);
    out[0] = (uint8_t)h, out[1] = (uint8_t)(h >> 8);
}

/* 0 where the scale has no inverse: all codes are those of zero. */
static float inverse(float d) {
    float id = d == 0 ? 0.0f : 1.0f / d;
    return isfinite(id) ? id : 0.0f;
}

/* The first number of the largest size. */
static float extreme(const float *x) {
    float m = x[0];
    for (int i = 1; i < QK; i++)
        if (fabsf(x[i]) > fabsf(m)) m = x[i];
    return m;
}

static int clipped(float x, int most) {
    int q = x > 0 ? (int)x : 0;
    return q < most ? q : most;
}

/* Codes of 4 bits, and where `high` is not NULL the fifth bit of each. */
static void put_codes(const int *q, uint8_t *low, uint8_t *high) {
    for (int i = 0; i < QK / 2; i++) low[i] = (uint8_t)((q[i] & 15) | (q[i + QK / 2] & 15) << 4);
    for (int i = 0; high && i < QK / 8; i++) high[i] = 0;
    for (int i = 0; high && i < QK; i++) high[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

static void q8_0(const float *x, uint8_t *out) {
    float d = fabsf(extreme(x)) / 127, id = inverse(d);
    put_half(out, d);
    for (int i = 0; i < QK; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * id);
}

static void symmetric(const float *x, int levels, uint8_t *out) {
    float d = extreme(x) / (float)(-levels / 2), id = inverse(d), middle = (float)(levels / 2) + 0.5f;
    int q[QK];
    put_half(out, d);
    for (int i = 0; i < QK; i++) q[i] = clipped(x[i] * id + middle, levels - 1);
    if (levels == 16)
        put_codes(q, out + 2, NULL);
    else
        put_codes(q, out + 6, out + 2);
}

static void with_minimum(const float *x, int levels, uint8_t *out) {
    float least = x[0], most = x[0];
    for (int i = 1; i < QK; i++) least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
    float d = (most - least) / (float)(levels - 1), id = inverse(d);
    int q[QK];
    put_half(out, d), put_half(out + 2, least);
    for (int i = 0; i < QK; i++) q[i] = clipped((x[i] - least) * id + 0.5f, levels - 1);
    if (levels == 16)
        put_codes(q, out + 4, NULL);
    else
        put_codes(q, out + 8, out + 4);
}

void iv_quantize_gguf(iv_weight_format format, const float *x, size_t n, uint8_t *out) {
    size_t bytes = iv_weight_facts_of(format)->block_bytes;
    for (size_t i = 0; i < n; i += QK, x += QK, out += bytes) {
        switch (format) {
        case IV_WEIGHT_Q8_0: q8_0(x, out); break;
        case IV_WEIGHT_Q4_0: symmetric(x, 16, out); break;
        case IV_WEIGHT_Q5_0: symmetric(x, 32, out); break;
        case IV_WEIGHT_Q4_1: with_minimum(x, 16, out); break;
        default: with_minimum(x, 32, out);
        }
    }
}
