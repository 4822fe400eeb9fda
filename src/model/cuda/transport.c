/* transport.c: one GPU, and GPUs of one process that reach each other's memory.
 *
 * Nodes stay where they were computed; the all-reduce reads them from its peers and makes the additions of the tree.
 * The rows of a long step of several ranks are cut into parts: the all-reduces of one part, whose traffic takes as long
 * as the layers, run on a second stream next to the layers of the other parts, on multiprocessors that these leave
 * free. Rows depend on one another only in attention, which waits for all parts. All-reduces keep their order, so node
 * buffers are free for reuse exactly as without parts. */
#include "base/size.h"
#include "model/cuda/pass.h"

static iv_status nothing(const gpu_pass *p, iv_error *err) {
    (void)p, (void)err;
    return IV_OK;
}

static iv_status logits_in_place(const gpu_pass *p, size_t n, iv_error *err) {
    (void)p, (void)n, (void)err;
    return IV_OK;
}

/* ---- one GPU ----------------------------------------------------------------------------------------------- */

/* The one node is the root: its epilogue adds bias and residual. */
static iv_status add_whole_layer(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    iv_gpu_linear_args a;
    IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
    a.epilogue = IV_GPU_RESIDUAL, a.bias = l->bias;
    a.out = p->r->x + p->first * p->hidden, a.out_stride = p->hidden;
    IV_TRY(iv_gpu_launched(p->r, p->r->linear(p->r, &a), "row-parallel layer", err));
    return l->norm ? iv_gpu_norm_rows(p, l->norm, err) : IV_OK;
}

static iv_status combine_terms(const gpu_pass *p, const int32_t *ids, iv_error *err) {
    gpu_rank *r = p->r;
    const float *terms[IV_RANKS_MAX];
    int32_t firsts[IV_RANKS_MAX + 1];
    iv_gpu_first_experts(p, firsts);
    for (size_t i = 0; i < r->g->ranks; i++) terms[i] = r->g->rank[i].terms;
    int code = iv_gpu_combine(terms, firsts, r->g->ranks, ids, p->rows, (size_t)p->m->config.experts_per_token,
                              p->hidden, r->x, r->stream);
    return iv_gpu_launched(r, code, "combination", err);
}

const gpu_transport iv_gpu_single = {
    .row_parallel = add_whole_layer, .combine = combine_terms, .logits = logits_in_place, .barrier = nothing};

/* ---- GPUs of one process ------------------------------------------------------------------------------------- */

static iv_status barrier(const gpu_pass *p, iv_error *err) {
    iv_gpu_peers peers = iv_gpu_peers_of(p->r);
    return iv_gpu_launched(p->r, iv_gpu_barrier(&peers, p->r->stream), "barrier of the ranks", err);
}

static iv_status allreduce(const gpu_pass *p, const gpu_row_parallel *l, iv_gpu_stream stream, iv_error *err) {
    const iv_gpu_model *g = p->r->g;
    iv_gpu_peers peers = iv_gpu_peers_of(p->r);
    iv_gpu_allreduce_args a = iv_gpu_allreduce_of(p, l);
    size_t n = 0;
    for (size_t r = 0; r < g->ranks; r++)
        for (size_t i = 0; i < l->cuts->of[r].nodes; i++)
            a.node[n++] = iv_gpu_node_at(&g->rank[r], l->second, i, p->hidden) + p->first * p->hidden;
    return iv_gpu_launched(p->r, iv_gpu_tree_allreduce(&peers, &a, stream), "all-reduce of the ranks", err);
}

static iv_status row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_rank *r = p->r;
    IV_TRY(iv_gpu_compute_nodes(p, l, err));
    if (p->parts == 1) return allreduce(p, l, r->stream, err);
    IV_TRY(iv_gpu_launched(r, cudaEventRecord(r->computed[p->part], r->stream), "start of an all-reduce", err));
    IV_TRY(iv_gpu_launched(r, cudaStreamWaitEvent(r->reduce_stream, r->computed[p->part], 0), "start of an all-reduce",
                           err));
    IV_TRY(allreduce(p, l, r->reduce_stream, err));
    return iv_gpu_launched(r, cudaEventRecord(r->reduced[p->part], r->reduce_stream), "end of an all-reduce", err);
}

static iv_status combine_peers(const gpu_pass *p, const int32_t *ids, iv_error *err) {
    IV_TRY(barrier(p, err));
    return combine_terms(p, ids, err);
}

const gpu_transport iv_gpu_peer_transport = {
    .row_parallel = row_parallel, .combine = combine_peers, .logits = logits_in_place, .barrier = barrier};

/* ---- parts --------------------------------------------------------------------------------------------------- */

size_t iv_gpu_part_count(const gpu_pass *p) {
    const iv_gpu_model *g = p->r->g;
    size_t n = p->rows / iv_gpu_part_rows(g->ranks);
    bool parted = g->ranks > 1 && p->m->config.experts == 0 && g->o.numerics == IV_INVAR; /* baselines cut by rows */
    return !parted || p->s->graph || n < PARTS ? 1 : PARTS;
}

gpu_pass iv_gpu_part_of(const gpu_pass *p, size_t part) {
    enum { TILE = 128 };
    gpu_pass q = *p;
    size_t tile = p->rows / p->parts >= TILE ? TILE : 1, end = p->rows * (part + 1) / p->parts / tile * tile;
    q.part = part, q.first = p->rows * part / p->parts / tile * tile;
    q.rows = (part + 1 == p->parts ? p->rows : end) - q.first;
    return q;
}

iv_status iv_gpu_after_allreduce(const gpu_pass *p, iv_error *err) {
    if (p->parts == 1) return IV_OK;
    return iv_gpu_launched(p->r, cudaStreamWaitEvent(p->r->stream, p->r->reduced[p->part], 0), "wait for an all-reduce",
                           err);
}
