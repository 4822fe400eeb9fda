/* widen.c: the matrices of all linear layers, as a list. */
#include "model/widen.h"

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
        for (size_t e = 0; e < (layer->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1); e++)
            add(l, &layer->experts[e].gate_up), add_nodes(l, layer->experts[e].down);
    }
}

iv_status iv_model_widen(iv_model *m, iv_baseline *baseline, iv_pool *pool, iv_error *err) {
    list l = {0};
    add_all(&l, m);
    l = (list){.at = calloc(l.count, sizeof *l.at)};
    if (!l.at) return iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory");
    add_all(&l, m);
    iv_status status = iv_baseline_widen(baseline, m, l.at, l.count, pool, err);
    free(l.at);
    return status;
}
