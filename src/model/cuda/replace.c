/* replace.c: new weights for a model on GPUs. A whole new model was read, checked and hashed in this process's memory
 * and is copied between two steps. Addresses on the GPUs stay; captured graphs are dropped, as they hold numbers of the
 * configuration. */
#include "base/size.h"
#include "model/cuda/run.h"
#include "model/tensors.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 32 * 1024 * 1024 };

/* One copy: the chunks of all ranks, numbered consecutively. */
typedef struct copying {
    const iv_gpu_model *g;
    const iv_model *first;
    pthread_mutex_t lock; /* of the error */
    iv_error error;
    iv_status status;
} copying;

static size_t chunks_of(const iv_model *m) { return (m->data_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES; }

static void copy_task(void *context, size_t index, size_t worker) {
    (void)worker;
    copying *c = context;
    const iv_model *m = c->first;
    size_t rank = 0;
    for (; index >= chunks_of(m); m = m->next, rank++) index -= chunks_of(m);
    const gpu_rank *r = &c->g->rank[rank];
    iv_memspace *memspace = r->m->memspace;
    iv_error err;
    size_t at = index * CHUNK_BYTES, bytes = iv_size_min(CHUNK_BYTES, m->data_bytes - at);
    iv_status status = memspace->write(memspace, r->m->data + at, bytes, m->data + at, bytes, bytes, 1, &err);
    if (status == IV_OK) return;
    pthread_mutex_lock(&c->lock);
    c->status = status, c->error = err;
    pthread_mutex_unlock(&c->lock);
}

static iv_status copy_all(const iv_gpu_model *g, const iv_model *first, iv_pool *pool, iv_error *err) {
    copying c = {.g = g, .first = first};
    size_t chunks = 0;
    for (const iv_model *m = first; m; m = m->next) chunks += chunks_of(m);
    pthread_mutex_init(&c.lock, NULL);
    iv_pool_run(pool, chunks, copy_task, &c);
    pthread_mutex_destroy(&c.lock);
    if (c.status != IV_OK) *err = c.error;
    return c.status;
}

static iv_status check_shape(iv_gpu_model *g, iv_model *first, iv_error *err) {
    iv_model *m = first;
    for (size_t r = 0; r < g->ranks; r++, m = m->next) {
        gpu_rank like = g->rank[r], *rank = &g->rank[r];
        like.m = m;
        like.f.layers = calloc((size_t)m->config.layers, sizeof *like.f.layers);
        size_t vectors = like.f.layers ? iv_gpu_vector_bytes(&like) : 0;
        free(like.f.layers);
        if (m->data_bytes != rank->m->data_bytes || vectors != rank->vector_bytes)
            return iv_fail(err, IV_LIMIT, "weights of rank %zu: wanted %zu and %zu bytes as in use, found %zu and %zu",
                           r, rank->m->data_bytes, rank->vector_bytes, m->data_bytes, vectors);
    }
    IV_ASSERT(!m);
    return IV_OK;
}

/* Each rank's two models swap memory; `first` becomes the one in use. Returns the old one. */
static iv_model *swap_models(iv_gpu_model *g, iv_model *first) {
    iv_model *old = g->rank[0].m, *m = first;
    for (size_t r = 0; r < g->ranks; r++, m = m->next) {
        iv_model *was = g->rank[r].m;
        unsigned char *data = was->data;
        iv_memspace *memspace = was->memspace;
        was->data = m->data, was->memspace = m->memspace;
        m->data = data, m->memspace = memspace;
        iv_tensors_bind(was, old), iv_tensors_bind(m, first);
        g->rank[r].m = m;
    }
    return old;
}

/* Everything that is not in the ranks' own matrices. */
static iv_status write_rest(iv_gpu_model *g, bool drop_graphs, iv_error *err) {
    for (size_t i = 0; i < g->ranks; i++) {
        gpu_rank *r = &g->rank[i];
        IV_TRY(iv_gpu_use(r->f.gpu, err));
        if (drop_graphs) iv_gpu_forget_graphs(r);
        IV_TRY(iv_gpu_write_vectors(r, err));
        IV_TRY(iv_gpu_copy_shared(r, err));
    }
    return IV_OK;
}

iv_status iv_gpu_model_refresh(iv_gpu_model *g, iv_error *err) {
    IV_TRY(iv_gpu_aborted(g, err));
    bool numbers = g->rank[0].m->config.layer[0].activation.kind == IV_ACTIVATION_XIELU; /* graphs hold them */
    iv_status status = write_rest(g, numbers, err);
    if (status != IV_OK) iv_gpu_abort(g, err);
    return status;
}

iv_status iv_gpu_model_replace(iv_gpu_model *g, iv_model *first, iv_pool *pool, iv_error *err) {
    IV_TRY(iv_gpu_aborted(g, err));
    IV_TRY(check_shape(g, first, err));
    iv_status status = copy_all(g, first, pool, err);
    if (status == IV_OK) {
        iv_model *old = swap_models(g, first);
        status = write_rest(g, true, err);
        if (status != IV_OK) swap_models(g, old);
    }
    if (status != IV_OK) iv_gpu_abort(g, err);
    return status;
}

void *iv_gpu_model_kv(const iv_gpu_model *g, size_t rank, size_t *bytes) {
    const gpu_rank *r = &g->rank[rank];
    *bytes = r->f.kv_layer_bytes * r->m->kv_groups.planes;
    return r->f.kv;
}

static iv_status clear_kv(iv_gpu_model *g, size_t rank, iv_error *err) {
    const gpu_rank *r = &g->rank[rank];
    size_t bytes;
    void *kv = iv_gpu_model_kv(g, rank, &bytes);
    IV_TRY(iv_gpu_use(r->f.gpu, err));
    IV_TRY(iv_gpu_check(r->f.gpu, cudaMemsetAsync(kv, 0, bytes, r->f.stream), "keys and values", err));
    return iv_gpu_check(r->f.gpu, cudaStreamSynchronize(r->f.stream), "keys and values", err);
}

iv_status iv_gpu_model_clear_kv(iv_gpu_model *g, iv_error *err) {
    iv_status status = iv_gpu_aborted(g, err);
    if (status != IV_OK) return status;
    for (size_t i = 0; status == IV_OK && i < g->ranks; i++) status = clear_kv(g, i, err);
    if (status != IV_OK) iv_gpu_abort(g, err);
    return status;
}
