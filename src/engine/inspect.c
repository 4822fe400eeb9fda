/* inspect.c: the memory that a model needs, from its headers, or from its configuration if it has no weights. */
#include "base/size.h"
#include "device/memory.h"
#include "engine/adapters.h"
#include "engine/info.h"
#include "format/config_fields.h"
#include "format/generation_config.h"
#include "invar_model.h"
#include "kv/pages.h"
#include "model/kv_layouts.h"
#include "model/state_layouts.h"
#include "numerics/weight_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 64 /* of an adapter that is reported: the default of max_lora_rank */ };

/* The type or format of most bytes on disk. */
static const char *stored_dtype(const iv_checkpoint *c) {
    enum { KINDS_MAX = IV_DTYPE_COUNT + IV_WEIGHT_FORMAT_COUNT };
    const char *names[KINDS_MAX], *best = "";
    size_t sums[KINDS_MAX], kinds = 0, most = 0;
    for (size_t i = 0; i < iv_checkpoint_count(c); i++) {
        size_t bytes, k = 0;
        const char *name = iv_checkpoint_format(c, i, &bytes);
        if (!name) name = iv_dtype_name(iv_checkpoint_at(c, i)->dtype);
        while (k < kinds && strcmp(names[k], name) != 0) k++;
        if (k == kinds && kinds < KINDS_MAX) names[kinds] = name, sums[kinds++] = 0;
        if (k < KINDS_MAX && (sums[k] += bytes) > most) most = sums[k], best = name;
    }
    return best;
}

/* Bytes of weights where linear layers are int8. */
static iv_status int8_bytes(const char *model, const iv_model_options *like, uint64_t *out, iv_error *err) {
    iv_model_options o = *like;
    iv_model m;
    iv_checkpoint *c;
    o.terms = 1, o.packed = true;
    iv_status status = iv_model_plan(model, &o, &m, &c, err);
    *out = status == IV_OK ? m.weight_bytes : 0;
    if (status == IV_UNSUPPORTED) return IV_OK;
    if (status != IV_OK) return status;
    iv_checkpoint_close(c);
    iv_arena_free(&m.arena);
    return IV_OK;
}

_Static_assert(sizeof((iv_model_info *)NULL)->generation_unapplied == IV_UNAPPLIED_BYTES, "the public copy");

iv_status iv_inspect(const char *model, const char *dtype, iv_model_info *info, iv_error *err) {
    iv_model_options o = {0};
    iv_model m;
    iv_checkpoint *c;
    IV_TRY(iv_gemm_type_parse(dtype, &o.has_dtype, &o.dtype, err));
    o.dummy = !iv_checkpoint_exists(model); /* the same tensors without files */
    iv_generation_config generation;
    IV_TRY(iv_generation_config_read(model, &generation, err));
    IV_TRY(iv_model_plan(model, &o, &m, &c, err));
    size_t expanded = m.weight_bytes;
    uint64_t int8;
    iv_checkpoint_close(c);
    iv_arena_free(&m.arena);
    IV_TRY(int8_bytes(model, &o, &int8, err));
    o.packed = true;
    IV_TRY(iv_model_plan(model, &o, &m, &c, err));
    const iv_model_config *g = &m.config;
    size_t adapter;
    if (!iv_adapters_room(&m, 1, RANK, &adapter)) adapter = SIZE_MAX;
    *info = (iv_model_info){.expanded_bytes = expanded,
                            .int8_bytes = int8,
                            .file_bytes = o.dummy ? 0 : iv_checkpoint_stored_bytes(c),
                            .weight_bytes = m.weight_bytes,
                            .kv_bytes_per_token = iv_kv_token_bytes(&m),
                            .adapter_bytes = adapter,
                            .linear_layers = m.state_layout.layers,
                            .state_bytes = iv_state_bytes(&m),
                            .open_block_bytes = iv_state_tail_bytes(&m),
                            .memory_available = iv_memory_available(),
                            .layers = g->layers / (g->layers_of_one ? g->layers_of_one : 1),
                            .hidden_size = g->hidden_size,
                            .intermediate_size = g->intermediate_size,
                            .heads = g->heads,
                            .kv_heads = g->kv_heads,
                            .head_dim = g->head_dim,
                            .vocab_size = g->vocab_size,
                            .max_positions = g->max_positions,
                            .experts = g->experts,
                            .experts_per_token = g->experts_per_token,
                            .sliding_window = g->sliding_window,
                            .tied_embeddings = g->tie_embeddings,
                            .index_unread = m.index_unread,
                            .activations_unquantized = iv_checkpoint_activations_unquantized(c),
                            .tensors = o.dummy ? 0 : iv_checkpoint_count(c)};
    snprintf(info->model_type, sizeof info->model_type, "%s", g->model_type);
    snprintf(info->dtype, sizeof info->dtype, "%s", iv_dtype_name(m.gemm_type));
    if (!o.dummy) snprintf(info->stored_dtype, sizeof info->stored_dtype, "%s", stored_dtype(c));
    for (size_t i = 0; i < iv_checkpoint_count(c); i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        info->parameters += t->elements;
        if (!o.dummy) info->shards = iv_size_max(info->shards, (size_t)t->shard + 1);
    }
    memcpy(info->generation_unapplied, generation.unapplied, sizeof info->generation_unapplied);
    if (info->memory_available > info->weight_bytes && info->kv_bytes_per_token)
        info->tokens_that_fit = (info->memory_available - info->weight_bytes) / info->kv_bytes_per_token;
    iv_checkpoint_close(c);
    iv_arena_free(&m.arena);
    return IV_OK;
}

/* ---- a context ----------------------------------------------------------------------------------------- */

_Static_assert((int)IV_KV_NEEDS_MAX == (int)IV_KV_GROUPS_MAX, "a kind for each group at most");

/* The entry of a group's kind. */
static iv_kv_need *need_of(iv_context_info *info, const iv_kv_kind *k) {
    for (size_t i = 0; i < info->count; i++) {
        iv_kv_need *n = &info->need[i];
        if (n->window == k->window && n->key_dim == k->key_dim && n->value_dim == k->value_dim) return n;
    }
    iv_kv_need *n = &info->need[info->count++];
    *n = (iv_kv_need){.window = k->window, .key_dim = k->key_dim, .value_dim = k->value_dim};
    return n;
}

static iv_status fill_context(const iv_model *m, iv_context_info *info, iv_error *err) {
    const iv_kv_groups *g = &m->kv_groups;
    size_t page = iv_kv_page_bytes(m), memory = iv_memory_available(), most;
    info->page_bytes = page;
    if (!iv_size_mul(iv_kv_pages_for(info->tokens) * g->count, page, &most))
        return iv_fail(err, IV_LIMIT, "KV cache: a context of %zu tokens is too large", info->tokens);
    for (size_t i = 0; i < g->count; i++) {
        iv_kv_need *n = need_of(info, &g->kind[i]);
        n->layers += g->layers[i], n->tables++;
        n->pages += iv_kv_group_peak(g, i, info->tokens, 1), n->pages_kept += iv_kv_pages_for(info->tokens);
    }
    for (size_t i = 0; i < info->count; i++) {
        iv_kv_need *n = &info->need[i];
        n->bytes = n->pages * page, n->bytes_kept = n->pages_kept * page;
        info->bytes += n->bytes, info->bytes_kept += n->bytes_kept;
    }
    if (memory > m->weight_bytes && page)
        info->longest = iv_kv_longest(g, (memory - m->weight_bytes) / page, (size_t)m->config.max_positions);
    return IV_OK;
}

iv_status iv_inspect_context(const char *model, const char *dtype, size_t tokens, iv_context_info *info,
                             iv_error *err) {
    iv_model_options o = {.packed = true};
    iv_model m;
    iv_checkpoint *c;
    IV_TRY(iv_gemm_type_parse(dtype, &o.has_dtype, &o.dtype, err));
    o.dummy = !iv_checkpoint_exists(model);
    IV_TRY(iv_model_plan(model, &o, &m, &c, err));
    *info = (iv_context_info){.tokens = tokens ? tokens : (size_t)m.config.max_positions};
    iv_status status = IV_OK;
    if (tokens > (size_t)m.config.max_positions)
        status = iv_fail(err, IV_INVALID, "max_model_len: the model has %zu positions, wanted %zu",
                         (size_t)m.config.max_positions, tokens);
    if (status == IV_OK) status = fill_context(&m, info, err);
    iv_checkpoint_close(c);
    iv_arena_free(&m.arena);
    return status;
}

iv_status iv_inspect_ranks(const char *model, const char *dtype, size_t ranks, iv_ranks_info *info, iv_error *err) {
    iv_model_options o = {.packed = true, .dummy = !iv_checkpoint_exists(model)};
    *info = (iv_ranks_info){.ranks = ranks};
    IV_TRY(iv_gemm_type_parse(dtype, &o.has_dtype, &o.dtype, err));
    for (size_t r = 0; r < ranks || r == 0; r++) { /* 0 ranks are refused */
        iv_model m;
        iv_checkpoint *c;
        IV_TRY(iv_model_plan_rank(model, &o, ranks, r, &m, &c, err));
        const iv_tp_shard *s = &m.tp.shard[r];
        info->rank[r].weight_bytes = m.weight_bytes, info->rank[r].kv_bytes_per_token = iv_kv_token_bytes(&m);
        info->rank[r].heads = s->heads, info->rank[r].kv_heads = s->kv_heads, info->rank[r].experts = s->experts;
        iv_checkpoint_close(c);
        iv_arena_free(&m.arena);
    }
    return IV_OK;
}

iv_status iv_inspect_config(const char *model, iv_text *json, iv_error *err) {
    iv_model_config *c = malloc(sizeof *c);
    *json = (iv_text){0};
    if (!c) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a configuration", model);
    iv_status status = iv_model_config_read(model, c, err);
    if (status == IV_OK) status = iv_config_to_json(c, json, err);
    free(c);
    return status;
}
