/* transport.c: one GPU, and GPUs of one process that reach each other's memory; what all transports share.
 *
 * Nodes stay where they were computed; the all-reduce reads them from its peers and makes the additions of the tree.
 * The rows of a long step of several ranks are cut into microsteps: the all-reduces of one microstep, whose traffic
 * takes as long as the layers, run on a second stream next to the layers of the other microsteps, on multiprocessors
 * that these leave free. Rows depend on one another only in attention, which waits for all microsteps. All-reduces keep
 * their order, so node buffers are free for reuse exactly as without microsteps. */
#include "base/size.h"
#include "model/cuda/state.h"

/* ---- shared by all ------------------------------------------------------------------------------------------- */

enum { BESIDE_BLOCKS = 64 }; /* of an all-reduce next to layers: they fit there, and saturate the links */

iv_gpu_peers iv_gpu_peers_of(const gpu_forward *f) {
    iv_gpu_peers peers = {
        .ranks = (int)f->ranks, .rank = (int)f->rank, .timeouts = f->timeouts, .timeout_ns = f->timeout_ns};
    for (size_t i = 0; i < f->ranks; i++) peers.flags[i] = f->peer[i]->flags;
    return peers;
}

iv_gpu_allreduce_args iv_gpu_allreduce_of(const gpu_pass *p, const gpu_row_parallel *l) {
    const gpu_forward *f = p->f;
    iv_gpu_allreduce_args a = {.arithmetic = f->arithmetic,
                               .rows = p->rows,
                               .hidden = p->hidden,
                               .order = l->cuts->order,
                               .bias = l->bias,
                               .x = f->x + p->first * p->hidden,
                               .norm_weight = l->norm,
                               .eps = (float)p->m->config.rms_norm_eps,
                               .type = p->m->gemm_type,
                               .normed_stride = p->stride,
                               .whole = p->m->config.experts > 0 || l->whole || p->in.adapters.tiles,
                               .blocks = p->microsteps > 1 ? BESIDE_BLOCKS : 0};
    for (size_t r = 0; r < f->ranks; r++) a.normed[r] = iv_gpu_rows_at(p, f->peer[r]->normed, p->stride);
    return a;
}

void iv_gpu_first_experts(const gpu_pass *p, int32_t firsts[IV_RANKS_MAX + 1]) {
    const iv_tp_plan *tp = &p->m->tp;
    for (size_t i = 0; i < tp->ranks; i++) firsts[i] = (int32_t)tp->shard[i].expert_first;
    firsts[tp->ranks] = (int32_t)p->m->config.experts;
}

static iv_status nothing(const gpu_pass *p, iv_error *err) {
    (void)p, (void)err;
    return IV_OK;
}

static iv_status logits_in_place(const gpu_pass *p, size_t n, iv_error *err) {
    (void)p, (void)n, (void)err;
    return IV_OK;
}

/* ---- one GPU ----------------------------------------------------------------------------------------------- */

/* The one node is the root: its epilogue adds bias and residual, from the stream's slot before if it can. */
static iv_status add_whole_layer(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_forward *f = p->f;
    iv_gpu_linear_args a;
    IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
    a.epilogue = IV_GPU_RESIDUAL, a.bias = l->bias;
    a.out = l->to + p->first * p->hidden, a.out_stride = p->hidden;
    if (l->to != f->x) a.fused.addend = f->x;
    if (a.fused.addend && !iv_gpu_fuses(f, &a)) {
        a.fused.addend = NULL;
        IV_TRY(iv_gpu_move_stream(p, l->to, err));
    }
    f->x = l->to;
    IV_TRY(iv_gpu_launched(f, f->linear(f, &a), "row-parallel layer", err));
    return iv_gpu_norm_rows(p, l->norm, err);
}

static iv_status combine_terms(const gpu_pass *p, const int32_t *ids, float *x, iv_error *err) {
    gpu_forward *f = p->f;
    const float *terms[IV_RANKS_MAX];
    int32_t firsts[IV_RANKS_MAX + 1];
    iv_gpu_first_experts(p, firsts);
    for (size_t i = 0; i < f->ranks; i++) terms[i] = f->peer[i]->terms;
    int code = iv_gpu_combine(terms, firsts, f->ranks, ids, p->rows, (size_t)p->m->config.experts_per_token, p->hidden,
                              x, f->stream);
    return iv_gpu_launched(f, code, "combination", err);
}

const gpu_transport iv_gpu_single = {
    .row_parallel = add_whole_layer, .combine = combine_terms, .logits = logits_in_place, .barrier = nothing};

/* ---- GPUs of one process ------------------------------------------------------------------------------------- */

static iv_status barrier(const gpu_pass *p, iv_error *err) {
    iv_gpu_peers peers = iv_gpu_peers_of(p->f);
    return iv_gpu_launched(p->f, iv_gpu_barrier(&peers, p->f->stream), "barrier of the ranks", err);
}

static iv_status reduce(const gpu_pass *p, const gpu_row_parallel *l, gpu_node_at at, iv_gpu_allreduce_args *a,
                        iv_gpu_stream stream, iv_error *err) {
    gpu_forward *f = p->f;
    iv_gpu_peers peers = iv_gpu_peers_of(f);
    size_t n = 0;
    for (size_t r = 0; r < f->ranks; r++)
        for (size_t i = 0; i < l->cuts->of[r].nodes; i++)
            a->node[n++] = at(f->peer[r], l->second, i, a->hidden) + p->first * a->hidden;
    return iv_gpu_launched(f, iv_gpu_tree_allreduce(&peers, a, stream), "all-reduce of the ranks", err);
}

static iv_status allreduce(const gpu_pass *p, const gpu_row_parallel *l, iv_gpu_stream stream, iv_error *err) {
    iv_gpu_allreduce_args a = iv_gpu_allreduce_of(p, l);
    return reduce(p, l, iv_gpu_node_at, &a, stream, err);
}

static iv_status row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    gpu_forward *f = p->f;
    IV_TRY(iv_gpu_compute_nodes(p, l, err));
    if (p->microsteps == 1) return allreduce(p, l, f->stream, err);
    IV_TRY(iv_gpu_launched(f, cudaEventRecord(r->computed[p->microstep], f->stream), "start of an all-reduce", err));
    IV_TRY(iv_gpu_launched(f, cudaStreamWaitEvent(r->reduce_stream, r->computed[p->microstep], 0),
                           "start of an all-reduce", err));
    IV_TRY(allreduce(p, l, r->reduce_stream, err));
    return iv_gpu_launched(f, cudaEventRecord(r->reduced[p->microstep], r->reduce_stream), "end of an all-reduce", err);
}

static iv_status combine_peers(const gpu_pass *p, const int32_t *ids, float *x, iv_error *err) {
    IV_TRY(barrier(p, err));
    return combine_terms(p, ids, x, err);
}

static iv_status share(const gpu_pass *p, gpu_shared_at at, size_t from, size_t bytes, const bool *has,
                       const void **part, iv_error *err) {
    (void)bytes;
    for (size_t r = 0; r < p->f->ranks; r++) part[r] = has[r] ? (char *)at(p->f->peer[r]) + from : NULL;
    return barrier(p, err);
}

const gpu_transport iv_gpu_peer_transport = {.row_parallel = row_parallel,
                                             .reduce = reduce,
                                             .share = share,
                                             .combine = combine_peers,
                                             .logits = logits_in_place,
                                             .barrier = barrier};

/* ---- microsteps ---------------------------------------------------------------------------------------------------
 */

size_t iv_gpu_microsteps(const gpu_pass *p) {
    const iv_gpu_model *g = iv_gpu_rank_of(p)->g;
    size_t n = p->rows / iv_gpu_microstep_rows(g->ranks);
    bool cut = g->ranks > 1 && p->m->config.experts == 0 && !p->f->block && !g->step.adapted && !p->m->terms &&
               g->o.numerics == IV_INVAR; /* baselines cut by rows */
    return !cut || g->step.graph || n < MICROSTEPS ? 1 : MICROSTEPS;
}

gpu_pass iv_gpu_microstep(const gpu_pass *p, size_t microstep) {
    enum { TILE = 128 };
    gpu_pass q = *p;
    size_t tile = p->rows / p->microsteps >= TILE ? TILE : 1,
           end = p->rows * (microstep + 1) / p->microsteps / tile * tile;
    q.microstep = microstep, q.first = p->rows * microstep / p->microsteps / tile * tile;
    q.rows = (microstep + 1 == p->microsteps ? p->rows : end) - q.first;
    return q;
}

iv_status iv_gpu_after_allreduce(const gpu_pass *p, iv_error *err) {
    if (p->microsteps == 1) return IV_OK;
    return iv_gpu_launched(p->f, cudaStreamWaitEvent(p->f->stream, iv_gpu_rank_of(p)->reduced[p->microstep], 0),
                           "wait for an all-reduce", err);
}
