/* processes.c: the transport of ranks that are other processes, each with one GPU. Their partial results are copied
 * here, by NCCL on the stream or through the host and `comm`; then the same kernels as on one process add all of them,
 * from these local copies, as many rows at a time as there is room for. */
#include "model/cuda/processes.h"
#include "base/size.h"
#include "comm/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- moving ------------------------------------------------------------------------------------------------ */

static int lose(gpu_processes *p, iv_status status) {
    p->status = status;
    return cudaErrorUnknown;
}

static int gather_by_host(gpu_rank *r, const iv_nccl_chunk *chunks, size_t count, bool to_first) {
    gpu_processes *p = r->g->processes;
    size_t bytes[IV_RANKS_MAX] = {0}, at[IV_RANKS_MAX] = {0}, me = r->m->rank;
    const void *blocks[IV_RANKS_MAX];
    unsigned char *mine = p->mine[p->turn];
    int code = 0;
    p->turn = 1 - p->turn;
    for (size_t i = 0; i < count && !code; i++) {
        const iv_nccl_chunk *chunk = &chunks[i];
        if (chunk->owner == me)
            code = cudaMemcpyAsync(mine + bytes[me], chunk->at, chunk->bytes, cudaMemcpyDeviceToHost, r->f.stream);
        bytes[chunk->owner] += chunk->bytes;
    }
    if (!code) code = cudaStreamSynchronize(r->f.stream);
    if (code) return code;
    iv_status status = to_first ? iv_comm_gather(p->comm, mine, bytes, blocks, &p->error)
                                : iv_comm_all_gather(p->comm, mine, bytes, blocks, &p->error);
    if (status != IV_OK) return lose(p, status);
    if (to_first && me != 0) return 0;
    for (size_t i = 0; i < count && !code; i++) { /* from memory that is not pinned: read when the call returns */
        const iv_nccl_chunk *chunk = &chunks[i];
        const unsigned char *from = (const unsigned char *)blocks[chunk->owner] + at[chunk->owner];
        at[chunk->owner] += chunk->bytes;
        if (chunk->owner != me)
            code = cudaMemcpyAsync(chunk->at, from, chunk->bytes, cudaMemcpyHostToDevice, r->f.stream);
    }
    return code;
}

static int gather(gpu_rank *r, const iv_nccl_chunk *chunks, size_t count, bool to_first) {
    return r->nccl ? iv_nccl_move(r->nccl, chunks, count, to_first, r->f.stream)
                   : gather_by_host(r, chunks, count, to_first);
}

/* Offset of another process's chunk: after the chunks of lower ranks. */
static void *gathered_at(const gpu_rank *r, size_t *used, size_t bytes) {
    void *at = r->gathered + *used;
    *used += (bytes + GATHERED_PIECE_BYTES - 1) / GATHERED_PIECE_BYTES * GATHERED_PIECE_BYTES;
    return at;
}

static iv_status reduce(const gpu_pass *p, const gpu_row_parallel *l, gpu_node_at node_at, iv_gpu_allreduce_args *all,
                        iv_gpu_stream stream, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    iv_gpu_peers peers = iv_gpu_peers_of(p->f);
    size_t row = all->hidden * sizeof(float), most = iv_gpu_gathered_rows((l->cuts->order.count + 1) * row);
    for (size_t at = 0; at < p->rows; at += most) {
        iv_gpu_allreduce_args a = *all;
        iv_nccl_chunk chunks[IV_LEAVES_MAX];
        size_t n = 0, used = 0;
        a.rows = iv_size_min(most, p->rows - at);
        for (size_t owner = 0; owner < p->m->tp.ranks; owner++)
            for (size_t i = 0; i < l->cuts->of[owner].nodes; i++, n++) {
                float *node = owner == p->m->rank ? node_at(&r->f, l->second, i, a.hidden) + at * a.hidden
                                                  : gathered_at(r, &used, a.rows * row);
                chunks[n] = (iv_nccl_chunk){node, a.rows * row, owner};
                a.node[n] = node;
            }
        IV_TRY(iv_gpu_launched(&r->f, gather(r, chunks, n, false), "nodes of the other ranks", err));
        a.x += at * a.hidden;
        if (a.norm_weight) a.normed[0] = r->f.normed + at * p->stride * iv_dtype_bytes(p->m->gemm_type);
        IV_TRY(iv_gpu_launched(&r->f, iv_gpu_tree_allreduce(&peers, &a, stream), "all-reduce of the ranks", err));
    }
    return IV_OK;
}

static iv_status share(const gpu_pass *p, gpu_shared_at at, size_t from, size_t bytes, const bool *has,
                       const void **part, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    iv_nccl_chunk pieces[IV_RANKS_MAX];
    size_t n = 0, used = 0;
    for (size_t owner = 0; owner < p->m->tp.ranks; owner++) {
        part[owner] = NULL;
        if (!has[owner]) continue;
        void *here = owner == p->m->rank ? (char *)at(p->f) + from : gathered_at(r, &used, bytes);
        part[owner] = here, pieces[n++] = (iv_nccl_chunk){here, bytes, owner};
    }
    return iv_gpu_launched(&r->f, gather(r, pieces, n, false), "int8 sums of the other ranks", err);
}

static iv_status row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    iv_gpu_allreduce_args a = iv_gpu_allreduce_of(p, l);
    IV_TRY(iv_gpu_compute_nodes(p, l, err));
    return reduce(p, l, iv_gpu_node_at, &a, p->f->stream, err);
}

/* All terms of a row are sent, although each rank has computed only some of them. */
static iv_status combine(const gpu_pass *p, const int32_t *ids, float *x, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    const iv_tp_plan *tp = &p->m->tp;
    size_t k = (size_t)p->m->config.experts_per_token, row = k * p->hidden * sizeof(float),
           most = iv_gpu_gathered_rows(tp->ranks * row);
    int32_t firsts[IV_RANKS_MAX + 1];
    iv_gpu_first_experts(p, firsts);
    for (size_t at = 0; at < p->rows; at += most) {
        const float *terms[IV_RANKS_MAX];
        iv_nccl_chunk chunks[IV_RANKS_MAX];
        size_t rows = iv_size_min(most, p->rows - at), used = 0;
        for (size_t i = 0; i < tp->ranks; i++) {
            float *theirs = i == p->m->rank ? r->f.terms + at * k * p->hidden : gathered_at(r, &used, rows * row);
            chunks[i] = (iv_nccl_chunk){theirs, tp->shard[i].experts ? rows * row : 0, i};
            terms[i] = theirs;
        }
        IV_TRY(iv_gpu_launched(&r->f, gather(r, chunks, tp->ranks, false), "terms of the other ranks", err));
        int code =
            iv_gpu_combine(terms, firsts, tp->ranks, ids + at * k, rows, k, p->hidden, x + at * p->hidden, r->f.stream);
        IV_TRY(iv_gpu_launched(&r->f, code, "combination", err));
    }
    return IV_OK;
}

/* Copies n rows of a rank's columns into rank 0's logits. */
static int put_columns(gpu_rank *r, const void *from, size_t rank, size_t at, size_t rows) {
    const iv_tp_shard *shard = &r->m->tp.shard[rank];
    size_t vocab = (size_t)r->m->config.vocab_size, width = shard->vocab * sizeof(float);
    if (width == 0) return 0;
    return cudaMemcpy2DAsync(r->logits + at * vocab + shard->vocab_first, vocab * sizeof(float), from, width, width,
                             rows, cudaMemcpyDeviceToDevice, r->f.stream);
}

static iv_status gather_logits(const gpu_pass *p, size_t n, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    const iv_tp_plan *tp = &p->m->tp;
    size_t most = iv_gpu_gathered_rows((size_t)p->m->config.vocab_size * sizeof(float));
    for (size_t at = 0; at < n; at += most) {
        iv_nccl_chunk chunks[IV_RANKS_MAX];
        size_t rows = iv_size_min(most, n - at), used = 0;
        for (size_t i = 1; i < tp->ranks; i++) {
            size_t columns = tp->shard[i].vocab, bytes = rows * columns * sizeof(float);
            chunks[i - 1] = (iv_nccl_chunk){
                i == p->m->rank ? (void *)(r->logits + at * columns) : gathered_at(r, &used, bytes), bytes, i};
        }
        IV_TRY(iv_gpu_launched(&r->f, gather(r, chunks, tp->ranks - 1, true), "logits of the other ranks", err));
        for (size_t i = 1; i < tp->ranks && p->m->rank == 0; i++)
            IV_TRY(iv_gpu_launched(&r->f, put_columns(r, chunks[i - 1].at, i, at, rows), "columns of logits", err));
    }
    return IV_OK;
}

/* The gather has ordered the ranks. */
static iv_status no_barrier(const gpu_pass *p, iv_error *err) {
    (void)p, (void)err;
    return IV_OK;
}

const gpu_transport iv_gpu_process_transport = {.row_parallel = row_parallel,
                                                .reduce = reduce,
                                                .share = share,
                                                .shared_rows = iv_gpu_gathered_rows,
                                                .combine = combine,
                                                .logits = gather_logits,
                                                .barrier = no_barrier};

iv_status iv_gpu_least(iv_gpu_model *g, uint64_t *value, iv_error *err) {
    gpu_processes *p = g->processes;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    uint64_t *mine = &p->agreement[p->turn];
    *mine = *value, p->turn = 1 - p->turn;
    for (size_t i = 0; i < p->comm->size; i++) bytes[i] = sizeof *mine;
    IV_TRY(iv_comm_all_gather(p->comm, mine, bytes, blocks, err));
    for (size_t i = 0; i < p->comm->size; i++) {
        uint64_t theirs;
        memcpy(&theirs, blocks[i], sizeof theirs);
        if (theirs < *value) *value = theirs;
    }
    return IV_OK;
}

/* ---- connecting -------------------------------------------------------------------------------------------- */

/* All ranks receive the first word that is not IV_OK; NULL: all are. The words are valid until the next call. */
static iv_status gather_words(iv_comm *c, const gpu_word *mine, const gpu_word **first_bad, size_t *whose,
                              iv_nccl_id *id, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    *first_bad = NULL;
    for (size_t i = 0; i < c->size; i++) bytes[i] = sizeof *mine;
    IV_TRY(iv_comm_all_gather(c, mine, bytes, blocks, err));
    *id = ((const gpu_word *)blocks[0])->id;
    for (size_t i = 0; i < c->size && !*first_bad; i++) {
        const gpu_word *w = blocks[i];
        if (w->status != IV_OK) *first_bad = w, *whose = i;
    }
    return IV_OK;
}

static void set_word(gpu_word *w, iv_status status, const iv_error *e) {
    w->status = (uint64_t)status;
    if (status != IV_OK) snprintf(w->message, sizeof w->message, "%.599s", e->message);
}

static iv_status bad_word(const gpu_word *w, size_t whose, iv_status status, iv_error *err) {
    return iv_fail(err, status, "rank %zu: %.599s", whose, w->message);
}

static iv_status open_staging(gpu_rank *r, iv_error *err) {
    gpu_processes *p = r->g->processes;
    for (size_t i = 0; i < 2; i++)
        IV_TRY(iv_gpu_check(r->f.gpu,
                            cudaHostAlloc((void **)&p->mine[i], iv_gpu_gathered_bytes(r->m), cudaHostAllocDefault),
                            "memory of the host", err));
    return IV_OK;
}

static iv_status open_way(gpu_rank *r, const iv_nccl_id *id, bool nccl, iv_error *err) {
    int ordinal = iv_gpu_get_info(r->f.gpu)->ordinal;
    if (!nccl) {
        r->g->o.graphs = false; /* the host takes part in every layer */
        return open_staging(r, err);
    }
    return iv_nccl_open(id, r->m->tp.ranks, r->m->rank, 1, &ordinal, CONNECT_TIMEOUTS * r->g->o.timeout_ms, &r->nccl,
                        err);
}

iv_status iv_gpu_model_connect(iv_gpu_model *g, iv_comm *comm, const char *transport, iv_error *err) {
    gpu_rank *r = &g->rank[0];
    const gpu_word *bad;
    size_t whose = 0;
    iv_nccl_id id, unused;
    iv_error mine;
    bool host = strcmp(transport, "host") == 0,
         needed = g->o.numerics == IV_VANILLA_BLAS || strcmp(transport, "nccl") == 0;
    IV_TRY(iv_gpu_use(r->f.gpu, err));
    g->processes = calloc(1, sizeof *g->processes);
    if (!g->processes) return iv_fail(err, IV_NO_MEMORY, "ranks: no memory");
    g->processes->comm = comm;
    gpu_word *first = &g->processes->words[0], *second = &g->processes->words[1];
    iv_status status = host ? iv_fail(&mine, IV_NOT_FOUND,
                                      "rank_transport: wanted nccl or auto for numerics vanilla-blas on several GPUs, "
                                      "found host")
                            : iv_nccl_make_id(g->o.numerics == IV_VANILLA_BLAS ? "numerics vanilla-blas on several GPUs"
                                                                               : "rank_transport nccl",
                                              &first->id, &mine);
    set_word(first, status, &mine);
    IV_TRY(gather_words(comm, first, &bad, &whose, &id, err));
    if (bad && needed) return bad_word(bad, whose, (iv_status)bad->status, err);
    iv_comm_mpi_timeout(comm,
                        2 * CONNECT_TIMEOUTS * g->o.timeout_ms); /* all words come before, if clocks run out too */
    status = open_way(r, &id, !bad, &mine);
    set_word(second, status, &mine);
    IV_TRY(gather_words(comm, second, &bad, &whose, &unused, err));
    return bad ? bad_word(bad, whose, IV_IO, err) : IV_OK;
}

const char *iv_gpu_model_transport(const iv_gpu_model *g) {
    if (g->rank[0].nccl) return "nccl";
    return g->processes ? "host" : g->ranks > 1 ? "peer" : "";
}

/* Nothing is in flight; the other processes may have ended or be lost. */
void iv_gpu_disconnect(iv_gpu_model *g) {
    if (!g->processes) return;
    iv_nccl_abort(g->rank[0].nccl);
    g->rank[0].nccl = NULL;
    cudaFreeHost(g->processes->mine[0]), cudaFreeHost(g->processes->mine[1]);
    free(g->processes);
}
