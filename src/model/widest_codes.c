/* widest_codes.c: the largest matrix of codes, which decides how much memory one takes as plain rows.
 * int8 products read theirs as they are. */
#include "base/size.h"
#include "model/model.h"

static size_t plain_bytes(const iv_matrix *w) {
    return iv_weight_is_plain(w->format) || w->terms ? 0 : w->n * w->k_padded * iv_dtype_bytes(w->type);
}

static size_t widest_of(const iv_matrix *matrix, const iv_matrix *nodes) {
    size_t widest = plain_bytes(matrix);
    for (size_t i = 0; i < IV_RANK_NODES_MAX; i++) widest = iv_size_max(widest, plain_bytes(&nodes[i]));
    return widest;
}

size_t iv_model_widest_codes(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    size_t widest = plain_bytes(&m->head);
    for (size_t i = 0; m->layers && i < (size_t)m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        bool moe = l->config->mlp == IV_MLP_EXPERTS;
        const iv_mlp *mlp = moe ? &l->experts[s->expert_first] : l->experts;
        widest = iv_size_max(widest, widest_of(&l->qkv, l->out));
        widest = iv_size_max(widest, widest_of(&l->shared.gate_up, l->shared.down));
        if (!moe || s->experts > 0) widest = iv_size_max(widest, widest_of(&mlp->gate_up, mlp->down));
    }
    return widest;
}
