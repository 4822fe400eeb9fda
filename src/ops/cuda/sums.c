/* sums.c: sums of columns over the tokens of a pass. */
#include "ops/cuda/state.h"

iv_status iv_gpu_ops_column_sums(gpu_ops *g, const iv_ops_pass *pass, iv_gpu_column_sums_args *a, iv_error *err) {
    IV_TRY(iv_gpu_ops_copy_in(g, pass->row_of, pass->axis.padded, sizeof *pass->row_of, &a->row, err));
    IV_TRY(iv_gpu_ops_scratch(g, iv_gpu_column_sums_scratch(a->n), 1, &a->scratch, err));
    a->axis = &pass->axis;
    return iv_gpu_ops_launched(g, iv_gpu_column_sums(a, g->stream), err);
}

static iv_status column_sums(iv_ops *ops, const iv_ops_pass *pass, const float *dy, size_t stride, size_t n,
                             const iv_axis_sums *sums, iv_error *err) {
    return iv_gpu_ops_column_sums(
        iv_gpu_ops_of(ops), pass,
        &(iv_gpu_column_sums_args){.kind = IV_GPU_SUM_VALUES, .dy = dy, .dy_stride = stride, .n = n, .sums = *sums},
        err);
}

void iv_gpu_ops_sum_table(iv_ops_gpu *table) { table->column_sums = column_sums; }
