/* tp_gather.c: blocks of nodes and logits between CPU ranks. */
#include "model/cpu/tp_gather.h"
#include "base/size.h"
#include "kernels/tree_allreduce.h"
#include "kernels/linear.h"

#include <string.h>

enum { LOGIT_FLOATS = 256 * 1024 };

typedef struct header {
    uint64_t least;
} header;

size_t iv_tp_logit_rows(const iv_cpu_model *s) {
    const iv_tp_plan *tp = &s->model->tp;
    size_t widest = 1;
    for (size_t r = 0; r < tp->ranks; r++) widest = iv_size_max(widest, tp->shard[r].vocab);
    return iv_size_min(s->tokens_max, iv_size_max(1, LOGIT_FLOATS / widest));
}

bool iv_tp_gather_bytes(const iv_cpu_model *s, size_t *bytes) {
    const iv_model *m = s->model;
    const iv_tp_plan *tp = &m->tp;
    const iv_tp_shard *shard = &tp->shard[m->rank];
    size_t rows = iv_size_max(iv_size_max(tp->out.of[m->rank].nodes, tp->wide_out.of[m->rank].nodes),
                              iv_size_max(tp->down.of[m->rank].nodes, tp->shared.of[m->rank].nodes)),
           logits, hidden;
    rows = iv_size_max(iv_size_max(rows, tp->mixer_out.of[m->rank].nodes), (size_t)m->terms);
    rows = iv_size_max(rows, iv_size_min((size_t)m->config.experts_per_token, shard->experts));
    size_t sums; /* of norms over all heads */
    size_t of_row = iv_size_max(shard->heads + shard->kv_heads, (size_t)m->config.linear_value_dim); /* gated norms' */
    of_row = iv_size_max(of_row, shard->linear_values);                                              /* of scans */
    if (!iv_size_mul(s->tokens_max, of_row, &sums)) return false;
    return iv_size_mul(iv_tp_logit_rows(s), shard->vocab, &logits) && iv_size_mul(rows, s->tokens_max, &hidden) &&
           iv_size_mul(hidden, (size_t)m->config.hidden_size, &hidden) &&
           iv_size_mul(iv_size_max(iv_size_max(hidden, logits), sums), sizeof(float), bytes) &&
           iv_size_add(*bytes, IV_TP_HEADER_BYTES, bytes);
}

float *iv_tp_gather_buffer(const iv_cpu_model *s) { return (float *)(void *)(s->parts[s->part] + IV_TP_HEADER_BYTES); }

void iv_tp_block_sizes(const iv_cpu_model *s, const size_t *floats, size_t *bytes) {
    for (size_t r = 0; r < s->model->tp.ranks; r++) bytes[r] = IV_TP_HEADER_BYTES + floats[r] * sizeof(float);
    IV_ASSERT(bytes[s->model->rank] <= s->part_bytes);
}

iv_status iv_tp_gather_all(iv_cpu_model *s, const size_t *floats, size_t *least, const float **parts, iv_error *err) {
    const void *blocks[IV_RANKS_MAX];
    size_t bytes[IV_RANKS_MAX];
    unsigned char *mine = s->parts[s->part];
    header h = {least ? *least : SIZE_MAX};
    memcpy(mine, &h, sizeof h);
    iv_tp_block_sizes(s, floats, bytes);
    s->part = 1 - s->part;
    IV_TRY(iv_comm_all_gather(s->comm, mine, bytes, blocks, err));
    for (size_t r = 0; r < s->model->tp.ranks; r++) {
        memcpy(&h, blocks[r], sizeof h);
        if (least) *least = iv_size_min(*least, h.least);
        parts[r] = (const float *)(const void *)((const char *)blocks[r] + IV_TP_HEADER_BYTES);
    }
    return IV_OK;
}

typedef struct reduction {
    iv_cpu_model *s;
    const iv_row_parallel_args *a;
    const float *node[IV_LEAVES_MAX]; /* [rows][hidden] each, in tree order */
    size_t blocks;                    /* of columns in a row */
} reduction;

static void reduce_block(void *context, size_t index, size_t worker) {
    (void)worker;
    const reduction *j = context;
    size_t hidden = (size_t)j->s->model->config.hidden_size, row = index / j->blocks,
           column = index % j->blocks * IV_ALLREDUCE_COLUMNS, at = row * hidden + column;
    const float *node[IV_LEAVES_MAX];
    for (size_t i = 0; i <= j->a->cuts->order.count; i++) node[i] = j->node[i] + at;
    const float *bias = j->a->bias ? j->a->bias + column : NULL;
    size_t n = iv_size_min(IV_ALLREDUCE_COLUMNS, hidden - column);
    j->s->compute.kernels->allreduce(&j->s->compute, &(iv_allreduce_args){.order = &j->a->cuts->order,
                                                                          .node = node,
                                                                          .bias = bias,
                                                                          .n = n,
                                                                          .x = (j->a->out ? j->a->out : j->s->x) + at,
                                                                          .dtype = j->s->model->gemm_type,
                                                                          .hidden = hidden,
                                                                          .column = column});
}

static void run_node(const iv_cpu_model *s, const iv_row_parallel_args *a, size_t i, float *out, bool last) {
    const iv_row_cut *cut = &a->cuts->of[s->model->rank];
    size_t hidden = (size_t)s->model->config.hidden_size, column = cut->first - a->x_first + cut->node[i].column;
    s->compute.kernels->linear(&s->compute,
                               &(iv_linear_args){.weight = &a->nodes[i],
                                                 .type = s->model->gemm_type,
                                                 .x = (const char *)a->x + column * iv_dtype_bytes(s->model->gemm_type),
                                                 .x_stride = a->x_stride,
                                                 .rows = a->rows,
                                                 .bias = last ? a->bias : NULL,
                                                 .out = out,
                                                 .out_stride = hidden,
                                                 .accumulate = last});
}

iv_status iv_row_parallel(iv_cpu_model *s, const iv_row_parallel_args *a, iv_error *err) {
    const iv_tp_plan *tp = &s->model->tp;
    size_t hidden = (size_t)s->model->config.hidden_size, floats[IV_RANKS_MAX], nodes = 0;
    if (tp->ranks == 1) { /* the one node is the root */
        run_node(s, a, 0, a->out ? a->out : s->x, true);
        return IV_OK;
    }
    const float *parts[IV_RANKS_MAX];
    reduction j = {.s = s, .a = a, .blocks = (hidden + IV_ALLREDUCE_COLUMNS - 1) / IV_ALLREDUCE_COLUMNS};
    for (size_t i = 0; i < a->cuts->of[s->model->rank].nodes; i++)
        run_node(s, a, i, iv_tp_gather_buffer(s) + i * a->rows * hidden, false);
    for (size_t r = 0; r < tp->ranks; r++) floats[r] = a->cuts->of[r].nodes * a->rows * hidden;
    IV_TRY(iv_tp_gather_all(s, floats, a->least, parts, err));
    for (size_t r = 0; r < tp->ranks; r++)
        for (size_t i = 0; i < a->cuts->of[r].nodes; i++) j.node[nodes++] = parts[r] + i * a->rows * hidden;
    iv_pool_run(s->compute.pool, a->rows * j.blocks, reduce_block, &j);
    return IV_OK;
}
