/* state_layouts.c: see state_layouts.h. */
#include "model/state_layouts.h"
#include "base/size.h"

static bool layout_of(const iv_model *m, size_t rank, iv_delta_layout *out) {
    const iv_model_config *c = &m->config;
    const iv_tp_shard *s = &m->tp.shard[rank];
    if (iv_config_mixers(c, IV_MIXER_CONV))
        return iv_conv_layout_make(out, m->gemm_type, m->tp.mixer_out.of[rank].k, (size_t)c->linear_conv_taps);
    size_t group = (size_t)(c->linear_value_heads / c->linear_key_heads);
    return iv_delta_layout_make(out, m->gemm_type,
                                &(iv_delta_sizes){.key_heads = s->linear_keys,
                                                  .value_heads = s->linear_values,
                                                  .group = group,
                                                  .group_first = s->linear_value_first - s->linear_key_first * group,
                                                  .key_dim = (size_t)c->linear_key_dim,
                                                  .value_dim = (size_t)c->linear_value_dim,
                                                  .taps = (size_t)c->linear_conv_taps,
                                                  .scan = iv_config_mixers(c, IV_MIXER_SCAN) > 0});
}

iv_status iv_state_layouts_make(iv_model *m, iv_error *err) {
    size_t all;
    m->state_layout = (iv_state_layout){0};
    for (int64_t l = 0; l < m->config.layers; l++)
        m->state_layout.layers += iv_mixer_has_state(m->config.layer[l].mixer);
    if (!m->state_layout.layers) return IV_OK;
    for (uint32_t l = 0, at = 0; l < (uint32_t)m->config.layers; l++)
        if (iv_mixer_has_state(m->config.layer[l].mixer)) m->state_place[l] = at++;
    for (size_t r = 0; r < m->tp.ranks; r++) {
        iv_delta_layout of;
        if (!layout_of(m, r, &of)) return iv_fail(err, IV_LIMIT, "layers with a state: one is too large");
        if (r == m->rank) m->delta_layout = of;
        m->state_layout.bytes = iv_size_max(m->state_layout.bytes, of.slot_bytes);
        m->state_layout.tail_bytes = iv_size_max(m->state_layout.tail_bytes, of.tail_bytes);
    }
    if (iv_size_add(m->state_layout.bytes, m->state_layout.tail_bytes, &all) && iv_size_mul(all, IV_LAYERS_MAX, &all))
        return IV_OK;
    return iv_fail(err, IV_LIMIT, "layers with a state: one is too large");
}
