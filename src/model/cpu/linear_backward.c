/* linear_backward.c: dX = dY W by the linear layers' own kernels, with the weights transposed once a pass; dW = dY^T X.
 */
#include "base/size.h"
#include "kernels/input_gradient.h"
#include "kernels/linear.h"
#include "kernels/pack_columns.h"
#include "kernels/weight_gradient.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/tp_gather.h"

#include <string.h>

typedef struct round_job {
    const iv_cpu_learner *l;
    const float *x;
    size_t n;
    char *out;
} round_job;

static void round_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const round_job *j = context;
    j->l->kernels->round(j->x + row * j->n, j->n, j->l->model->gemm_type,
                         j->out + row * j->n * iv_dtype_bytes(j->l->model->gemm_type));
}

void iv_learner_round(iv_cpu_learner *l, const float *x, size_t rows, size_t n, void *out) {
    round_job j = {l, x, n, out};
    iv_pool_run(l->compute.pool, rows, round_row, &j);
}

void iv_bias_backward(iv_cpu_learner *l, const iv_token_axis *axis, const float *dy, size_t stride, size_t column,
                      size_t n, size_t offset) {
    if (l->learned) return;
    iv_axis_sum_values(&l->compute, axis, &l->step->sums, offset, n, dy + column, stride);
}

static iv_status input_gradient(iv_cpu_learner *l, const iv_linear_backward_args *a, iv_error *err) {
    iv_input_gradient_args g = {.type = l->model->gemm_type,
                                .weight_type = iv_learner_rows_type(l),
                                .slices = a->slices,
                                .leaves = a->leaves,
                                .row_bytes = a->stride * iv_dtype_bytes(iv_learner_rows_type(l)),
                                .k = a->k,
                                .dy = a->dy,
                                .dy_stride = a->dy_stride,
                                .rows = a->rows,
                                .transposed = l->transposed,
                                .dy_run = l->dy_run,
                                .row_list = l->row_list};
    for (size_t p = 0, at = 0; p < a->slices; at += a->slice[p++].n)
        g.slice[p] = (iv_output_slice){iv_learner_rows(l, a->slice[p].offset, a->slice[p].n, a->stride, at),
                                       a->slice[p].n, a->slice[p].leaf};
    iv_matrix transposed;
    const void *x;
    size_t stride;
    iv_input_gradient_pack(&l->compute, &g, &transposed, &x, &stride);
    if (a->cuts) {
        memset(a->dx, 0, a->rows * a->k * sizeof *a->dx);
        return iv_row_parallel(
            l->forward,
            &(iv_row_parallel_args){
                .cuts = a->cuts, .nodes = &transposed, .x = x, .x_stride = stride, .rows = a->rows, .out = a->dx},
            err);
    }
    l->kernels->linear(&l->compute, &(iv_linear_args){.weight = &transposed,
                                                      .type = l->model->gemm_type,
                                                      .x = x,
                                                      .x_stride = stride,
                                                      .rows = a->rows,
                                                      .out = a->dx,
                                                      .out_stride = a->dx_stride ? a->dx_stride : a->k,
                                                      .from_zero = true});
    return IV_OK;
}

void iv_learner_sum_columns(iv_cpu_learner *l, const iv_axis_columns *a) {
    if (!l->learned) iv_axis_sum_columns(&l->compute, a);
}

void iv_learner_pack(iv_cpu_learner *l, const iv_token_axis *axis, const void *x, size_t stride, size_t k, void *data,
                     iv_matrix *out) {
    size_t width = iv_dtype_bytes(l->model->gemm_type);
    bool shaped = iv_matrix_shape(out, l->model->gemm_type, k, axis->padded);
    IV_ASSERT(shaped && axis->padded <= l->padded_max);
    for (size_t i = 0; i < axis->padded; i++)
        l->row_list[i] = axis->row[i] < 0 ? NULL : (const char *)x + (size_t)axis->row[i] * stride * width;
    out->data = data;
    iv_pack_columns(&l->compute, l->model->gemm_type, l->row_list, out);
}

static void weight_gradients(iv_cpu_learner *l, const iv_linear_backward_args *a) {
    iv_matrix x;
    size_t width = iv_dtype_bytes(l->model->gemm_type);
    iv_learner_pack(l, a->axis, a->x, a->x_stride ? a->x_stride : a->k, a->k, l->packed, &x);
    for (size_t p = 0, column = 0; p < a->slices; column += a->slice[p++].n)
        iv_weight_gradient(&l->compute, &(iv_weight_gradient_args){.axis = a->axis,
                                                                   .x = &x,
                                                                   .type = l->model->gemm_type,
                                                                   .dy = (const char *)a->dy + column * width,
                                                                   .dy_stride = a->dy_stride,
                                                                   .n = a->slice[p].n,
                                                                   .sums = &l->step->sums,
                                                                   .offset = a->slice[p].offset,
                                                                   .stride = a->stride});
}

iv_status iv_linear_backward(iv_cpu_learner *l, const iv_linear_backward_args *a, iv_error *err) {
    if (a->x && !l->learned) weight_gradients(l, a);
    if (a->dx) IV_TRY(input_gradient(l, a, err));
    return iv_adapter_backward(l, a, err);
}
