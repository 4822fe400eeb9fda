/* fuzz_config.c: any config.json either fails or yields sizes that model code may trust. Input: the JSON. */
#include "format/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rope(const iv_rope_config *r) {
    IV_ASSERT(r->theta >= 1 && r->factor >= 1);
    if (r->kind == IV_ROPE_LLAMA3) IV_ASSERT(r->low_freq_factor < r->high_freq_factor && r->original_positions >= 1);
    if (r->kind == IV_ROPE_YARN) IV_ASSERT(r->beta_slow < r->beta_fast && r->original_positions >= 1 && r->theta > 1);
}

static void check(const iv_model_config *c) {
    bool any_slides = false;
    IV_ASSERT(c->vocab_size >= 1 && c->vocab_size <= IV_VOCAB_MAX);
    IV_ASSERT(c->hidden_size >= 1 && c->hidden_size <= IV_HIDDEN_MAX);
    IV_ASSERT(c->intermediate_size >= 1 && c->intermediate_size <= IV_INTERMEDIATE_MAX);
    IV_ASSERT(c->layers >= 1 && c->layers <= IV_LAYERS_MAX);
    IV_ASSERT(c->heads >= 1 && c->heads <= IV_HEADS_MAX && c->kv_heads >= 1 && c->heads % c->kv_heads == 0);
    IV_ASSERT(c->head_dim >= 2 && c->head_dim <= IV_HEAD_DIM_MAX && c->head_dim % 2 == 0);
    IV_ASSERT(c->max_positions >= 1 && c->max_positions <= IV_POSITIONS_MAX);
    IV_ASSERT(c->rms_norm_eps > 0 && c->rope_count >= 1 && c->rope_count <= IV_ROPES_MAX);
    for (int i = 0; i < c->rope_count; i++) check_rope(&c->ropes[i]);
    for (int64_t i = 0; i < IV_LAYERS_MAX; i++) {
        const iv_layer_config *l = &c->layer[i];
        any_slides |= l->window > 0;
        IV_ASSERT(l->window <= c->sliding_window && l->rope >= 0 && l->rope < c->rope_count);
        if (i >= c->layers) IV_ASSERT(l->window == 0 && l->mlp == IV_MLP_DENSE);
        if (l->mlp == IV_MLP_EXPERTS)
            IV_ASSERT(c->experts_per_token >= 1 && c->experts_per_token <= c->experts && c->moe_intermediate_size >= 1);
    }
    IV_ASSERT(any_slides == (c->sliding_window > 0) && c->experts <= IV_EXPERTS_MAX);
    IV_ASSERT(c->bos_id >= -1 && c->bos_id < c->vocab_size && c->pad_id >= -1 && c->pad_id < IV_VOCAB_MAX);
    IV_ASSERT(c->eos_count <= IV_EOS_IDS_MAX);
    for (size_t i = 0; i < c->eos_count; i++) IV_ASSERT(c->eos_ids[i] >= 0 && c->eos_ids[i] < c->vocab_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_model_config c;
    iv_error err = {0};
    iv_status status = iv_model_config_parse("fuzz", (const char *)data, size, &c, &err);
    if (status == IV_OK)
        check(&c);
    else
        IV_ASSERT(err.status == status && err.message[0]);
    return 0;
}
