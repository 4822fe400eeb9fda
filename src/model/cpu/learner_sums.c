/* learner_sums.c: what the files of the backward pass share: rounded rows, sums over tokens, and sums over ranks. */
#include "base/cpu.h"
#include "base/size.h"
#include "kernels/pack_columns.h"
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

typedef struct add_job {
    const float *earlier;
    float *acc;
    size_t n;
    bool flush;
} add_job;

enum { ADD_FLOATS = 4096 };

static void add_arrays(const float *earlier, float *acc, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] = earlier[i] + acc[i];
}

static void add_piece(void *context, size_t index, size_t worker) {
    (void)worker;
    const add_job *j = context;
    size_t at = index * ADD_FLOATS, n = iv_size_min(ADD_FLOATS, j->n - at);
    if (j->flush)
        IV_WITH_FP(IV_FP_FLUSH, add_arrays(j->earlier + at, j->acc + at, n));
    else
        add_arrays(j->earlier + at, j->acc + at, n);
}

void iv_learner_add_nodes(iv_cpu_learner *l, const float *earlier, float *acc, size_t n, bool flush) {
    add_job j = {earlier, acc, n, flush};
    iv_pool_run(l->compute.pool, (n + ADD_FLOATS - 1) / ADD_FLOATS, add_piece, &j);
}

iv_status iv_ranks_add_rows(iv_cpu_learner *l, float *x, size_t n, bool flush, iv_error *err) {
    size_t ranks = l->model->tp.ranks, floats[IV_RANKS_MAX];
    const float *parts[IV_RANKS_MAX];
    if (ranks == 1) return IV_OK;
    for (size_t r = 0; r < ranks; r++) floats[r] = n;
    memcpy(iv_tp_gather_buffer(l->forward), x, n * sizeof *x);
    IV_TRY(iv_tp_gather_all(l->forward, floats, NULL, parts, err));
    float *node = l->gathered; /* [ranks][n]: the parts are other ranks' to read */
    for (size_t r = 0; r < ranks; r++) memcpy(node + r * n, parts[r], n * sizeof *x);
    for (size_t stride = 1; stride < ranks; stride *= 2)
        for (size_t r = 0; r < ranks; r += 2 * stride) {
            float *later = node + (r + stride) * n;
            iv_learner_add_nodes(l, node + r * n, later, n, flush);
            memcpy(node + r * n, later, n * sizeof *x);
        }
    memcpy(x, node, n * sizeof *x);
    return IV_OK;
}
