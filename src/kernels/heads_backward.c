/* heads_backward.c: a task is one row. */
#include "kernels/heads_backward.h"
#include "format/model_config.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <string.h>

typedef struct job {
    const iv_kernels *kernels;
    const iv_heads_backward_args *a;
} job;

/* The position of a row in its sequence. */
static size_t position_of(const iv_heads_backward_args *a, size_t row) {
    size_t low = 0, high = a->sequence_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (a->sequences[middle].first <= row)
            low = middle;
        else
            high = middle;
    }
    return row - a->sequences[low].first;
}

/* Head h's row before its norm, as floats. */
static void raw_head(const iv_heads_backward_args *a, size_t row, size_t h, float *out) {
    bool q = h < a->heads;
    const void *from = q ? a->q_raw : a->k_raw;
    size_t at = (q ? row * a->heads + h : row * a->kv_heads + h - a->heads) * a->dim;
    for (size_t i = 0; i < a->dim; i++) out[i] = iv_element(a->type, from, at + i);
}

void iv_add_leaves(float *leaf, size_t leaves, size_t n) {
    for (size_t stride = 1; stride < leaves; stride *= 2)
        for (size_t i = 0; i < leaves; i += 2 * stride)
            for (size_t e = 0; e < n; e++) leaf[i * n + e] = leaf[i * n + e] + leaf[(i + stride) * n + e];
}

/* One head's gradient through its norm, in place; its part of the weights' gradient goes into `terms`. */
static void norm_backward(const job *j, size_t row, size_t h, const float *weight, float *d, float *terms) {
    float raw[IV_HEAD_DIM_MAX], out[IV_HEAD_DIM_MAX];
    raw_head(j->a, row, h, raw);
    float r = j->kernels->rmsnorm_backward(raw, weight, j->a->eps, j->a->dim, d, NULL, out);
    j->kernels->norm_weight_backward(d, raw, r, j->a->dim, terms);
    memcpy(d, out, j->a->dim * sizeof *d);
}

/* A value head's gradient through its norm, in place. */
static void value_backward(const job *j, size_t row, size_t h, float *d) {
    const iv_heads_backward_args *a = j->a;
    float raw[IV_HEAD_DIM_MAX], out[IV_HEAD_DIM_MAX];
    if (a->v_norm) {
        for (size_t i = 0; i < a->dim; i++)
            raw[i] = iv_element(a->type, a->v_raw, (row * a->kv_heads + h) * a->dim + i);
        j->kernels->rmsnorm_backward(raw, a->v_norm, a->eps, a->dim, d, NULL, out);
        memcpy(d, out, a->dim * sizeof *d);
    }
    if (a->values_are_keys) j->kernels->add(d - a->kv_heads * a->dim, d, a->dim);
}

static void row_backward(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_heads_backward_args *a = j->a;
    size_t dim = a->dim, position = position_of(a, row), leaves = a->leaves;
    float *d = a->dqkv + row * a->stride, sine[IV_HEAD_DIM_MAX];
    float terms[2][IV_LEAVES_MAX * IV_HEAD_DIM_MAX];
    memset(terms, 0, sizeof terms);
    for (size_t i = 0; i < dim / 2; i++) sine[i] = -a->sine[position * dim / 2 + i];
    for (size_t h = 0; h < a->heads + a->kv_heads; h++, d += dim) {
        bool q = h < a->heads;
        size_t leaf = q ? h / (a->heads / leaves) : (h - a->heads) / (a->kv_heads / leaves);
        const float *weight = q ? a->q_norm : a->k_norm;
        if (!a->norms_behind) j->kernels->rope(d, a->cosine + position * dim / 2, sine, dim / 2);
        if (weight) norm_backward(j, row, h, weight, d, terms[!q] + leaf * dim);
        if (a->norms_behind) j->kernels->rope(d, a->cosine + position * dim / 2, sine, dim / 2);
    }
    for (size_t h = 0; h < a->kv_heads; h++, d += dim) value_backward(j, row, h, d);
    if (!a->q_norm) return;
    for (int i = 0; i < 2; i++) {
        iv_add_leaves(terms[i], leaves, dim);
        memcpy(a->terms + (row * 2 + (size_t)i) * dim, terms[i], dim * sizeof *d);
    }
}

void iv_heads_backward(const iv_compute *c, const iv_heads_backward_args *a, size_t rows) {
    IV_ASSERT(a->dim <= IV_HEAD_DIM_MAX && a->stride >= (a->heads + 2 * a->kv_heads) * a->dim);
    job j = {c->kernels, a};
    iv_pool_run(c->pool, rows, row_backward, &j);
}
