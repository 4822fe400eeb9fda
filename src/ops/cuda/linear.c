/* linear.c: linear layers on a GPU. Weights and inputs are read in place if they are what the kernels read: rows of
 * whole steps of 16 inputs, of the GEMM type. Otherwise they are copied to scratch first. */
#include "base/size.h"
#include "model/learner_ranks.h"
#include "ops/cuda/state.h"
#include "ops/linear.h"

#include <string.h>

/* Columns [first, first + n) of rows of x, in steps of 16: in place if they can be. rows: [count] of x; NULL: all. */
static iv_status padded_columns(gpu_ops *g, const void *x, size_t stride, const int32_t *rows, size_t count,
                                size_t first, size_t n, const void **out, size_t *out_stride, iv_error *err) {
    size_t width = iv_ops_width(&g->base);
    const char *from = (const char *)x + first * width;
    *out = from, *out_stride = stride;
    if (!rows && n % IV_CHAIN_STEP == 0 && stride % 8 == 0 && (uintptr_t)from % 16 == 0) return IV_OK;
    void *to;
    *out_stride = iv_padded_k(n);
    IV_TRY(iv_gpu_ops_scratch(g, count * *out_stride, width, &to, err));
    *out = to;
    iv_gpu_take_args a = {.type = g->base.type,
                          .x = x,
                          .x_stride = stride,
                          .rows = rows,
                          .count = count,
                          .first = first,
                          .n = n,
                          .out = to,
                          .out_stride = *out_stride};
    return iv_gpu_ops_launched(g, iv_gpu_take(&a, g->stream), err);
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

/* Weights may be parts of larger arrays. */
static iv_status check_weights(const gpu_ops *g, const iv_ops_linear *l, iv_error *err) {
    size_t width = iv_dtype_bytes(iv_ops_weight_type(&g->base, l));
    for (size_t i = 0; i < l->weights; i++)
        if ((uintptr_t)l->weight[i].data % width || (uintptr_t)l->weight[i].bias % sizeof(float))
            return iv_fail(err, IV_INVALID, "%s: weight %zu: wanted whole elements at its address, found %p",
                           g->base.what, i, l->weight[i].data);
    return IV_OK;
}

static bool is_in_place(const gpu_ops *g, const iv_ops_linear *l) {
    if (iv_ops_weight_type(&g->base, l) != g->base.type || l->k % IV_CHAIN_STEP) return false;
    for (size_t i = 0; i < l->weights; i++)
        if ((uintptr_t)l->weight[i].data % 16) return false;
    return true;
}

/* All weights in one matrix, and all biases. */
static iv_status stack(gpu_ops *g, const iv_ops_linear *l, size_t k_padded, void **matrix, float **bias,
                       iv_error *err) {
    size_t outputs = iv_ops_outputs(l), width = iv_ops_width(&g->base);
    int code = 0;
    IV_TRY(iv_gpu_ops_scratch(g, outputs * k_padded, width, matrix, err));
    *bias = NULL;
    if (l->weight[0].bias) IV_TRY(iv_gpu_ops_scratch(g, outputs, sizeof **bias, bias, err));
    for (size_t i = 0, first = 0; i < l->weights && !code; first += l->weight[i++].n) {
        const iv_ops_weight *w = &l->weight[i];
        char *to = (char *)*matrix + first * k_padded * width;
        iv_gpu_take_args take = {.type = g->base.type,
                                 .x = w->data,
                                 .x_stride = l->k,
                                 .count = w->n,
                                 .n = l->k,
                                 .out = to,
                                 .out_stride = k_padded};
        code = iv_ops_weight_type(&g->base, l) == g->base.type
                   ? iv_gpu_take(&take, g->stream)
                   : iv_gpu_round_rows(w->data, l->k, 0, l->k, w->n, g->base.type, to, k_padded, g->stream);
        if (!code && *bias)
            code =
                (int)cudaMemcpyAsync(*bias + first, w->bias, w->n * sizeof **bias, cudaMemcpyDeviceToDevice, g->stream);
    }
    return iv_gpu_ops_launched(g, code, err);
}

static iv_gpu_linear_args layer_of(const gpu_ops *g, const void *w, size_t n, size_t k_padded, int leaves,
                                   const void *x, size_t x_stride, size_t rows) {
    return (iv_gpu_linear_args){.arithmetic = g->base.compute.arithmetic,
                                .w = {.format = iv_weight_plain(g->base.type),
                                      .type = g->base.type,
                                      .n = n,
                                      .k_padded = k_padded,
                                      .leaves = leaves,
                                      .data = w},
                                .type = g->base.type,
                                .x = x,
                                .x_stride = x_stride,
                                .rows = rows};
}

static iv_status forward(iv_ops *ops, const iv_ops_linear *l, const void *x, size_t rows, bool accumulate, float *out,
                         iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t k_padded = iv_padded_k(l->k), outputs = iv_ops_outputs(l), stride;
    int leaves = iv_ops_input_leaves(l), code = 0;
    const void *in;
    iv_ops_linear one = *l;
    if (rows == 0) return IV_OK;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, x, out));
    IV_TRY(check_weights(g, l, err));
    IV_TRY(padded_columns(g, x, l->k, NULL, rows, 0, l->k, &in, &stride, err));
    if (!is_in_place(g, l)) {
        void *matrix;
        float *bias;
        IV_TRY(stack(g, l, k_padded, &matrix, &bias, err));
        one.weights = 1, one.weight[0] = (iv_ops_weight){matrix, bias, outputs};
    }
    IV_TRY(iv_gpu_ops_settle(g, err));
    for (size_t i = 0, first = 0; i < one.weights && !code; first += one.weight[i++].n) {
        iv_gpu_linear_args a = layer_of(g, one.weight[i].data, one.weight[i].n, k_padded, leaves, in, stride, rows);
        a.epilogue = accumulate ? IV_GPU_RESIDUAL : IV_GPU_STORE;
        a.bias = one.weight[i].bias, a.out = out + first, a.out_stride = outputs;
        code = iv_gpu_linear(&a, g->stream);
    }
    return iv_gpu_ops_launched(g, code, err);
}

/* ---- input gradient ---------------------------------------------------------------------------------------------- */

/* Offsets are not negative: they count from the weight with the lowest address. */
static const char *lowest(const iv_ops_linear *l) {
    uintptr_t at = (uintptr_t)l->weight[0].data;
    for (size_t i = 1; i < l->weights; i++) at = iv_size_min(at, (uintptr_t)l->weight[i].data);
    return (const char *)at;
}

static gpu_columns_key run_of(const gpu_ops *g, const iv_ops_linear *l) {
    iv_input_gradient_args args;
    gpu_columns_key key;
    size_t width = iv_dtype_bytes(iv_ops_weight_type(&g->base, l));
    memset(&key, 0, sizeof key);
    iv_ops_output_leaves(l, &args);
    key.slices = l->weights, key.leaves = args.leaves, key.k = l->k;
    for (size_t i = 0; i < l->weights; i++) {
        key.n[i] = l->weight[i].n, key.leaf[i] = args.slice[i].leaf;
        key.at[i] = (int64_t)((size_t)((const char *)l->weight[i].data - lowest(l)) / width);
    }
    return key;
}

/* The weights, transposed, as columns of the run. */
static iv_status transpose(gpu_ops *g, const iv_ops_linear *l, const gpu_columns *c, void **out, iv_error *err) {
    const void *from = lowest(l);
    IV_TRY(iv_gpu_ops_scratch(g, l->k * c->run, iv_ops_width(&g->base), out, err));
    int code = iv_gpu_transpose_weights(iv_ops_weight_type(&g->base, l), g->base.type, from, c->offsets, c->run, l->k,
                                        NULL, 1, *out, c->run, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* dy as the run's columns, in place if it is in their order. */
static iv_status run_rows(gpu_ops *g, const gpu_columns *c, const void *dy, size_t stride, size_t rows,
                          const void **out, iv_error *err) {
    void *to;
    *out = dy;
    if (c->in_order && c->run == stride) return IV_OK;
    IV_TRY(iv_gpu_ops_scratch(g, rows * c->run, iv_ops_width(&g->base), &to, err));
    *out = to;
    iv_gpu_take_args a = {.type = g->base.type,
                          .x = dy,
                          .x_stride = stride,
                          .columns = c->from,
                          .count = rows,
                          .n = c->run,
                          .out = to,
                          .out_stride = c->run};
    return iv_gpu_ops_launched(g, iv_gpu_take(&a, g->stream), err);
}

/* A bias of zeros turns -0 into +0, as the law's sum does except the head's. */
static iv_status input_gradient(iv_ops *ops, const iv_ops_linear *l, const void *dy, size_t rows, float *dx,
                                iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    gpu_columns_key key = run_of(g, l);
    const gpu_columns *c;
    const void *x;
    void *transposed;
    if (rows == 0) return IV_OK;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, dy, dx));
    IV_TRY(check_weights(g, l, err));
    IV_TRY(iv_gpu_ops_columns(g, &key, &c, err));
    IV_TRY(transpose(g, l, c, &transposed, err));
    IV_TRY(run_rows(g, c, dy, iv_ops_outputs(l), rows, &x, err));
    IV_TRY(iv_gpu_ops_settle(g, err));
    iv_gpu_linear_args a = layer_of(g, transposed, l->k, c->run, (int)key.leaves, x, c->run, rows);
    a.out = dx, a.out_stride = l->k;
    if (!l->head) IV_TRY(iv_gpu_ops_zeros(g, l->k, &a.bias, err));
    return iv_gpu_ops_launched(g, iv_gpu_linear(&a, g->stream), err);
}

/* ---- weight gradient --------------------------------------------------------------------------------------------- */

/* Whether the pass's rows are its padded axis. */
static bool is_padded(const iv_ops_pass *pass) { return pass->rows == pass->axis.padded; }

static iv_status weight_gradient(iv_ops *ops, const iv_ops_linear *l, const iv_ops_pass *pass, const void *dy,
                                 const void *x, const iv_axis_sums *sums, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t padded = pass->axis.padded;
    iv_gpu_weight_gradient_args a = {
        .arithmetic = ops->compute.arithmetic, .type = ops->type, .axis = &pass->axis, .k = l->k, .sms = g->sms};
    const int32_t *rows = NULL;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, dy, x));
    if (!is_padded(pass)) IV_TRY(iv_gpu_ops_copy_in(g, pass->row_of, padded, sizeof *rows, &rows, err));
    IV_TRY(padded_columns(g, x, l->k, rows, padded, 0, l->k, &a.x, &a.x_stride, err));
    IV_TRY(iv_gpu_ops_scratch(g, iv_gpu_weight_gradient_scratch(g->sms), 1, &a.scratch, err));
    for (size_t i = 0, first = 0; i < l->weights; first += l->weight[i++].n) {
        const gpu_columns *c;
        gpu_columns_key key;
        memset(&key, 0, sizeof key);
        key.slices = key.leaves = 1, key.n[0] = key.leaf[0] = l->weight[i].n, key.k = l->k;
        IV_TRY(iv_gpu_ops_columns(g, &key, &c, err));
        IV_TRY(padded_columns(g, dy, iv_ops_outputs(l), rows, padded, first, l->weight[i].n, &a.dy, &a.dy_stride, err));
        a.n = c->run, a.offsets = c->offsets, a.sums = sums[i];
        IV_TRY(iv_gpu_ops_launched(g, iv_gpu_weight_gradient(&a, g->stream), err));
    }
    return IV_OK;
}

void iv_gpu_ops_linear_table(iv_ops_gpu *table) {
    table->linear = forward, table->input_gradient = input_gradient, table->weight_gradient = weight_gradient;
}
