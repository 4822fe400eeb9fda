/* learner_ranks.c: what the tensor-parallel ranks of a learner exchange, over NVLink: nodes of sums over outputs,
 * shares of the predictions, and how each of them fares. The order of the additions is that of one rank.
 *
 * Buffers that other ranks read are written again only after an all-reduce or a barrier that came later. */
#include "base/size.h"
#include "model/cuda/learner_state.h"

#include <string.h>

enum { TIMEOUT_MS = 60000 };

iv_status iv_gpu_learner_join(iv_learner *const *learners, size_t ranks, iv_comm *const *comm, iv_error *err) {
    gpu_learner *of[IV_RANKS_MAX];
    for (size_t r = 0; r < ranks; r++) of[r] = (gpu_learner *)(void *)learners[r];
    for (size_t r = 0; r < ranks; r++) {
        gpu_learner *l = of[r];
        iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
        IV_ASSERT(l->f.ranks == ranks && l->f.rank == r);
        l->comm = comm[r];
        memcpy(l->peer, of, sizeof of);
        l->f.flags = memspace->alloc(memspace, IV_GPU_FLAG_WORDS * sizeof *l->f.flags);
        l->f.timeouts = r ? of[0]->f.timeouts : memspace->stage(memspace, sizeof *l->f.timeouts);
        l->f.timeout_ns = (uint64_t)TIMEOUT_MS * 1000000u;
        for (size_t i = 0; i < ranks; i++) l->f.peer[i] = &of[i]->f;
        if (!l->f.flags || !l->f.timeouts)
            return iv_gpu_no_memory(&l->f, "the flags of ranks", IV_GPU_FLAG_WORDS * sizeof *l->f.flags, err);
        if (r == 0) memset(l->f.timeouts, 0, sizeof *l->f.timeouts);
    }
    return IV_OK;
}

iv_status iv_gpu_learner_agree(gpu_learner *l, iv_status status, uint64_t *bad, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    if (l->f.ranks == 1) return status;
    gpu_agreement *mine = &l->agreement[l->agreeing];
    l->agreeing = 1 - l->agreeing;
    mine->status = status, mine->bad = *bad;
    if (status != IV_OK && err) mine->error = *err;
    for (size_t r = 0; r < l->f.ranks; r++) bytes[r] = sizeof *mine;
    IV_TRY(iv_comm_all_gather(l->comm, mine, bytes, parts, err));
    for (size_t r = 0; r < l->f.ranks; r++) {
        const gpu_agreement *s = parts[r];
        if (s->bad < *bad) *bad = s->bad;
        if (status == IV_OK && s->status != IV_OK)
            status = iv_fail(err, s->status, "rank %zu: %s", r, s->error.message);
    }
    return status;
}

iv_status iv_gpu_learner_check_peers(const gpu_learner *l, iv_error *err) {
    const volatile iv_gpu_timeouts *g = l->f.ranks > 1 ? l->f.timeouts : NULL;
    for (size_t r = 0; g && g->any && r < l->f.ranks; r++)
        if (g->rank[r])
            return iv_fail(err, IV_IO, "tensor-parallel rank %zu: timed out after %d ms waiting for rank %u", r,
                           TIMEOUT_MS, iv_gpu_awaited_of(g->rank[r]).rank);
    return IV_OK;
}

/* ---- all-reduce -------------------------------------------------------------------------------------------------- */

/* n values of another rank, by a kernel: copies between GPUs may wait for both of them to be idle. */
static iv_status take(gpu_learner *l, const float *from, size_t n, float *to, const char *what, iv_error *err) {
    return iv_gpu_launched(&l->f, iv_gpu_sum_rows(&from, 1, n, to, l->f.stream), what, err);
}

void iv_gpu_learner_divide(const gpu_learner *l, size_t n, size_t rank, size_t *first, size_t *count) {
    size_t blocks = n / IV_CHAIN_STEP, from = blocks * rank / l->f.ranks, to = blocks * (rank + 1) / l->f.ranks;
    *first = from * IV_CHAIN_STEP, *count = (to - from) * IV_CHAIN_STEP;
}

/* The same buffer of another rank. */
static const float *of_peer(const gpu_learner *l, const gpu_learner *p, const float *x) {
    if (x == l->dnormed) return p->dnormed;
    if (x == l->shared_dx) return p->shared_dx;
    if (x == l->tape.x_end) return p->tape.x_end;
    if (x == l->f.wide) return p->f.wide;
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        if (x == l->tape.layers[i].x) return p->tape.layers[i].x;
        if (x == l->tape.layers[i].x_mlp) return p->tape.layers[i].x_mlp;
        for (size_t k = 0; k < 2; k++)
            if (x == l->tape.layers[i].block_y[k]) return p->tape.layers[i].block_y[k];
    }
    IV_ASSERT(!"a buffer of all-reduces");
    return NULL;
}

/* Rows that the others reduced. At the end all ranks have read. */
static iv_status take_rows(gpu_learner *l, float *x, iv_error *err) {
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    for (size_t i = 1; i < l->f.ranks; i++) {
        size_t r = (l->f.rank + i) % l->f.ranks, first, n;
        iv_gpu_learner_divide(l, l->n.rows, r, &first, &n);
        IV_TRY(
            take(l, of_peer(l, l->peer[r], x) + first * l->h, n * l->h, x + first * l->h, "rows of other ranks", err));
    }
    return l->f.transport.barrier(&l->pass, err);
}

/* Many rows: each rank reduces its share, then all take the others'. */
iv_status iv_gpu_learner_all_reduce(gpu_learner *l, const iv_tree_order *order, const size_t *nodes, const float *bias,
                                    float *x, iv_error *err) {
    enum { BLOCKS = 256 };
    size_t first = 0, rows = l->n.rows, least = rows / IV_CHAIN_STEP / l->f.ranks * IV_CHAIN_STEP, n = 0;
    bool shared = least > 0 && rows * l->h * sizeof *x * (l->f.ranks - 1) >= iv_gpu_learner_shared_bytes();
    if (shared) iv_gpu_learner_divide(l, l->n.rows, l->f.rank, &first, &rows);
    iv_gpu_peers p = iv_gpu_peers_of(&l->f);
    iv_gpu_allreduce_args a = {.arithmetic = l->f.arithmetic,
                               .rows = rows,
                               .hidden = l->h,
                               .order = *order,
                               .bias = bias,
                               .x = x + first * l->h,
                               .type = l->m->gemm_type,
                               .whole = true,
                               .blocks = shared ? iv_size_min(least, BLOCKS) : 0};
    for (size_t r = 0; r < l->f.ranks; r++)
        for (size_t i = 0; i < nodes[r]; i++)
            a.node[n++] = iv_gpu_node_at(l->f.peer[r], l->turn, i, l->h) + first * l->h;
    l->turn = !l->turn;
    int code = iv_gpu_tree_allreduce(&p, &a, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "all-reduce of the ranks", err));
    return shared ? take_rows(l, x, err) : IV_OK;
}

/* A row-parallel layer: this rank's nodes, then the all-reduce. */
static iv_status row_parallel(const gpu_pass *p, const gpu_row_parallel *layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of_pass(p);
    gpu_row_parallel buffered = *layer;
    size_t nodes[IV_RANKS_MAX];
    buffered.second = l->turn;
    IV_TRY(iv_gpu_move_stream(p, layer->to, err));
    IV_TRY(iv_gpu_compute_nodes(p, &buffered, err));
    for (size_t r = 0; r < l->f.ranks; r++) nodes[r] = layer->cuts->of[r].nodes;
    IV_TRY(iv_gpu_learner_all_reduce(l, &layer->cuts->order, nodes, layer->bias, l->f.x, err));
    return iv_gpu_norm_rows(p, layer->norm, err);
}

gpu_transport iv_gpu_learner_transport(const gpu_learner *l) {
    gpu_transport t = iv_gpu_peer_transport;
    t.row_parallel = row_parallel;
    return l->f.ranks > 1 ? t : iv_gpu_single;
}

/* ---- predictions ------------------------------------------------------------------------------------------------- */

iv_status iv_gpu_learner_share_predictions(gpu_learner *l, iv_error *err) {
    if (l->f.ranks == 1) return IV_OK;
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    for (size_t r = 0; r < l->f.ranks; r++) {
        const gpu_learner *p = l->peer[r];
        float *const to[] = {l->max, l->sum, l->logprobs}, *const from[] = {p->max, p->sum, p->logprobs};
        size_t first, n;
        iv_gpu_learner_divide(l, l->n.picks, r, &first, &n);
        for (size_t i = 0; r != l->f.rank && n && i < 3; i++)
            IV_TRY(take(l, from[i] + first, n, to[i] + first, "predictions of other ranks", err));
    }
    return IV_OK;
}

/* ---- the head
 * --------------------------------------------------------------------------------------------------------- */

/* From the ranks that hold its rows. */
static iv_status copy_head(gpu_learner *l, iv_error *err) {
    size_t row = l->h_stride * l->width;
    for (const iv_tensor_slice *s = iv_gpu_learner_head_tensor(l)->slices; s; s = s->next) {
        const iv_matrix *m = s->matrix;
        if (s->begin == s->end) continue;
        IV_ASSERT(m->panel_bytes == row && !m->paired);
        const void *from = m->data + s->first * row;
        void *to = l->whole_head + s->begin * row;
        IV_TRY(take(l, from, (s->end - s->begin) * row / sizeof(float), to, "head", err));
    }
    return IV_OK;
}

/* A kernel may read weights before earlier kernels end (launch.cuh), but not before a memset does, with which the
 * forward pass begins. */
iv_status iv_gpu_learner_copy_shared(gpu_learner *l, iv_error *err) {
    IV_TRY(copy_head(l, err));
    for (size_t i = 0; l->f.rank > 0 && i < (size_t)l->m->config.layers; i++) {
        const iv_matrix *from = &l->tensor_owner->layers[i].router;
        const float *data = (const float *)(const void *)from->data;
        float *to = (float *)(void *)l->f.routers[i].data;
        if (!to) continue;
        IV_TRY(take(l, data, from->n * from->panel_bytes / sizeof *data, to, "router", err));
    }
    l->has_copies = true;
    return IV_OK;
}

/* This rank's part of the head begins with a whole leaf. Rank 0 has the embedding and the routers. */
void iv_gpu_learner_place_shared(gpu_learner *l) {
    size_t leaf = iv_padded_k(iv_gpu_learner_head_tensor(l)->rows) / l->leaves.head / l->f.ranks;
    size_t router = iv_padded_k(l->router_outputs) * l->h_stride * l->width;
    if (l->f.ranks > 1) l->head.weights = l->whole_head + l->f.rank * l->leaves.head * leaf * l->h_stride * l->width;
    l->f.embedding = l->tensor_owner->embedding;
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        if (l->m->layers[i].config->mlp != IV_MLP_EXPERTS) continue;
        l->f.routers[i] = l->tensor_owner->layers[i].router;
        if (l->f.rank > 0) l->f.routers[i].data = l->router_data + i * router;
    }
}

iv_matrix iv_gpu_learner_head_matrix(const gpu_learner *l) {
    if (l->f.ranks == 1) return l->m->head;
    return (iv_matrix){.format = iv_weight_plain(l->m->gemm_type),
                       .type = l->m->gemm_type,
                       .n = (size_t)l->m->config.vocab_size,
                       .k = l->h,
                       .k_padded = l->h_stride,
                       .leaves = iv_leaf_count(l->h_stride, IV_SUM_WHOLE),
                       .panel_bytes = l->h_stride * l->width,
                       .data = l->whole_head};
}

iv_status iv_gpu_learner_join_leaf(gpu_learner *l, float **nodes, size_t leaf, size_t n, iv_error *err) {
    size_t leaves = l->head.leaves, level = 0;
    for (; leaf >> level & 1; level++) {
        bool root = l->f.ranks == 1 && leaf + 1 == leaves && (size_t)2 << level == leaves;
        int code = l->n.picks ? iv_gpu_add_nodes(l->f.arithmetic, nodes[1 + level], nodes[0], l->n.picks * n, root,
                                                 l->f.stream)
                              : 0;
        IV_TRY(iv_gpu_launched(&l->f, code, "sum of the vocabulary's leaves", err));
    }
    if (leaf + 1 == leaves) return IV_OK;
    float *t = nodes[1 + level];
    nodes[1 + level] = nodes[0], nodes[0] = t;
    return IV_OK;
}

iv_status iv_gpu_learner_add_ranks(gpu_learner *l, gpu_node_at at, size_t columns, float *const *nodes, float **node,
                                   iv_error *err) {
    size_t n = l->n.picks * columns, bytes = n * sizeof(float);
    bool turn = l->turn;
    if (l->f.ranks == 1) return IV_OK;
    l->turn = !turn;
    int code = (int)cudaMemcpyAsync(at(&l->f, turn, 0, columns), *node, bytes, cudaMemcpyDeviceToDevice, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "nodes of the vocabulary", err));
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    float *waiting[4] = {nodes[1], nodes[2], nodes[3], NULL}, *acc = nodes[0];
    for (size_t r = 0; bytes && r < l->f.ranks; r++) {
        IV_TRY(take(l, at(l->f.peer[r], turn, 0, columns), n, acc, "nodes of the vocabulary", err));
        size_t level = 0;
        for (; r >> level & 1; level++) {
            bool root = r + 1 == l->f.ranks && (size_t)2 << level == l->f.ranks;
            code = iv_gpu_add_nodes(l->f.arithmetic, waiting[level], acc, n, root, l->f.stream);
            IV_TRY(iv_gpu_launched(&l->f, code, "sum of the vocabulary's leaves", err));
        }
        if (r + 1 == l->f.ranks) break;
        float *t = waiting[level];
        waiting[level] = acc, acc = t;
    }
    *node = acc;
    return IV_OK;
}

/* ---- the rest
 * --------------------------------------------------------------------------------------------------------- */

iv_status iv_gpu_learner_add_terms(gpu_learner *l, size_t n, iv_error *err) {
    const float *from[IV_RANKS_MAX];
    if (l->f.ranks == 1) return IV_OK;
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    if (l->f.rank > 0) return IV_OK;
    for (size_t r = 0; r < l->f.ranks; r++) from[r] = l->peer[r]->head_terms;
    return iv_gpu_launched(&l->f, iv_gpu_sum_rows(from, l->f.ranks, l->n.rows * n, l->head_terms, l->f.stream),
                           "gradient of head norms", err);
}

iv_status iv_gpu_learner_add_gates(gpu_learner *l, iv_error *err) {
    const float *from[IV_RANKS_MAX];
    IV_TRY(l->f.transport.barrier(&l->pass, err));
    for (size_t r = 0; r < l->f.ranks; r++) from[r] = l->peer[r]->dz_part;
    int code = iv_gpu_sum_rows(from, l->f.ranks, l->n.rows, l->dz, l->f.stream);
    return iv_gpu_launched(&l->f, code, "gradient of a gate", err);
}

/* ---- buckets ------------------------------------------------------------------------------------------- */

void iv_gpu_learner_begin_bucket(gpu_learner *l, iv_gradient_bucket bucket) {
    if (l->step->bucket) l->sums.sum = (float *)((uintptr_t)l->step->sums.sum - bucket.begin * sizeof *l->sums.sum);
}

iv_status iv_gpu_learner_end_bucket(gpu_learner *l, iv_gradient_bucket bucket, iv_error *err) {
    if (!l->step->bucket) return IV_OK;
    IV_TRY(iv_gpu_launched(&l->f, cudaStreamSynchronize(l->f.stream), "backward pass", err));
    IV_TRY(iv_gpu_learner_check_peers(l, err));
    return l->step->bucket(l->step->context, bucket.begin, bucket.end, err);
}
