/* moe.c: route every row, then run each chosen expert once over the rows that chose it, then combine each
 * row's terms in the tree over expert ids. Which rows share an expert's call is free: rows are independent. */
#include "model/moe.h"
#include "kernels/linear.h"
#include "numerics/floats.h"
#include "numerics/rows.h"

#include <string.h>

typedef struct job {
    iv_forward_state *s;
    const iv_mlp *expert;
    size_t rows; /* gathered for the expert at work */
} job;

static size_t k_of(const iv_forward_state *s) { return (size_t)s->model->config.experts_per_token; }

static void route_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_forward_state *s = ((job *)context)->s;
    const iv_model_config *c = &s->model->config;
    size_t k = k_of(s);
    int32_t *ids = s->expert_ids + row * k;
    float *weights = s->expert_weights + row * k;
    iv_ref_route(s->router_logits + row * (size_t)c->experts, (size_t)c->experts, k, c->norm_topk_prob, ids, weights);
    for (size_t i = 1; i < k; i++) /* ascending ids, as the combine tree takes them */
        for (size_t j = i; j > 0 && ids[j] < ids[j - 1]; j--) {
            int32_t id = ids[j];
            float w = weights[j];
            ids[j] = ids[j - 1], weights[j] = weights[j - 1];
            ids[j - 1] = id, weights[j - 1] = w;
        }
}

static void swiglu_row(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    const iv_model *m = j->s->model;
    size_t n = (size_t)m->config.moe_intermediate_size;
    const float *gate = j->s->wide + row * 2 * n;
    j->s->compute.kernels->swiglu(gate, gate + n, n, m->dtype, (char *)j->s->act + row * n * iv_dtype_bytes(m->dtype));
}

/* Weights one expert's output row and puts it where its token's terms wait. */
static void scatter_row(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    iv_forward_state *s = j->s;
    size_t hidden = (size_t)s->model->config.hidden_size,
           slot = s->expert_rows[2 * row] * k_of(s) + s->expert_rows[2 * row + 1];
    const float *y = s->wide + row * hidden;
    float *term = s->terms + slot * hidden, w = s->expert_weights[slot];
    for (size_t i = 0; i < hidden; i++) term[i] = w * y[i];
}

static void combine_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_forward_state *s = ((job *)context)->s;
    size_t hidden = (size_t)s->model->config.hidden_size, k = k_of(s);
    const float *terms = s->terms + row * k * hidden;
    float *x = s->x + row * hidden;
    for (size_t i = 0; i < hidden; i++) {
        float of_element[IV_EXPERTS_PER_TOKEN_MAX];
        for (size_t e = 0; e < k; e++) of_element[e] = terms[e * hidden + i];
        x[i] = iv_canonical(x[i] + iv_ref_combine(s->expert_ids + row * k, of_element, k));
    }
}

static void run_expert(job *j, size_t tokens, int32_t expert) {
    iv_forward_state *s = j->s;
    const iv_model *m = s->model;
    size_t k = k_of(s), row_bytes = (size_t)m->config.hidden_size * iv_dtype_bytes(m->dtype);
    j->rows = 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t e = 0; e < k; e++) {
            if (s->expert_ids[t * k + e] != expert) continue;
            memcpy((char *)s->gathered + j->rows * row_bytes, (char *)s->normed + t * row_bytes, row_bytes);
            s->expert_rows[2 * j->rows] = (uint32_t)t, s->expert_rows[2 * j->rows + 1] = (uint32_t)e;
            j->rows++;
        }
    if (j->rows == 0) return;
    const iv_mlp *w = j->expert;
    iv_linear(&s->compute, &(iv_linear_args){.weight = &w->gate_up,
                                             .type = m->dtype,
                                             .x = s->gathered,
                                             .x_stride = w->gate_up.k,
                                             .rows = j->rows,
                                             .out = s->wide,
                                             .out_stride = w->gate_up.n});
    iv_pool_run(s->compute.pool, j->rows, swiglu_row, j);
    iv_linear(&s->compute, &(iv_linear_args){.weight = &w->down,
                                             .type = m->dtype,
                                             .x = s->act,
                                             .x_stride = w->down.k,
                                             .rows = j->rows,
                                             .out = s->wide,
                                             .out_stride = w->down.n});
    iv_pool_run(s->compute.pool, j->rows, scatter_row, j);
}

void iv_moe(iv_forward_state *s, const iv_layer *layer, size_t tokens) {
    job j = {.s = s};
    iv_linear(&s->compute, &(iv_linear_args){.weight = &layer->router,
                                             .type = s->model->dtype,
                                             .x = s->normed,
                                             .x_stride = layer->router.k,
                                             .rows = tokens,
                                             .out = s->router_logits,
                                             .out_stride = layer->router.n});
    iv_pool_run(s->compute.pool, tokens, route_row, &j);
    for (size_t e = 0; e < (size_t)s->model->config.experts; e++) {
        j.expert = &layer->experts[e];
        run_expert(&j, tokens, (int32_t)e);
    }
    iv_pool_run(s->compute.pool, tokens, combine_row, &j);
}
