/* model_config.h: config.json of a Hugging Face checkpoint -> one checked struct.
 *
 * Defaults are those of the transformers library, per family; docs/formats/config.md lists them with every
 * rule. Both spellings of rotary settings are read: rope_theta with rope_scaling, and rope_parameters. */
#ifndef IV_FORMAT_MODEL_CONFIG_H
#define IV_FORMAT_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "numerics/activation.h"
#include "numerics/router.h"

#define IV_CONFIG_BYTES_MAX ((size_t)1 << 22)
#define IV_VOCAB_MAX (1 << 24)
#define IV_HIDDEN_MAX (1 << 20)
#define IV_INTERMEDIATE_MAX (1 << 22)
#define IV_LAYERS_MAX 1024
#define IV_HEADS_MAX 4096
#define IV_HEAD_DIM_MAX 512
#define IV_EXPERTS_MAX 4096
#define IV_POSITIONS_MAX (1 << 30)
#define IV_EOS_IDS_MAX 16
#define IV_ROPES_MAX 2
#define IV_CONV_TAPS_MAX 8
#define IV_LATENT_MAX 4096

/* The scaling of the inverse frequencies f_i = theta^(-2i / head_dim). */
typedef enum iv_rope_kind {
    IV_ROPE_DEFAULT,     /* none */
    IV_ROPE_LINEAR,      /* divided by factor */
    IV_ROPE_LLAMA3,      /* by wavelength: kept, divided by factor, or interpolated */
    IV_ROPE_YARN,        /* by pair, interpolated between beta_fast and beta_slow; sines are scaled */
    IV_ROPE_NONE,        /* not rotated (NoPE): all frequencies are 0 */
    IV_ROPE_LONG,        /* divided by a factor for each pair, of two lists: `extended` says which */
    IV_ROPE_NTK,         /* theta grows by the factor */
    IV_ROPE_PROPORTIONAL /* as LINEAR, but pairs behind the first `rotated` / 2 of the whole head do not turn */
} iv_rope_kind;

/* Rotary settings; a layer names one of the configuration's by index. */
typedef struct iv_rope_config {
    iv_rope_kind kind;
    double theta;
    double factor;                            /* not DEFAULT; else 1 */
    double low_freq_factor, high_freq_factor; /* LLAMA3, low < high; else 0 */
    int64_t original_positions;               /* LLAMA3, YARN, LONG; else 0 */
    double beta_fast, beta_slow;              /* YARN, fast > slow; else 0 */
    double attention;                         /* YARN, LONG: given in the file; 0: follows from other members */
    double mscale, mscale_all_dim;            /* YARN, of the file; 0: not given */
    double attn_factor;                       /* multiplies what follows from the factor (YARN); else 1 */
    bool truncate;                            /* YARN */
    /* Queries are multiplied, after the rotation, by 1 + beta ln(1 + floor((position + shift) / original_positions)).
     */
    double query_beta;
    int64_t query_shift;
    bool extended;    /* LONG: by iv_config_use_positions */
    bool neighbours;  /* files have the two rows of a pair next to each other: tensor_places.h */
    int64_t rotated;  /* dimensions of a head that turn, even; 0: all */
    int64_t head_dim; /* of the layers that turn so; 0: the configuration's */
} iv_rope_config;

typedef enum iv_mlp_kind { IV_MLP_DENSE, IV_MLP_EXPERTS, IV_MLP_NONE } iv_mlp_kind;

/* Where the norms of a layer's two blocks stand: of the block's input, of its output before that is added, or both. */
typedef enum iv_norm_places {
    IV_NORMS_BEFORE,
    IV_NORMS_BEHIND,
    IV_NORMS_BOTH,
    IV_NORMS_SHARED /* of the layer's input, which both blocks take: they run side by side */
} iv_norm_places;

/* What mixes the positions: attention over keys and values; or, with a state (NUMERICS.md 17), a gated delta rule, a
 * short convolution between two gates or a selective scan (Mamba-2); or nothing. A model has layers of at most one kind
 * with a state. */
typedef enum iv_mixer_kind {
    IV_MIXER_ATTENTION,
    IV_MIXER_DELTA,
    IV_MIXER_CONV,
    IV_MIXER_SCAN,
    IV_MIXER_NONE
} iv_mixer_kind;
static inline bool iv_mixer_has_state(iv_mixer_kind kind) { return kind >= IV_MIXER_DELTA && kind <= IV_MIXER_SCAN; }

/* The norm of a scan's output, over groups of heads: of the gated output, or gated itself. */
typedef enum iv_scan_norm_kind { IV_SCAN_NORM_NONE, IV_SCAN_NORM_GATED, IV_SCAN_NORM_UNGATED } iv_scan_norm_kind;

/* Rows of a scan's projection, in the order of files. */
typedef enum iv_scan_part {
    IV_SCAN_PART_Z,
    IV_SCAN_PART_X,
    IV_SCAN_PART_B,
    IV_SCAN_PART_C,
    IV_SCAN_PART_DT,
    IV_SCAN_PARTS
} iv_scan_part;

/* What one layer is. */
typedef struct iv_layer_config {
    iv_mlp_kind mlp;
    iv_mixer_kind mixer;
    bool attention_gate; /* attention's output is scaled by sigmoids of a projection of its input */
    int64_t window;      /* query i sees keys j with i - window < j <= i; 0: all j <= i; below 0: those of its chunk, of
                          * -window positions (iv_first_visible) */
    int rope;            /* index into iv_model_config.ropes */
    bool wide;           /* its heads have the sizes wide_head_dim and wide_kv_heads */
    bool values_are_keys; /* values are what keys are before their norm and rotation */
    iv_norm_places norms;
    bool norm_kept;           /* its mixer reads what the mixer of the layer before read: they run side by side */
    iv_activation activation; /* of its MLP, or of its experts */
} iv_layer_config;

/* A new member also gets a row in config_fields.c, from which it is parsed, compared, fingerprinted and shown. */
typedef struct iv_model_config {
    const char *model_type;    /* static string that names the family: "qwen3", ... */
    unsigned stored;           /* how its files name and cut tensors: bits of tensor_places.h */
    int64_t predicting_layers; /* behind the last layer in files, not read: they draft further tokens */
    int64_t layers_of_one;     /* 0: a layer of files is one here; else so many, one behind another */

    int64_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads; /* heads % kv_heads == 0 */
    int64_t head_dim;                                                            /* even */
    int64_t wide_head_dim, wide_kv_heads; /* of layers that are `wide`; 0: there are none */
    /* Latent attention (NUMERICS.md 18): keys and values of all heads are made from kv_rank numbers a token, keys have
     * rope_dim more that turn. Then kv_heads is 1, and head_dim is that of queries, of which the last rope_dim turn.
     * q_rank 0: queries are made from the layer's input. kv_rank 0: there is none, and the others are 0. */
    int64_t q_rank, kv_rank, rope_dim, value_dim;
    double latent_eps; /* of the norms of q_a and kv_a, whatever rms_norm_eps is */
    int64_t max_positions;
    double rms_norm_eps;
    bool layer_norm;       /* norms of the residual stream are of centered rows */
    bool embedding_norm;   /* an RMSNorm without weights of the embedding's rows */
    double post_norm_eps;  /* of norms behind blocks; 0: rms_norm_eps */
    bool final_norm_plain; /* the last norm multiplies by its weight where unit_offset_norms adds 1 */

    iv_rope_config ropes[IV_ROPES_MAX];
    int rope_count;
    double long_factors[2][IV_HEAD_DIM_MAX / 2]; /* LONG, of each pair: up to the original positions, and extended */

    bool tie_embeddings;
    bool attention_bias;     /* on q, k and v */
    bool attention_out_bias; /* on o */
    bool mlp_bias;           /* on gate, up and down */
    bool qk_norm;            /* an RMSNorm over each head of q and of k before the rotation */
    bool qk_norm_whole;      /* one over all heads of q and one over all of k instead, before the rotation */
    bool value_norm;         /* an RMSNorm without weights over each head of v */
    bool layer_scalars;      /* the residual stream is multiplied by a number of the layer at its end */
    bool qk_norm_plain;      /* without weights; behind the rotation only in layers that have one */
    bool qk_norm_behind;     /* behind the rotation instead */

    /* Scales and caps. */
    double attention_scale;     /* of scores; 0: head_dim^-0.5 */
    double attention_cap;       /* scores become cap * tanh(score / cap); 0: none */
    double embedding_scale;     /* of the embedding's rows; else 1 */
    bool embedding_scale_typed; /* it is rounded to the type of GEMM inputs */
    double residual_scale;      /* of a block's output before it is added; else 1 */
    double attention_in_scale;  /* of q, k and v before their norms; else 1, as the next ones */
    double key_scale;           /* of k, too */
    double attention_out_scale, scan_out_scale, mlp_out_scale; /* of a block's output, too */
    double gate_scale;                                         /* of a dense MLP's gate before its activation */
    double scan_in_scale[IV_SCAN_PARTS];                       /* of rows of a scan's projection */
    double logits_divisor;                                     /* of the head's products; else 1 */
    double logits_cap;                                         /* as attention_cap, after the division; 0: none */
    bool unit_offset_norms;                                    /* norms multiply by 1 + weight */
    bool attention_sinks;                                      /* a head's softmax has one more term in its sum */

    int64_t sliding_window; /* the largest window, or chunk, of a layer; 0 when no layer slides */

    /* Of layers of IV_MIXER_DELTA and IV_MIXER_SCAN, the taps of IV_MIXER_CONV too; 0: there are none.
     * linear_value_heads is a multiple of linear_key_heads. */
    int64_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, linear_conv_taps;
    /* Of layers of IV_MIXER_SCAN, which has groups of B and C for key heads. step_high 0: there is no limit. */
    bool scan_conv_bias;
    iv_scan_norm_kind scan_norm;
    double scan_step_low, scan_step_high;

    /* Mixture of experts: 0 experts and no MoE layer in dense families. */
    int64_t experts, experts_per_token, moe_intermediate_size;
    bool norm_topk_prob; /* the chosen experts' probabilities are scaled to sum to 1 */
    iv_router_score router_score;
    bool router_bias;                            /* added to the router's logits */
    bool router_correction;                      /* added to the scores for the choice alone; not trained */
    int64_t router_groups, router_chosen_groups; /* 0: no groups */
    double routed_scale;                         /* of the weights */
    bool router_scales_inputs;                   /* the weights scale the experts' inputs, not their outputs */
    double router_least;              /* added to the sum of sigmoids that weights are divided by; 0: 1e-20 */
    int64_t shared_intermediate_size; /* of an expert that serves all tokens; 0: there is none */
    bool expert_norms;                /* experts and the shared one have norms of their own behind the
                                       * residual stream, the router a third, and weights a factor each */
    bool shared_gate;                 /* its output is scaled by the sigmoid of a row of weights */

    iv_layer_config layer[IV_LAYERS_MAX]; /* [layers] */

    bool has_dtype;
    iv_dtype dtype; /* the type of the saved weights: BF16, F16, F32 or F64 */

    int64_t bos_id, pad_id; /* -1: none; bos_id < vocab_size, pad_id < IV_VOCAB_MAX */
    int64_t eos_ids[IV_EOS_IDS_MAX];
    size_t eos_count; /* each < vocab_size */
} iv_model_config;

/* The sizes of a layer's heads. */
static inline int64_t iv_config_head_dim(const iv_model_config *c, int64_t layer) {
    return c->layer[layer].wide ? c->wide_head_dim : c->head_dim;
}
static inline int64_t iv_config_kv_heads(const iv_model_config *c, int64_t layer) {
    return c->layer[layer].wide ? c->wide_kv_heads : c->kv_heads;
}
/* Of a head's part of the input of o. */
static inline int64_t iv_config_value_dim(const iv_model_config *c, int64_t layer) {
    return c->kv_rank ? c->value_dim : iv_config_head_dim(c, layer);
}
static inline int64_t iv_config_rope_dim(const iv_model_config *c, int rope) {
    return c->ropes[rope].head_dim ? c->ropes[rope].head_dim : c->head_dim;
}

/* True if some layer is wide. */
bool iv_config_has_wide(const iv_model_config *c);

/* The router of the layers with experts. */
iv_router iv_config_router(const iv_model_config *c);

/* Settles what depends on the number of positions that a model is opened for: with LONG it is extended if they are more
 * than the original ones, for all sequences, as in vLLM. */
/* The eps of norms behind blocks. */
double iv_config_post_eps(const iv_model_config *c);

void iv_config_use_positions(iv_model_config *c, int64_t positions);

/* True if a layer norms the outputs of its blocks. */
bool iv_config_has_post_norms(const iv_model_config *c);

/* True if a block's output is normed or scaled before it is added to the residual stream. */
bool iv_config_buffers_blocks(const iv_model_config *c);

/* True if a layer has this kind of MLP. */
bool iv_config_has_mlp(const iv_model_config *c, iv_mlp_kind kind);

/* Layers of this kind. */
size_t iv_config_mixers(const iv_model_config *c, iv_mixer_kind kind);

/* IV_UNSUPPORTED if it has latent attention, for which `what` ("training on device cuda") has no kernels yet. */
iv_status iv_config_check_no_latent(const iv_model_config *c, const char *what, iv_error *err);

/* Parses n bytes; `name` heads the errors. Pure. IV_FORMAT for a field of the wrong type or out of range,
 * IV_UNSUPPORTED, by name, for a well-formed feature that invar does not implement. */
iv_status iv_model_config_parse(const char *name, const char *json, size_t n, iv_model_config *out, iv_error *err);

/* The same for dir/config.json. */
iv_status iv_model_config_read(const char *dir, iv_model_config *out, iv_error *err);

#endif
