/* tensor_scan.c: rows of the projection and vectors, cut by heads and by the groups that they read. */
#include "model/tensor_scan.h"

/* What one rank has: its heads and groups, and where their channels lie. */
typedef struct cut {
    size_t g0, g1, v0, v1, h0, h1; /* channels of groups and of heads; heads */
} cut;

static cut cut_of(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    size_t key = (size_t)m->config.linear_key_dim, value = (size_t)m->config.linear_value_dim;
    size_t h0 = s->linear_value_first, h1 = h0 + s->linear_values;
    return (cut){
        s->linear_key_first * key, (s->linear_key_first + s->linear_keys) * key, h0 * value, h1 * value, h0, h1};
}

/* Channels in the order of files are x, B, C; here C, B, x. each: values of a channel. */
static iv_head_parts channels_of(const iv_model_config *c, const cut *k, size_t each, float **out) {
    size_t b = (size_t)(c->linear_value_heads * c->linear_value_dim), groups = (size_t)c->linear_key_heads;
    size_t at = b + groups * (size_t)c->linear_key_dim; /* of C */
    return (iv_head_parts){3,
                           {(at + k->g0) * each, (b + k->g0) * each, k->v0 * each},
                           {(at + k->g1) * each, (b + k->g1) * each, k->v1 * each},
                           out};
}

static iv_status vectors(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t heads = (size_t)c->linear_value_heads, values = heads * (size_t)c->linear_value_dim;
    size_t channels = values + 2 * (size_t)(c->linear_key_heads * c->linear_key_dim),
           taps = (size_t)c->linear_conv_taps;
    iv_head_parts conv[IV_RANKS_MAX], bias[IV_RANKS_MAX], a_log[IV_RANKS_MAX], dt_bias[IV_RANKS_MAX],
        skip[IV_RANKS_MAX], norm[IV_RANKS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_delta_weights *w = &b->shard[r]->layers[index].delta;
        cut k = cut_of(b->shard[r]);
        conv[r] = channels_of(c, &k, taps, &w->conv), bias[r] = channels_of(c, &k, 1, &w->conv_bias);
        a_log[r] = (iv_head_parts){1, {k.h0}, {k.h1}, &w->a_log};
        dt_bias[r] = skip[r] = a_log[r];
        dt_bias[r].out = &w->dt_bias, skip[r].out = &w->skip;
        norm[r] = (iv_head_parts){1, {k.v0}, {k.v1}, &w->norm};
    }
    IV_TRY(iv_builder_parts(b, at, "mamba.conv1d.weight", channels * taps, conv, &n->conv));
    if (c->scan_conv_bias) IV_TRY(iv_builder_parts(b, at, "mamba.conv1d.bias", channels, bias, &n->conv_bias));
    IV_TRY(iv_builder_parts(b, at, "mamba.A_log", heads, a_log, &n->a_log));
    IV_TRY(iv_builder_parts(b, at, "mamba.dt_bias", heads, dt_bias, &n->dt_bias));
    IV_TRY(iv_builder_parts(b, at, "mamba.D", heads, skip, &n->skip));
    if (c->scan_norm == IV_SCAN_NORM_NONE) return IV_OK;
    return iv_builder_parts(b, at, "mamba.norm.weight", values, norm, &n->delta_norm);
}

iv_status iv_builder_scan(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t hidden = (size_t)c->hidden_size, heads = (size_t)c->linear_value_heads, outs = 0;
    size_t values = heads * (size_t)c->linear_value_dim, group = (size_t)(c->linear_key_heads * c->linear_key_dim);
    const iv_stack_tensor in[] = {{"mamba.c_proj", group, &n->q, NULL},
                                  {"mamba.b_proj", group, &n->k, NULL},
                                  {"mamba.x_proj", values, &n->v, NULL},
                                  {"mamba.z_proj", values, &n->z, NULL},
                                  {"mamba.dt_proj", heads, &n->a, NULL}};
    const iv_stack_tensor out[] = {{"mamba.out_proj", hidden, &n->out, NULL}};
    iv_tensor_cut in_cuts[IV_CUTS_MAX], out_cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        cut k = cut_of(m);
        in_cuts[r] = (iv_tensor_cut){.owner = m,
                                     .matrix = &m->layers[index].qkv,
                                     .of = {{k.g0, k.g1}, {k.g0, k.g1}, {k.v0, k.v1}, {k.v0, k.v1}, {k.h0, k.h1}},
                                     .k = hidden};
        outs = iv_cut_nodes(out_cuts, outs, m, m->layers[index].out, &m->tp.mixer_out.of[m->rank], hidden);
    }
    IV_TRY(iv_builder_layer_norms(b, at, index));
    IV_TRY(iv_builder_stacked(b, at, in, 5, hidden, in_cuts, b->shards));
    IV_TRY(iv_builder_stacked(b, at, out, 1, values, out_cuts, outs));
    return vectors(b, at, index);
}
