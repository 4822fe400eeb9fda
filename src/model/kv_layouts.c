/* kv_layouts.c: see kv_layouts.h. */
#include "model/kv_layouts.h"
#include "base/size.h"

/* A GPU's kernels count pages in heads: of a layer of any group, a page has room for a whole number. */
static bool whole_heads(const iv_model *m, size_t *bytes) {
    size_t common = 1;
    for (size_t g = 0; m->memspace && g < m->kv_groups.count; g++) {
        size_t head = m->kv_layout[g].head_bytes, a = common, b = head;
        while (b) {
            size_t rest = a % b;
            a = b, b = rest;
        }
        if (!iv_size_mul(common, head / a, &common)) return false;
    }
    if (*bytes % common == 0) return true;
    return iv_size_add(*bytes, common - *bytes % common, bytes);
}

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
    if (!whole_heads(m, &bytes)) return iv_fail(err, IV_LIMIT, "KV cache: a page is too large");
    for (size_t g = 0; g < m->kv_groups.count; g++) m->kv_layout[g].page_bytes = bytes;
    return IV_OK;
}
