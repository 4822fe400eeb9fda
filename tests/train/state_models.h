/* state_models.h: models with layers that have a state, whose heads tensor-parallel ranks divide: seeded weights,
 * documents of several blocks, the hash of the weights after two steps. */
#ifndef IV_TESTS_TRAIN_STATE_MODELS_H
#define IV_TESTS_TRAIN_STATE_MODELS_H

#include "train/public_case.h"

#include <unistd.h>

enum { LONG = 5, DOCUMENT_MAX = 280, IDS = 200 };

static const struct {
    const char *name, *config, *arithmetic, *recompute;
    bool on_gpus;
    size_t refused; /* tensor-parallel ranks, */
    const char *why;
} state_models[] = {
    {"gated DeltaNet",
     "{\"model_type\":\"qwen3_5_text\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
     "\"linear_num_key_heads\":4,\"linear_num_value_heads\":8,\"linear_key_head_dim\":12,\"linear_value_head_dim\":16,"
     "\"linear_conv_kernel_dim\":4,\"max_position_embeddings\":512,\"dtype\":\"bfloat16\"}",
     "fma32", "layer", true, 8, "training on 8 tensor-parallel ranks: wanted a divisor of the 4 leaves"},
    {"gated DeltaNet with experts",
     "{\"model_type\":\"qwen3_next\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":16,"
     "\"linear_num_key_heads\":2,\"linear_num_value_heads\":8,\"linear_key_head_dim\":16,\"linear_value_head_dim\":8,"
     "\"linear_conv_kernel_dim\":4,\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
     "\"shared_expert_intermediate_size\":64,\"decoder_sparse_step\":1,\"max_position_embeddings\":512,"
     "\"dtype\":\"bfloat16\"}",
     "tc16", "attention", true, 4, "training on 4 tensor-parallel ranks: wanted a divisor of the 2 leaves"},
    {"key heads that leaves of the output cut",
     "{\"model_type\":\"qwen3_5_text\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
     "\"linear_num_key_heads\":2,\"linear_num_value_heads\":2,\"linear_key_head_dim\":12,\"linear_value_head_dim\":12,"
     "\"linear_conv_kernel_dim\":4,\"max_position_embeddings\":512,\"dtype\":\"bfloat16\"}",
     "fma32", "none", true, 2,
     "training on 2 tensor-parallel ranks: wanted leaves of linear attention's output that end where key heads do"},
    {"short convolutions",
     "{\"model_type\":\"lfm2\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":512,"
     "\"layer_types\":[\"conv\",\"full_attention\",\"conv\"],\"dtype\":\"bfloat16\"}",
     "fma32", "layer", true, 8, "training on 8 tensor-parallel ranks: wanted a divisor of the 4 leaves"},
    {"selective scans in layers of one block",
     "{\"model_type\":\"nemotron_h\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"hybrid_override_pattern\":\"ME*M-\",\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
     "\"max_position_embeddings\":512,\"mamba_num_heads\":8,\"mamba_head_dim\":16,\"ssm_state_size\":12,"
     "\"n_groups\":4,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
     "\"moe_shared_expert_intermediate_size\":64,\"dtype\":\"bfloat16\"}",
     "tc16", "layer", false, 8, "training on 8 tensor-parallel ranks: wanted a divisor of the 4 leaves"},
    {"selective scans next to attention",
     "{\"model_type\":\"falcon_h1\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,"
     "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
     "\"max_position_embeddings\":512,\"mamba_d_ssm\":128,\"mamba_n_heads\":8,\"mamba_d_state\":16,"
     "\"mamba_n_groups\":2,\"mamba_rms_norm\":true,\"ssm_in_multiplier\":1.25,\"key_multiplier\":0.5,"
     "\"mlp_multipliers\":[0.9,0.6],\"ssm_out_multiplier\":0.5,\"dtype\":\"bfloat16\"}",
     "fma32", "attention", false, 4, "training on 4 tensor-parallel ranks: wanted a divisor of the 2 leaves"}};

typedef struct state_documents {
    iv_trainer_batch batch;
    iv_trainer_sequence sequences[LONG];
    int32_t ids[LONG][DOCUMENT_MAX];
    float mask[LONG][DOCUMENT_MAX];
} state_documents;

static void state_documents_random(rng *r, state_documents *d) {
    static const size_t lengths[LONG] = {210, 64, 3, 129, 40};
    for (size_t i = 0; i < LONG; i++) {
        for (size_t t = 0; t < lengths[i]; t++)
            d->ids[i][t] = (int32_t)rng_below(r, IDS), d->mask[i][t] = t ? 1.0f : 0.0f;
        d->sequences[i] = (iv_trainer_sequence){.ids = d->ids[i], .mask = d->mask[i], .count = lengths[i]};
    }
    iv_trainer_batch_init(&d->batch);
    d->batch.sequences = d->sequences, d->batch.count = LONG;
}

static iv_trainer_options state_options(const char *dir, size_t m) {
    iv_trainer_options o;
    iv_trainer_options_init(&o);
    o.model = dir, o.load_format = "dummy", o.dummy_seed = 3, o.threads = 1, o.pass_tokens = 640, o.device = "cpu";
    o.arithmetic = state_models[m].arithmetic;
    return o;
}

/* A folder with the model's configuration, which the caller removes by state_folder_remove. */
static void state_folder(size_t m, char dir[32]) {
    char path[64];
    strcpy(dir, "/tmp/invar-states-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(state_models[m].config, file) >= 0 && fclose(file) == 0);
}

static void state_folder_remove(const char *dir) {
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path), rmdir(dir);
}

static void state_hash(const iv_trainer_options *o, const state_documents *d, char hash[65]) {
    iv_trainer *t = trainer_with(o);
    iv_error err;
    for (int step = 0; step < 2; step++) ASSERT_OK(iv_trainer_step(t, &d->batch, 1e-2, 0, &err), &err);
    snprintf(hash, 65, "%s", weights_of(t));
    iv_trainer_close(t);
}

enum { STATE_MODELS = sizeof state_models / sizeof *state_models };

#endif
