/* tensors.c: the walk over all names. */
#include "model/tensors.h"
#include "model/stored.h"
#include "model/tensor_builder.h"
#include "model/tensor_mixers.h"

#include <stdio.h>
#include <stdlib.h>

/* One rank's part of an MLP, and the cut of down's inputs there. */
typedef struct mlp_shard {
    iv_model *owner;
    iv_mlp *mlp;
    const iv_row_cut *row;
} mlp_shard;

/* The numbers of the activation, which every rank has. */
static iv_status xielu(iv_tensor_builder *b, const char *prefix, const mlp_shard *mlps, size_t count,
                       iv_mlp_tensors *named) {
    iv_mlp *first = mlps[0].mlp;
    IV_TRY(iv_builder_vector(b, prefix, "act_fn.alpha_p", 1, &first->alpha_p, &named->alpha_p));
    IV_TRY(iv_builder_vector(b, prefix, "act_fn.alpha_n", 1, &first->alpha_n, &named->alpha_n));
    IV_TRY(iv_builder_vector(b, prefix, "act_fn.beta", 1, &first->beta, &named->beta));
    IV_TRY(iv_builder_vector(b, prefix, "act_fn.eps", 1, &first->eps, &named->eps));
    named->beta->constant = named->eps->constant = true;
    for (size_t i = 1; i < count; i++) {
        iv_mlp *to = mlps[i].mlp;
        to->alpha_p = first->alpha_p, to->alpha_n = first->alpha_n, to->beta = first->beta, to->eps = first->eps;
    }
    return IV_OK;
}

/* leaves: of every matrix; 0: as its k has them. scaled: a GPU does not fuse the activation. */
static iv_status mlp(iv_tensor_builder *b, const char *prefix, const iv_activation *activation, size_t intermediate,
                     int leaves, bool scaled, const mlp_shard *mlps, size_t count, iv_mlp_tensors *named) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, downs = 0, ups = iv_activation_inputs(activation);
    const iv_stack_tensor up[] = {{"gate_proj", intermediate, &named->gate, &named->gate_bias},
                                  {"up_proj", intermediate, &named->up, &named->up_bias}};
    const iv_stack_tensor down[] = {{"down_proj", hidden, &named->down, NULL}};
    iv_tensor_cut up_cuts[IV_CUTS_MAX], down_cuts[IV_CUTS_MAX];
    for (size_t i = 0; i < count; i++) {
        const iv_row_cut *row = mlps[i].row;
        size_t begin = row->first, end = begin + row->k;
        iv_mlp *to = mlps[i].mlp;
        up_cuts[i] = (iv_tensor_cut){.owner = mlps[i].owner,
                                     .matrix = &to->gate_up,
                                     .bias = c->mlp_bias ? &to->gate_up_bias : NULL,
                                     .of = {{begin, end}, {begin, end}},
                                     .k = hidden,
                                     .leaves = leaves,
                                     .paired = activation->kind == IV_ACTIVATION_SILU && !scaled};
        downs = iv_cut_nodes(down_cuts, downs, mlps[i].owner, to->down, row, hidden);
    }
    for (size_t i = 0; leaves && i < downs; i++) down_cuts[i].leaves = leaves;
    IV_TRY(iv_builder_stacked(b, prefix, up + 2 - ups, ups, hidden, up_cuts, count));
    IV_TRY(iv_builder_stacked(b, prefix, down, 1, intermediate, down_cuts, downs));
    if (activation->kind == IV_ACTIVATION_XIELU && count) IV_TRY(xielu(b, prefix, mlps, count, named));
    if (!c->mlp_bias || count == 0) return IV_OK;
    IV_TRY(iv_builder_vector(b, prefix, "down_proj.bias", hidden, &mlps[0].mlp->down_bias, &named->down_bias));
    for (size_t i = 1; i < count; i++) mlps[i].mlp->down_bias = mlps[0].mlp->down_bias;
    return IV_OK;
}

/* The router, with the shared expert's gate as its last output, and what is added to logits and scores. */
static iv_status router(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t experts = (size_t)c->experts, hidden = (size_t)c->hidden_size, gates = c->shared_gate ? 1 : 0;
    const iv_stack_tensor both[] = {{"mlp.gate", experts, &n->router, &n->router_bias},
                                    {"mlp.shared_expert_gate", 1, &n->shared_gate, NULL}};
    iv_tensor_cut all = {
        .owner = b->first, .matrix = &l->router, .of = {{0, experts}, {0, gates}}, .k = hidden, .plain = true};
    IV_TRY(iv_builder_stacked(b, at, both, 1 + gates, hidden, &all, 1));
    if (c->router_bias) IV_TRY(iv_builder_vector(b, at, "mlp.gate.bias", experts, &l->router_bias, &n->router_bias));
    if (!c->router_correction) return IV_OK;
    IV_TRY(iv_builder_vector(b, at, "mlp.gate.e_score_correction_bias", experts, &l->router_correction,
                             &n->router_correction));
    n->router_correction->constant = true;
    return IV_OK;
}

/* Norms of experts, of the shared one, and of the router. */
static iv_status expert_norms(iv_tensor_builder *b, const char *at, size_t index) {
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t hidden = (size_t)b->first->config.hidden_size, experts = (size_t)b->first->config.experts;
    IV_TRY(iv_builder_vector(b, at, "router.scale", hidden, &l->router_norm, &n->router_norm));
    IV_TRY(iv_builder_vector(b, at, "router.per_expert_scale", experts, &l->expert_scales, &n->expert_scales));
    IV_TRY(iv_builder_norm(b, at, "pre_feedforward_layernorm_2.weight", hidden, &l->experts_norm, &n->experts_norm));
    IV_TRY(iv_builder_norm(b, at, "post_feedforward_layernorm_1.weight", hidden, &l->shared_post_norm,
                           &n->shared_post_norm));
    IV_TRY(iv_builder_norm(b, at, "post_feedforward_layernorm_2.weight", hidden, &l->experts_post_norm,
                           &n->experts_post_norm));
    for (size_t r = 1; r < b->shards; r++) {
        iv_layer *to = &b->shard[r]->layers[index];
        to->router_norm = l->router_norm, to->expert_scales = l->expert_scales, to->experts_norm = l->experts_norm;
        to->shared_post_norm = l->shared_post_norm, to->experts_post_norm = l->experts_post_norm;
    }
    return IV_OK;
}

/* The expert that serves all tokens, divided over the ranks as a dense layer's MLP. */
static iv_status shared_expert(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    char inner[2 * IV_TENSOR_PREFIX_BYTES];
    mlp_shard parts[IV_RANKS_MAX];
    if (!c->shared_intermediate_size) return IV_OK;
    for (size_t r = 0; r < b->shards; r++)
        parts[r] =
            (mlp_shard){b->shard[r], &b->shard[r]->layers[index].shared, &b->shard[r]->tp.shared.of[b->shard[r]->rank]};
    snprintf(inner, sizeof inner, "%smlp.%s.", at, c->shared_gate ? "shared_expert" : "shared_experts");
    return mlp(b, inner, &c->layer[index].activation, (size_t)c->shared_intermediate_size, 0, c->shared_gate, parts,
               b->shards, &b->first->layer_tensors[index].shared);
}

static iv_status experts(iv_tensor_builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    char inner[2 * IV_TENSOR_PREFIX_BYTES];
    if (c->experts_per_token > IV_EXPERTS_PER_TOKEN_MAX)
        return iv_fail(b->err, IV_UNSUPPORTED, "num_experts_per_tok: at most %d are supported, found %lld",
                       IV_EXPERTS_PER_TOKEN_MAX, (long long)c->experts_per_token);
    IV_TRY(router(b, at, index));
    for (size_t e = 0; e < (size_t)c->experts; e++) {
        mlp_shard held;
        size_t count = 0;
        for (size_t r = 0; r < b->shards; r++) {
            iv_model *m = b->shard[r];
            const iv_tp_shard *s = &m->tp.shard[m->rank];
            if (e < s->expert_first || e - s->expert_first >= s->experts) continue;
            held = (mlp_shard){m, &m->layers[index].experts[e], &m->tp.expert_down.of[0]};
            count = 1;
        }
        snprintf(inner, sizeof inner, "%smlp.experts.%zu.", at, e);
        IV_TRY(mlp(b, inner, &c->layer[index].activation, (size_t)c->moe_intermediate_size, IV_EXPERT_LEAVES,
                   c->mlp_bias, &held, count, &b->first->layer_tensors[index].experts[e]));
    }
    if (c->expert_norms) IV_TRY(expert_norms(b, at, index));
    return shared_expert(b, at, index);
}

static iv_status layer(iv_tensor_builder *b, size_t index) {
    const iv_model_config *c = &b->first->config;
    char at[IV_TENSOR_PREFIX_BYTES], inner[2 * IV_TENSOR_PREFIX_BYTES];
    snprintf(at, sizeof at, "model.layers.%zu.", index);
    bool moe = c->layer[index].mlp == IV_MLP_EXPERTS;
    mlp_shard mlps[IV_RANKS_MAX];
    IV_TRY(iv_builder_mixer(b, at, index));
    if (c->layer_scalars) {
        iv_tensor **scalar = &b->first->layer_tensors[index].scalar;
        IV_TRY(iv_builder_vector(b, at, "layer_scalar", 1, &b->first->layers[index].scalar, scalar));
        (*scalar)->constant = true;
    }
    const iv_layer *first = &b->first->layers[index];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        iv_layer *l = &m->layers[index];
        l->config = &m->config.layer[index], l->rope = &b->first->ropes[l->config->rope];
        l->attention_norm = first->attention_norm, l->mlp_norm = first->mlp_norm;
        l->attention_post_norm = first->attention_post_norm, l->mlp_post_norm = first->mlp_post_norm;
        l->out_bias = first->out_bias;
        l->scalar = first->scalar;
        l->experts = IV_ARENA_NEW(&m->arena, moe ? (size_t)c->experts : 1, iv_mlp);
        if (!l->experts) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", at);
        mlps[r] = (mlp_shard){m, l->experts, &m->tp.down.of[m->rank]};
    }
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    n->experts = IV_ARENA_NEW(&b->first->arena, moe ? (size_t)c->experts : 1, iv_mlp_tensors);
    if (!n->experts) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", at);
    if (c->layer[index].mlp == IV_MLP_NONE) return IV_OK;
    if (moe) {
        IV_TRY(experts(b, at, index));
        for (size_t r = 1; r < b->shards; r++)
            b->shard[r]->layers[index].router_bias = first->router_bias,
            b->shard[r]->layers[index].router_correction = first->router_correction;
        return IV_OK;
    }
    snprintf(inner, sizeof inner, "%smlp.", at);
    return mlp(b, inner, &c->layer[index].activation, (size_t)c->intermediate_size, 0, false, mlps, b->shards,
               n->experts);
}

/* The head, panel by panel; a tied one is a view of the embedding (iv_tensors_bind). */
static iv_status head(iv_tensor_builder *b) {
    const iv_model_config *c = &b->first->config;
    const iv_stack_tensor one[] = {{"lm_head", (size_t)c->vocab_size, &b->first->head_tensor, NULL}};
    iv_tensor_cut cuts[IV_CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        cuts[r] = (iv_tensor_cut){.owner = m,
                                  .matrix = &m->head,
                                  .of = {{s->vocab_first, s->vocab_first + s->vocab}},
                                  .k = (size_t)c->hidden_size,
                                  .floats = true};
    }
    return iv_builder_stacked(b, "", one, 1, (size_t)c->hidden_size, cuts, b->shards);
}

/* A head next to tied embeddings has their values, if it has their shape. */
static void tie_head(iv_model *m) {
    const iv_tensor *embedding = m->embedding_tensor;
    iv_tensor *t = iv_model_tensor(m, "lm_head.weight");
    if (!m->config.tie_embeddings || !t || t->rows != embedding->rows || t->columns != embedding->columns) return;
    t->unused = false, t->same_as = embedding, t->slices = embedding->slices, t->held = embedding->held;
    iv_stored_add_head(m, t);
}

static iv_status everything(iv_tensor_builder *b) {
    iv_model *m = b->first;
    const iv_model_config *c = &m->config;
    size_t hidden = (size_t)c->hidden_size;
    m->layer_tensors = IV_ARENA_NEW(&m->arena, (size_t)c->layers, iv_layer_tensors);
    if (!m->layer_tensors) return iv_fail(b->err, IV_NO_MEMORY, "model: no memory for its layers");
    IV_TRY(iv_builder_whole(b, "", "model.embed_tokens", (size_t)c->vocab_size, hidden, &m->embedding,
                            &m->embedding_tensor));
    if (!c->tie_embeddings) IV_TRY(head(b));
    IV_TRY((c->final_norm_plain ? iv_builder_vector : iv_builder_norm)(b, "model.", "norm.weight", hidden,
                                                                       &m->final_norm, &m->final_norm_tensor));
    m->embedding_norm = c->embedding_norm ? iv_builder_ones_of(b, hidden) : NULL;
    if (c->embedding_norm && !m->embedding_norm) return iv_fail(b->err, IV_NO_MEMORY, "model: no memory for its norms");
    for (size_t r = 1; r < b->shards; r++)
        b->shard[r]->final_norm = m->final_norm, b->shard[r]->embedding_norm = m->embedding_norm;
    for (size_t i = 0; i < (size_t)c->layers; i++) IV_TRY(layer(b, i));
    if (b->c) tie_head(m);
    return IV_OK;
}

/* The walk without a checkpoint, by a model that is thrown away. *names owns those of wanted. */
static iv_status collect_all(const iv_model_config *config, iv_dtype type, iv_tensor_collection *wanted,
                             iv_arena *names, iv_error *err) {
    iv_model *m = calloc(1, sizeof *m);
    if (!m) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its names");
    m->config = *config, m->gemm_type = type, wanted->type = type;
    iv_tensor_builder b = {.first = m, .shard = {m}, .shards = 1, .wanted = wanted, .err = err};
    iv_status status = iv_tp_plan_make(config, 1, false, &m->tp, err);
    m->layers = IV_ARENA_NEW(&m->arena, (size_t)config->layers, iv_layer);
    if (status == IV_OK && !m->layers) status = iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    if (status == IV_OK) status = everything(&b);
    *names = m->arena;
    free(m);
    return status;
}

iv_status iv_tensors_make(iv_model *first, const iv_checkpoint *c, iv_error *err) {
    iv_tensor_builder b = {.first = first, .c = c, .err = err};
    iv_tensor_collection wanted = {0};
    iv_arena names = {0};
    for (iv_model *m = first; m; m = m->next) {
        b.shard[b.shards++] = m;
        m->layers = IV_ARENA_NEW(&m->arena, (size_t)m->config.layers, iv_layer);
        if (!m->layers) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    }
    iv_status status = collect_all(&first->config, first->gemm_type, &wanted, &names, err);
    if (status == IV_OK) status = iv_stored_make(first, c, wanted.tensors, wanted.count, err);
    free(wanted.tensors);
    iv_arena_free(&names);
    return status == IV_OK ? everything(&b) : status;
}

/* dir NULL: plain ones. */
static iv_status dummy(const char *dir, const iv_model_config *config, iv_dtype type, iv_dtype packed, uint64_t seed,
                       iv_checkpoint **out, iv_error *err) {
    iv_tensor_collection wanted = {0};
    iv_arena names = {0};
    iv_status status = collect_all(config, type, &wanted, &names, err);
    if (status == IV_OK) status = iv_stored_of_family(config, &names, wanted.tensors, &wanted.count, err);
    if (status == IV_OK)
        status = dir ? iv_checkpoint_dummy_of(dir, packed, wanted.tensors, wanted.count, seed, out, err)
                     : iv_checkpoint_dummy(wanted.tensors, wanted.count, seed, out, err);
    free(wanted.tensors);
    iv_arena_free(&names);
    return status;
}

iv_status iv_tensors_dummy(const iv_model_config *config, iv_dtype type, uint64_t seed, iv_checkpoint **out,
                           iv_error *err) {
    return dummy(NULL, config, type, type, seed, out, err);
}

iv_status iv_tensors_dummy_of(const char *dir, const iv_model_config *config, iv_dtype type, iv_dtype packed,
                              uint64_t seed, iv_checkpoint **out, iv_error *err) {
    return dummy(dir, config, type, packed, seed, out, err);
}

static unsigned char *bind(iv_matrix *matrix, unsigned char *at) {
    if (matrix->n == 0) return at;
    matrix->data = at;
    return at + (iv_matrix_bytes(matrix) + IV_MODEL_ALIGN - 1) / IV_MODEL_ALIGN * IV_MODEL_ALIGN;
}

static unsigned char *bind_nodes(iv_matrix *nodes, unsigned char *at) {
    for (size_t i = 0; i < IV_RANK_NODES_MAX; i++) at = bind(&nodes[i], at);
    return at;
}

static unsigned char *bind_latent(const iv_model *m, iv_layer *l, unsigned char *at) {
    at = bind(&l->latent.q, at);
    for (size_t h = 0; h < m->tp.shard[m->rank].heads; h++)
        at = bind(&l->latent.keys[h], at), at = bind(&l->latent.values[h], at);
    return at;
}

/* The rank's panels of the embedding. */
static iv_matrix tied_head(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    iv_matrix head = m->embedding;
    head.n = s->vocab, head.panels = (s->vocab + head.panel_columns - 1) / head.panel_columns;
    head.data += s->vocab_first / head.panel_columns * head.panel_bytes;
    return head;
}

void iv_tensors_bind(iv_model *m, const iv_model *first) {
    unsigned char *at = m->data;
    if (m == first)
        at = bind(&m->embedding, at);
    else
        m->embedding = first->embedding;
    if (m->config.tie_embeddings)
        m->head = tied_head(m); /* has no memory of its own, also where it was bound before */
    else
        at = bind(&m->head, at);
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        iv_layer *l = &m->layers[i];
        at = bind(&l->qkv, at);
        if (m->config.kv_rank && l->config->mixer == IV_MIXER_ATTENTION) at = bind_latent(m, l, at);
        at = bind_nodes(l->out, at);
        if (m == first)
            at = bind(&l->router, at);
        else
            l->router = first->layers[i].router;
        for (size_t e = 0; e < (l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1); e++)
            at = bind(&l->experts[e].gate_up, at), at = bind_nodes(l->experts[e].down, at);
        at = bind(&l->shared.gate_up, at), at = bind_nodes(l->shared.down, at);
    }
    IV_ASSERT(at == m->data + m->data_bytes);
}
