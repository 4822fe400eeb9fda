/* int8_ranks.c: see int8_ranks.h. A rank without inputs of a layer has the scales of its outputs. */
#include "model/cpu/int8_ranks.h"
#include "base/size.h"
#include "kernels/int8.h"
#include "kernels/tree_allreduce.h"

#include <string.h>

enum { BLOCK = IV_ALLREDUCE_COLUMNS };

typedef struct job {
    iv_cpu_model *s;
    const iv_row_parallel_args *a;
    const int32_t *sums[IV_RANKS_MAX]; /* [rows][terms][hidden], NULL of a rank without inputs */
    size_t hidden, blocks;             /* of columns in a row */
} job;

static iv_linear_args part_of(const iv_cpu_model *s, const iv_row_parallel_args *a) {
    const iv_row_cut *cut = &a->cuts->of[s->model->rank];
    size_t column = cut->k ? cut->first - a->x_first : 0;
    return (iv_linear_args){.weight = &a->nodes[0],
                            .type = s->model->gemm_type,
                            .x = (const char *)a->x + column * iv_dtype_bytes(s->model->gemm_type),
                            .x_stride = a->x_stride,
                            .rows = a->rows};
}

/* s->magnitudes: of whole rows. */
static iv_status exchange_magnitudes(iv_cpu_model *s, const iv_row_parallel_args *a, const iv_linear_args *part,
                                     iv_error *err) {
    size_t ranks = s->model->tp.ranks, floats[IV_RANKS_MAX];
    const float *parts[IV_RANKS_MAX];
    for (size_t r = 0; r < ranks; r++) floats[r] = a->cuts->of[r].k ? a->rows : 0;
    if (part->weight->k) s->compute.kernels->magnitudes(&s->compute, part, (uint32_t *)(void *)iv_tp_gather_buffer(s));
    IV_TRY(iv_tp_gather_all(s, floats, NULL, parts, err));
    memset(s->magnitudes, 0, a->rows * sizeof *s->magnitudes);
    for (size_t r = 0; r < ranks; r++) {
        const uint32_t *of_rank = (const uint32_t *)(const void *)parts[r];
        for (size_t i = 0; i < a->rows && floats[r]; i++)
            s->magnitudes[i] = of_rank[i] > s->magnitudes[i] ? of_rank[i] : s->magnitudes[i];
    }
    return IV_OK;
}

static void reduce_block(void *context, size_t index, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_matrix *w = &j->a->nodes[0];
    size_t row = index / j->blocks, column = index % j->blocks * BLOCK, n = iv_size_min(BLOCK, j->hidden - column);
    uint32_t total[IV_INT8_TERMS_MAX][BLOCK] = {{0}};
    float y[BLOCK];
    for (size_t r = 0; r < j->s->model->tp.ranks; r++)
        for (size_t t = 0; j->sums[r] && t < (size_t)w->terms; t++) {
            const int32_t *from = j->sums[r] + (row * (size_t)w->terms + t) * j->hidden + column;
            for (size_t i = 0; i < n; i++) total[t][i] += (uint32_t)from[i];
        }
    iv_int8_results(&j->s->compute, w, j->s->magnitudes[row], (const int32_t *)total[0], BLOCK, column, n, y);
    iv_residual_add(y, j->a->bias ? j->a->bias + column : NULL, n,
                    (j->a->out ? j->a->out : j->s->x) + row * j->hidden + column);
}

iv_status iv_int8_row_parallel(iv_cpu_model *s, const iv_row_parallel_args *a, iv_error *err) {
    size_t ranks = s->model->tp.ranks, hidden = (size_t)s->model->config.hidden_size, floats[IV_RANKS_MAX];
    size_t each = a->rows * (size_t)s->model->terms * hidden;
    const float *parts[IV_RANKS_MAX];
    job j = {.s = s, .a = a, .hidden = hidden, .blocks = (hidden + BLOCK - 1) / BLOCK};
    iv_linear_args part = part_of(s, a);
    IV_TRY(exchange_magnitudes(s, a, &part, err));
    if (part.weight->k) iv_int8_sums(&s->compute, &part, s->magnitudes, (int32_t *)(void *)iv_tp_gather_buffer(s));
    for (size_t r = 0; r < ranks; r++) floats[r] = a->cuts->of[r].k ? each : 0;
    IV_TRY(iv_tp_gather_all(s, floats, a->least, parts, err));
    for (size_t r = 0; r < ranks; r++) j.sums[r] = floats[r] ? (const int32_t *)(const void *)parts[r] : NULL;
    iv_pool_run(s->compute.pool, a->rows * j.blocks, reduce_block, &j);
    return IV_OK;
}
