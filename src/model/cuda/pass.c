/* pass.c: arguments of the launches of a step, and waiting for them. */
#include "model/cuda/pass.h"
#include "base/clock.h"
#include "base/size.h"

#include <sched.h>

enum {
    BESIDE_SMS = 16,   /* multiprocessors that layers leave to all-reduces of other parts */
    BESIDE_BLOCKS = 64 /* of such an all-reduce: they fit there, and saturate the links */
};

iv_status iv_gpu_launched(gpu_rank *r, int code, const char *what, iv_error *err) {
    if (code == 0) return IV_OK;
    r->code = code;
    return iv_gpu_check(r->gpu, code, what, err);
}

iv_gpu_linear_args iv_gpu_layer_args(const gpu_pass *p, const iv_matrix *w, const void *x, size_t x_stride) {
    return (iv_gpu_linear_args){
        .arithmetic = p->r->g->o.arithmetic,
        .w = {.type = w->type, .n = w->n, .k_padded = w->k_padded, .leaves = w->leaves, .data = w->data},
        .type = p->m->dtype,
        .x = x,
        .x_stride = x_stride,
        .rows = p->rows,
        .x_rows = iv_gpu_rows_max(p->r->g) - p->first,
        .spare = p->parts > 1 ? BESIDE_SMS : 0};
}

unsigned char *iv_gpu_rows_at(const gpu_pass *p, unsigned char *rows, size_t stride) {
    return rows + p->first * stride * iv_dtype_bytes(p->m->dtype);
}

/* x's columns from `column` on as a matrix of k inputs takes them: in place if they are aligned, else copied. */
static int inputs_at(const gpu_pass *p, const void *x, size_t stride, size_t column, size_t k, const void **out,
                     size_t *out_stride) {
    size_t width = iv_dtype_bytes(p->m->dtype);
    *out = (const unsigned char *)x + column * width, *out_stride = stride;
    if (column * width % 16 == 0 && stride * width % 16 == 0 && k % IV_CHAIN_STEP == 0) return 0;
    *out = p->r->packed, *out_stride = iv_padded_k(k);
    return iv_gpu_copy_columns(p->m->dtype, x, stride, column, k, p->rows, p->r->packed, *out_stride, p->r->stream);
}

iv_status iv_gpu_node_args(const gpu_pass *p, const gpu_row_parallel *l, size_t i, iv_gpu_linear_args *a,
                           iv_error *err) {
    const iv_row_cut *cut = &l->cuts->of[p->m->rank];
    const void *x;
    size_t stride;
    int code = inputs_at(p, iv_gpu_rows_at(p, l->x, l->x_stride), l->x_stride,
                         cut->first - l->x_first + cut->node[i].column, cut->node[i].k, &x, &stride);
    IV_TRY(iv_gpu_launched(p->r, code, "inputs of a row-parallel layer", err));
    *a = iv_gpu_layer_args(p, &l->nodes[i], x, stride);
    return IV_OK;
}

iv_status iv_gpu_compute_nodes(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    for (size_t i = 0; i < l->cuts->of[p->m->rank].nodes; i++) {
        iv_gpu_linear_args a;
        IV_TRY(iv_gpu_node_args(p, l, i, &a, err));
        a.epilogue = IV_GPU_STORE, a.out_stride = p->hidden;
        a.out = iv_gpu_node_at(p->r, l->second, i, p->hidden) + p->first * p->hidden;
        IV_TRY(iv_gpu_launched(p->r, p->r->linear(p->r, &a), "row-parallel layer", err));
    }
    return IV_OK;
}

float *iv_gpu_node_at(const gpu_rank *r, bool second, size_t node, size_t hidden) {
    const iv_tp_plan *tp = &r->m->tp;
    size_t most = iv_size_max(tp->out.of[r->m->rank].nodes, tp->down.of[r->m->rank].nodes);
    return r->nodes + ((second ? most : 0) + node) * iv_gpu_rows_max(r->g) * hidden;
}

iv_status iv_gpu_norm_rows(const gpu_pass *p, const float *weight, iv_error *err) {
    int code =
        iv_gpu_rmsnorm(p->r->x + p->first * p->hidden, p->hidden, NULL, weight, (float)p->m->config.rms_norm_eps,
                       p->rows, p->m->dtype, iv_gpu_rows_at(p, p->r->normed, p->stride), p->stride, p->r->stream);
    return iv_gpu_launched(p->r, code, "norm", err);
}

iv_gpu_peers iv_gpu_peers_of(const gpu_rank *r) {
    iv_gpu_peers peers = {.ranks = (int)r->g->ranks,
                          .rank = (int)r->rank,
                          .given_up = r->g->given_up,
                          .timeout_ns = (uint64_t)r->g->o.timeout_ms * 1000000u};
    for (size_t i = 0; i < r->g->ranks; i++) peers.flags[i] = r->g->rank[i].flags;
    return peers;
}

iv_gpu_allreduce_args iv_gpu_allreduce_of(const gpu_pass *p, const gpu_row_parallel *l) {
    const iv_gpu_model *g = p->r->g;
    iv_gpu_allreduce_args a = {.arithmetic = g->o.arithmetic,
                               .rows = p->rows,
                               .hidden = p->hidden,
                               .order = l->cuts->order,
                               .bias = l->bias,
                               .x = p->r->x + p->first * p->hidden,
                               .norm_weight = l->norm,
                               .eps = (float)p->m->config.rms_norm_eps,
                               .type = p->m->dtype,
                               .normed_stride = p->stride,
                               .whole = p->m->config.experts > 0,
                               .blocks = p->parts > 1 ? BESIDE_BLOCKS : 0};
    for (size_t r = 0; r < g->ranks; r++) a.normed[r] = iv_gpu_rows_at(p, g->rank[r].normed, p->stride);
    return a;
}

void iv_gpu_first_experts(const gpu_pass *p, int32_t firsts[IV_RANKS_MAX + 1]) {
    const iv_tp_plan *tp = &p->m->tp;
    for (size_t i = 0; i < tp->ranks; i++) firsts[i] = (int32_t)tp->shard[i].expert_first;
    firsts[tp->ranks] = (int32_t)p->m->config.experts;
}

int iv_gpu_await(gpu_rank *r, cudaEvent_t event) {
    double until = iv_now() + 1e-3 * (double)r->g->o.timeout_ms;
    for (;;) {
        int code = cudaEventQuery(event);
        if (code != cudaErrorNotReady) return code;
        if (r->nccl && (atomic_load(&r->g->broken) || iv_now() > until)) return cudaErrorLaunchTimeout;
        sched_yield();
    }
}

iv_status iv_gpu_pace(gpu_rank *r, size_t piece, iv_error *err) {
    if (!r->nccl || r->g->step.graph) return IV_OK;
    cudaEvent_t event = r->passed[piece % AHEAD];
    int code = piece < AHEAD ? 0 : iv_gpu_await(r, event);
    if (!code) code = cudaEventRecord(event, r->stream);
    return iv_gpu_launched(r, code, "wait for the other ranks", err);
}
