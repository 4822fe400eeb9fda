/* latent.c: see latent.h. */
#include "model/cpu/latent.h"
#include "kernels/head_products.h"
#include "kernels/linear.h"
#include "numerics/attention.h"

#include <string.h>

typedef struct job {
    iv_cpu_model *s;
    const iv_layer *layer;
    const iv_kv_layout *layout;
    const iv_attention_span *spans;
    unsigned char *kv;
    const float *q; /* of heads in float32, `stride` elements a row */
    size_t stride, heads;
} job;

static size_t span_of(const job *j, size_t row) {
    const iv_attention_span *spans = j->s->batch->spans;
    size_t i = 0;
    while (row >= spans[i].first_row + spans[i].rows) i++;
    return i;
}

static size_t position_of(const job *j, size_t span, size_t row) {
    return (size_t)j->spans[span].position + (row - j->spans[span].first_row);
}

/* One token: the normed latent and the turned key into its page, and the normed input of q's second factor. */
static void latent_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_model *m = j->s->model;
    const iv_model_config *c = &m->config;
    const iv_kernels *k = j->s->compute.kernels;
    size_t rank = (size_t)c->kv_rank, turns = (size_t)c->rope_dim, low = (size_t)c->q_rank;
    size_t width = iv_dtype_bytes(m->gemm_type), span = span_of(j, row), position = position_of(j, span, row);
    float *x = j->s->wide + row * j->layer->qkv.n, *latent = x + j->layer->qkv.n - rank - turns;
    float key[IV_LATENT_MAX + IV_HEAD_DIM_MAX]; /* storage for any dtype */
    iv_tape_layer *tape = j->s->tape ? j->s->tape->now : NULL;
    if (tape) {
        k->round(x, low, m->gemm_type, (char *)tape->latent.low_raw + row * low * width);
        k->round(latent, rank, m->gemm_type, (char *)tape->latent.latent_raw + row * rank * width);
    }
    if (low)
        k->rmsnorm(x, j->layer->latent.q_norm, (float)c->latent_eps, low, m->gemm_type,
                   (char *)j->s->latent.low + row * low * width);
    k->rmsnorm(latent, j->layer->latent.kv_norm, (float)c->latent_eps, rank, j->layout->type, key);
    k->rope(latent + rank, j->layer->rope->cosine + position * turns / 2, j->layer->rope->sine + position * turns / 2,
            turns / 2);
    k->round(latent + rank, turns, j->layout->type, (char *)key + rank * iv_dtype_bytes(j->layout->type));
    unsigned char *page = j->kv + j->spans[span].pages[position / IV_ATTENTION_BLOCK] * j->layout->page_bytes;
    if (!iv_kv_write(j->layout, page, 0, position % IV_ATTENTION_BLOCK, key, key)) iv_cpu_note_bad_span(j->s, span);
    if (tape) memcpy((char *)tape->k + row * (rank + turns) * width, key, (rank + turns) * width);
}

/* One token's heads: the parts that turn behind where the products with the latent will be, the others rounded. */
static void query_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_model *m = j->s->model;
    const iv_model_config *c = &m->config;
    const iv_kernels *k = j->s->compute.kernels;
    size_t rank = (size_t)c->kv_rank, turns = (size_t)c->rope_dim, keeps = (size_t)c->head_dim - turns;
    size_t width = iv_dtype_bytes(m->gemm_type), position = position_of(j, span_of(j, row), row);
    const float *cosine = j->layer->rope->cosine + position * turns / 2,
                *sine = j->layer->rope->sine + position * turns / 2, *scales = j->layer->rope->query;
    for (size_t h = 0; h < j->heads; h++) {
        float head[IV_HEAD_DIM_MAX];
        memcpy(head, j->q + row * j->stride + h * (size_t)c->head_dim, (size_t)c->head_dim * sizeof *head);
        k->rope(head + keeps, cosine, sine, turns / 2);
        if (scales) k->scale(head, keeps + turns, scales[position]);
        k->round(head, keeps, m->gemm_type, (char *)j->s->latent.still + (row * j->heads + h) * keeps * width);
        k->round(head + keeps, turns, m->gemm_type,
                 (char *)j->s->q + ((row * j->heads + h) * (rank + turns) + rank) * width);
    }
}

void iv_cpu_latent_inputs(iv_cpu_model *s, size_t layer, const iv_kv_layout *layout, const iv_attention_span *spans,
                          unsigned char *kv) {
    const iv_model *m = s->model;
    const iv_model_config *c = &m->config;
    const iv_layer *l = &m->layers[layer];
    size_t heads = m->tp.shard[m->rank].heads, rows = s->batch->tokens, rank = (size_t)c->kv_rank;
    size_t keeps = (size_t)(c->head_dim - c->rope_dim), turns = (size_t)c->rope_dim;
    job j = {s, l, layout, spans, kv, .q = s->wide, .stride = l->qkv.n, .heads = heads};
    iv_pool_run(s->compute.pool, rows, latent_row, &j);
    if (c->q_rank) {
        j.stride = l->latent.q.n;
        s->compute.kernels->linear(&s->compute, &(iv_linear_args){.weight = &l->latent.q,
                                                                  .type = m->gemm_type,
                                                                  .x = s->latent.low,
                                                                  .x_stride = l->latent.q.k,
                                                                  .rows = rows,
                                                                  .out = s->wide,
                                                                  .out_stride = j.stride});
    }
    iv_pool_run(s->compute.pool, rows, query_row, &j);
    iv_head_products(&s->compute, &(iv_head_products_args){.weights = l->latent.keys,
                                                           .heads = heads,
                                                           .rows = rows,
                                                           .type = m->gemm_type,
                                                           .x = s->latent.still,
                                                           .x_stride = heads * keeps,
                                                           .x_head = keeps,
                                                           .out = s->q,
                                                           .out_stride = heads * (rank + turns),
                                                           .out_head = rank + turns});
}

void iv_cpu_latent_values(iv_cpu_model *s, size_t layer) {
    const iv_model *m = s->model;
    size_t heads = m->tp.shard[m->rank].heads, rank = (size_t)m->config.kv_rank, value = (size_t)m->config.value_dim;
    iv_head_products(&s->compute, &(iv_head_products_args){.weights = m->layers[layer].latent.values,
                                                           .heads = heads,
                                                           .rows = s->batch->tokens,
                                                           .type = m->gemm_type,
                                                           .x = s->latent.rows,
                                                           .x_stride = heads * rank,
                                                           .x_head = rank,
                                                           .out = s->attended,
                                                           .out_stride = heads * value,
                                                           .out_head = value});
}
