/* fuzz_config.c: any config.json either fails or yields sizes that model code may trust. Input: the JSON. */
#include "format/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const iv_model_config *c) {
    bool any_slides = false;
    IV_ASSERT(c->vocab_size >= 1 && c->vocab_size <= IV_VOCAB_MAX);
    IV_ASSERT(c->hidden_size >= 1 && c->hidden_size <= IV_HIDDEN_MAX);
    IV_ASSERT(c->intermediate_size >= 1 && c->intermediate_size <= IV_INTERMEDIATE_MAX);
    IV_ASSERT(c->layers >= 1 && c->layers <= IV_LAYERS_MAX);
    IV_ASSERT(c->heads >= 1 && c->heads <= IV_HEADS_MAX && c->kv_heads >= 1 && c->heads % c->kv_heads == 0);
    IV_ASSERT(c->head_dim >= 2 && c->head_dim <= IV_HEAD_DIM_MAX && c->head_dim % 2 == 0);
    IV_ASSERT(c->max_positions >= 1 && c->max_positions <= IV_POSITIONS_MAX);
    IV_ASSERT(c->rms_norm_eps > 0 && c->rope_theta >= 1 && c->rope_factor >= 1);
    if (c->rope == IV_ROPE_LLAMA3)
        IV_ASSERT(c->rope_low_freq_factor < c->rope_high_freq_factor && c->rope_original_positions >= 1);
    if (c->rope == IV_ROPE_YARN)
        IV_ASSERT(c->rope_beta_slow < c->rope_beta_fast && c->rope_original_positions >= 1 && c->rope_theta > 1);
    for (int64_t i = 0; i < IV_LAYERS_MAX; i++) {
        any_slides |= c->sliding_layers[i];
        if (i >= c->layers) IV_ASSERT(!c->sliding_layers[i] && !c->moe_layers[i]);
        if (c->moe_layers[i])
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
