/* delta.c: a block's rows, one by one, and the state at its end. */
#include "numerics/delta.h"
#include "numerics/attention.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <stdlib.h>
#include <string.h>

enum { B = IV_DELTA_BLOCK };

float iv_ref_softplus(float x) {
    float e = v_exp(0.0f - (x < 0.0f ? 0.0f - x : x)), u = 1.0f + e;
    float l = u == 1.0f ? e : v_log(u) * (e / (u - 1.0f));
    return x > 0.0f ? x + l : l;
}

float iv_ref_delta_decay(float a, float dt_bias, float a_log) {
    return 0.0f - v_exp(a_log) * iv_ref_softplus(a + dt_bias);
}

float iv_ref_delta_factor(float total, float before) { return v_exp(total - before); }

float iv_ref_scan_step(float dt, float dt_bias, float low, float high) {
    float step = iv_ref_softplus(dt + dt_bias);
    return step < low ? low : step > high ? high : step;
}

float iv_ref_scan_rate(float a_log) { return 0.0f - v_exp(a_log); }

float iv_ref_delta_conv(const float *weight, const float *x, size_t taps) {
    return iv_ref_scan_conv(0.0f, weight, x, taps);
}

float iv_ref_scan_conv(float bias, const float *weight, const float *x, size_t taps) {
    float y = bias;
    for (size_t j = 0; j < taps; j++) y = iv_fma(weight[j], x[j], y);
    return iv_canonical(v_silu(y));
}

float iv_ref_l2_factor(const float *x, size_t n) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) lanes[i % IV_ROW_LANES] = iv_fma(x[i], x[i], lanes[i % IV_ROW_LANES]);
    return iv_l2_factor_of(iv_ref_fold_lanes(lanes));
}

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = iv_canonical(x);
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

bool iv_ref_delta_open(iv_ref_delta *d, iv_arithmetic arithmetic, iv_dtype type, size_t key_dim, size_t value_dim) {
    size_t padded = iv_padded_k(key_dim), width = iv_dtype_bytes(type);
    *d = (iv_ref_delta){.arithmetic = arithmetic, .type = type, .key_dim = key_dim, .value_dim = value_dim};
    d->state = calloc(key_dim * value_dim, sizeof *d->state);
    d->rounded = calloc(value_dim * padded, width);
    d->keys = calloc(B * padded, width);
    d->updates = calloc(value_dim * B, width);
    d->last = calloc(value_dim, width);
    if (d->state && d->rounded && d->keys && d->updates && d->last) return true;
    iv_ref_delta_close(d);
    return false;
}

void iv_ref_delta_close(iv_ref_delta *d) {
    free(d->state), free(d->rounded), free(d->keys), free(d->updates), free(d->last);
    *d = (iv_ref_delta){0};
}

static const void *at(const iv_ref_delta *d, const void *p, size_t i) {
    return (const char *)p + i * iv_dtype_bytes(d->type);
}

/* Row x against the block's keys, decayed: those of rows below `count`, then zeros. */
static void weigh(const iv_ref_delta *d, const void *x, size_t count, void *weights) {
    size_t padded = iv_padded_k(d->key_dim);
    for (size_t i = 0; i < B; i++) {
        float w = 0.0f;
        if (i < count)
            w = iv_ref_delta_factor(d->total[d->rows], d->total[i]) *
                iv_ref_chain(d->arithmetic, d->type, 0.0f, x, at(d, d->keys, i * padded), padded);
        store(d->type, weights, i, w);
    }
}

/* Element j of row x times the decayed state, and the block's updates by their weights: before the last addition. */
static float apply(const iv_ref_delta *d, const void *x, const void *weights, size_t j) {
    size_t padded = iv_padded_k(d->key_dim), end = d->rows / IV_DELTA_STEP * IV_DELTA_STEP + IV_DELTA_STEP;
    float y = iv_ref_delta_factor(d->total[d->rows], 0.0f) *
              iv_ref_chain(d->arithmetic, d->type, 0.0f, x, at(d, d->rounded, j * padded), padded);
    return iv_ref_chain(d->arithmetic, d->type, y, weights, at(d, d->updates, j * B), end);
}

static void move_border(iv_ref_delta *d) {
    size_t padded = iv_padded_k(d->key_dim);
    float last = d->total[B - 1], decayed[B]; /* storage for any type */
    for (size_t c = 0; c < d->key_dim; c++) {
        for (size_t i = 0; i < B; i++)
            store(d->type, decayed, i,
                  iv_ref_delta_factor(last, d->total[i]) * iv_element(d->type, d->keys, i * padded + c));
        for (size_t j = 0; j < d->value_dim; j++) {
            float *s = &d->state[c * d->value_dim + j];
            *s = iv_ref_chain(d->arithmetic, d->type, *s * iv_ref_delta_factor(last, 0.0f), decayed,
                              at(d, d->updates, j * B), B);
            store(d->type, d->rounded, j * padded + c, *s);
        }
    }
    memset(d->updates, 0, d->value_dim * B * iv_dtype_bytes(d->type));
    d->rows = 0;
}

/* The row's key and total. */
static void add_key(iv_ref_delta *d, const void *k, float decay) {
    size_t t = d->rows, bytes = iv_padded_k(d->key_dim) * iv_dtype_bytes(d->type);
    memcpy((char *)d->keys + t * bytes, k, bytes);
    d->total[t] = (t ? d->total[t - 1] : 0.0f) + decay;
}

static void add_update(iv_ref_delta *d, const float *u) {
    for (size_t j = 0; j < d->value_dim; j++) store(d->type, d->last, j, u[j]);
    for (size_t j = 0; j < d->value_dim; j++) store(d->type, d->updates, j * B + d->rows, u[j]);
}

void iv_ref_delta_row(iv_ref_delta *d, const void *q, const void *k, const float *v, float decay, float beta,
                      float *out) {
    float weights[B];
    size_t t = d->rows;
    add_key(d, k, decay);
    weigh(d, k, t, weights);
    for (size_t j = 0; j < d->value_dim; j++) out[j] = beta * (v[j] - (apply(d, k, weights, j) + 0.0f));
    add_update(d, out);
    weigh(d, q, t + 1, weights);
    for (size_t j = 0; j < d->value_dim; j++) out[j] = iv_canonical(apply(d, q, weights, j) + 0.0f);
    if (++d->rows == B) move_border(d);
}

void iv_ref_scan_row(iv_ref_delta *d, const void *c, const void *b, const float *x, float decay, float step, float skip,
                     float *out) {
    float weights[B];
    add_key(d, b, decay);
    for (size_t j = 0; j < d->value_dim; j++) out[j] = step * x[j];
    add_update(d, out);
    weigh(d, c, d->rows + 1, weights);
    for (size_t j = 0; j < d->value_dim; j++) out[j] = iv_canonical(iv_fma(skip, x[j], apply(d, c, weights, j)));
    if (++d->rows == B) move_border(d);
}

void iv_ref_delta_last_update(const iv_ref_delta *d, void *out) {
    memcpy(out, d->last, d->value_dim * iv_dtype_bytes(d->type));
}
