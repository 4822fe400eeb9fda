/* linear_backward.c: dX = dY W by the linear layers' own kernels, with the weights transposed once a pass; dW = dY^T X.
 */
#include "base/size.h"
#include "kernels/input_gradient.h"
#include "kernels/linear.h"
#include "kernels/weight_gradient.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/tp_gather.h"

#include <string.h>

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
