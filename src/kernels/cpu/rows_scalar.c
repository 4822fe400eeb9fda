/* rows_scalar.c: the row ops of src/numerics, rounded to the result type. */
#include "kernels/cpu/rows.h"
#include "numerics/backward.h"
#include "numerics/delta.h"
#include "numerics/philox.h"
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <string.h>

static void put(iv_dtype type, void *out, size_t i, float x) {
    if (type == IV_BF16)
        ((uint16_t *)out)[i] = iv_bf16_from_f32(x);
    else if (type == IV_F16)
        ((uint16_t *)out)[i] = iv_f16_from_f32(x);
    else
        ((float *)out)[i] = iv_canonical(x);
}

enum { CHUNK = 256 };

static void round_row(const float *x, size_t n, iv_dtype type, void *out) {
    for (size_t i = 0; i < n; i++) put(type, out, i, x[i]);
}

static void norm_by(const float *x, const float *weight, float r, size_t n, iv_dtype type, void *out) {
    for (size_t i = 0; i < n; i++) put(type, out, i, (x[i] * r) * weight[i]);
}

static void rmsnorm(const float *x, const float *weight, float eps, size_t n, iv_dtype type, void *out) {
    norm_by(x, weight, iv_ref_rms_factor(x, eps, n), n, type, out);
}

static void activate(const iv_activation *a, const float *gate, const float *up, size_t n, iv_dtype type, void *out) {
    float t[CHUNK];
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : CHUNK;
        iv_ref_activate(a, gate ? gate + i : NULL, up + i, m, t);
        round_row(t, m, type, (char *)out + i * iv_dtype_bytes(type));
    }
}

static void softmax_block(iv_arithmetic arithmetic, const float *score, int first, int last, float scale_log2e,
                          float *max, float *alpha, iv_dtype type, void *weights) {
    float s[IV_ATTENTION_BLOCK], largest = -INFINITY;
    for (int i = 0; i < IV_ATTENTION_BLOCK; i++) {
        s[i] = i >= first && i <= last ? score[i] : -INFINITY;
        largest = s[i] > largest ? s[i] : largest;
    }
    float m = iv_attention_next_max(*max, largest * scale_log2e);
    *alpha = iv_attention_exp2(arithmetic, *max - m);
    for (int i = 0; i < IV_ATTENTION_BLOCK; i++)
        put(type, weights, (size_t)i, iv_attention_exp2(arithmetic, iv_fma(s[i], scale_log2e, -m)));
    *max = m;
}

static void sum_weights(iv_arithmetic arithmetic, iv_dtype type, const void *weights, float alpha, float *lanes) {
    for (int c = 0; c < IV_ATTENTION_LANES; c++) lanes[c] = lanes[c] * alpha;
    if (arithmetic == IV_TC16)
        lanes[0] = iv_ref_sum_weights(type, lanes[0], weights, IV_ATTENTION_BLOCK);
    else
        for (size_t i = 0; i < IV_ATTENTION_BLOCK; i++) lanes[i % IV_ATTENTION_LANES] += iv_element(type, weights, i);
}

static void scale(float *x, size_t n, float s) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] * s;
}

static void merge(float *total, const float *split, float keep, float add, size_t n) {
    for (size_t i = 0; i < n; i++) total[i] = iv_canonical(iv_fma(split[i], add, total[i] * keep));
}

static void divide(const float *x, float d, size_t n, iv_dtype type, void *out) {
    for (size_t i = 0; i < n; i++) put(type, out, i, x[i] / d);
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = iv_canonical(x[i] + y[i]);
}

static void random_words(uint64_t seed, uint64_t position, uint32_t first_block, size_t blocks, uint32_t *random) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (size_t b = 0; b < blocks; b++) {
        const uint32_t counter[4] = {first_block + (uint32_t)b, (uint32_t)position, (uint32_t)(position >> 32), 0};
        iv_philox4x32(counter, key, random + 4 * b);
    }
}

static size_t largest(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static size_t find_above(const float *x, size_t from, size_t n, float than) {
    while (from < n && !(x[from] > than)) from++;
    return from;
}

static void add_scaled(float *x, const float *y, float s, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = iv_canonical(iv_fma(s, y[i], x[i]));
}

static void add_product(float *x, const float *y, const float *z, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = iv_canonical(iv_fma(y[i], z[i], x[i]));
}

static void decays(float total, const float *before, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = iv_canonical(iv_ref_delta_factor(total, before[i]));
}

void iv_rows_scalar(iv_kernels *k) {
    k->squares = iv_ref_squares, k->norm_by = norm_by, k->center = iv_ref_center, k->rmsnorm = rmsnorm,
    k->rope = iv_ref_rope, k->activate = activate, k->round = round_row;
    k->sum_exp = iv_ref_sum_exp, k->softmax_block = softmax_block, k->sum_weights = sum_weights;
    k->scale = scale, k->merge = merge, k->divide = divide, k->add = add;
    k->cap = iv_ref_cap, k->add_scaled = add_scaled, k->add_product = add_product, k->decays = decays;
    k->random = random_words, k->largest = largest, k->find_above = find_above;
    k->rmsnorm_backward = iv_ref_rmsnorm_backward, k->norm_weight_backward = iv_ref_norm_weight_backward;
    k->norm_dot = iv_ref_norm_dot, k->norm_by_backward = iv_ref_norm_by_backward;
    k->activate_backward = iv_ref_activate_backward, k->logits_backward = iv_ref_logits_backward;
    k->attention_gradients = iv_ref_attention_gradients, k->row_dot = iv_ref_row_dot;
}
