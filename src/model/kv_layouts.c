/* kv_layouts.c: see kv_layouts.h. */
#include "model/kv_layouts.h"
#include "base/size.h"

iv_status iv_kv_layouts_make(iv_model *m, iv_error *err) {
    const iv_model_config *c = &m->config;
    iv_kv_kind kinds[IV_LAYERS_MAX];
    size_t bytes = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        size_t dim = (size_t)iv_config_head_dim(c, l);
        kinds[l] = (iv_kv_kind){c->layer[l].window, dim, dim, c->layer[l].wide};
    }
    IV_TRY(iv_kv_groups_make(kinds, (size_t)c->layers, &m->kv_groups, m->kv_place, err));
    for (size_t g = 0; g < m->kv_groups.count; g++) {
        const iv_kv_kind *k = &m->kv_groups.kind[g];
        size_t heads = iv_tp_shard_of(&m->tp, m->rank, k->wide)->kv_heads;
        if (!(m->memspace ? iv_kv_layout_make_elsewhere : iv_kv_layout_make)(&m->kv_layout[g], m->gemm_type, heads,
                                                                             k->key_dim, k->value_dim))
            return iv_fail(err, IV_LIMIT, "KV cache: a page is too large");
        bytes = iv_size_max(bytes, m->kv_layout[g].page_bytes);
    }
    for (size_t g = 0; g < m->kv_groups.count; g++) m->kv_layout[g].page_bytes = bytes;
    return IV_OK;
}
