/* model_config.c: a table of the families, and the fields that depend on the family or on one another. The others are
 * read by their rows in config_fields.c, rotary settings by config_rope.c.
 *
 * Invariant: after success every size is within its named maximum and the sizes are consistent, so products of any
 * three of them fit 64 bits. */
#include "format/model_config.h"
#include "base/file.h"
#include "format/config_experts.h"
#include "format/config_fields.h"
#include "format/config_linear.h"
#include "format/config_members.h"
#include "format/config_names.h"
#include "format/config_rope.h"
#include "format/config_wide.h"
#include "format/config_wrapper.h"
#include "format/foreign.h"
#include "format/json.h"
#include "format/model_files.h"
#include "format/quantization.h"
#include "format/tensor_places.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The layers with a sliding window. */
typedef enum slide_rule {
    SLIDE_NEVER,         /* the family has no window; the fields are not read */
    SLIDE_ALL,           /* every layer */
    SLIDE_FROM_LAYER,    /* layer_types, else layers from max_window_layers on */
    SLIDE_PATTERN,       /* layer_types, else all layers but each sliding_window_pattern-th */
    SLIDE_PATTERN_FIRST, /* layer_types, else all layers but the first of each four */
    SLIDE_ALTERNATE,     /* layer_types, else the first of each two */
    SLIDE_NOPE,          /* layer_types, else the layers without a rotation */
    SLIDE_LISTED,        /* layer_types, else every layer */
    SLIDE_LISTED_ONLY,   /* layer_types, else none */
    SLIDE_CHUNKS         /* attention_chunk_size: layer_types, else the layers with a rotation, in chunks */
} slide_rule;

/* The layers without a rotation. */
typedef enum nope_rule {
    NOPE_NEVER,
    NOPE_LISTED,        /* a 0 in no_rope_layers, else each no_rope_layer_interval-th layer */
    NOPE_BY_THETA,      /* a 0 in layer_rope_theta */
    NOPE_UNLESS_WINDOW, /* layers that see all positions */
    NOPE_WITHOUT_WINDOW /* layers that see all positions, in models where others slide */
} nope_rule;

typedef struct family_facts {
    const char *model_type;
    int64_t kv_heads;       /* when num_key_value_heads is absent; 0: as many as heads */
    int64_t head_dim;       /* when head_dim is absent; 0: hidden_size / heads */
    int64_t bos_id, eos_id; /* when absent; -1: none */
    slide_rule slides;
    bool window_switch; /* sliding_window counts only with use_sliding_window */
    nope_rule nope;
    iv_norm_places norms;
    iv_local_rope local_rope;
    bool scales_queries;          /* llama_4_scaling_beta is read */
    bool qk_norm, qk_norm_behind; /* behind the rotation */
    bool qk_norm_whole;           /* over all heads */
    bool qk_norm_plain;           /* use_qk_norm (true): without weights, in layers with a rotation */
    bool tunes_queries;           /* attn_temperature_tuning: queries of layers without a rotation are scaled */
    bool layer_norm;              /* with layer_norm_eps */
    double logit_scale;           /* when logit_scale is absent; 0: the family has none */
    iv_activation_kind activation;
    bool wide;                        /* layers that see all positions have heads of other sizes (config_wide.h), v is
                                       * normed, layers have scalars, and the embedding's scale is as below */
    bool unit_offset_norms;           /* and the embedding's scale is the root of hidden_size */
    bool offset_norms;                /* without that scale */
    bool linear;                      /* has linear-attention layers, and gates on attention's output */
    bool short_conv;                  /* has layers of short convolutions */
    double query_scalar;              /* of query_pre_attn_scalar, when that is absent; 0: the family has none */
    double attention_scale;           /* when attention_multiplier is absent; 0: head_dim^-0.5 */
    double attention_cap, logits_cap; /* when absent */
    bool tied;                        /* when tie_word_embeddings is absent */
    double eps, theta;                /* when rms_norm_eps, rope_theta are absent; 0: 1e-6, 10,000 */
    double partial; /* of a head that turns, when partial_rotary_factor is absent; 0: all, and it must be 1 */
    const char *rope_when_absent; /* rope_parameters where the file has no rotary settings at all */
    bool rotary_dim;              /* it may be given as rotary_dim */
    bool neighbours;              /* pairs of the rotation are neighbours in files */
    unsigned stored;              /* bits of tensor_places.h */
    const char *moe_switch;       /* the member that says whether there are experts; NULL: moe does */
    bool moe, norm_topk;          /* norm_topk: when norm_topk_prob is absent */
    const char *dense_size;       /* the member that has the size of a dense layer's MLP; NULL: intermediate_size */
    bool experts_intermediate;    /* intermediate_size is that of an expert */
    iv_expert_facts experts;
    bool sinks;
    bool qk_norm_field;              /* use_qk_norm says whether there is one */
    bool bias_field, mlp_bias_field; /* attention_bias, mlp_bias have an effect */
    bool qkv_bias;                   /* always there, or with bias_field if that is absent */
    bool out_bias_field;             /* attention_out_bias, not attention_bias, says whether o has one */
    bool no_out_bias;                /* attention_bias is of q, k and v alone */
    bool no_window;                  /* there is none when sliding_window is absent */
    int64_t window;                  /* when sliding_window is absent; 0: SLIDING_WINDOW_DEFAULT */
    int64_t pattern;                 /* when sliding_window_pattern is absent; 0: SLIDING_WINDOW_PATTERN_DEFAULT */
    /* Of the family's first size, which its files may leave out; 0: must be there. */
    int64_t vocab, heads, positions, intermediate;
    const char *reads[12]; /* members that other families refuse (config_members.h) */
} family_facts;

/* From the configuration_*.py and modeling_*.py files of transformers 4.51 to 5. */
#define NO_IDS .bos_id = -1, .eos_id = -1
#define READS_GROUPS "routed_scaling_factor", "n_group", "topk_group", "scoring_func"
#define READS_QK_NORM "use_qk_norm", "qk_norm", "qk_layernorm"
#define GEMMA4_ROPE                                                                             \
    "{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4},\"full_attention\":" \
    "{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,\"rope_theta\":1e6}}"
#define APERTUS_ROPE                                                                                        \
    "{\"rope_type\":\"llama3\",\"rope_theta\":12e6,\"factor\":8,\"original_max_position_embeddings\":8192," \
    "\"low_freq_factor\":1,\"high_freq_factor\":4}"
static const family_facts families[] = {
    {"qwen3", .kv_heads = 32, .head_dim = 128, .bias_field = true, NO_IDS, .slides = SLIDE_FROM_LAYER,
     .window_switch = true, .qk_norm = true, .reads = {READS_QK_NORM}},
    {"qwen3_moe", .kv_heads = 4, .bias_field = true, NO_IDS, .slides = SLIDE_ALL, .window_switch = true,
     .qk_norm = true, .moe = true, .reads = {READS_QK_NORM}},
    {"qwen2", .kv_heads = 32, .qkv_bias = true, NO_IDS, .slides = SLIDE_FROM_LAYER, .window_switch = true},
    {"llama", .bias_field = true, .bos_id = 1, .eos_id = 2, .mlp_bias_field = true},
    {"mistral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = SLIDE_ALL},
    {"smollm3", .kv_heads = 4, .bias_field = true, .bos_id = 128000, .eos_id = 128001, .slides = SLIDE_NOPE,
     .window_switch = true, .nope = NOPE_LISTED, .mlp_bias_field = true,
     .reads = {"no_rope_layers", "no_rope_layer_interval"}},
    {"exaone4", .kv_heads = 32, .bos_id = 0, .eos_id = 2, .slides = SLIDE_PATTERN, .nope = NOPE_WITHOUT_WINDOW,
     .norms = IV_NORMS_BEHIND, .qk_norm = true, .reads = {READS_QK_NORM, "sliding_window_pattern"}},
    {"seed_oss", .kv_heads = 8, .head_dim = 128, .bias_field = true, .qkv_bias = true, .out_bias_field = true, NO_IDS,
     .mlp_bias_field = true},
    {"cwm", .kv_heads = 8, .head_dim = 128, .bos_id = 128000, .eos_id = 128001, .slides = SLIDE_PATTERN_FIRST,
     .window = 8192, .mlp_bias_field = true},
    {"ministral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = SLIDE_LISTED},
    {"arcee", .bias_field = true, .bos_id = 128000, .eos_id = 128001, .activation = IV_ACTIVATION_RELU2,
     .mlp_bias_field = true},
    {"mixtral", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .slides = SLIDE_ALL, .no_window = true, .eps = 1e-5,
     .theta = 1e6, .stored = IV_STORED_MIXTRAL, .moe = true, .norm_topk = true, .experts_intermediate = true},
    {"qwen2_5_vl_text", .kv_heads = 8, .qkv_bias = true, .bos_id = 151643, .eos_id = 151645, .slides = SLIDE_FROM_LAYER,
     .window_switch = true, .eps = 1e-5, .theta = 1e6},
    {"qwen2_vl_text", .kv_heads = 8, .qkv_bias = true, .bos_id = 151643, .eos_id = 151645, .slides = SLIDE_FROM_LAYER,
     .window_switch = true, .eps = 1e-5, .theta = 1e6},
    {"qwen3_vl_text", .kv_heads = 32, .head_dim = 128, .bias_field = true, NO_IDS, .qk_norm = true, .theta = 5e5,
     .reads = {READS_QK_NORM}},
    {"qwen3_vl_moe_text", .kv_heads = 16, .bias_field = true, NO_IDS, .qk_norm = true, .theta = 5e5, .moe = true,
     .norm_topk = true, .reads = {READS_QK_NORM}},
    {"phi3", .bos_id = 1, .eos_id = 32000, .slides = SLIDE_ALL, .no_window = true, .eps = 1e-5, .partial = 1,
     .stored = IV_STORED_QKV | IV_STORED_GATE_UP, .reads = {"partial_rotary_factor"}},
    {"hunyuan_v1_dense", .bias_field = true, .bos_id = 1, .eos_id = 2, .qk_norm = true, .qk_norm_behind = true,
     .eps = 1e-5, .stored = IV_STORED_HUNYUAN_NORMS, .reads = {READS_QK_NORM}},
    {"ernie4_5", .kv_heads = 2, .head_dim = 128, .bos_id = 1, .eos_id = 2, .tied = true, .eps = 1e-5, .theta = 5e5,
     .neighbours = true},
    {"helium", .head_dim = 128, .bias_field = true, .no_out_bias = true, .bos_id = 1, .eos_id = 2,
     .mlp_bias_field = true, .eps = 1e-8, .theta = 1e5, .neighbours = true},
    {"mellum", .kv_heads = 4, .head_dim = 128, .bias_field = true, NO_IDS, .slides = SLIDE_LISTED_ONLY, .window = 1024,
     .local_rope = IV_LOCAL_UNSCALED, .qk_norm = true, .theta = 5e5, .stored = IV_STORED_MTP, .moe = true,
     .norm_topk = true, .reads = {READS_QK_NORM}},
    {"glm", .kv_heads = 2, .head_dim = 128, .bias_field = true, .qkv_bias = true, .no_out_bias = true, .bos_id = -1,
     .eos_id = 151329, .eps = 0.00000015625, .partial = 0.5, .neighbours = true, .stored = IV_STORED_GATE_UP},
    {"glm4", .kv_heads = 2, .head_dim = 128, .bias_field = true, .qkv_bias = true, .no_out_bias = true, .bos_id = -1,
     .eos_id = 151329, .norms = IV_NORMS_BOTH, .eps = 0.00000015625, .partial = 0.5, .neighbours = true,
     .stored = IV_STORED_GATE_UP | IV_STORED_GLM4_NORMS},
    {"granite", .bias_field = true, .bos_id = 1, .eos_id = 2, .mlp_bias_field = true, .attention_scale = 1,
     .reads = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
    {"qwen2_moe", .kv_heads = 16, .qkv_bias = true, NO_IDS, .slides = SLIDE_FROM_LAYER, .window_switch = true,
     .moe = true, .experts = {.shared_size = 5632}, .reads = {"shared_expert_intermediate_size"}},
    {"glm4_moe", .kv_heads = 8, .head_dim = 128, .bias_field = true, .no_out_bias = true, NO_IDS, .eps = 1e-5,
     .partial = 0.5, .qk_norm_field = true, .moe = true, .norm_topk = true,
     .experts = {.score = IV_SCORE_SIGMOID,
                 .router_correction = true,
                 .grouped = true,
                 .dense_first = true,
                 .shared_counted = true},
     .reads = {READS_QK_NORM, READS_GROUPS, "first_k_dense_replace", "n_shared_experts", "partial_rotary_factor"}},
    {"gpt_oss", .kv_heads = 8, .head_dim = 64, .bias_field = true, .qkv_bias = true, NO_IDS, .slides = SLIDE_ALTERNATE,
     .window = 128, .sinks = true, .eps = 1e-5, .theta = 150000, .stored = IV_STORED_GPT_OSS, .moe = true,
     .norm_topk = true, .experts_intermediate = true, .experts = {.biases = true},
     .activation = IV_ACTIVATION_SILU_CLAMPED, .reads = {"swiglu_limit", "swiglu_alpha"}},
    {"ministral3", .kv_heads = 8, .head_dim = 128, .bos_id = 1, .eos_id = 2, .slides = SLIDE_ALL, .no_window = true,
     .eps = 1e-5, .scales_queries = true},
    {"gemma2", .kv_heads = 4, .head_dim = 256, .bias_field = true, .bos_id = 2, .eos_id = 1, .slides = SLIDE_ALTERNATE,
     .norms = IV_NORMS_BOTH, .activation = IV_ACTIVATION_GELU_TANH, .unit_offset_norms = true, .query_scalar = 256,
     .attention_cap = 50, .logits_cap = 30, .tied = true,
     .reads = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation"}},
    {"gemma3_text",
     .kv_heads = 4,
     .head_dim = 256,
     .bias_field = true,
     .bos_id = 2,
     .eos_id = 1,
     .slides = SLIDE_PATTERN,
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
    {"olmo3", .bias_field = true, .bos_id = -1, .eos_id = 50279, .slides = SLIDE_PATTERN, .norms = IV_NORMS_BEHIND,
     .local_rope = IV_LOCAL_UNSCALED, .qk_norm_whole = true, .eps = 1e-5, .theta = 5e5, .reads = {READS_QK_NORM}},
    {"cohere2", .bias_field = true, .bos_id = 5, .eos_id = 255001, .slides = SLIDE_PATTERN, .nope = NOPE_UNLESS_WINDOW,
     .norms = IV_NORMS_SHARED, .layer_norm = true, .logit_scale = 0.0625, .tied = true, .eps = 1e-5, .neighbours = true,
     .reads = {"logit_scale", "sliding_window_pattern", "position_embedding_type"}},
    {"apertus", .bias_field = true, .bos_id = 1, .eos_id = 2, .qk_norm = true, .activation = IV_ACTIVATION_XIELU,
     .eps = 1e-5, .theta = 12e6, .stored = IV_STORED_APERTUS, .rope_when_absent = APERTUS_ROPE,
     .reads = {READS_QK_NORM}},
    {"llama4_text",
     .kv_heads = 8,
     .head_dim = 128,
     .bias_field = true,
     .bos_id = 1,
     .eos_id = 2,
     .slides = SLIDE_CHUNKS,
     .window = 8192,
     .nope = NOPE_LISTED,
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
     .slides = SLIDE_PATTERN,
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
     .slides = SLIDE_PATTERN_FIRST, .window = 128, .nope = NOPE_BY_THETA, .mlp_bias_field = true, .attention_scale = 1,
     .tied = true, .eps = 1e-5, .sinks = true,
     .reads = {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}},
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
    {"lfm2", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .short_conv = true, .qk_norm = true, .tied = true, .theta = 1e6,
     .stored = IV_STORED_LFM2, .reads = {READS_QK_NORM}},
    {"lfm2_moe", .kv_heads = 8, .bos_id = 1, .eos_id = 2, .short_conv = true, .qk_norm = true, .tied = true,
     .theta = 1e6, .stored = IV_STORED_LFM2, .moe = true, .norm_topk = true,
     .experts =
         {.score = IV_SCORE_SIGMOID, .grouped = true, .correction_field = true, .dense_layers = true, .least = 1e-6},
     .reads = {READS_QK_NORM, "routed_scaling_factor", "use_expert_bias"}},
};
#undef READS_QK_NORM
#undef READS_GROUPS
#undef NO_IDS
enum { FAMILY_COUNT = sizeof families / sizeof *families };

#define RMS_NORM_EPS_DEFAULT 1e-6
#define SLIDING_WINDOW_DEFAULT 4096
#define MAX_WINDOW_LAYERS_DEFAULT 28
#define SLIDING_WINDOW_PATTERN_DEFAULT 4
#define NO_ROPE_INTERVAL_DEFAULT 4

static bool is_absent(const iv_json_object *o, const char *key) { return !json_object_get(o->json, key); }

/* ---- what kind of model ---- */

/* What families of other engines need that is not here. */
static const char *missing_of(const char *type) {
    static const char *const known[][2] = {
        {"muse_glimmer", "a gate of attention's output"},
        {"muse_glimmer_text", "a gate of attention's output"},
        {"laguna", "a gate of attention's output, numbers of heads by layer"},
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

static iv_status parse_family(const iv_json_object *o, const family_facts **out, iv_error *err) {
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

/* A classifier or reward model of a known family has another head: running it as a language model would
 * answer with noise. */
static iv_status check_architecture(const iv_json_object *o, bool wrapped, iv_error *err) {
    const char *suffix = wrapped ? "ForConditionalGeneration" : "ForCausalLM";
    if (!iv_json_object_has(o, "architectures")) return IV_OK;
    const json_t *list = json_object_get(o->json, "architectures");
    if (!json_is_array(list))
        return iv_fail(err, IV_FORMAT, "%s: architectures: wanted an array, found %s", o->file,
                       iv_json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item))
            return iv_fail(err, IV_FORMAT, "%s: architectures[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        size_t n = json_string_length(item), tail = strlen(suffix);
        if (n < tail || memcmp(json_string_value(item) + n - tail, suffix, tail) != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: architecture '%.100s' is not a causal language model", o->file,
                           json_string_value(item));
    }
    return IV_OK;
}

/* Packed weights are read by quantization.h; what it does not read is refused here, before any file is opened. */
static iv_status check_quantization(const iv_json_object *o, iv_error *err) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        iv_quantization q;
        if (!iv_json_object_has(o, keys[i])) continue;
        IV_TRY(iv_quantization_parse(o->file, json_object_get(o->json, keys[i]), &q, err));
        iv_quantization_free(&q);
    }
    return IV_OK;
}

static iv_status parse_dtype_key(const iv_json_object *o, const char *key, bool *found, iv_dtype *out, iv_error *err) {
    static const iv_dtype known[] = {IV_BF16, IV_F16, IV_F32, IV_F64};
    const char *name = NULL;
    IV_TRY(iv_json_object_string(o, key, &name, found, err));
    if (!*found) return IV_OK;
    size_t prefix = strncmp(name, "torch.", 6) == 0 ? 6 : 0; /* spelling of some programs */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name + prefix, iv_dtype_name(known[i])) == 0) {
            *out = known[i];
            return IV_OK;
        }
    return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted bfloat16, float16, float32 or float64, found '%.60s'", o->file,
                   key, name);
}

static iv_status parse_dtype(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    iv_dtype old = IV_BF16;
    bool has_old;
    IV_TRY(parse_dtype_key(o, "dtype", &c->has_dtype, &c->dtype, err));
    IV_TRY(parse_dtype_key(o, "torch_dtype", &has_old, &old, err));
    if (has_old && c->has_dtype && old != c->dtype)
        return iv_fail(err, IV_FORMAT, "%s: dtype says %s, torch_dtype says %s", o->file, iv_dtype_name(c->dtype),
                       iv_dtype_name(old));
    if (has_old) c->dtype = old;
    c->has_dtype |= has_old;
    return IV_OK;
}

/* ---- sizes ---- */

static iv_status parse_heads(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    c->kv_heads = is_absent(o, "num_key_value_heads") && f->kv_heads ? f->kv_heads : c->heads;
    IV_TRY(iv_json_object_int(o, "num_key_value_heads", 1, IV_HEADS_MAX, &c->kv_heads, &found, err));
    if (c->heads % c->kv_heads != 0)
        return iv_fail(err, IV_FORMAT, "%s: num_key_value_heads: wanted a divisor of %" PRId64 " heads, %s %" PRId64,
                       o->file, c->heads, found ? "found" : "the default is", c->kv_heads);
    c->head_dim = f->head_dim;
    IV_TRY(iv_json_object_int(o, "head_dim", 2, IV_HEAD_DIM_MAX, &c->head_dim, &found, err));
    if (!found && f->head_dim == 0) {
        if (c->hidden_size % c->heads != 0)
            return iv_fail(err, IV_FORMAT, "%s: hidden_size: wanted a multiple of %" PRId64 " heads, found %" PRId64,
                           o->file, c->heads, c->hidden_size);
        c->head_dim = c->hidden_size / c->heads;
    }
    if (c->head_dim < 2 || c->head_dim > IV_HEAD_DIM_MAX || c->head_dim % 2 != 0)
        return iv_fail(err, IV_FORMAT, "%s: head_dim: wanted an even number from 2 to %d, found %" PRId64, o->file,
                       IV_HEAD_DIM_MAX, c->head_dim);
    return IV_OK;
}

static iv_status parse_switches(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found, bias = false;
    IV_TRY(iv_json_object_bool(o, "attention_bias", &bias, &found, err));
    c->attention_bias = f->bias_field && !is_absent(o, "attention_bias") ? bias : f->qkv_bias;
    c->attention_out_bias = c->attention_bias && f->bias_field && !f->no_out_bias;
    if (f->out_bias_field) {
        c->attention_out_bias = false;
        IV_TRY(iv_json_object_bool(o, "attention_out_bias", &c->attention_out_bias, &found, err));
    }
    if (f->mlp_bias_field) IV_TRY(iv_json_object_bool(o, "mlp_bias", &c->mlp_bias, &found, err));
    c->attention_sinks = f->sinks;
    c->qk_norm_plain = f->qk_norm_plain;
    if (f->qk_norm_plain) {
        c->qk_norm = true;
        IV_TRY(iv_json_object_bool(o, "use_qk_norm", &c->qk_norm, &found, err));
        c->qk_norm_plain = c->qk_norm_behind = c->qk_norm;
        return IV_OK;
    }
    c->qk_norm_whole = f->qk_norm_whole;
    c->qk_norm = f->qk_norm || f->qk_norm_whole, c->qk_norm_behind = f->qk_norm_behind;
    if (f->qk_norm_field) IV_TRY(iv_json_object_bool(o, "use_qk_norm", &c->qk_norm, &found, err));
    return IV_OK;
}

/* ---- activations ---- */

static const char *const activation_names[IV_ACTIVATION_KINDS][2] = {
    [IV_ACTIVATION_SILU] = {"silu", "swish"},         [IV_ACTIVATION_GELU_TANH] = {"gelu_pytorch_tanh", "gelu_tanh"},
    [IV_ACTIVATION_SILU_CLAMPED] = {"silu", "swish"}, [IV_ACTIVATION_RELU2] = {"relu2", "relu2"},
    [IV_ACTIVATION_XIELU] = {"xielu", "xielu"},
};

/* A family has one activation: the field says no other. */
static iv_status parse_activation(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    const char *const *names = activation_names[f->activation], *act = NULL;
    bool found;
    for (size_t i = 0; i < 2; i++) {
        IV_TRY(iv_json_object_string(o, keys[i], &act, &found, err));
        if (found && strcmp(act, names[0]) != 0 && strcmp(act, names[1]) != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted %s, found '%.60s'", o->file, keys[i], names[0], act);
    }
    iv_activation a = {.kind = f->activation};
    if (a.kind == IV_ACTIVATION_SILU_CLAMPED) {
        a.limit = 7, a.alpha = 1.702;
        IV_TRY(iv_json_object_real(o, "swiglu_limit", 1e-6, 1e6, &a.limit, &found, err));
        IV_TRY(iv_json_object_real(o, "swiglu_alpha", 1e-6, 1e6, &a.alpha, &found, err));
    }
    for (int64_t i = 0; i < c->layers; i++) c->layer[i].activation = a;
    return IV_OK;
}

/* Scales and caps beyond those that config_fields.c reads by name. */
static iv_status parse_scales(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    double scalar = f->query_scalar, logit_scale = f->logit_scale;
    bool found;
    if (logit_scale != 0) {
        IV_TRY(iv_json_object_real(o, "logit_scale", 1e-6, 1e6, &logit_scale, &found, err));
        c->logits_divisor = 1 / logit_scale;
    }
    c->layer_norm = f->layer_norm;
    if (f->layer_norm) {
        c->rms_norm_eps = f->eps;
        IV_TRY(iv_json_object_real(o, "layer_norm_eps", 1e-30, 1, &c->rms_norm_eps, &found, err));
    }
    if (is_absent(o, "attention_multiplier")) c->attention_scale = f->attention_scale;
    if (is_absent(o, "attn_logit_softcapping")) c->attention_cap = f->attention_cap;
    if (is_absent(o, "final_logit_softcapping")) c->logits_cap = f->logits_cap;
    c->unit_offset_norms = f->unit_offset_norms || f->offset_norms;
    c->value_norm = c->layer_scalars = f->wide;
    if (f->unit_offset_norms || f->wide)
        c->embedding_scale = sqrt((double)c->hidden_size), c->embedding_scale_typed = true;
    if (scalar == 0) return IV_OK;
    IV_TRY(iv_json_object_real(o, "query_pre_attn_scalar", 1e-6, 1e6, &scalar, &found, err));
    c->attention_scale = 1 / sqrt(scalar);
    return IV_OK;
}

/* ---- which layers have no rotation ---- */

static iv_status parse_no_rope_layers(const iv_json_object *o, const iv_model_config *c, bool *nope, iv_error *err) {
    int64_t interval = NO_ROPE_INTERVAL_DEFAULT, rotates[IV_LAYERS_MAX];
    size_t count = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, "no_rope_layer_interval", 1, IV_LAYERS_MAX, &interval, &found, err));
    for (int64_t i = 0; i < c->layers; i++) nope[i] = (i + 1) % interval == 0;
    IV_TRY(iv_json_object_ints(o, "no_rope_layers", 0, 1, rotates, IV_LAYERS_MAX, &count, &found, err));
    if (count == 0) return IV_OK;
    if (count != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: no_rope_layers: wanted an array of %" PRId64 " entries, found %zu", o->file,
                       c->layers, count);
    for (size_t i = 0; i < count; i++) nope[i] = !rotates[i];
    return IV_OK;
}

/* The others have one theta, that of the rotary settings unless the list gives another. */
static iv_status parse_layer_thetas(const iv_json_object *o, iv_model_config *c, bool *nope, iv_error *err) {
    const json_t *list = json_object_get(o->json, "layer_rope_theta");
    double theta = 0;
    if (!iv_json_object_has(o, "layer_rope_theta")) return IV_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_rope_theta: wanted an array of %" PRId64 " numbers, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        double of_layer = json_number_value(json_array_get(list, i));
        if (!json_is_number(json_array_get(list, i)) || (of_layer != 0 && !(of_layer >= 1 && of_layer <= 1e15)))
            return iv_fail(err, IV_FORMAT, "%s: layer_rope_theta[%zu]: wanted 0 or a number from 1 to 1e15", o->file,
                           i);
        nope[i] = of_layer == 0;
        if (!nope[i] && theta != 0 && of_layer != theta)
            return iv_fail(err, IV_UNSUPPORTED,
                           "%s: layer_rope_theta[%zu]: wanted %g as in other layers, or 0, found %g", o->file, i, theta,
                           of_layer);
        if (!nope[i]) theta = of_layer;
    }
    if (theta != 0) c->ropes[0].theta = theta;
    return IV_OK;
}

/* ---- which layers slide ---- */

static iv_status parse_window(const iv_json_object *o, const family_facts *f, int64_t *window, iv_error *err) {
    bool on = !f->window_switch, found;
    *window = 0;
    if (f->slides == SLIDE_NEVER) return IV_OK;
    if (f->window_switch) IV_TRY(iv_json_object_bool(o, "use_sliding_window", &on, &found, err));
    int64_t value = 0;
    if (f->slides == SLIDE_CHUNKS) {
        *window = is_absent(o, "attention_chunk_size") ? f->window : 0;
        return iv_json_object_int(o, "attention_chunk_size", 1, IV_POSITIONS_MAX, window, &found, err);
    }
    if (is_absent(o, "sliding_window") && !f->no_window) value = f->window ? f->window : SLIDING_WINDOW_DEFAULT;
    IV_TRY(iv_json_object_int(o, "sliding_window", on ? 1 : 0, IV_POSITIONS_MAX, &value, &found, err));
    if (on) *window = value;
    return IV_OK;
}

static iv_status parse_layer_types(const iv_json_object *o, const char *sliding, const iv_model_config *c, bool *slides,
                                   bool *found, iv_error *err) {
    *found = iv_json_object_has(o, "layer_types");
    if (!*found) return IV_OK;
    const json_t *list = json_object_get(o->json, "layer_types");
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *type = json_string_value(item);
        if (!type)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        slides[i] = strcmp(type, sliding) == 0;
        if (!slides[i] && strcmp(type, "full_attention") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%zu]: '%.60s' layers are not supported", o->file, i,
                           type);
    }
    return IV_OK;
}

/* Exaone4's published files also write it as letters, next to layer_types; Gemma's with an underscore. */
static iv_status parse_pattern(const iv_json_object *o, const family_facts *f, int64_t *pattern, iv_error *err) {
    bool found;
    *pattern = f->pattern ? f->pattern : SLIDING_WINDOW_PATTERN_DEFAULT;
    IV_TRY(iv_json_object_int(o, "_sliding_window_pattern", 1, IV_LAYERS_MAX, pattern, &found, err));
    if (json_is_string(json_object_get(o->json, "sliding_window_pattern")) && iv_json_object_has(o, "layer_types"))
        return IV_OK;
    return iv_json_object_int(o, "sliding_window_pattern", 1, IV_LAYERS_MAX, pattern, &found, err);
}

static iv_status parse_sliding(const iv_json_object *o, const family_facts *f, int64_t window, const bool *nope,
                               iv_model_config *c, iv_error *err) {
    bool listed[IV_LAYERS_MAX] = {false}, has_list, found;
    int64_t from = f->slides == SLIDE_FROM_LAYER ? MAX_WINDOW_LAYERS_DEFAULT : 0, pattern = 0;
    bool reads_list = f->slides >= SLIDE_FROM_LAYER;
    if (f->slides == SLIDE_FROM_LAYER)
        IV_TRY(iv_json_object_int(o, "max_window_layers", 0, INT32_MAX, &from, &found, err));
    if (f->slides == SLIDE_PATTERN) IV_TRY(parse_pattern(o, f, &pattern, err));
    const char *sliding = f->slides == SLIDE_CHUNKS ? "chunked_attention" : "sliding_attention";
    IV_TRY(parse_layer_types(o, sliding, c, listed, &has_list, err));
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = window > 0 && i >= from && !(pattern && (i + 1) % pattern == 0);
        if (f->slides == SLIDE_PATTERN_FIRST) slides = window > 0 && i % SLIDING_WINDOW_PATTERN_DEFAULT != 0;
        if (f->slides == SLIDE_ALTERNATE) slides = window > 0 && i % 2 == 0;
        if (f->slides == SLIDE_LISTED_ONLY) slides = false;
        if (f->slides == SLIDE_NOPE) slides = window > 0 && nope[i];
        if (f->slides == SLIDE_CHUNKS) slides = window > 0 && !nope[i];
        if (has_list && listed[i] && window == 0)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%" PRId64 "] slides, but there is no sliding_window",
                           o->file, i);
        /* The reference code of the other families does not read the list: only a neutral list is safe. */
        if (has_list && !reads_list && listed[i] != slides)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%" PRId64 "]: every layer of this %s model is %s",
                           o->file, i, f->model_type, slides ? "sliding_attention" : "full_attention");
        if (has_list) slides = listed[i];
        c->layer[i].window = !slides ? 0 : f->slides == SLIDE_CHUNKS ? -window : window;
        if (slides) c->sliding_window = window;
    }
    return IV_OK;
}

/* Layers without a rotation get rotary settings of their own. */
static void use_nope(const family_facts *f, bool hybrid, const bool *listed, iv_model_config *c) {
    int none = c->rope_count;
    for (int64_t i = 0; i < c->layers; i++) {
        bool rotates = f->nope == NOPE_WITHOUT_WINDOW  ? !hybrid || c->layer[i].window > 0
                       : f->nope == NOPE_UNLESS_WINDOW ? c->layer[i].window > 0
                                                       : !listed[i];
        if (rotates) continue;
        c->layer[i].rope = none;
        c->ropes[none] = (iv_rope_config){.kind = IV_ROPE_NONE, .theta = 1, .factor = 1, .attn_factor = 1};
        c->rope_count = none + 1;
    }
}

/* Of layers without a rotation, as Llama 4 has them. */
static iv_status parse_tuning(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool on = true, found;
    double scale = 0.1;
    int64_t floor_scale = 8192;
    const json_t *number = json_object_get(o->json, "attn_temperature_tuning"); /* of published files: 4 */
    if (json_is_number(number))
        on = json_number_value(number) != 0;
    else
        IV_TRY(iv_json_object_bool(o, "attn_temperature_tuning", &on, &found, err));
    IV_TRY(iv_json_object_real(o, "attn_scale", 0, 1e6, &scale, &found, err));
    IV_TRY(iv_json_object_int(o, "floor_scale", 1, IV_POSITIONS_MAX, &floor_scale, &found, err));
    for (int i = 0; i < c->rope_count; i++)
        if (on && scale != 0 && c->ropes[i].kind == IV_ROPE_NONE)
            c->ropes[i].query_beta = scale, c->ropes[i].query_shift = 1, c->ropes[i].original_positions = floor_scale;
    return IV_OK;
}

static iv_status parse_layers(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool nope[IV_LAYERS_MAX] = {false};
    int64_t window;
    if (f->nope == NOPE_LISTED) IV_TRY(parse_no_rope_layers(o, c, nope, err));
    if (f->nope == NOPE_BY_THETA) IV_TRY(parse_layer_thetas(o, c, nope, err));
    IV_TRY(parse_window(o, f, &window, err));
    if (f->linear)
        IV_TRY(iv_config_parse_linear(o, c, err));
    else if (f->short_conv)
        IV_TRY(iv_config_parse_short_conv(o, !f->moe, c, err));
    else
        IV_TRY(parse_sliding(o, f, window, nope, c, err));
    use_nope(f, window > 0, nope, c);
    if (f->tunes_queries) IV_TRY(parse_tuning(o, c, err));
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer[i].norms = f->norms;
        if (f->local_rope != IV_LOCAL_SAME && c->layer[i].window > 0) c->layer[i].rope = c->rope_count - 1;
    }
    return IV_OK;
}

/* ---- token ids ---- */

/* Ids from the vocabulary's end on, as in a published file whose vocabulary was cut, are those of no token. */
static iv_status parse_ids(const iv_json_object *o, const family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    int64_t ids[IV_EOS_IDS_MAX];
    size_t count = 0;
    c->bos_id = is_absent(o, "bos_token_id") ? f->bos_id : -1;
    IV_TRY(iv_json_object_int(o, "bos_token_id", -1, IV_VOCAB_MAX - 1, &c->bos_id, &found, err));
    if (c->bos_id >= c->vocab_size) c->bos_id = -1;
    c->pad_id = -1;
    IV_TRY(iv_json_object_int(o, "pad_token_id", -1, IV_VOCAB_MAX - 1, &c->pad_id, &found, err));
    IV_TRY(iv_json_object_ints(o, "eos_token_id", -1, IV_VOCAB_MAX - 1, ids, IV_EOS_IDS_MAX, &count, &found, err));
    if (is_absent(o, "eos_token_id")) ids[count++] = f->eos_id;
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < c->vocab_size) c->eos_ids[c->eos_count++] = ids[i];
    return IV_OK;
}

static iv_status parse_fields(const iv_json_object *o, const iv_config_wrapper *wrapper, iv_model_config *c,
                              iv_error *err) {
    const family_facts *f = NULL;
    bool found;
    IV_TRY(parse_family(o, &f, err));
    c->model_type = wrapper ? wrapper->model_type : f->model_type;
    c->stored = f->stored | (wrapper ? wrapper->stored : 0);
    IV_TRY(check_architecture(o, wrapper != NULL, err));
    IV_TRY(check_quantization(o, err));
    IV_TRY(iv_config_members_check(o, f->reads, sizeof f->reads / sizeof *f->reads, err));
    IV_TRY(iv_json_object_int(o, "num_nextn_predict_layers", 0, IV_LAYERS_MAX, &c->predicting_layers, &found, err));
    if (f->experts_intermediate) IV_TRY(iv_config_use_experts_size(o, err));
    if (f->dense_size) IV_TRY(iv_config_use_dense_size(o, f->dense_size, err));
    c->rms_norm_eps = f->eps != 0 ? f->eps : RMS_NORM_EPS_DEFAULT, c->tie_embeddings = f->tied;
    c->norm_topk_prob = f->norm_topk;
    c->vocab_size = f->vocab, c->heads = f->heads, c->max_positions = f->positions;
    c->intermediate_size = f->intermediate;
    c->embedding_scale = c->residual_scale = c->logits_divisor = c->routed_scale = 1;
    IV_TRY(iv_config_read(o, false, c, err));
    IV_TRY(parse_heads(o, f, c, err));
    if (f->rope_when_absent) IV_TRY(iv_config_use_rope(o, f->rope_when_absent, err));
    if (f->rotary_dim) IV_TRY(iv_config_use_rotary_dim(o, c->head_dim, err));
    IV_TRY(parse_switches(o, f, c, err));
    IV_TRY(parse_activation(o, f, c, err));
    IV_TRY(parse_scales(o, f, c, err));
    if (f->wide) IV_TRY(iv_config_parse_wide(o, c, err));
    iv_rope_defaults rope = {f->local_rope, f->theta, f->partial, f->neighbours, f->scales_queries, f->wide};
    IV_TRY(iv_config_parse_rope(o, &rope, c, err));
    IV_TRY(parse_layers(o, f, c, err));
    if (f->wide) IV_TRY(iv_config_use_wide(o, c, err));
    iv_config_use_positions(c, c->max_positions);
    bool moe = f->moe;
    if (f->moe_switch) IV_TRY(iv_json_object_bool(o, f->moe_switch, &moe, &found, err));
    if (f->moe_switch && moe) IV_TRY(iv_config_use_top_k(o, err));
    if (moe) IV_TRY(iv_config_parse_experts(o, &f->experts, c, err));
    IV_TRY(parse_dtype(o, c, err));
    return parse_ids(o, f, c, err);
}

void iv_config_use_positions(iv_model_config *c, int64_t positions) {
    for (int i = 0; i < c->rope_count; i++)
        c->ropes[i].extended = c->ropes[i].kind == IV_ROPE_LONG && positions > c->ropes[i].original_positions;
}

bool iv_config_has_wide(const iv_model_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].wide) return true;
    return false;
}

bool iv_config_has_post_norms(const iv_model_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].norms == IV_NORMS_BEHIND || c->layer[i].norms == IV_NORMS_BOTH) return true;
    return false;
}

bool iv_config_has_mlp(const iv_model_config *c, iv_mlp_kind kind) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].mlp == kind) return true;
    return false;
}

iv_status iv_model_config_parse(const char *name, const char *json, size_t n, iv_model_config *out, iv_error *err) {
    json_t *root;
    iv_json_object top;
    memset(out, 0, sizeof *out);
    IV_TRY(iv_json_parse_python(name, json, n, &root, err));
    iv_status status = iv_json_object_of(name, "", root, &top, err);
    const iv_config_wrapper *wrapper = NULL;
    json_t *flat = NULL;
    if (status == IV_OK) status = iv_config_unwrap(&top, &flat, &wrapper, err);
    if (status == IV_OK) status = iv_json_object_of(name, "", flat, &top, err);
    if (status == IV_OK) status = parse_fields(&top, wrapper, out, err);
    json_decref(flat);
    json_decref(root);
    return status;
}

iv_status iv_model_config_read(const char *dir, iv_model_config *out, iv_error *err) {
    iv_buf path = {0}, bytes = {0};
    iv_status status = iv_model_file_read(dir, "config.json", IV_CONFIG_BYTES_MAX, &path, &bytes, err);
    struct stat st;
    if (status == IV_NOT_FOUND && stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        status = iv_fail(err, IV_NOT_FOUND, "%s: wanted a model directory, found %s", dir, iv_foreign_path(dir));
    else if (status == IV_NOT_FOUND && *iv_foreign_config(dir))
        status = iv_fail(err, IV_NOT_FOUND, "%s: no such file%s", path.data, iv_foreign_config(dir));
    if (status == IV_OK) status = iv_model_config_parse(path.data, bytes.data, bytes.len, out, err);
    iv_buf_free(&bytes);
    iv_buf_free(&path);
    return status;
}

bool iv_config_buffers_blocks(const iv_model_config *c) {
    return c->residual_scale != 1 || iv_config_has_post_norms(c);
}
