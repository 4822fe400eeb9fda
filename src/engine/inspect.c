/* inspect.c: the memory that a model needs, from its headers, or from its configuration if it has no weights. */
#include "base/size.h"
#include "device/memory.h"
#include "engine/info.h"
#include "format/config_fields.h"
#include "format/generation_config.h"
#include "kv/pages.h"
#include "model/kv_layouts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The type of most bytes on disk. */
static iv_dtype stored_dtype(const iv_checkpoint *c) {
    size_t bytes[IV_DTYPE_COUNT] = {0};
    iv_dtype best = IV_BF16;
    for (size_t i = 0; i < iv_checkpoint_count(c); i++)
        bytes[iv_checkpoint_at(c, i)->dtype] += iv_checkpoint_at(c, i)->bytes;
    for (int t = 0; t < IV_DTYPE_COUNT; t++)
        if (bytes[t] > bytes[best]) best = (iv_dtype)t;
    return best;
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
    const iv_model_config *g = &m.config;
    *info = (iv_model_info){.file_bytes = o.dummy ? 0 : iv_checkpoint_bytes(c),
                            .weight_bytes = m.weight_bytes,
                            .kv_bytes_per_token = iv_kv_token_bytes(&m),
                            .memory_available = iv_memory_available(),
                            .layers = g->layers,
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
                            .tensors = o.dummy ? 0 : iv_checkpoint_count(c)};
    snprintf(info->model_type, sizeof info->model_type, "%s", g->model_type);
    snprintf(info->dtype, sizeof info->dtype, "%s", iv_dtype_name(m.dtype));
    if (!o.dummy) snprintf(info->stored_dtype, sizeof info->stored_dtype, "%s", iv_dtype_name(stored_dtype(c)));
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

iv_status iv_inspect_config(const char *model, iv_text *json, iv_error *err) {
    iv_model_config *c = malloc(sizeof *c);
    *json = (iv_text){0};
    if (!c) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a configuration", model);
    iv_status status = iv_model_config_read(model, c, err);
    if (status == IV_OK) status = iv_config_to_json(c, json, err);
    free(c);
    return status;
}
