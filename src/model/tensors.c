/* tensors.c: the table of names. A matrix made of several tensors keeps the type they share, or float32
 * when they differ; values are never changed by that. */
#include "model/tensors.h"
#include "base/size.h"
#include "numerics/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 96, NAME_BYTES = 256, PIECES_MAX = 3 };

typedef struct builder {
    iv_model *m;
    const iv_checkpoint *c;
    iv_weight_plan *plan;
    size_t capacity;
    bool *used; /* [checkpoint count] */
    iv_error *err;
} builder;

static iv_status find(builder *b, const char *name, int ndim, size_t rows, size_t columns, const iv_tensor_info **out) {
    const iv_tensor_info *t = iv_checkpoint_find(b->c, name);
    if (!t) return iv_fail(b->err, IV_FORMAT, "%s: wanted by %s, not in the checkpoint", name, b->m->config.model_type);
    if (t->ndim != ndim || (size_t)t->shape[0] != rows || (ndim == 2 && (size_t)t->shape[1] != columns)) {
        char found[256] = "", *at = found;
        for (int i = 0; i < t->ndim; i++)
            at += snprintf(at, sizeof found - (size_t)(at - found), "%s%lld", i ? ", " : "", (long long)t->shape[i]);
        if (ndim == 2)
            return iv_fail(b->err, IV_FORMAT, "%s: wanted shape [%zu, %zu], found [%s]", name, rows, columns, found);
        return iv_fail(b->err, IV_FORMAT, "%s: wanted shape [%zu], found [%s]", name, rows, found);
    }
    if (t->dtype != IV_BF16 && t->dtype != IV_F16 && t->dtype != IV_F32)
        return iv_fail(b->err, IV_UNSUPPORTED, "%s: wanted BF16, F16 or F32, found %s", name, iv_dtype_name(t->dtype));
    b->used[t - iv_checkpoint_at(b->c, 0)] = true;
    *out = t;
    return IV_OK;
}

static iv_status add_part(builder *b, iv_weight_part part) {
    IV_ASSERT(b->plan->count < b->capacity);
    b->plan->parts[b->plan->count++] = part;
    return IV_OK;
}

static iv_status vector(builder *b, const char *prefix, const char *suffix, size_t n, float **out, size_t first,
                        size_t total) {
    char name[NAME_BYTES];
    const iv_tensor_info *t = NULL;
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    IV_TRY(find(b, name, 1, n, 0, &t));
    if (!*out) *out = IV_ARENA_NEW(&b->m->arena, total, float);
    if (!*out) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", name);
    return add_part(b, (iv_weight_part){.tensor = t, .vector = *out, .first = first});
}

typedef struct piece {
    const char *name; /* "self_attn.q_proj" */
    size_t rows;
} piece;

/* A matrix stacked from pieces[0..count) (and their biases, if any). */
static iv_status matrix(builder *b, const char *prefix, const piece *pieces, size_t count, size_t k, iv_matrix *out,
                        float **bias) {
    const iv_tensor_info *t[PIECES_MAX] = {NULL};
    char name[NAME_BYTES];
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, pieces[i].name);
        IV_TRY(find(b, name, 2, pieces[i].rows, k, &t[i]));
        n += pieces[i].rows;
    }
    iv_dtype type = b->m->dtype;
    if (type == IV_F32) {
        type = t[0]->dtype;
        for (size_t i = 1; i < count; i++)
            if (t[i]->dtype != type) type = IV_F32;
    }
    if (!iv_matrix_shape(out, type, n, k)) return iv_fail(b->err, IV_LIMIT, "%s: too large to pack", name);
    size_t bytes;
    if (!iv_size_round_up(iv_matrix_bytes(out), 64, &bytes) ||
        !iv_size_add(b->plan->matrix_bytes, bytes, &b->plan->matrix_bytes))
        return iv_fail(b->err, IV_LIMIT, "%s: too large to pack", name);
    for (size_t i = 0, first = 0; i < count; first += pieces[i].rows, i++)
        IV_TRY(add_part(b, (iv_weight_part){.tensor = t[i], .matrix = out, .first = first}));
    for (size_t i = 0, first = 0; bias && i < count; first += pieces[i].rows, i++) {
        snprintf(name, sizeof name, "%s.bias", pieces[i].name);
        IV_TRY(vector(b, prefix, name, pieces[i].rows, bias, first, n));
    }
    return IV_OK;
}

static iv_status mlp(builder *b, const char *prefix, size_t intermediate, iv_mlp *out) {
    const iv_model_config *c = &b->m->config;
    size_t hidden = (size_t)c->hidden_size;
    const piece up[] = {{"gate_proj", intermediate}, {"up_proj", intermediate}}, down[] = {{"down_proj", hidden}};
    bool bias = c->mlp_bias;
    IV_TRY(matrix(b, prefix, up, 2, hidden, &out->gate_up, bias ? &out->gate_up_bias : NULL));
    return matrix(b, prefix, down, 1, intermediate, &out->down, bias ? &out->down_bias : NULL);
}

static iv_status layer(builder *b, size_t index, iv_layer *l) {
    const iv_model_config *c = &b->m->config;
    size_t hidden = (size_t)c->hidden_size, dim = (size_t)c->head_dim;
    size_t q = (size_t)c->heads * dim, kv = (size_t)c->kv_heads * dim;
    char at[PREFIX_BYTES], inner[2 * PREFIX_BYTES];
    snprintf(at, sizeof at, "model.layers.%zu.", index);
    l->window = c->sliding_layers[index] ? c->sliding_window : 0;
    IV_TRY(vector(b, at, "input_layernorm.weight", hidden, &l->attention_norm, 0, hidden));
    IV_TRY(vector(b, at, "post_attention_layernorm.weight", hidden, &l->mlp_norm, 0, hidden));
    const piece qkv[] = {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const piece out[] = {{"self_attn.o_proj", hidden}};
    IV_TRY(matrix(b, at, qkv, 3, hidden, &l->qkv, c->attention_bias ? &l->qkv_bias : NULL));
    IV_TRY(matrix(b, at, out, 1, q, &l->out, c->attention_out_bias ? &l->out_bias : NULL));
    if (c->qk_norm) {
        IV_TRY(vector(b, at, "self_attn.q_norm.weight", dim, &l->q_norm, 0, dim));
        IV_TRY(vector(b, at, "self_attn.k_norm.weight", dim, &l->k_norm, 0, dim));
    }
    l->moe = c->moe_layers[index];
    if (l->moe && c->experts_per_token > IV_EXPERTS_PER_TOKEN_MAX)
        return iv_fail(b->err, IV_UNSUPPORTED, "num_experts_per_tok: at most %d are supported, found %lld",
                       IV_EXPERTS_PER_TOKEN_MAX, (long long)c->experts_per_token);
    size_t experts = l->moe ? (size_t)c->experts : 1;
    l->experts = IV_ARENA_NEW(&b->m->arena, experts, iv_mlp);
    if (!l->experts) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", at);
    if (!l->moe) {
        snprintf(inner, sizeof inner, "%smlp.", at);
        return mlp(b, inner, (size_t)c->intermediate_size, l->experts);
    }
    const piece router[] = {{"mlp.gate", experts}};
    IV_TRY(matrix(b, at, router, 1, hidden, &l->router, NULL));
    for (size_t e = 0; e < experts; e++) {
        snprintf(inner, sizeof inner, "model.layers.%zu.mlp.experts.%zu.", index, e);
        IV_TRY(mlp(b, inner, (size_t)c->moe_intermediate_size, &l->experts[e]));
    }
    return IV_OK;
}

/* Tensors that transformers, too, leaves unread: buffers of old exports, and a head beside tied embeddings. */
static bool is_redundant(const iv_model *m, const char *name) {
    size_t n = strlen(name);
    static const char suffix[] = ".rotary_emb.inv_freq";
    if (n > sizeof suffix && strcmp(name + n - (sizeof suffix - 1), suffix) == 0) return true;
    return m->config.tie_embeddings && strcmp(name, "lm_head.weight") == 0;
}

static iv_status everything(builder *b) {
    iv_model *m = b->m;
    const iv_model_config *c = &m->config;
    size_t hidden = (size_t)c->hidden_size, vocab = (size_t)c->vocab_size;
    const piece embedding[] = {{"model.embed_tokens", vocab}}, head[] = {{"lm_head", vocab}};
    IV_TRY(matrix(b, "", embedding, 1, hidden, &m->embedding, NULL));
    if (!c->tie_embeddings) IV_TRY(matrix(b, "", head, 1, hidden, &m->head, NULL));
    IV_TRY(vector(b, "model.", "norm.weight", hidden, &m->final_norm, 0, hidden));
    for (size_t i = 0; i < (size_t)c->layers; i++) IV_TRY(layer(b, i, &m->layers[i]));
    for (size_t i = 0; i < iv_checkpoint_count(b->c); i++) {
        const iv_tensor_info *t = iv_checkpoint_at(b->c, i);
        if (b->used[i]) continue;
        if (!is_redundant(m, t->name))
            return iv_fail(b->err, IV_FORMAT, "%s: surplus tensor: %s has none of this name", t->name, c->model_type);
        IV_TRY(add_part(b, (iv_weight_part){.tensor = t})); /* only for the digest */
    }
    return IV_OK;
}

static int larger_first(const void *a, const void *b) {
    const iv_weight_part *x = a, *y = b;
    if (x->tensor->bytes != y->tensor->bytes) return x->tensor->bytes < y->tensor->bytes ? 1 : -1;
    return strcmp(x->tensor->name, y->tensor->name);
}

iv_status iv_weight_plan_make(iv_model *m, const iv_checkpoint *c, iv_weight_plan *plan, iv_error *err) {
    builder b = {.m = m, .c = c, .plan = plan, .capacity = iv_checkpoint_count(c) + 1, .err = err};
    *plan = (iv_weight_plan){0};
    plan->parts = IV_ARENA_NEW(&m->arena, b.capacity, iv_weight_part);
    b.used = IV_ARENA_NEW(&m->arena, b.capacity, bool);
    m->layers = IV_ARENA_NEW(&m->arena, (size_t)m->config.layers, iv_layer);
    if (!plan->parts || !b.used || !m->layers) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    IV_TRY(everything(&b));
    qsort(plan->parts, plan->count, sizeof *plan->parts, larger_first);
    return IV_OK;
}

static unsigned char *place(iv_matrix *matrix, unsigned char *at) {
    if (matrix->n == 0) return at;
    matrix->data = at;
    return at + (iv_matrix_bytes(matrix) + 63) / 64 * 64;
}

void iv_weight_plan_place(iv_model *m, unsigned char *at) {
    at = place(&m->embedding, at);
    at = place(&m->head, at);
    if (m->config.tie_embeddings) m->head = m->embedding;
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        iv_layer *l = &m->layers[i];
        at = place(&l->qkv, at), at = place(&l->out, at), at = place(&l->router, at);
        for (size_t e = 0; e < (l->moe ? (size_t)m->config.experts : 1); e++)
            at = place(&l->experts[e].gate_up, at), at = place(&l->experts[e].down, at);
    }
}
