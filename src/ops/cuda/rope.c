/* rope.c: head norms and rotation on a GPU. */
#include "base/size.h"
#include "model/learner_ranks.h"
#include "ops/cuda/state.h"

/* The position of every row. */
static iv_status positions_of(gpu_ops *g, const iv_ops_attention *a, size_t rows, const int32_t **out, iv_error *err) {
    gpu_inputs in;
    IV_TRY(iv_gpu_ops_inputs(g, rows * sizeof **out, &in, err));
    int32_t *at = (int32_t *)(void *)in.host;
    for (size_t i = 0; i < a->sequences; i++)
        for (size_t t = 0; t < a->lengths[i]; t++) *at++ = (int32_t)t;
    *out = (const int32_t *)(const void *)in.device;
    return iv_gpu_ops_send(g, &in, err);
}

static iv_status check_head(const gpu_ops *g, size_t dim, iv_error *err) {
    if (dim <= 512) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: head_dim: a GPU takes up to 512, found %zu", g->base.what, dim);
}

static iv_status rope(iv_ops *ops, const iv_ops_attention *a, size_t rows, float *qkv, void *q, void *k, void *v,
                      void *q_raw, void *k_raw, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    const int32_t *positions;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, qkv, q, k, v, q_raw, k_raw, a->q_norm, a->k_norm, a->cosine, a->sine));
    IV_TRY(check_head(g, a->head_dim, err));
    if (rows == 0) return IV_OK;
    IV_TRY(positions_of(g, a, rows, &positions, err));
    IV_TRY(iv_gpu_ops_settle(g, err));
    iv_gpu_rotate_args r = {.qkv = qkv,
                            .rows = rows,
                            .heads = a->heads,
                            .q_norm = a->q_norm,
                            .k_norm = a->k_norm,
                            .eps = a->eps,
                            .cosine = a->cosine,
                            .sine = a->sine,
                            .positions = positions,
                            .kv = {.type = ops->type, .heads = a->kv_heads, .head_dim = a->head_dim},
                            .q = q,
                            .q_raw = q_raw,
                            .k_raw = k_raw};
    return iv_gpu_ops_launched(g, iv_gpu_rotate_rows(&r, k, v, g->stream), err);
}

/* What the kernel writes as a run, the caller makes from dqkv. */
static iv_status rotate_back(gpu_ops *g, const iv_ops_attention *a, size_t rows, const void *q_raw, const void *k_raw,
                             float *dqkv, float *terms, iv_error *err) {
    size_t leaves = iv_qkv_leaves(a->kv_heads), q = a->heads / leaves * a->head_dim,
           kv = a->kv_heads / leaves * a->head_dim;
    iv_gpu_rotate_backward_args r = {.dqkv = dqkv,
                                     .keeps = true,
                                     .rows = rows,
                                     .heads = a->heads,
                                     .kv_heads = a->kv_heads,
                                     .head_dim = a->head_dim,
                                     .leaves = leaves,
                                     .cosine = a->cosine,
                                     .sine = a->sine,
                                     .q_norm = a->q_norm,
                                     .k_norm = a->k_norm,
                                     .eps = a->eps,
                                     .q_raw = q_raw,
                                     .k_raw = k_raw,
                                     .terms = terms,
                                     .type = g->base.type,
                                     .dy_stride = leaves * (iv_padded_k(q) + 2 * iv_padded_k(kv))};
    IV_TRY(iv_gpu_ops_scratch(g, rows * r.dy_stride, iv_ops_width(&g->base), &r.dy, err));
    IV_TRY(positions_of(g, a, rows, &r.positions, err));
    return iv_gpu_ops_launched(g, iv_gpu_rotate_backward(&r, g->stream), err);
}

static iv_status rope_backward(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q_raw,
                               const void *k_raw, float *dqkv, const iv_ops_pass *pass, const iv_axis_sums *sums,
                               iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    float *terms;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, dqkv, q_raw, k_raw, a->q_norm, a->k_norm, a->cosine, a->sine));
    IV_TRY(check_head(g, a->head_dim, err));
    IV_TRY(iv_gpu_ops_scratch(g, a->q_norm ? rows * 2 * a->head_dim : 0, sizeof *terms, &terms, err));
    if (rows) IV_TRY(rotate_back(g, a, rows, q_raw, k_raw, dqkv, terms, err));
    for (size_t i = 0; i < 2 && pass && !pass->idle; i++)
        IV_TRY(iv_gpu_ops_column_sums(g, pass,
                                      &(iv_gpu_column_sums_args){.kind = IV_GPU_SUM_VALUES,
                                                                 .dy = terms + i * a->head_dim,
                                                                 .dy_stride = 2 * a->head_dim,
                                                                 .n = a->head_dim,
                                                                 .sums = sums[i]},
                                      err));
    return IV_OK;
}

void iv_gpu_ops_rope_table(iv_ops_gpu *table) { table->rope = rope, table->rope_backward = rope_backward; }
