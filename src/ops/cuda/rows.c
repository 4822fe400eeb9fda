/* rows.c: rounding, norms, SwiGLU and embeddings on a GPU. */
#include "kernels/cuda/lookups.h"
#include "ops/cuda/state.h"

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

enum { CHUNK = 4096 };

static iv_status round_all(iv_ops *ops, const float *x, size_t n, void *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t rows = n / CHUNK, whole = rows * CHUNK;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, x, out));
    if (rows > INT32_MAX) return iv_fail(err, IV_LIMIT, "%s: %zu elements are too many", ops->what, n);
    int code = iv_gpu_round_rows(x, CHUNK, 0, CHUNK, rows, ops->type, out, CHUNK, g->stream);
    if (!code && n > whole)
        code = iv_gpu_round_rows(x + whole, n - whole, 0, n - whole, 1, ops->type,
                                 (char *)out + whole * iv_ops_width(ops), n - whole, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

static iv_status rms_norm(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                          bool typed, void *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    IV_TRY(GPU_OPS_ADDRESSES(g, err, x, weight, out));
    IV_TRY(iv_gpu_ops_settle(g, err));
    return iv_gpu_ops_launched(
        g, iv_gpu_rmsnorm(x, n, NULL, weight, eps, rows, typed ? ops->type : IV_F32, out, n, g->stream), err);
}

/* The kernel adds to what dx holds. */
static int begin_dx(gpu_ops *g, const float *add, float *dx, size_t bytes) {
    if (bytes == 0 || add == dx) return 0;
    if (!add) return (int)cudaMemsetAsync(dx, 0, bytes, g->stream);
    return (int)cudaMemcpyAsync(dx, add, bytes, cudaMemcpyDeviceToDevice, g->stream);
}

static iv_status rms_norm_backward(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                                   const float *dy, const float *add, float *dx, const iv_ops_pass *pass,
                                   const iv_axis_sums *sums, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    float *factors;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, x, weight, dy, add, dx));
    IV_TRY(iv_gpu_ops_scratch(g, rows, sizeof *factors, &factors, err));
    int code = begin_dx(g, add, dx, rows * n * sizeof *dx);
    iv_gpu_norm_backward_args a = {
        .x = x, .weight = weight, .eps = eps, .n = n, .rows = rows, .dy = dy, .dx = dx, .factors = factors};
    if (!code && n) code = iv_gpu_norm_backward(&a, g->stream);
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    if (!pass || pass->idle) return IV_OK;
    return iv_gpu_ops_column_sums(g, pass,
                                  &(iv_gpu_column_sums_args){.kind = IV_GPU_SUM_NORM,
                                                             .dy = dy,
                                                             .dy_stride = n,
                                                             .n = n,
                                                             .x = x,
                                                             .x_stride = n,
                                                             .r = factors,
                                                             .sums = *sums},
                                  err);
}

/* ---- SwiGLU ------------------------------------------------------------------------------------------------------ */

static iv_status swiglu(iv_ops *ops, const float *gate_up, size_t rows, size_t n, void *gate, void *up, void *out,
                        iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    IV_TRY(GPU_OPS_ADDRESSES(g, err, gate_up, gate, up, out));
    return iv_gpu_ops_launched(
        g,
        gate ? iv_gpu_activate_tape(&iv_silu, gate_up, false, rows, n, ops->type, gate, up, out, n,
                                    (iv_gpu_row_scales){0}, g->stream)
             : iv_gpu_activate(&iv_silu, gate_up, rows, n, ops->type, out, n, (iv_gpu_row_scales){0}, g->stream),
        err);
}

/* The kernel writes rounded gradients in whole steps of 16, and float32 ones as they are. */
static iv_status swiglu_backward(iv_ops *ops, const void *gate, const void *up, const float *da, size_t rows, size_t n,
                                 bool typed, void *dgate_up, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t part = iv_padded_k(n);
    bool in_place = typed && part == n;
    void *dy = dgate_up;
    float *wide = NULL;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, gate, up, da, dgate_up));
    if (rows == 0 || n == 0) return IV_OK;
    if (!in_place) IV_TRY(iv_gpu_ops_scratch(g, rows * 2 * part, iv_ops_width(ops), &dy, err));
    if (!typed) wide = dgate_up;
    if (typed && !in_place) IV_TRY(iv_gpu_ops_scratch(g, rows * 2 * n, sizeof *wide, &wide, err));
    int code =
        iv_gpu_activate_backward(&iv_silu, ops->type, gate, up, da, rows, n, part, dy, 2 * part, wide, g->stream);
    if (!code && typed && !in_place)
        code = iv_gpu_round_rows(wide, 2 * n, 0, 2 * n, rows, ops->type, dgate_up, 2 * n, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

/* The rows of float32 weights, rounded; *ids then are 0, 1, 2, ... */
static iv_status rounded_rows(gpu_ops *g, const float *weight, size_t n, size_t count, const int32_t **ids, void **rows,
                              iv_error *err) {
    float *wide;
    gpu_inputs in;
    IV_TRY(iv_gpu_ops_scratch(g, count * n, sizeof *wide, &wide, err));
    IV_TRY(iv_gpu_ops_scratch(g, count * n, iv_ops_width(&g->base), rows, err));
    int code = iv_gpu_gather_rows(weight, *ids, count, n * sizeof *wide, wide, g->stream);
    if (!code) code = iv_gpu_round_rows(wide, n, 0, n, count, g->base.type, *rows, n, g->stream);
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    IV_TRY(iv_gpu_ops_inputs(g, count * sizeof **ids, &in, err));
    for (size_t i = 0; i < count; i++) ((int32_t *)(void *)in.host)[i] = (int32_t)i;
    *ids = (const int32_t *)(const void *)in.device;
    return iv_gpu_ops_send(g, &in, err);
}

static iv_status embedding(iv_ops *ops, const void *weight, bool weight_float, size_t vocab, size_t n,
                           const int32_t *ids, size_t count, float *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    const int32_t *at;
    void *rows;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, weight, out));
    if (count == 0 || n == 0) return IV_OK;
    IV_TRY(iv_gpu_ops_copy_in(g, ids, count, sizeof *ids, &at, err));
    iv_gpu_matrix m = {.format = iv_weight_plain(ops->type),
                       .type = ops->type,
                       .n = vocab,
                       .k_padded = n,
                       .leaves = 1,
                       .data = weight};
    if (weight_float && ops->type != IV_F32) {
        IV_TRY(rounded_rows(g, weight, n, count, &at, &rows, err));
        m.n = count, m.data = rows;
    }
    return iv_gpu_ops_launched(g, iv_gpu_embed(&m, at, count, n, 1.0f, out, g->stream), err);
}

static iv_status embedding_backward(iv_ops *ops, size_t vocab, size_t n, const int32_t *ids, const uint32_t *ranks,
                                    size_t virtual_ranks, const float *dx, size_t count, float *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t bytes, different;
    gpu_inputs in;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, dx, out));
    IV_TRY(iv_gpu_ops_launched(g, (int)cudaMemsetAsync(out, 0, vocab * n * sizeof *out, g->stream), err));
    if (count == 0) return IV_OK;
    iv_lookup_list_at(NULL, count, &bytes);
    IV_TRY(iv_gpu_ops_inputs(g, bytes, &in, err));
    iv_lookup_list host = iv_lookup_list_at(in.host, count, &bytes), on = iv_lookup_list_at(in.device, count, &bytes);
    IV_TRY(iv_lookup_list_sort(&host, ids, count, &different, err));
    for (size_t i = 0; i < count; i++) host.rank[i] = (uint8_t)ranks[i];
    IV_TRY(iv_gpu_ops_send(g, &in, err));
    iv_gpu_lookups_args a = {.dx = dx,
                             .hidden = n,
                             .ids = on.ids,
                             .first = on.first,
                             .order = on.order,
                             .count = different,
                             .rank = on.rank,
                             .ranks = virtual_ranks,
                             .out = out};
    return iv_gpu_ops_launched(g, iv_gpu_lookups(&a, g->stream), err);
}

void iv_gpu_ops_row_table(iv_ops_gpu *table) {
    table->round = round_all;
    table->rms_norm = rms_norm, table->rms_norm_backward = rms_norm_backward;
    table->swiglu = swiglu, table->swiglu_backward = swiglu_backward;
    table->embedding = embedding, table->embedding_backward = embedding_backward;
}
