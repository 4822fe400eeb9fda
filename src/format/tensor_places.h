/* tensor_places.h: where files store the tensors of a decoder.
 *
 * A decoder names its tensors as Hugging Face's llama and qwen3_moe do, one for each matrix, and stores the rows of q
 * and k in the order that its rotation wants. Files have prefixes (a wrapper with a vision tower), other names, several
 * matrices in one tensor (qkv_proj, all experts of a layer), and rows in another order. A place says how one becomes
 * the other. Pure. */
#ifndef IV_FORMAT_TENSOR_PLACES_H
#define IV_FORMAT_TENSOR_PLACES_H

#include "format/model_config.h"

/* What published files of a family do (iv_model_config.stored). Any family's files are read in the forms of the first
 * group, as trainers and other programs write them; the others change what a name means. */
enum {
    IV_STORED_QKV = 1,             /* self_attn.qkv_proj: rows of q, k, v */
    IV_STORED_GATE_UP = 2,         /* mlp.gate_up_proj: rows of gate, up */
    IV_STORED_MIXTRAL = 4,         /* block_sparse_moe.gate, block_sparse_moe.experts.N.w1 (gate), w2 (down), w3 (up) */
    IV_STORED_EXPERTS = 8,         /* mlp.experts.gate_up_proj [E, 2 I, H], mlp.experts.down_proj [E, H, I] */
    IV_STORED_TRANSPOSED = 16,     /* the same as [E, H, 2 I] and [E, I, H] */
    IV_STORED_INSIDE = 32,         /* model.language_model.* next to lm_head */
    IV_STORED_OUTSIDE = 64,        /* language_model.model.*, language_model.lm_head */
    IV_STORED_ORDINARY = 127,      /* all of these */
    IV_STORED_GLM4_NORMS = 128,    /* post_self_attn_layernorm, post_attention_layernorm, post_mlp_layernorm */
    IV_STORED_HUNYUAN_NORMS = 256, /* self_attn.query_layernorm, self_attn.key_layernorm */
    IV_STORED_GPT_OSS = 2048,      /* mlp.router; experts' gates and ups in turn, transposed in bfloat16 files */
    IV_STORED_APERTUS = 4096,      /* attention_layernorm, feedforward_layernorm; numbers of the activation */
    IV_STORED_LLAMA4 = 8192,       /* feed_forward, with router, shared_expert, and experts as TRANSPOSED */
    IV_STORED_GEMMA4 = 16384,      /* router.proj, experts as EXPERTS, next to mlp, which is the shared expert */
    IV_STORED_TOWERS = 512,        /* towers for images or sound and their projectors, which are not read */
    IV_STORED_MTP = 1024,          /* mtp.*: layers that draft further tokens, which are not read */
    IV_STORED_QUERY_GATE = 1 << 16, /* self_attn.q_proj: of each head the rows of q, then those of its output gate */
    /* linear_attn.conv1d [C, 1, taps]; linear_attn.in_proj_qkv: rows of q, k, v; in_proj_z, in_proj_b, in_proj_a; mtp.*
     */
    IV_STORED_DELTA = 1 << 17 | IV_STORED_MTP,
    /* The same with linear_attn.in_proj_qkvz: of each key head the rows of q, k, v, z, and in_proj_ba: of b, a */
    IV_STORED_DELTA_FUSED = 1 << 18 | IV_STORED_MTP,
    /* operator_norm, ffn_norm, feed_forward.w1 (gate), w2 (down), w3 (up), self_attn.out_proj, q_layernorm,
     * k_layernorm, embedding_norm (the last one); conv.in_proj: rows of b, c, x; conv.conv [C, 1, taps] */
    IV_STORED_LFM2 = 1 << 19,
    IV_STORED_LATENT = 1 << 20, /* self_attn.kv_b_proj: of each head the rows of its keys, then those of its values */
    /* mamba.in_proj: rows of z, x, B, C, dt; mamba.conv1d [C, 1, taps]: x, B, C */
    IV_STORED_SCAN = 1 << 21,
    /* block_sparse_moe.router.layer, .input_linear and .output_linear as EXPERTS; shared_mlp.input_linear: gate, up */
    IV_STORED_GRANITE_HYBRID = 1 << 22,
    IV_STORED_FALCON_H1 = 1 << 23, /* feed_forward, pre_ff_layernorm, final_layernorm */
    /* backbone.embeddings, backbone.norm_f; a layer's one block is mixer, its norm is norm */
    IV_STORED_NEMOTRON_H = 1 << 24
};

/* The order of the rows of each head. `head` 0: as in the file. */
typedef struct iv_row_order {
    size_t head;     /* rows of a head */
    size_t kept;     /* the first of them, which stay where they are: of latent attention */
    size_t rotated;  /* of the others are rotated, the first in a file; even */
    bool neighbours; /* pairs of the rotation are neighbours there, not half of the rotated rows apart */
} iv_row_order;

typedef struct iv_tensor_place {
    int ndim; /* of the stored tensor, and its shape */
    int64_t shape[3];
    bool transposed; /* row r is a column of the stored matrix `block`, one behind another along the first dimension */
    size_t block;    /* 0 where not transposed */
    size_t height;   /* rows of such a matrix; 0: as the shape says */
    size_t begin, step; /* row r is row, or column, begin + r * step, before the order */
    size_t run,
        stride; /* rows of each head, and from head to head: row r is begin + r / run * stride + r % run; 0, 0 */
    iv_row_order order;
} iv_tensor_place;

enum { IV_PLACES_MAX = 6, IV_PLACE_NAME_BYTES = 256 };

/* The prefixes that stand for "model.", tried in this order: NULL ends. */
extern const char *const iv_tensor_prefixes[];

/* The places where a tensor of the decoder may be, the family's own first; returns their number. prefix: of the
 * checkpoint, one of iv_tensor_prefixes, or NULL: the family's. rows, columns: of the decoder's tensor; ndim 1: a
 * vector of rows. names[i] is that of the stored tensor. */
size_t iv_tensor_places(const iv_model_config *c, const char *prefix, const char *name, int ndim, size_t rows,
                        size_t columns, iv_tensor_place *out, char (*names)[IV_PLACE_NAME_BYTES]);

/* Row r of the decoder's tensor in the stored one, before the order. */
static inline size_t iv_place_row(const iv_tensor_place *p, size_t r) {
    return p->begin + (p->run ? r / p->run * p->stride + r % p->run : r * p->step);
}

/* In a head of an order, the row of the file that becomes row j. */
size_t iv_row_order_source(const iv_row_order *o, size_t j);

/* Whether a stored tensor belongs to a part that is not read: towers (IV_STORED_TOWERS), and the layers behind the last
 * one that predict further tokens (iv_model_config.predicting_layers). */
bool iv_tensor_is_ignored(const iv_model_config *c, const char *name);

/* Rotary tables, which old exports and ColossalAI's hold as buffers: no engine reads them. */
bool iv_tensor_is_buffer(const char *name);

#endif
