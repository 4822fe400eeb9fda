/* scan.c: sums of squares of the rank's heads, then the factors of their groups, row by row. */
#include "model/cpu/scan.h"
#include "model/cpu/tp_gather.h"
#include "numerics/rows.h"

#include <math.h>

iv_scan_args iv_cpu_scan_args(const iv_model *m, const iv_layer *l) {
    const iv_model_config *c = &m->config;
    return (iv_scan_args){.conv_bias = c->scan_conv_bias ? l->delta.conv_bias : NULL,
                          .skip = l->delta.skip,
                          .step_low = (float)c->scan_step_low,
                          .step_high = c->scan_step_high != 0 ? (float)c->scan_step_high : INFINITY,
                          .gate_behind = c->scan_norm == IV_SCAN_NORM_UNGATED};
}

typedef struct job {
    iv_cpu_model *s;
    const iv_delta_args *a;
    float *sums;                      /* [rows][the rank's heads] */
    const float *parts[IV_RANKS_MAX]; /* of all ranks */
    float *factors;                   /* [rows][the rank's heads] */
} job;

static void gate_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_scan_gate(&j->s->compute, j->a, row, j->sums ? j->sums + row * j->a->layout->value_heads : NULL);
}

/* The sum of a head, which one rank at least has whole: ranks that share one have the same. */
static float sum_of(const job *j, size_t row, size_t head) {
    const iv_tp_plan *tp = &j->s->model->tp;
    size_t r = 0;
    while (head >= tp->shard[r].linear_value_first + tp->shard[r].linear_values) r++;
    const iv_tp_shard *s = &tp->shard[r];
    return j->parts[r][row * s->linear_values + head - s->linear_value_first];
}

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_delta_layout *l = j->a->layout;
    const iv_tp_shard *s = &j->s->model->tp.shard[j->s->model->rank];
    float *factors = j->factors + row * l->value_heads;
    for (size_t h = 0, done = SIZE_MAX; h < l->value_heads; h++) {
        size_t group = (s->linear_value_first + h) / l->group;
        float squares[IV_HEADS_MAX];
        for (size_t i = 0; group != done && i < l->group; i++) squares[i] = sum_of(j, row, group * l->group + i);
        factors[h] = group == done ? factors[h - 1] : iv_ref_heads_factor(squares, l->group, l->value_dim, j->a->eps);
        done = group;
    }
    iv_scan_norm(&j->s->compute, j->a, row, factors);
}

iv_status iv_cpu_scan_norm(iv_cpu_model *s, const iv_delta_args *a, iv_error *err) {
    const iv_tp_plan *tp = &s->model->tp;
    size_t rows = s->batch->tokens, heads = a->layout->value_heads, floats[IV_RANKS_MAX];
    job j = {.s = s, .a = a, .factors = a->kept ? a->kept->factors : s->scan_sums};
    bool norms = s->model->config.scan_norm != IV_SCAN_NORM_NONE;
    if (norms) j.sums = tp->ranks > 1 ? iv_tp_gather_buffer(s) : s->scan_sums, j.parts[0] = j.sums;
    if (heads) iv_pool_run(s->compute.pool, rows, gate_row, &j);
    if (!norms) return IV_OK;
    for (size_t r = 0; r < tp->ranks; r++) floats[r] = rows * tp->shard[r].linear_values;
    if (tp->ranks > 1) IV_TRY(iv_tp_gather_all(s, floats, NULL, j.parts, err));
    if (heads) iv_pool_run(s->compute.pool, rows, norm_row, &j);
    return IV_OK;
}
