/* config_families.h: what a model type's files mean: a row a family, read by the parsers of config.json. */
#ifndef IV_FORMAT_CONFIG_FAMILIES_H
#define IV_FORMAT_CONFIG_FAMILIES_H

#include "format/config_experts.h"
#include "format/config_rope.h"
#include "format/config_scan.h"
#include "format/json.h"
#include "format/model_config.h"

/* The layers with a sliding window. */
typedef enum iv_slide_rule {
    IV_SLIDE_NEVER,         /* the family has no window; the fields are not read */
    IV_SLIDE_ALL,           /* every layer */
    IV_SLIDE_FROM_LAYER,    /* layer_types, else layers from max_window_layers on */
    IV_SLIDE_PATTERN,       /* layer_types, else all layers but each sliding_window_pattern-th */
    IV_SLIDE_PATTERN_FIRST, /* layer_types, else all layers but the first of each four */
    IV_SLIDE_ALTERNATE,     /* layer_types, else the first of each two */
    IV_SLIDE_NOPE,          /* layer_types, else the layers without a rotation */
    IV_SLIDE_LISTED,        /* layer_types, else every layer */
    IV_SLIDE_LISTED_ONLY,   /* layer_types, else none */
    IV_SLIDE_CHUNKS         /* attention_chunk_size: layer_types, else the layers with a rotation, in chunks */
} iv_slide_rule;

/* The layers without a rotation. */
typedef enum iv_nope_rule {
    IV_NOPE_NEVER,
    IV_NOPE_LISTED,        /* a 0 in no_rope_layers, else each no_rope_layer_interval-th layer */
    IV_NOPE_BY_THETA,      /* a 0 in layer_rope_theta */
    IV_NOPE_UNLESS_WINDOW, /* layers that see all positions */
    IV_NOPE_WITHOUT_WINDOW /* layers that see all positions, in models where others slide */
} iv_nope_rule;

typedef struct iv_family_facts {
    const char *model_type;
    int64_t kv_heads;       /* when num_key_value_heads is absent; 0: as many as heads */
    int64_t head_dim;       /* when head_dim is absent; 0: hidden_size / heads */
    int64_t bos_id, eos_id; /* when absent; -1: none */
    iv_slide_rule slides;
    bool window_switch; /* sliding_window counts only with use_sliding_window */
    iv_nope_rule nope;
    iv_norm_places norms;
    iv_local_rope local_rope;
    bool scales_queries;          /* llama_4_scaling_beta is read */
    bool part_of_head;            /* iv_rope_defaults */
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
    bool embedding_norm;              /* and its scales: model_config.c */
    bool gated;                       /* has gates on attention's output in all layers */
    bool linear;                      /* has linear-attention layers, and gates on attention's output */
    bool short_conv;                  /* has layers of short convolutions */
    iv_scan_family scan;              /* has layers of selective scans (config_scan.h) */
    bool latent;                      /* has latent attention (config_latent.h) */
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
    const char *reads[14]; /* members that other families refuse (config_members.h) */
} iv_family_facts;

/* The row of o's model_type. Fails with IV_UNSUPPORTED, with the list of those that are supported and, where it is
 * known, what the type would need. */
iv_status iv_config_family_of(const iv_json_object *o, const iv_family_facts **out, iv_error *err);

#endif
