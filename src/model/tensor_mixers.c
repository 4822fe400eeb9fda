/* tensor_mixers.c: a row-parallel output has a matrix for each node of the sum's tree that a rank holds. */
#include "model/tensor_mixers.h"
#include "model/tensor_latent.h"
#include "model/tensor_scan.h"

#include <stddef.h>
#include <stdio.h>

/* No tensors: weights of 1, in layers with a rotation. */
static iv_status plain_head_norms(iv_tensor_builder *b, size_t index, size_t dim) {
    const iv_model_config *c = &b->first->config;
    if (c->qk_norm_behind && c->ropes[c->layer[index].rope].kind == IV_ROPE_NONE) return IV_OK;
    IV_TRY(iv_builder_ones(b, index, dim, offsetof(iv_layer, q_norm)));
    return iv_builder_ones(b, index, dim, offsetof(iv_layer, k_norm));
}

static iv_status head_norms(iv_tensor_builder *b, const char *at, size_t index) {
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t dim = (size_t)iv_config_head_dim(&b->first->config, (int64_t)index);
    if (b->first->config.qk_norm_whole) {
        const iv_head_vector q = {"self_attn.q_norm.weight", false, dim, offsetof(iv_layer, q_norm), &n->q_norm},
                             k = {"self_attn.k_norm.weight", true, dim, offsetof(iv_layer, k_norm), &n->k_norm};
        IV_TRY(iv_builder_head_values(b, at, index, &q));
        return iv_builder_head_values(b, at, index, &k);
    }
    if (b->first->config.qk_norm_plain) return plain_head_norms(b, index, dim);
    IV_TRY(iv_builder_norm(b, at, "self_attn.q_norm.weight", dim, &l->q_norm, &n->q_norm));
    IV_TRY(iv_builder_norm(b, at, "self_attn.k_norm.weight", dim, &l->k_norm, &n->k_norm));
    for (size_t r = 1; r < b->shards; r++)
        b->shard[r]->layers[index].q_norm = l->q_norm, b->shard[r]->layers[index].k_norm = l->k_norm;
    return IV_OK;
}

static iv_status attention(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, dim = (size_t)iv_config_head_dim(c, (int64_t)index), outs = 0;
    size_t q = (size_t)c->heads * dim, kv = (size_t)iv_config_kv_heads(c, (int64_t)index) * dim;
    bool wide = c->layer[index].wide;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const iv_stack_tensor qkv[] = {{"self_attn.q_proj", q, &n->q, &n->q_bias},
                                   {"self_attn.k_proj", kv, &n->k, &n->k_bias},
                                   {"self_attn.v_proj", kv, &n->v, &n->v_bias},
                                   {"self_attn.gate_proj", q, &n->gate, &n->gate_bias}};
    const iv_stack_tensor out[] = {{"self_attn.o_proj", hidden, &n->out, NULL}};
    iv_tensor_cut in_cuts[IV_CUTS_MAX], out_cuts[IV_CUTS_MAX];
    bool gated = c->layer[index].attention_gate;
    IV_ASSERT(!gated || !c->layer[index].values_are_keys); /* no family has both */
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = iv_tp_shard_of(&m->tp, m->rank, wide);
        size_t q_begin = s->head_first * dim, kv_begin = s->kv_head_first * dim;
        size_t q_end = q_begin + s->heads * dim, kv_end = kv_begin + s->kv_heads * dim;
        in_cuts[r] = (iv_tensor_cut){.owner = m,
                                     .matrix = &m->layers[index].qkv,
                                     .bias = c->attention_bias ? &m->layers[index].qkv_bias : NULL,
                                     .of = {{q_begin, q_end}, {kv_begin, kv_end}, {kv_begin, kv_end}},
                                     .k = hidden};
        if (gated) in_cuts[r].of[3].begin = q_begin, in_cuts[r].of[3].end = q_end;
        outs = iv_cut_nodes(out_cuts, outs, m, m->layers[index].out, &iv_tp_out(&m->tp, wide)->of[m->rank], hidden);
    }
    IV_TRY(iv_builder_layer_norms(b, at, index));
    IV_TRY(iv_builder_stacked(b, at, qkv, c->layer[index].values_are_keys ? 2 : 3 + gated, hidden, in_cuts, b->shards));
    IV_TRY(iv_builder_stacked(b, at, out, 1, q, out_cuts, outs));
    if (c->attention_out_bias)
        IV_TRY(iv_builder_vector(b, at, "self_attn.o_proj.bias", hidden, &l->out_bias, &n->out_bias));
    if (c->qk_norm) IV_TRY(head_norms(b, at, index));
    if (c->value_norm) IV_TRY(iv_builder_ones(b, index, dim, offsetof(iv_layer, v_norm)));
    const iv_head_vector sinks = {"self_attn.sinks", false, 1, offsetof(iv_layer, sinks), &n->sinks};
    return c->attention_sinks ? iv_builder_head_values(b, at, index, &sinks) : IV_OK;
}

/* The convolution's taps, and what the decays are made of. */
static iv_status delta_vectors(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t heads = (size_t)c->linear_value_heads, key = (size_t)c->linear_key_dim, value = (size_t)c->linear_value_dim;
    size_t keys = (size_t)c->linear_key_heads * key, taps = (size_t)c->linear_conv_taps;
    iv_head_parts conv[IV_RANKS_MAX], a_log[IV_RANKS_MAX], dt_bias[IV_RANKS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        iv_delta_weights *w = &m->layers[index].delta;
        size_t k0 = s->linear_key_first * key, k1 = k0 + s->linear_keys * key;
        size_t v0 = s->linear_value_first * value, v1 = v0 + s->linear_values * value;
        conv[r] = (iv_head_parts){3,
                                  {k0 * taps, (keys + k0) * taps, (2 * keys + v0) * taps},
                                  {k1 * taps, (keys + k1) * taps, (2 * keys + v1) * taps},
                                  &w->conv};
        a_log[r] = (iv_head_parts){1, {s->linear_value_first}, {s->linear_value_first + s->linear_values}, &w->a_log};
        dt_bias[r] = a_log[r], dt_bias[r].out = &w->dt_bias;
    }
    IV_TRY(iv_builder_parts(b, at, "linear_attn.conv1d.weight", (2 * keys + heads * value) * taps, conv, &n->conv));
    IV_TRY(iv_builder_parts(b, at, "linear_attn.A_log", heads, a_log, &n->a_log));
    return iv_builder_parts(b, at, "linear_attn.dt_bias", heads, dt_bias, &n->dt_bias);
}

static iv_status linear_attention(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, outs = 0, heads = (size_t)c->linear_value_heads;
    size_t key_dim = (size_t)c->linear_key_dim, value_dim = (size_t)c->linear_value_dim;
    size_t keys = (size_t)c->linear_key_heads * key_dim, values = heads * value_dim;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const iv_stack_tensor in[] = {
        {"linear_attn.q_proj", keys, &n->q, NULL},   {"linear_attn.k_proj", keys, &n->k, NULL},
        {"linear_attn.v_proj", values, &n->v, NULL}, {"linear_attn.z_proj", values, &n->z, NULL},
        {"linear_attn.b_proj", heads, &n->b, NULL},  {"linear_attn.a_proj", heads, &n->a, NULL}};
    const iv_stack_tensor out[] = {{"linear_attn.out_proj", hidden, &n->out, NULL}};
    iv_tensor_cut in_cuts[IV_CUTS_MAX], out_cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        size_t k0 = s->linear_key_first * key_dim, k1 = k0 + s->linear_keys * key_dim, h0 = s->linear_value_first;
        size_t h1 = h0 + s->linear_values, v0 = h0 * value_dim, v1 = h1 * value_dim;
        in_cuts[r] = (iv_tensor_cut){.owner = m,
                                     .matrix = &m->layers[index].qkv,
                                     .of = {{k0, k1}, {k0, k1}, {v0, v1}, {v0, v1}, {h0, h1}, {h0, h1}},
                                     .k = hidden};
        outs = iv_cut_nodes(out_cuts, outs, m, m->layers[index].out, &m->tp.mixer_out.of[m->rank], hidden);
    }
    IV_TRY(iv_builder_layer_norms(b, at, index));
    IV_TRY(iv_builder_stacked(b, at, in, 6, hidden, in_cuts, b->shards));
    IV_TRY(iv_builder_stacked(b, at, out, 1, values, out_cuts, outs));
    IV_TRY(delta_vectors(b, at, index));
    float **norm = &b->first->layers[index].delta.norm;
    IV_TRY(iv_builder_vector(b, at, "linear_attn.norm.weight", value_dim, norm, &n->delta_norm));
    for (size_t r = 1; r < b->shards; r++) b->shard[r]->layers[index].delta.norm = *norm;
    return IV_OK;
}

/* A short convolution between two gates: each rank has the channels that it needs for its leaves of out. */
static iv_status short_conv(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, taps = (size_t)c->linear_conv_taps, outs = 0;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const iv_stack_tensor in[] = {{"conv.b_proj", hidden, &n->b, NULL},
                                  {"conv.c_proj", hidden, &n->z, NULL},
                                  {"conv.x_proj", hidden, &n->v, NULL}};
    const iv_stack_tensor out[] = {{"conv.out_proj", hidden, &n->out, NULL}};
    iv_tensor_cut in_cuts[IV_CUTS_MAX], out_cuts[IV_CUTS_MAX];
    iv_head_parts conv[IV_RANKS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_row_cut *row = &m->tp.mixer_out.of[m->rank];
        size_t begin = row->first, end = begin + row->k;
        in_cuts[r] = (iv_tensor_cut){
            .owner = m, .matrix = &m->layers[index].qkv, .of = {{begin, end}, {begin, end}, {begin, end}}, .k = hidden};
        outs = iv_cut_nodes(out_cuts, outs, m, m->layers[index].out, row, hidden);
        conv[r] = (iv_head_parts){1, {begin * taps}, {end * taps}, &m->layers[index].delta.conv};
    }
    IV_TRY(iv_builder_layer_norms(b, at, index));
    IV_TRY(iv_builder_stacked(b, at, in, 3, hidden, in_cuts, b->shards));
    IV_TRY(iv_builder_stacked(b, at, out, 1, hidden, out_cuts, outs));
    return iv_builder_parts(b, at, "conv.conv.weight", hidden * taps, conv, &n->conv);
}

iv_status iv_builder_mixer(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    switch (c->layer[index].mixer) {
    case IV_MIXER_ATTENTION:
        if (!c->kv_rank) return attention(b, at, index);
        IV_TRY(iv_builder_layer_norms(b, at, index));
        return iv_builder_latent(b, at, index);
    case IV_MIXER_DELTA: return linear_attention(b, at, index);
    case IV_MIXER_CONV: return short_conv(b, at, index);
    case IV_MIXER_SCAN: return iv_builder_scan(b, at, index);
    case IV_MIXER_NONE: return iv_builder_layer_norms(b, at, index);
    }
    IV_ASSERT(!"a kind of mixer that has no tensors");
    return IV_UNSUPPORTED;
}
