#include "model/cuda/processes.h"
#include "base/size.h"
#include "comm/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GATHERED_BYTES = 64 << 20, PIECE_BYTES = 256 /* of which a piece takes a multiple */ };

/* ---- sizes ------------------------------------------------------------------------------------------------- */

size_t iv_gpu_gathered_rows(size_t row_bytes) { return iv_size_max(1, GATHERED_BYTES / row_bytes); }

size_t iv_gpu_gathered_bytes(const iv_model *m) {
    const iv_model_config *c = &m->config;
    size_t floats = IV_LEAVES_MAX, hidden = (size_t)c->hidden_size;
    floats = iv_size_max(floats, m->tp.ranks * (size_t)c->experts_per_token) * hidden;
    floats = iv_size_max(floats, (size_t)c->vocab_size);
    return iv_size_max(GATHERED_BYTES, floats * sizeof(float)) + (size_t)IV_RANKS_MAX * PIECE_BYTES;
}

/* ---- moving ------------------------------------------------------------------------------------------------ */

static int lose(gpu_processes *p, iv_status status) {
    p->status = status;
    return cudaErrorUnknown;
}

static int gather_by_host(gpu_rank *r, const iv_nccl_piece *pieces, size_t count, bool to_first) {
    gpu_processes *p = r->g->processes;
    size_t bytes[IV_RANKS_MAX] = {0}, at[IV_RANKS_MAX] = {0}, me = r->m->rank;
    const void *blocks[IV_RANKS_MAX];
    unsigned char *mine = p->mine[p->turn];
    int code = 0;
    p->turn = 1 - p->turn;
    for (size_t i = 0; i < count && !code; i++) {
        const iv_nccl_piece *piece = &pieces[i];
        if (piece->owner == me)
            code = cudaMemcpyAsync(mine + bytes[me], piece->at, piece->bytes, cudaMemcpyDeviceToHost, r->stream);
        bytes[piece->owner] += piece->bytes;
    }
    if (!code) code = cudaStreamSynchronize(r->stream);
    if (code) return code;
    iv_status status = to_first ? iv_comm_gather(p->comm, mine, bytes, blocks, &p->error)
                                : iv_comm_all_gather(p->comm, mine, bytes, blocks, &p->error);
    if (status != IV_OK) return lose(p, status);
    if (to_first && me != 0) return 0;
    for (size_t i = 0; i < count && !code; i++) { /* from memory that is not pinned: read when the call returns */
        const iv_nccl_piece *piece = &pieces[i];
        const unsigned char *from = (const unsigned char *)blocks[piece->owner] + at[piece->owner];
        at[piece->owner] += piece->bytes;
        if (piece->owner != me)
            code = cudaMemcpyAsync(piece->at, from, piece->bytes, cudaMemcpyHostToDevice, r->stream);
    }
    return code;
}

int iv_gpu_gather(gpu_rank *r, const iv_nccl_piece *pieces, size_t count, bool to_first) {
    return r->nccl ? iv_nccl_move(r->nccl, pieces, count, to_first, r->stream)
                   : gather_by_host(r, pieces, count, to_first);
}

iv_status iv_gpu_least(iv_gpu_model *g, uint64_t *value, iv_error *err) {
    gpu_processes *p = g->processes;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    uint64_t *mine = &p->said[p->turn];
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

/* All ranks see the first word that is not IV_OK; NULL: there is none. The words live until the next call. */
static iv_status exchange(iv_comm *c, const gpu_word *mine, const gpu_word **first_bad, size_t *whose, iv_nccl_id *id,
                          iv_error *err) {
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

static void say(gpu_word *w, iv_status status, const iv_error *e) {
    w->status = (uint64_t)status;
    if (status != IV_OK) snprintf(w->message, sizeof w->message, "%.599s", e->message);
}

static iv_status bad_word(const gpu_word *w, size_t whose, iv_status status, iv_error *err) {
    return iv_fail(err, status, "rank %zu: %.599s", whose, w->message);
}

static iv_status open_staging(gpu_rank *r, iv_error *err) {
    gpu_processes *p = r->g->processes;
    for (size_t i = 0; i < 2; i++)
        IV_TRY(iv_gpu_check(r->gpu,
                            cudaHostAlloc((void **)&p->mine[i], iv_gpu_gathered_bytes(r->m), cudaHostAllocDefault),
                            "memory of the host", err));
    return IV_OK;
}

static iv_status open_way(gpu_rank *r, const iv_nccl_id *id, bool nccl, iv_error *err) {
    int ordinal = iv_gpu_get_info(r->gpu)->ordinal;
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
    IV_TRY(iv_gpu_use(r->gpu, err));
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
    say(first, status, &mine);
    IV_TRY(exchange(comm, first, &bad, &whose, &id, err));
    if (bad && needed) return bad_word(bad, whose, (iv_status)bad->status, err);
    iv_comm_mpi_timeout(comm,
                        2 * CONNECT_TIMEOUTS * g->o.timeout_ms); /* all words come before, if clocks run out too */
    status = open_way(r, &id, !bad, &mine);
    say(second, status, &mine);
    IV_TRY(exchange(comm, second, &bad, &whose, &unused, err));
    return bad ? bad_word(bad, whose, IV_IO, err) : IV_OK;
}

const char *iv_gpu_model_transport(const iv_gpu_model *g) {
    if (g->rank[0].nccl) return "nccl";
    return g->processes ? "host" : g->ranks > 1 ? "peer" : "";
}

/* Nothing is on its way; the other processes may have ended or be lost. */
void iv_gpu_disconnect(iv_gpu_model *g) {
    if (!g->processes) return;
    iv_nccl_abort(g->rank[0].nccl);
    g->rank[0].nccl = NULL;
    cudaFreeHost(g->processes->mine[0]), cudaFreeHost(g->processes->mine[1]);
    free(g->processes);
}
