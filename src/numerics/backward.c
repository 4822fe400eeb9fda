/* backward.c: backward ops in plain loops, in the order of the law. */
#include "numerics/backward.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/activate.h"

#include <stdlib.h>
#include <string.h>

float iv_ref_norm_dot(const float *x, const float *w, float r, size_t n, const float *dy) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        float *lane = &lanes[i % IV_ROW_LANES];
        *lane = iv_fma(dy[i] * w[i], x[i] * r, *lane);
    }
    return iv_ref_fold_lanes(lanes);
}

float iv_ref_rmsnorm_backward(const float *x, const float *w, float eps, size_t n, const float *dy, const float *add,
                              float *out) {
    float r = iv_ref_rms_factor(x, eps, n), c = iv_ref_norm_dot(x, w, r, n, dy) / (float)n;
    for (size_t i = 0; i < n; i++) {
        float t = iv_fma(-(x[i] * r), c, dy[i] * w[i]);
        out[i] = iv_canonical(add ? iv_fma(t, r, add[i]) : t * r);
    }
    return r;
}

void iv_ref_norm_by_backward(const float *x, const float *w, float r, float c, size_t n, const float *dy, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = iv_canonical(iv_fma(-(x[i] * r), c, dy[i] * w[i]) * r);
}

void iv_ref_norm_weight_backward(const float *dy, const float *x, float r, size_t n, float *sum) {
    for (size_t i = 0; i < n; i++) sum[i] = iv_canonical(iv_fma(dy[i], x[i] * r, sum[i]));
}

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = iv_canonical(x);
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

void iv_ref_activate_backward(const iv_activation *a, iv_dtype type, const void *gate, const void *up, const float *da,
                              size_t n, iv_dtype to, void *dgate, void *dup) {
    iv_activation_floats f = IV_ACTIVATION_FLOATS(a);
    bool gated = iv_activation_is_gated(a); /* else dgate may be dup */
    for (size_t i = 0; i < n; i++) {
        float dg = 0.0f, du;
        v_activate_backward(a->kind, f, gated ? iv_element(type, gate, i) : 0.0f, iv_element(type, up, i), da[i], &dg,
                            &du);
        store(to, dup, i, du);
        if (gated) store(to, dgate, i, dg);
    }
}

void iv_ref_xielu_sums(const iv_activation *a, iv_dtype type, const void *x, const float *da, size_t n, float sums[2]) {
    float lanes[2][IV_ROW_LANES] = {{0}}, eps = (float)a->eps;
    for (size_t i = 0; i < n; i++) {
        float v = iv_element(type, x, i);
        bool above = v > 0.0f;
        float *lane = &lanes[!above][i % IV_ROW_LANES], part = above ? v * v : v_xielu_rest(v, v_at_most(v, eps));
        *lane = iv_fma(da[i], part, *lane);
    }
    for (size_t k = 0; k < 2; k++) sums[k] = iv_ref_fold_lanes(lanes[k]);
}

void iv_ref_logits_backward(const float *x, size_t first, size_t n, float max, float sum, float c, size_t target,
                            iv_dtype type, void *out) {
    float q = 1.0f / sum;
    for (size_t i = 0; i < n; i++) {
        float p = v_exp(x[i] - max) * q;
        store(type, out, i, c * (first + i == target ? p - 1.0f : p));
    }
}

float iv_ref_attention_lse2(float max, float sum) { return iv_fma(v_log(sum), 0x1.715476p+0f, max); }

float iv_ref_sink_gradient(iv_arithmetic arithmetic, float sink, float lse2, float delta) {
    return iv_canonical(-(iv_attention_exp2(arithmetic, iv_sink_log2e(sink) - lse2) * delta));
}

void iv_ref_attention_gradients(iv_arithmetic arithmetic, const float *score, const float *dp, int first, int last,
                                bool capped, float scale_log2e, float lse2, float delta, iv_dtype type, void *p,
                                void *ds) {
    for (int j = 0; j < IV_ATTENTION_BLOCK; j++) {
        bool seen = j >= first && j <= last;
        float w = seen ? iv_attention_exp2(arithmetic, iv_fma(score[j], scale_log2e, -lse2)) : 0.0f;
        store(type, p, (size_t)j, w);
        float d = w * (dp[j] - delta);
        if (capped) d = d * iv_fma(-score[j], score[j], 1.0f);
        store(type, ds, (size_t)j, seen ? d : 0.0f);
    }
}

float iv_ref_expert_weight_gradient(iv_dtype type, const float *da, const void *act, size_t n) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lanes[i % IV_ROW_LANES] = iv_fma(da[i], iv_element(type, act, i), lanes[i % IV_ROW_LANES]);
    return iv_ref_fold_lanes(lanes);
}

void iv_ref_route_backward(const float *logits, size_t experts, const int32_t *ids, const float *w, const float *dw,
                           size_t k, bool normalized, float *out) {
    float mean = 0.0f, max, sum;
    for (size_t s = 0; s < k; s++) mean = iv_fma(dw[s], w[s], mean);
    if (normalized) {
        memset(out, 0, experts * sizeof *out);
    } else {
        iv_ref_sum_exp(logits, experts, &max, &sum);
        for (size_t e = 0; e < experts; e++) out[e] = iv_canonical((iv_ref_exp(logits[e] - max) / sum) * (0.0f - mean));
    }
    for (size_t s = 0; s < k; s++) out[ids[s]] = iv_canonical(w[s] * (dw[s] - mean));
}

float iv_ref_row_dot(iv_dtype type, const void *a, const void *b, size_t n) {
    float lanes[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        float *lane = &lanes[i % IV_ROW_LANES];
        *lane = iv_fma(iv_element(type, a, i), iv_element(type, b, i), *lane);
    }
    return iv_ref_fold_lanes(lanes);
}

/* One block of 64 queries of one head against one block of 64 keys: weights and score gradients, typed. */
typedef struct block_pair {
    float p[IV_ATTENTION_BLOCK * IV_ATTENTION_BLOCK], ds[IV_ATTENTION_BLOCK * IV_ATTENTION_BLOCK]; /* raw storage */
} block_pair;

/* A typed row i of rows of head_dim elements, padded with zeros. */
static void padded_row(iv_dtype type, const void *rows, size_t i, size_t head_dim, void *out) {
    size_t width = iv_dtype_bytes(type);
    memset(out, 0, iv_padded_k(head_dim) * width);
    memcpy(out, (const char *)rows + i * head_dim * width, head_dim * width);
}

enum { B = IV_ATTENTION_BLOCK, HEAD_DIM_MAX = 1024 };

static bool sees(const iv_ref_attention_backward_args *a, size_t query, size_t key) {
    return query < a->n && key <= query && (int64_t)key >= iv_first_visible((int64_t)query, a->window);
}

static void score_gradients(const iv_ref_attention_backward_args *a, size_t head, size_t first_query, size_t first_key,
                            block_pair *b) {
    float q[HEAD_DIM_MAX], k[HEAD_DIM_MAX], v[HEAD_DIM_MAX], o[HEAD_DIM_MAX], d[HEAD_DIM_MAX]; /* raw storage */
    size_t padded = iv_padded_k(a->head_dim), width = iv_dtype_bytes(a->type);
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < B && first_query + i < a->n; i++) {
        size_t row = head * a->n + first_query + i;
        float score[B] = {0}, dp[B] = {0};
        int first = B, last = -1;
        padded_row(a->type, a->q, row, a->head_dim, q);
        padded_row(a->type, a->out, row, a->head_dim, o);
        padded_row(a->type, a->dout, row, a->head_dim, d);
        for (int j = 0; j < B; j++) {
            if (!sees(a, first_query + i, first_key + (size_t)j)) continue;
            first = j < first ? j : first, last = j;
            padded_row(a->type, a->k, first_key + (size_t)j, a->head_dim, k);
            padded_row(a->type, a->v, first_key + (size_t)j, a->head_dim, v);
            score[j] = iv_ref_chain(a->arithmetic, a->type, 0.0f, q, k, padded);
            if (a->score_inner != 0.0f) score[j] = v_tanh(score[j] * a->score_inner);
            dp[j] = iv_ref_chain(a->arithmetic, a->type, 0.0f, d, v, padded);
        }
        iv_ref_attention_gradients(a->arithmetic, score, dp, first, last, a->score_inner != 0.0f, a->scale_log2e,
                                   a->lse2[row], iv_ref_row_dot(a->type, d, o, a->head_dim), a->type,
                                   (char *)b->p + i * B * width, (char *)b->ds + i * B * width);
    }
}

/* acc[e] continues over the 64 elements of `weights` at `stride`, times rows [first, first + 64) of `rows`. */
static void chain_rows(const iv_ref_attention_backward_args *a, const void *weights, size_t at, size_t stride,
                       const void *rows, size_t first, float *acc) {
    float w[B], x[B]; /* raw storage */
    for (size_t i = 0; i < B; i++) store(a->type, w, i, iv_element(a->type, weights, at + i * stride));
    for (size_t e = 0; e < a->head_dim; e++) {
        for (size_t i = 0; i < B; i++)
            store(a->type, x, i, first + i < a->n ? iv_element(a->type, rows, (first + i) * a->head_dim + e) : 0.0f);
        acc[e] = iv_ref_chain(a->arithmetic, a->type, acc[e], w, x, B);
    }
}

bool iv_ref_attention_backward(const iv_ref_attention_backward_args *a, float *dq, float *dk, float *dv) {
    size_t blocks = (a->n + B - 1) / B, dim = a->head_dim, width = iv_dtype_bytes(a->type);
    block_pair *b = dim <= HEAD_DIM_MAX ? malloc(sizeof *b) : NULL;
    if (!b) return false;
    memset(dq, 0, a->group * a->n * dim * sizeof *dq);
    memset(dk, 0, a->n * dim * sizeof *dk), memset(dv, 0, a->n * dim * sizeof *dv);
    for (size_t h = 0; h < a->group; h++) {
        const char *q = (const char *)a->q + h * a->n * dim * width;
        const char *d = (const char *)a->dout + h * a->n * dim * width;
        for (size_t i = 0; i < blocks; i++)
            for (size_t j = (size_t)iv_first_visible((int64_t)(i * B), a->window) / B; j <= i; j++) {
                score_gradients(a, h, i * B, j * B, b);
                for (size_t t = 0; t < B && i * B + t < a->n; t++)
                    chain_rows(a, b->ds, t * B, 1, a->k, j * B, dq + (h * a->n + i * B + t) * dim);
                for (size_t t = 0; t < B && j * B + t < a->n; t++) {
                    chain_rows(a, b->p, t, B, d, i * B, dv + (j * B + t) * dim);
                    chain_rows(a, b->ds, t, B, q, i * B, dk + (j * B + t) * dim);
                }
            }
    }
    for (size_t i = 0; i < a->group * a->n * dim; i++) dq[i] = iv_canonical(dq[i] * a->scale);
    for (size_t i = 0; i < a->n * dim; i++) dk[i] = iv_canonical(dk[i] * a->scale), dv[i] = iv_canonical(dv[i]);
    free(b);
    return true;
}
