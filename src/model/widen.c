/* widen.c: sizes first, then one block of memory, then the rows in parallel. */
#include "model/widen.h"
#include "base/size.h"
#include "device/memory.h"

#include <limits.h>
#include <stdlib.h>

typedef struct list {
    iv_matrix **at; /* NULL: only count */
    size_t count;
} list;

static void add(list *l, iv_matrix *m) {
    if (m->n == 0) return;
    if (l->at) l->at[l->count] = m;
    l->count++;
}

static void add_nodes(list *l, iv_matrix *nodes) {
    for (size_t i = 0; i < IV_RANK_NODES_MAX; i++) add(l, &nodes[i]);
}

/* Every matrix of a linear layer, of all ranks here: not the embedding, whose rows are only looked up. */
static void add_all(list *l, iv_model *m) {
    add(l, &m->head);
    if (m->next) add_all(l, m->next);
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        iv_layer *layer = &m->layers[i];
        add(l, &layer->qkv), add_nodes(l, layer->out), add(l, &layer->router);
        for (size_t e = 0; e < (layer->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1); e++)
            add(l, &layer->experts[e].gate_up), add_nodes(l, layer->experts[e].down);
    }
}

static void widen_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const iv_matrix *m = context;
    iv_matrix_row(m, row, m->widened + row * m->k);
}

static iv_status size_of(const list *l, size_t *total, iv_error *err) {
    *total = 0;
    for (size_t i = 0; i < l->count; i++) {
        size_t bytes;
        const iv_matrix *m = l->at[i];
        if (m->n > INT_MAX || m->k > INT_MAX || !iv_size_mul(m->n, m->k, &bytes) ||
            !iv_size_mul(bytes, sizeof(float), &bytes) || !iv_size_round_up(bytes, 64, &bytes) ||
            !iv_size_add(*total, bytes, total))
            return iv_fail(err, IV_LIMIT, "vanilla-blas: a matrix of %zu by %zu is too large for a BLAS", m->n, m->k);
    }
    return IV_OK;
}

iv_status iv_model_widen(iv_model *m, iv_pool *pool, iv_error *err) {
    list l = {0};
    IV_ASSERT(!m->widened);
    add_all(&l, m);
    l = (list){.at = calloc(l.count, sizeof *l.at)};
    if (!l.at) return iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory");
    add_all(&l, m);
    iv_status status = size_of(&l, &m->widened_bytes, err);
    if (status == IV_OK && !(m->widened = iv_memory_alloc(m->widened_bytes)))
        status =
            iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory for %zu bytes of widened weights", m->widened_bytes);
    unsigned char *at = m->widened;
    for (size_t i = 0; status == IV_OK && i < l.count; i++) {
        iv_matrix *w = l.at[i];
        w->widened = (float *)(void *)at;
        iv_pool_run(pool, w->n, widen_row, w);
        at += (w->n * w->k * sizeof(float) + 63) / 64 * 64;
    }
    free(l.at);
    return status;
}
