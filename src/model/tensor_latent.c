/* tensor_latent.c: see tensor_latent.h. A rank without a head has none of it. */
#include "model/tensor_latent.h"

#include <stdio.h>

static iv_status allocate(iv_tensor_builder *b, size_t index) {
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t heads = (size_t)b->first->config.heads;
    n->keys = IV_ARENA_NEW(&b->first->arena, heads, iv_tensor *);
    n->values = IV_ARENA_NEW(&b->first->arena, heads, iv_tensor *);
    bool memory = n->keys && n->values;
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        iv_latent_weights *w = &m->layers[index].latent;
        size_t own = m->tp.shard[m->rank].heads;
        w->keys = IV_ARENA_NEW(&m->arena, own ? own : 1, iv_matrix);
        w->values = IV_ARENA_NEW(&m->arena, own ? own : 1, iv_matrix);
        memory = memory && w->keys && w->values;
    }
    return memory ? IV_OK : iv_fail(b->err, IV_NO_MEMORY, "layer %zu: no memory for its heads", index);
}

/* What reads the layer's input: q, or the first of its two factors, and the latent with the key that turns. */
static iv_status inputs(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t hidden = (size_t)c->hidden_size, low = (size_t)c->q_rank, head = (size_t)c->head_dim;
    size_t latent = (size_t)(c->kv_rank + c->rope_dim);
    const iv_stack_tensor in[] = {
        {low ? "self_attn.q_a_proj" : "self_attn.q_proj", low ? low : (size_t)c->heads * head, &n->q, NULL},
        {"self_attn.kv_a_proj_with_mqa", latent, &n->kv_a, NULL}};
    iv_tensor_cut cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        size_t begin = low ? 0 : s->head_first * head, end = low ? low : begin + s->heads * head;
        cuts[r] = (iv_tensor_cut){
            .owner = m, .matrix = &m->layers[index].qkv, .of = {{begin, end}, {0, latent}}, .k = s->heads ? hidden : 0};
    }
    return iv_builder_stacked(b, at, in, 2, hidden, cuts, b->shards);
}

static iv_status queries(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t low = (size_t)c->q_rank, head = (size_t)c->head_dim;
    const iv_stack_tensor one[] = {{"self_attn.q_b_proj", (size_t)c->heads * head, &n->q_b, NULL}};
    iv_tensor_cut cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        cuts[r] = (iv_tensor_cut){.owner = m,
                                  .matrix = &m->layers[index].latent.q,
                                  .of = {{s->head_first * head, (s->head_first + s->heads) * head}},
                                  .k = low};
    }
    return iv_builder_stacked(b, at, one, 1, low, cuts, b->shards);
}

/* One matrix of one head, which more than one rank may have. */
static iv_status of_head(iv_tensor_builder *b, const char *at, size_t index, size_t head, bool values) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t rank = (size_t)c->kv_rank, keys = (size_t)(c->head_dim - c->rope_dim), count = 0;
    size_t rows = values ? (size_t)c->value_dim : rank, k = values ? rank : keys;
    char name[IV_TENSOR_PREFIX_BYTES];
    snprintf(name, sizeof name, "self_attn.%c_b_proj.%zu", values ? 'v' : 'k', head);
    const iv_stack_tensor one[] = {{name, rows, values ? &n->values[head] : &n->keys[head], NULL}};
    iv_tensor_cut cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        const iv_latent_weights *w = &m->layers[index].latent;
        if (head < s->head_first || head - s->head_first >= s->heads) continue;
        iv_matrix *to = values ? w->values : w->keys;
        cuts[count++] = (iv_tensor_cut){.owner = m,
                                        .matrix = &to[head - s->head_first],
                                        .of = {{0, rows}},
                                        .k = k,
                                        .leaves = 1,
                                        .plain = true,
                                        .wide = true};
    }
    return iv_builder_stacked(b, at, one, 1, k, cuts, count);
}

static iv_status outputs(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, outs = 0;
    const iv_stack_tensor out[] = {{"self_attn.o_proj", hidden, &b->first->layer_tensors[index].out, NULL}};
    iv_tensor_cut cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        outs = iv_cut_nodes(cuts, outs, m, m->layers[index].out, &m->tp.out.of[m->rank], hidden);
    }
    return iv_builder_stacked(b, at, out, 1, (size_t)(c->heads * c->value_dim), cuts, outs);
}

iv_status iv_builder_latent(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_latent_weights *w = &b->first->layers[index].latent;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    IV_TRY(allocate(b, index));
    IV_TRY(inputs(b, at, index));
    if (c->q_rank) {
        IV_TRY(iv_builder_norm(b, at, "self_attn.q_a_layernorm.weight", (size_t)c->q_rank, &w->q_norm, &n->q_a_norm));
        IV_TRY(queries(b, at, index));
    }
    IV_TRY(iv_builder_norm(b, at, "self_attn.kv_a_layernorm.weight", (size_t)c->kv_rank, &w->kv_norm, &n->kv_a_norm));
    for (size_t h = 0; h < (size_t)c->heads; h++) {
        IV_TRY(of_head(b, at, index, h, false));
        IV_TRY(of_head(b, at, index, h, true));
    }
    for (size_t r = 1; r < b->shards; r++) {
        iv_latent_weights *to = &b->shard[r]->layers[index].latent;
        to->q_norm = w->q_norm, to->kv_norm = w->kv_norm;
    }
    return outputs(b, at, index);
}
