/* config_families.c: the table of the families. */
#include "format/config_families.h"
#include "base/buf.h"
#include "format/config_wrapper.h"
#include "format/tensor_places.h"

#include <string.h>

/* From the configuration_*.py and modeling_*.py files of transformers 4.51 to 5. */
#define NO_IDS .bos_id = -1, .eos_id = -1
#define READS_GROUPS "routed_scaling_factor", "n_group", "topk_group", "scoring_func"
#define READS_QK_NORM "use_qk_norm", "qk_norm", "qk_layernorm"
#define LATENT_EXPERTS                                                                              \
    {                                                                                               \
        .score = IV_SCORE_SIGMOID, .router_correction = true, .grouped = true, .dense_first = true, \
        .shared_counted = true                                                                      \
    }
#define READS_LATENT READS_GROUPS, "first_k_dense_replace", "n_shared_experts", "rope_interleave"
#define GEMMA4_ROPE                                                                             \
    "{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4},\"full_attention\":" \
    "{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6}}"
#define APERTUS_ROPE                                                                                        \
    "{\"rope_type\":\"llama3\",\"rope_theta\":12e6,\"factor\":8,\"original_max_position_embeddings\":8192," \
    "\"low_freq_factor\":1,\"high_freq_factor\":4}"
#define MISTRAL4_ROPE                                                                                      \
    "{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":128,\"original_max_position_embeddings\":8192," \
    "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}"
static const iv_family_facts families[] = {
    {"qwen3", .kv_heads = 32, .head_dim = 128, .bias_field = true, NO_IDS, .slides = IV_SLIDE_FROM_LAYER,
     .window_switch = true, .qk_norm = true, .reads = {READS_QK_NORM}},
    {"qwen3_moe", .kv_heads = 4, .bias_field = true, NO_IDS, .slides = IV_SLIDE_ALL, .window_switch = true,
     .qk_norm = true, .moe = true, .reads = {READS_QK_NORM}},
    {"qwen2", .kv_heads = 32, .qkv_bias = true, NO_IDS, .slides = IV_SLIDE_FROM_LAYER, .window_switch = true},
    {"llama", .bias_field = true, .bos_id = 1, .eos_id = 2, .mlp_bias_field = true},
    {"mistral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = IV_SLIDE_ALL},
    {"smollm3", .kv_heads = 4, .bias_field = true, .bos_id = 128000, .eos_id = 128001, .slides = IV_SLIDE_NOPE,
     .window_switch = true, .nope = IV_NOPE_LISTED, .mlp_bias_field = true,
     .reads = {"no_rope_layers", "no_rope_layer_interval"}},
    {"exaone4", .kv_heads = 32, .bos_id = 0, .eos_id = 2, .slides = IV_SLIDE_PATTERN, .nope = IV_NOPE_WITHOUT_WINDOW,
     .norms = IV_NORMS_BEHIND, .qk_norm = true, .reads = {READS_QK_NORM, "sliding_window_pattern"}},
    {"seed_oss", .kv_heads = 8, .head_dim = 128, .bias_field = true, .qkv_bias = true, .out_bias_field = true, NO_IDS,
     .mlp_bias_field = true},
    {"cwm", .kv_heads = 8, .head_dim = 128, .bos_id = 128000, .eos_id = 128001, .slides = IV_SLIDE_PATTERN_FIRST,
     .window = 8192, .mlp_bias_field = true},
    {"ministral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = IV_SLIDE_LISTED},
    {"arcee", .bias_field = true, .bos_id = 128000, .eos_id = 128001, .activation = IV_ACTIVATION_RELU2,
     .mlp_bias_field = true},
    {"mixtral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = IV_SLIDE_ALL, .no_window = true, .eps = 1e-5,
     .theta = 1e6, .stored = IV_STORED_MIXTRAL, .moe = true, .norm_topk = true, .experts_intermediate = true},
    {"qwen2_5_vl_text", .kv_heads = 8, .qkv_bias = true, .bos_id = 151643, .eos_id = 151645,
     .slides = IV_SLIDE_FROM_LAYER, .window_switch = true, .eps = 1e-5, .theta = 1e6},
    {"qwen2_vl_text", .kv_heads = 8, .qkv_bias = true, .bos_id = 151643, .eos_id = 151645,
     .slides = IV_SLIDE_FROM_LAYER, .window_switch = true, .eps = 1e-5, .theta = 1e6},
    {"qwen3_vl_text", .kv_heads = 32, .head_dim = 128, .bias_field = true, NO_IDS, .qk_norm = true, .theta = 5e5,
     .reads = {READS_QK_NORM}},
    {"qwen3_vl_moe_text", .kv_heads = 16, .bias_field = true, NO_IDS, .qk_norm = true, .theta = 5e5, .moe = true,
     .norm_topk = true, .reads = {READS_QK_NORM}},
    {"phi3", .bos_id = 1, .eos_id = 32000, .slides = IV_SLIDE_ALL, .no_window = true, .eps = 1e-5, .partial = 1,
     .stored = IV_STORED_QKV | IV_STORED_GATE_UP, .reads = {"partial_rotary_factor"}},
    {"hunyuan_v1_dense", .bias_field = true, .bos_id = 1, .eos_id = 2, .qk_norm = true, .qk_norm_behind = true,
     .eps = 1e-5, .stored = IV_STORED_HUNYUAN_NORMS, .reads = {READS_QK_NORM}},
    {"ernie4_5", .kv_heads = 2, .head_dim = 128, .bos_id = 1, .eos_id = 2, .tied = true, .eps = 1e-5, .theta = 5e5,
     .neighbours = true},
    {"helium", .head_dim = 128, .bias_field = true, .no_out_bias = true, .bos_id = 1, .eos_id = 2,
     .mlp_bias_field = true, .eps = 1e-8, .theta = 1e5, .neighbours = true},
    {"mellum", .kv_heads = 4, .head_dim = 128, .bias_field = true, NO_IDS, .slides = IV_SLIDE_LISTED_ONLY,
     .window = 1024, .local_rope = IV_LOCAL_UNSCALED, .qk_norm = true, .theta = 5e5, .stored = IV_STORED_MTP,
     .moe = true, .norm_topk = true, .reads = {READS_QK_NORM}},
    {"glm", .kv_heads = 2, .head_dim = 128, .bias_field = true, .qkv_bias = true, .no_out_bias = true, .bos_id = -1,
     .eos_id = 151329, .eps = 0.00000015625, .partial = 0.5, .neighbours = true, .stored = IV_STORED_GATE_UP},
    {"glm4", .kv_heads = 2, .head_dim = 128, .bias_field = true, .qkv_bias = true, .no_out_bias = true, .bos_id = -1,
     .eos_id = 151329, .norms = IV_NORMS_BOTH, .eps = 0.00000015625, .partial = 0.5, .neighbours = true,
     .stored = IV_STORED_GATE_UP | IV_STORED_GLM4_NORMS},
    {"granite", .bias_field = true, .bos_id = 1, .eos_id = 2, .mlp_bias_field = true, .attention_scale = 1,
     .reads = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
    {"qwen2_moe", .kv_heads = 16, .qkv_bias = true, NO_IDS, .slides = IV_SLIDE_FROM_LAYER, .window_switch = true,
     .moe = true, .experts = {.shared_size = 5632}, .reads = {"shared_expert_intermediate_size"}},
    {"glm4_moe", .kv_heads = 8, .head_dim = 128, .bias_field = true, .no_out_bias = true, NO_IDS, .eps = 1e-5,
     .partial = 0.5, .qk_norm_field = true, .moe = true, .norm_topk = true,
     .experts = {.score = IV_SCORE_SIGMOID,
                 .router_correction = true,
                 .grouped = true,
                 .dense_first = true,
                 .shared_counted = true},
     .reads = {READS_QK_NORM, READS_GROUPS, "first_k_dense_replace", "n_shared_experts", "partial_rotary_factor"}},
    {"gpt_oss", .kv_heads = 8, .head_dim = 64, .bias_field = true, .qkv_bias = true, NO_IDS,
     .slides = IV_SLIDE_ALTERNATE, .window = 128, .sinks = true, .eps = 1e-5, .theta = 150000,
     .stored = IV_STORED_GPT_OSS, .moe = true, .norm_topk = true, .experts_intermediate = true,
     .experts = {.biases = true}, .activation = IV_ACTIVATION_SILU_CLAMPED, .reads = {"swiglu_limit", "swiglu_alpha"}},
    {"ministral3", .kv_heads = 8, .head_dim = 128, .bos_id = 1, .eos_id = 2, .slides = IV_SLIDE_ALL, .no_window = true,
     .eps = 1e-5, .scales_queries = true},
    {"gemma2", .kv_heads = 4, .head_dim = 256, .bias_field = true, .bos_id = 2, .eos_id = 1,
     .slides = IV_SLIDE_ALTERNATE, .norms = IV_NORMS_BOTH, .activation = IV_ACTIVATION_GELU_TANH,
     .unit_offset_norms = true, .query_scalar = 256, .attention_cap = 50, .logits_cap = 30, .tied = true,
     .reads = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation"}},
    {"gemma3_text",
     .kv_heads = 4,
     .head_dim = 256,
     .bias_field = true,
     .bos_id = 2,
     .eos_id = 1,
     .slides = IV_SLIDE_PATTERN,
     .pattern = 6,
     .norms = IV_NORMS_BOTH,
     .local_rope = IV_LOCAL_THETA,
     .theta = 1e6,
     .qk_norm = true,
     .activation = IV_ACTIVATION_GELU_TANH,
     .unit_offset_norms = true,
     .query_scalar = 256,
     .tied = true,
     .vocab = 262208,
     .heads = 8,
     .positions = 131072,
     .reads = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation",
               "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"}},
    {"olmo2", .bias_field = true, .bos_id = -1, .eos_id = 50279, .norms = IV_NORMS_BEHIND, .qk_norm_whole = true,
     .eps = 1e-5, .reads = {READS_QK_NORM}},
    {"olmo3", .bias_field = true, .bos_id = -1, .eos_id = 50279, .slides = IV_SLIDE_PATTERN, .norms = IV_NORMS_BEHIND,
     .local_rope = IV_LOCAL_UNSCALED, .qk_norm_whole = true, .eps = 1e-5, .theta = 5e5, .reads = {READS_QK_NORM}},
    {"cohere2", .bias_field = true, .bos_id = 5, .eos_id = 255001, .slides = IV_SLIDE_PATTERN,
     .nope = IV_NOPE_UNLESS_WINDOW, .norms = IV_NORMS_SHARED, .layer_norm = true, .logit_scale = 0.0625, .tied = true,
     .eps = 1e-5, .neighbours = true, .reads = {"logit_scale", "sliding_window_pattern", "position_embedding_type"}},
    {"apertus", .bias_field = true, .bos_id = 1, .eos_id = 2, .qk_norm = true, .activation = IV_ACTIVATION_XIELU,
     .eps = 1e-5, .theta = 12e6, .stored = IV_STORED_APERTUS, .rope_when_absent = APERTUS_ROPE,
     .reads = {READS_QK_NORM}},
    {"llama4_text",
     .kv_heads = 8,
     .head_dim = 128,
     .bias_field = true,
     .bos_id = 1,
     .eos_id = 2,
     .slides = IV_SLIDE_CHUNKS,
     .window = 8192,
     .nope = IV_NOPE_LISTED,
     .qk_norm_plain = true,
     .tunes_queries = true,
     .eps = 1e-5,
     .theta = 5e5,
     .neighbours = true,
     .stored = IV_STORED_LLAMA4,
     .moe = true,
     .experts_intermediate = true,
     .dense_size = "intermediate_size_mlp",
     .experts = {.score = IV_SCORE_SIGMOID, .scales_inputs = true, .interleaved = true, .shared_counted = true},
     .reads = {READS_QK_NORM, "no_rope_layers", "no_rope_layer_interval", "attention_chunk_size",
               "attn_temperature_tuning"}},
    {"gemma4_text",
     .kv_heads = 4,
     .head_dim = 256,
     .bias_field = true,
     .bos_id = 2,
     .eos_id = 1,
     .slides = IV_SLIDE_PATTERN,
     .pattern = 6,
     .window = 512,
     .norms = IV_NORMS_BOTH,
     .local_rope = IV_LOCAL_THETA,
     .theta = 1e6,
     .partial = 1,
     .rope_when_absent = GEMMA4_ROPE,
     .qk_norm = true,
     .wide = true,
     .stored = IV_STORED_GEMMA4,
     .moe_switch = "enable_moe_block",
     .norm_topk = true,
     .experts = {.dense_too = true},
     .activation = IV_ACTIVATION_GELU_TANH,
     .attention_scale = 1,
     .tied = true,
     .vocab = 262144,
     .heads = 8,
     .positions = 131072,
     .reads = {"per_layer_config", "attention_k_eq_v", "final_logit_softcapping", "hidden_activation",
               "use_bidirectional_attention", "hidden_size_per_layer_input"}},
    {"granite_swa", .kv_heads = 4, .bias_field = true, .bos_id = 100257, .eos_id = 100257,
     .slides = IV_SLIDE_PATTERN_FIRST, .window = 128, .nope = IV_NOPE_BY_THETA, .mlp_bias_field = true,
     .attention_scale = 1, .tied = true, .eps = 1e-5, .sinks = true,
     .reads = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
    {"muse_glimmer_text", .kv_heads = 2, .head_dim = 128, .bias_field = true, .bos_id = 200000, .eos_id = 200001,
     .slides = IV_SLIDE_LISTED, .window = 2048, .nope = IV_NOPE_BY_THETA, .norms = IV_NORMS_BOTH, .qk_norm = true,
     .offset_norms = true, .embedding_norm = true, .gated = true, .logits_cap = 20, .eps = 1e-5, .positions = 131072,
     .reads = {READS_QK_NORM, "hidden_activation", "final_logit_softcapping", "output_multiplier", "qk_scale_factor",
               "post_norm_eps"}},
    {"minimax_m2", .kv_heads = 8, .head_dim = 128, .bos_id = 200034, .eos_id = 200020, .qk_norm_whole = true,
     .theta = 5e6, .partial = 1, .rotary_dim = true, .stored = IV_STORED_MIXTRAL, .moe = true, .norm_topk = true,
     .experts_intermediate = true, .experts = {.score = IV_SCORE_SIGMOID, .router_correction = true},
     .reads = {READS_QK_NORM, "scoring_func", "rotary_dim", "partial_rotary_factor"}},
    {"qwen3_next", .kv_heads = 2, .head_dim = 256, .bias_field = true, NO_IDS, .qk_norm = true, .offset_norms = true,
     .linear = true, .positions = 32768, .intermediate = 5120, .partial = 0.25, .stored = IV_STORED_DELTA_FUSED,
     .moe = true, .norm_topk = true, .experts = {.shared_size = 512},
     .reads = {READS_QK_NORM, "shared_expert_intermediate_size", "partial_rotary_factor", "attn_output_gate"}},
    {"qwen3_5_text", .kv_heads = 4, .head_dim = 256, .bias_field = true, NO_IDS, .qk_norm = true, .offset_norms = true,
     .linear = true, .positions = 32768, .partial = 0.25, .stored = IV_STORED_DELTA,
     .reads = {READS_QK_NORM, "partial_rotary_factor", "attn_output_gate"}},
    {"qwen3_5_moe_text", .kv_heads = 2, .head_dim = 256, .bias_field = true, NO_IDS, .qk_norm = true,
     .offset_norms = true, .linear = true, .positions = 32768, .intermediate = 512, .partial = 0.25,
     .stored = IV_STORED_DELTA | IV_STORED_EXPERTS, .moe = true, .norm_topk = true, .experts = {.shared_size = 512},
     .reads = {READS_QK_NORM, "shared_expert_intermediate_size", "partial_rotary_factor", "attn_output_gate"}},
    {"deepseek_v3", .latent = true, .stored = IV_STORED_LATENT, .bos_id = 0, .eos_id = 1, .moe = true,
     .norm_topk = true, .experts = LATENT_EXPERTS, .reads = {READS_LATENT}},
    {"kimi_k2", .latent = true, .stored = IV_STORED_LATENT, .bos_id = 0, .eos_id = 1, .moe = true, .norm_topk = true,
     .experts = LATENT_EXPERTS, .reads = {READS_LATENT}},
    {"glm4_moe_lite", .latent = true, .stored = IV_STORED_LATENT, .bos_id = 0, .eos_id = 1, .eps = 1e-5, .moe = true,
     .norm_topk = true, .experts = LATENT_EXPERTS, .reads = {READS_LATENT}},
    {"mistral4", .latent = true, .scales_queries = true, .part_of_head = true, .rope_when_absent = MISTRAL4_ROPE,
     .stored = IV_STORED_LATENT | IV_STORED_EXPERTS, .bos_id = 1, .eos_id = 2, .moe = true, .norm_topk = true,
     .experts = {.grouped = true, .dense_first = true, .shared_counted = true}, .reads = {READS_LATENT}},
    {"lfm2", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .short_conv = true, .qk_norm = true, .tied = true, .theta = 1e6,
     .stored = IV_STORED_LFM2, .reads = {READS_QK_NORM}},
    {"lfm2_moe", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .short_conv = true, .qk_norm = true, .tied = true,
     .theta = 1e6, .stored = IV_STORED_LFM2, .moe = true, .norm_topk = true,
     .experts =
         {.score = IV_SCORE_SIGMOID, .grouped = true, .correction_field = true, .dense_layers = true, .least = 1e-6},
     .reads = {READS_QK_NORM, "routed_scaling_factor", "use_expert_bias"}},
    {"granitemoehybrid", .bias_field = true, .bos_id = 1, .eos_id = 2, .scan = IV_SCAN_GRANITE, .attention_scale = 1,
     .positions = 2048, .stored = IV_STORED_SCAN | IV_STORED_GRANITE_HYBRID, .norm_topk = true,
     .experts_intermediate = true,
     .reads = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling",
               "position_embedding_type", "shared_intermediate_size"}},
    {"nemotron_h", .kv_heads = 8, .head_dim = 128, .bos_id = 1, .eos_id = 2, .scan = IV_SCAN_NEMOTRON, .eps = 1e-5,
     .activation = IV_ACTIVATION_RELU2, .mlp_bias_field = true, .positions = 4096, .intermediate = 21504,
     .stored = IV_STORED_NEMOTRON_H | IV_STORED_MTP, .norm_topk = true,
     .experts = {.score = IV_SCORE_SIGMOID, .router_correction = true, .grouped = true},
     .reads = {READS_GROUPS, "mlp_hidden_act", "n_shared_experts"}},
    {"falcon_h1", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .scan = IV_SCAN_FALCON, .eps = 1e-5, .positions = 8192,
     .stored = IV_STORED_SCAN | IV_STORED_FALCON_H1,
     .reads = {"embedding_multiplier", "lm_head_multiplier", "mlp_multipliers", "key_multiplier",
               "attention_in_multiplier", "attention_out_multiplier"}},
};
#undef READS_QK_NORM
#undef READS_GROUPS
#undef READS_LATENT
#undef LATENT_EXPERTS
#undef NO_IDS
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* What families of other engines need that is not here. */
static const char *missing_of(const char *type) {
    static const char *const known[][2] = {
        {"laguna", "gates of attention's output by softplus, numbers of heads by layer"},
        {"deepseek_v2", "routers that choose by a group's best expert"},
        {"deepseek_v32", "an indexer that chooses the keys of a query"},
        {"glm_moe_dsa", "an indexer that chooses the keys of a query"},
        {"deepseek_v4", "several residual streams"},
        {"glm5_next", "several residual streams"},
        {"qwen4_exp", "several residual streams"},
        {"inkling", "several residual streams"},
        {"minimax_m3", "block-sparse attention"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i][0]) == 0) return known[i][1];
    return "";
}

iv_status iv_config_family_of(const iv_json_object *o, const iv_family_facts **out, iv_error *err) {
    const char *type = NULL;
    bool found;
    IV_TRY(iv_json_object_string(o, "model_type", &type, &found, err));
    if (!found) return iv_json_object_missing(o, "model_type", "a string", err);
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(type, families[i].model_type) == 0) {
            *out = &families[i];
            return IV_OK;
        }
    iv_buf known = {0};
    bool ok = true;
    for (int i = 0; i < FAMILY_COUNT && ok; i++)
        ok = iv_buf_printf(&known, "%s%s", i ? ", " : "", families[i].model_type);
    for (size_t i = 0; iv_config_wrapper_at(i) && ok; i++)
        ok = iv_buf_printf(&known, ", %s", iv_config_wrapper_at(i)->model_type);
    const char *lacks = missing_of(type);
    iv_status status = iv_fail(err, IV_UNSUPPORTED, "%s: model_type '%.60s' is not supported%s%s (supported: %s)",
                               o->file, type, *lacks ? ": it needs " : "", lacks, ok ? known.data : "?");
    iv_buf_free(&known);
    return status;
}
