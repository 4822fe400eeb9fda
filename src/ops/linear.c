/* linear.c: linear layers from weights as rows. They are packed at each call, which costs as much as reading them a few
 * times. */
#include "kernels/input_gradient.h"
#include "kernels/linear.h"
#include "kernels/pack_columns.h"
#include "kernels/weight_gradient.h"
#include "model/learner_ranks.h"
#include "ops/linear.h"

#include <string.h>

enum { PACK_ROWS = 64, WEIGHTS_MAX = sizeof((iv_ops_linear *)0)->weight / sizeof(iv_ops_weight) };

iv_status iv_ops_check_layer(const char *what, const iv_ops_linear *l, size_t rows, size_t *outputs, iv_error *err) {
    if (l->weights < 1 || l->weights > WEIGHTS_MAX)
        return iv_fail(err, IV_INVALID, "%s: wanted 1 to %d weights, found %zu", what, WEIGHTS_MAX, l->weights);
    *outputs = 0;
    for (size_t i = 0; i < l->weights; i++) {
        if (l->weight[i].n == 0 || !iv_size_add(*outputs, l->weight[i].n, outputs))
            return iv_fail(err, IV_INVALID, "%s: weight %zu: wanted 1 or more outputs, found %zu", what, i,
                           l->weight[i].n);
        if (!l->weight[i].bias != !l->weight[0].bias)
            return iv_fail(err, IV_INVALID, "%s: wanted biases of all weights or of none", what);
    }
    if (l->k == 0) return iv_fail(err, IV_INVALID, "%s: wanted 1 or more inputs, found 0", what);
    if (l->kv_heads && (l->weights != 3 || l->weight[1].n % l->kv_heads || l->weight[0].n % l->kv_heads))
        return iv_fail(err, IV_INVALID, "%s: wanted weights of q, k and v of %zu KV heads", what, l->kv_heads);
    IV_TRY(iv_ops_check_size(what, *outputs, l->k, err));
    return iv_ops_check_size(what, rows, iv_size_max(*outputs, l->k), err);
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

typedef struct pack_job {
    const iv_ops_weight *weight;
    iv_matrix *m;
    iv_dtype from;
    size_t first; /* output of the stack */
} pack_job;

static void pack_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const pack_job *j = context;
    size_t at = index * PACK_ROWS, n = iv_size_min(PACK_ROWS, j->weight->n - at);
    iv_matrix_pack(j->m, j->from, (const char *)j->weight->data + at * j->m->k * iv_dtype_bytes(j->from), j->m->k,
                   j->first + at, n);
}

static iv_status forward(iv_ops *ops, const iv_ops_linear *l, size_t outputs, const void *x, size_t rows,
                         bool accumulate, float *out, iv_error *err) {
    const char *what = ops->what;
    iv_matrix m;
    size_t scratch;
    if (rows == 0) return IV_OK;
    if (!iv_matrix_shape(&m, ops->type, outputs, l->k) || !iv_linear_scratch(rows, l->k, &scratch))
        return iv_fail(err, IV_LIMIT, "%s: %zu rows of %zu inputs are too large", what, rows, l->k);
    IV_TRY(iv_ops_reserve(ops, what, scratch, iv_matrix_bytes(&m) + outputs * sizeof(float) + 64, err));
    m.leaves = iv_ops_input_leaves(l);
    m.data = ops->work;
    float *bias = l->weight[0].bias ? (float *)(void *)(ops->work + iv_matrix_bytes(&m)) : NULL;
    if (m.panels * IV_PANEL_COLUMNS != m.n || m.k_padded != m.k) memset(m.data, 0, iv_matrix_bytes(&m));
    for (size_t i = 0, first = 0; i < l->weights; first += l->weight[i++].n) {
        pack_job j = {&l->weight[i], &m, iv_ops_weight_type(ops, l), first};
        if (bias) memcpy(bias + first, l->weight[i].bias, l->weight[i].n * sizeof *bias);
        iv_pool_run(ops->pool, (l->weight[i].n + PACK_ROWS - 1) / PACK_ROWS, pack_task, &j);
    }
    iv_linear(&ops->compute, &(iv_linear_args){.weight = &m,
                                               .type = ops->type,
                                               .x = x,
                                               .x_stride = l->k,
                                               .rows = rows,
                                               .bias = bias,
                                               .out = out,
                                               .out_stride = outputs,
                                               .accumulate = accumulate});
    return IV_OK;
}

iv_status iv_ops_linear_forward(iv_ops *ops, const iv_ops_linear *l, const void *x, size_t rows, bool accumulate,
                                float *out, iv_error *err) {
    size_t outputs;
    IV_TRY(iv_ops_check_layer("linear", l, rows, &outputs, err));
    IV_TRY(iv_ops_enter(ops, "linear", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->linear(ops, l, x, rows, accumulate, out, err));
    return iv_ops_leave(ops, forward(ops, l, outputs, x, rows, accumulate, out, err));
}

/* ---- input gradient ---------------------------------------------------------------------------------------------- */

int iv_ops_input_leaves(const iv_ops_linear *l) {
    if (l->one_chain) return IV_EXPERT_LEAVES;
    return iv_leaf_count(iv_padded_k(l->k), l->row_parallel ? IV_SUM_OF_RANKS : IV_SUM_WHOLE);
}

void iv_ops_output_leaves(const iv_ops_linear *l, iv_input_gradient_args *g) {
    size_t padded = iv_padded_k(l->weight[0].n);
    iv_sum_kind kind = l->row_parallel || l->router ? IV_SUM_WHOLE : IV_SUM_OF_RANKS;
    g->leaves = l->one_chain  ? IV_EXPERT_LEAVES
                : l->kv_heads ? iv_qkv_leaves(l->kv_heads)
                              : (size_t)iv_leaf_count(padded, kind);
    for (size_t i = 0; i < l->weights; i++) {
        size_t n = l->weight[i].n, leaf = l->one_chain ? n : l->kv_heads ? n / g->leaves : iv_padded_k(n) / g->leaves;
        g->slice[i] = (iv_output_slice){l->weight[i].data, n, leaf};
    }
}

static iv_status input_gradient(iv_ops *ops, const iv_ops_linear *l, const void *dy, size_t rows, float *dx,
                                iv_error *err) {
    const char *what = ops->what;
    iv_input_gradient_args g = {.type = ops->type,
                                .weight_type = iv_ops_weight_type(ops, l),
                                .slices = l->weights,
                                .row_bytes = l->k * iv_dtype_bytes(iv_ops_weight_type(ops, l)),
                                .k = l->k,
                                .dy = dy,
                                .dy_stride = iv_ops_outputs(l),
                                .rows = rows};
    iv_matrix transposed;
    size_t scratch, run;
    if (rows == 0) return IV_OK;
    iv_ops_output_leaves(l, &g);
    run = iv_input_gradient_run(&g);
    if (!iv_matrix_shape(&transposed, ops->type, l->k, run) || !iv_linear_scratch(rows, run, &scratch))
        return iv_fail(err, IV_LIMIT, "%s: %zu rows of %zu outputs are too large", what, rows, run);
    iv_carving v = {.align = 64};
    for (int pass = 0; pass < 2; pass++) {
        g.transposed = iv_carve(&v, iv_matrix_bytes(&transposed), 1);
        g.dy_run = iv_carve(&v, rows * run, iv_ops_width(ops));
        g.row_list = iv_carve(&v, run, sizeof *g.row_list);
        if (v.overflow) return iv_fail(err, IV_LIMIT, "%s: %zu rows of %zu outputs are too large", what, rows, run);
        if (pass == 0) IV_TRY(iv_ops_reserve(ops, what, scratch, v.at, err));
        v = (iv_carving){.base = ops->work, .align = 64};
    }
    const void *x;
    size_t stride;
    iv_input_gradient_pack(&ops->compute, &g, &transposed, &x, &stride);
    iv_linear(&ops->compute, &(iv_linear_args){.weight = &transposed,
                                               .type = ops->type,
                                               .x = x,
                                               .x_stride = stride,
                                               .rows = rows,
                                               .out = dx,
                                               .out_stride = l->k,
                                               .from_zero = !l->head});
    return IV_OK;
}

iv_status iv_ops_linear_input_gradient(iv_ops *ops, const iv_ops_linear *l, const void *dy, size_t rows, float *dx,
                                       iv_error *err) {
    static const char what[] = "linear, input gradient";
    size_t outputs;
    IV_TRY(iv_ops_check_layer(what, l, rows, &outputs, err));
    for (size_t i = 1; i < l->weights; i++)
        if (!l->kv_heads && !l->one_chain && l->weight[i].n != l->weight[0].n)
            return iv_fail(err, IV_INVALID, "%s: wanted weights of %zu outputs, found %zu", what, l->weight[0].n,
                           l->weight[i].n);
    IV_TRY(iv_ops_enter(ops, what, err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->input_gradient(ops, l, dy, rows, dx, err));
    return iv_ops_leave(ops, input_gradient(ops, l, dy, rows, dx, err));
}

/* ---- weight gradient --------------------------------------------------------------------------------------------- */

static iv_status weight_gradient(iv_ops *ops, const iv_ops_linear *l, const iv_ops_pass *pass, const void *dy,
                                 const void *x, const iv_axis_sums *sums, iv_error *err) {
    const char *what = ops->what;
    iv_matrix packed;
    size_t scratch, padded = pass->axis.padded, width = iv_ops_width(ops);
    if (!iv_matrix_shape(&packed, ops->type, l->k, padded) ||
        !iv_weight_gradient_scratch(padded, iv_pool_threads(ops->pool), &scratch))
        return iv_fail(err, IV_LIMIT, "%s: %zu tokens of %zu inputs are too large", what, padded, l->k);
    size_t list_bytes = (padded * sizeof(void *) + 63) / 64 * 64;
    IV_TRY(iv_ops_reserve(ops, what, scratch, list_bytes + iv_matrix_bytes(&packed), err));
    const void **list = (const void **)(void *)ops->work;
    for (size_t i = 0; i < padded; i++)
        list[i] = pass->axis.row[i] < 0 ? NULL : (const char *)x + (size_t)pass->axis.row[i] * l->k * width;
    packed.data = ops->work + list_bytes;
    iv_pack_columns(&ops->compute, ops->type, list, &packed);
    for (size_t i = 0, column = 0; i < l->weights; column += l->weight[i++].n)
        iv_weight_gradient(&ops->compute, &(iv_weight_gradient_args){.axis = &pass->axis,
                                                                     .x = &packed,
                                                                     .type = ops->type,
                                                                     .dy = (const char *)dy + column * width,
                                                                     .dy_stride = iv_ops_outputs(l),
                                                                     .n = l->weight[i].n,
                                                                     .sums = &sums[i],
                                                                     .stride = l->k});
    return IV_OK;
}

static iv_status run_weight_gradient(iv_ops *ops, const iv_ops_linear *l, const iv_ops_pass *pass, const void *dy,
                                     const void *x, const iv_axis_sums *sums, iv_error *err) {
    IV_TRY(iv_ops_enter(ops, "linear, weight gradient", err));
    return iv_ops_leave(ops, ops->gpu ? ops->gpu->weight_gradient(ops, l, pass, dy, x, sums, err)
                                      : weight_gradient(ops, l, pass, dy, x, sums, err));
}

iv_status iv_ops_linear_weight_gradient(iv_ops *ops, const iv_ops_linear *l, const iv_ops_axis *axis, const void *dy,
                                        const void *x, const iv_ops_sums *sums, iv_error *err) {
    static const char what[] = "linear, weight gradient";
    iv_ops_pass pass;
    iv_axis_sums s[WEIGHTS_MAX];
    size_t outputs;
    IV_TRY(iv_ops_pass_open(what, axis, &pass, err));
    iv_status status = iv_ops_check_layer(what, l, pass.rows, &outputs, err);
    for (size_t i = 0; i < l->weights && status == IV_OK; i++)
        status = iv_ops_sums_of(what, axis, &sums[i], &s[i], err);
    if (status == IV_OK && !pass.idle) status = run_weight_gradient(ops, l, &pass, dy, x, s, err);
    iv_ops_pass_close(&pass);
    return status;
}

static iv_status sum_columns(iv_ops *ops, const iv_ops_pass *pass, const float *dy, size_t stride, size_t n,
                             const iv_axis_sums *sums, iv_error *err) {
    IV_TRY(iv_ops_enter(ops, "column sums", err));
    if (pass->idle) return iv_ops_leave(ops, IV_OK);
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->column_sums(ops, pass, dy, stride, n, sums, err));
    iv_axis_sum_values(&ops->compute, &pass->axis, sums, 0, n, dy, stride);
    return iv_ops_leave(ops, IV_OK);
}

iv_status iv_ops_column_sums(iv_ops *ops, const iv_ops_axis *axis, const float *dy, size_t stride, size_t first,
                             size_t n, const iv_ops_sums *sums, iv_error *err) {
    static const char what[] = "column sums";
    iv_ops_pass pass;
    iv_axis_sums s;
    if (first > stride || n > stride - first)
        return iv_fail(err, IV_INVALID, "%s: wanted columns of %zu, found %zu from %zu on", what, stride, n, first);
    IV_TRY(iv_ops_sums_of(what, axis, sums, &s, err));
    IV_TRY(iv_ops_pass_open(what, axis, &pass, err));
    iv_status status = sum_columns(ops, &pass, dy + first, stride, n, &s, err);
    iv_ops_pass_close(&pass);
    return status;
}
