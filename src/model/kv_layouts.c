/* kv_layouts.c: see kv_layouts.h. */
#include "model/kv_layouts.h"
#include "base/size.h"

iv_status iv_kv_layouts_make(iv_model *m, iv_error *err) {
    const iv_model_config *c = &m->config;
    iv_kv_kind kinds[IV_LAYERS_MAX];
    iv_kv_place places[IV_LAYERS_MAX];
    size_t count = 0, bytes = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        size_t dim = (size_t)iv_config_head_dim(c, l), latent = (size_t)c->kv_rank;
        if (c->layer[l].mixer != IV_MIXER_ATTENTION) continue;
        kinds[count++] = latent ? (iv_kv_kind){c->layer[l].window, latent + (size_t)c->rope_dim, latent, false}
                                : (iv_kv_kind){c->layer[l].window, dim, dim, c->layer[l].wide};
    }
    IV_TRY(iv_kv_groups_make(kinds, count, &m->kv_groups, places, err));
    for (int64_t l = c->layers; l-- > 0;) /* layers with a state have no pages */
        if (c->layer[l].mixer == IV_MIXER_ATTENTION) m->kv_place[l] = places[--count];
    for (size_t g = 0; g < m->kv_groups.count; g++) {
        const iv_kv_kind *k = &m->kv_groups.kind[g];
        size_t heads = iv_tp_shard_of(&m->tp, m->rank, k->wide)->kv_heads;
        iv_kv_layout *to = &m->kv_layout[g];
        bool shared = c->kv_rank > 0, made;
        if (m->memspace)
            made = iv_kv_layout_make_elsewhere(to, m->gemm_type, heads, k->key_dim, k->value_dim, shared);
        else
            made = (shared ? iv_kv_layout_make_shared : iv_kv_layout_make)(to, m->gemm_type, heads, k->key_dim,
                                                                           k->value_dim);
        if (!made) return iv_fail(err, IV_LIMIT, "KV cache: a page is too large");
        bytes = iv_size_max(bytes, m->kv_layout[g].page_bytes);
    }
    for (size_t g = 0; g < m->kv_groups.count; g++) m->kv_layout[g].page_bytes = bytes;
    return IV_OK;
}
