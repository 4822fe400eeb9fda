/* model.h: a checkpoint's weights, packed and ready to run; read-only once open, shared by every thread.
 *
 * An iv_model is the shard of one tensor-parallel rank (tp_plan.h). Ranks of one process are opened together: the first
 * owns what every rank needs whole (embedding, norms, routers, rope tables) and the others point to it. */
#ifndef IV_MODEL_MODEL_H
#define IV_MODEL_MODEL_H

#include "base/arena.h"
#include "base/threads.h"
#include "device/memspace.h"
#include "format/checkpoint.h"
#include "format/model_config.h"
#include "kernels/delta.h"
#include "kernels/matrix.h"
#include "kernels/paged_kv.h"
#include "kv/groups.h"
#include "kv/states.h"
#include "model/scales.h"
#include "model/tp_plan.h"

enum { IV_MODEL_ALIGN = 256 }; /* of a matrix among the others */

/* Matrices that share an input are one matrix: q, k, v stacked, and gate over up (up alone if the activation has no
 * gate); of each the rank's rows. Row-parallel
 * matrices are one for each canonical node of the rank's leaves. Biases are NULL where the family has none. */
typedef struct iv_mlp {
    iv_matrix gate_up, down[IV_RANK_NODES_MAX];
    float *gate_up_bias, *down_bias;
    float *alpha_p, *alpha_n, *beta, *eps; /* of xIELU, one number each; or NULL */
} iv_mlp;

/* The same by name (tensors.h), whole: NULL where the layer has none. The first model of a process has them. */
typedef struct iv_tensor iv_tensor;
typedef struct iv_stored iv_stored;
typedef struct iv_mlp_tensors {
    iv_tensor *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    iv_tensor *alpha_p, *alpha_n, *beta, *eps; /* of xIELU */
} iv_mlp_tensors;
typedef struct iv_layer_tensors {
    iv_tensor *attention_norm, *mlp_norm, *attention_post_norm, *mlp_post_norm;
    iv_tensor *scalar;
    iv_tensor *q_norm, *k_norm, *sinks, *q, *k, *v, *out, *q_bias, *k_bias, *v_bias, *out_bias;
    iv_tensor *router_norm, *expert_scales, *experts_norm, *experts_post_norm, *shared_post_norm;
    iv_tensor *gate, *gate_bias; /* of attention's output */
    /* Of a scan q, k, v, z, a are C, B, x, z, dt, and D is skip. */
    iv_tensor *z, *b, *a, *conv, *a_log, *dt_bias, *delta_norm, *conv_bias,
        *skip; /* of linear attention, with q, k, v and out; of a short convolution b, z (c), v (x), conv, out */
    iv_tensor *q_b, *kv_a, *q_a_norm, *kv_a_norm; /* of latent attention; q is what its queries are made from first */
    iv_tensor **keys, **values;                   /* [heads], parts of kv_b_proj */
    iv_tensor *router, *router_bias, *router_correction, *shared_gate;
    iv_mlp_tensors shared;   /* the expert that serves all tokens */
    iv_mlp_tensors *experts; /* [config.experts]; one for a dense layer */
} iv_layer_tensors;

/* A rotation: cosines and sines, [rope_positions][head_dim / 2]; query: NULL, or what rotated queries are multiplied
 * by, [rope_positions]. */
typedef struct iv_rope_table {
    float *cosine, *sine, *query;
} iv_rope_table;

/* Vectors of linear attention, of the rank's heads; a short convolution has conv alone. */
typedef struct iv_delta_weights {
    float *conv;             /* [channels][taps] */
    float *a_log, *dt_bias;  /* [value heads] */
    float *norm;             /* [linear_value_dim]; of a scan [value heads * linear_value_dim], or NULL */
    float *conv_bias, *skip; /* of a scan: [channels] or NULL; [value heads] */
} iv_delta_weights;

/* Latent attention of the rank's heads. qkv has q_a, or without a low rank q, and behind it kv_a. */
typedef struct iv_latent_weights {
    float *q_norm, *kv_norm;  /* [q_rank], NULL without it; [kv_rank] */
    iv_matrix q;              /* of heads from q_rank; unused without it */
    iv_matrix *keys, *values; /* [the rank's heads]: kv_rank outputs of a query's part that does not turn, and value_dim
                               * outputs of kv_rank */
} iv_latent_weights;

typedef struct iv_layer {
    const iv_layer_config *config;              /* the decoder (decoder.c) chooses its ops by it */
    const iv_rope_table *rope;                  /* the rotation of q and k */
    float *attention_norm, *mlp_norm;           /* [hidden], of the blocks' inputs; NULL: not normed */
    float *attention_post_norm, *mlp_post_norm; /* [hidden], of their outputs; NULL: not normed */
    float *q_norm, *k_norm;                     /* [head_dim], over all heads [the rank's heads][head_dim]; or NULL */
    float *v_norm;                              /* [head_dim] of ones, or NULL */
    float *scalar;                              /* of the residual stream behind the layer, or NULL */
    float *sinks;                               /* [the rank's heads] or NULL */
    iv_delta_weights delta;                     /* of linear attention */
    iv_latent_weights latent;                   /* of latent attention */
    iv_matrix qkv;                    /* with a gate's rows behind v; of linear attention q, k, v, z, b, a; of a short
                                       * convolution b, c, x; of a scan C, B, x, z, dt */
    iv_matrix out[IV_RANK_NODES_MAX]; /* by tp.out or, of a layer with a state, tp.mixer_out */
    float *qkv_bias, *out_bias;
    iv_matrix router;         /* n = experts, and one for the shared expert's gate; unused in dense layers */
    float *router_bias;       /* [router.n], zero for the gate; or NULL */
    float *router_correction; /* [experts] or NULL */
    float *router_norm;   /* [hidden], of the router's input, which is scaled by hidden^-0.5; or NULL: it is normed */
    float *expert_scales; /* [experts]: of the routing weights, or NULL */
    float *experts_norm;  /* [hidden], of the experts' inputs; NULL: mlp_norm, which is that of the shared one */
    float *experts_post_norm, *shared_post_norm; /* [hidden], of the sums of experts and of the shared one; or NULL */
    iv_mlp shared;                               /* as a dense layer's, by tp.shared; empty if there is none */
    iv_mlp *experts;                             /* [config.experts], of other ranks empty; one for a dense layer */
} iv_layer;

/* The activation of an MLP of a layer, with numbers of its weights. */
iv_activation iv_layer_activation(const iv_layer *l, const iv_mlp *w);

typedef struct iv_model {
    iv_model_config config;
    iv_tp_plan tp;
    size_t rank;
    bool widen, plain_rows, packed; /* as iv_model_options */
    int terms;                      /* likewise */
    iv_memspace *memspace;          /* where the matrices are; NULL: here. Vectors are here in any case */
    struct iv_model *next;          /* the shard of the next rank of this process; the first closes them all */
    iv_dtype gemm_type;             /* of GEMM inputs; that of keys and values is the kv_layout's */
    iv_layer *layers;
    iv_matrix embedding; /* rows are gathered from its panels */
    iv_matrix head;      /* the rank's panels; shares the embedding's data when tied */
    float *final_norm;
    float *embedding_norm; /* ones; NULL: none */
    iv_scales scales;
    size_t rope_positions;                    /* rows of the tables */
    iv_rope_table ropes[IV_ROPES_MAX];        /* [config.rope_count] */
    iv_kv_groups kv_groups;                   /* layers that share a page table */
    iv_kv_place kv_place[IV_LAYERS_MAX];      /* [layers] */
    iv_kv_layout kv_layout[IV_KV_GROUPS_MAX]; /* [kv_groups.count]: of the rank's KV heads, perhaps none */
    iv_state_layout state_layout;             /* of layers with a state; its bytes are those of the widest rank */
    iv_delta_layout delta_layout;             /* of the rank's heads */
    uint32_t state_place[IV_LAYERS_MAX];      /* which of the layers with a state a layer is */
    size_t weight_bytes;                      /* packed, in memory; the first rank of a process counts all of them */
    iv_tensor *tensors;                       /* by name; the first rank's has all of this process */
    size_t tensor_count;
    iv_stored *stored; /* the checkpoint's, by its names: stored.h; of the first rank */
    size_t stored_count;
    iv_layer_tensors *layer_tensors;           /* [layers]; of the first rank, as the next three */
    iv_tensor *embedding_tensor, *head_tensor; /* the head is NULL when tied */
    iv_tensor *final_norm_tensor;
    uint8_t weights_digest[32]; /* as iv_checkpoint_digest; after iv_tensor_write only once iv_model_digest is called */
    bool index_unread;          /* as iv_checkpoint_index_unread */
    iv_arena arena;             /* small parts */
    unsigned char *data;        /* all matrices */
    size_t data_bytes;
} iv_model;

/* What the output of a layer's mixer is multiplied by before it is added. */
static inline float iv_mixer_scale(const iv_model *m, const iv_layer *l) {
    iv_mixer_kind mixer = l->config->mixer;
    return mixer == IV_MIXER_ATTENTION ? m->scales.attention_out
           : mixer == IV_MIXER_SCAN    ? m->scales.scan_out
                                       : m->scales.residual;
}

typedef struct iv_model_options {
    bool has_dtype;
    iv_dtype dtype;                /* BF16, F16 or F32; without has_dtype the checkpoint's own */
    size_t positions;              /* longest sequence that will be run; 0: the model's own maximum */
    size_t longest;                /* what iv_config_use_positions goes by; 0: positions */
    bool baseline;                 /* partial sums are added rank by rank: tp_plan.h */
    size_t ranks;                  /* tensor-parallel; 0 means 1 */
    size_t rank_first, rank_count; /* those of this process; count 0 means 1 */
    iv_memspace
        *memspace[IV_RANKS_MAX]; /* memory of the matrices of each rank of this process: NULL, or all GPUs. Such a
                                  * rank has its own embedding and routers only once the GPUs share them out */
    bool expand_as_saved;        /* packed weights become the dtype of config.json, whatever `dtype` is */
    bool packed;                 /* quantized matrices stay as the file stores them where their form allows, and rows of
                                  * them cannot be written */
    int terms;                   /* 1 or 2: linear layers are int8 codes, of products of so many terms (kernels/int8.h);
                                  * IV_UNSUPPORTED names one that the file has in another packed form. 0: they are not */
    bool widen;                  /* in float32, matrices that the checkpoint has in 16 bits are held as float32 */
    bool plain_rows;             /* in a memory space: gate and up are not interleaved */
    bool unread;                 /* weights stay zero: the caller writes them (parameters.h) */
    bool dummy;                  /* seeded random weights instead of files */
    uint64_t dummy_seed;
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* may be NULL; one thread at a time */
    void *user;
} iv_model_options;

/* Reads, checks and packs a model directory: *out is the first rank's, the others follow by `next`. Every byte is read,
 * checked and hashed once, whichever rank it is for. Refuses tensors that are missing, surplus, of the wrong shape or
 * type, or hold a NaN or an infinity. On failure nothing is allocated. */
iv_status iv_model_open(const char *dir, const iv_model_options *options, iv_pool *pool, iv_model **out, iv_error *err);
/* Bytes of the largest matrix that is held packed, as plain rows of its type; 0: none is. */
size_t iv_model_widest_codes(const iv_model *m);

void iv_model_close(iv_model *m); /* NULL is fine */

/* The type that it would be held in: from the options, else config.json, else the embedding. */
iv_status iv_model_dtype(const char *dir, const iv_model_options *options, iv_dtype *out, iv_error *err);

/* What would be loaded, from headers alone and on one rank: fills config, dtype, kv_groups, kv_layout, weight_bytes; no
 * data. The caller closes the checkpoint and frees out->arena. */
iv_status iv_model_plan(const char *dir, const iv_model_options *options, iv_model *out, iv_checkpoint **checkpoint,
                        iv_error *err);
/* The same of rank `rank` of `ranks`, alone in its process. */
iv_status iv_model_plan_rank(const char *dir, const iv_model_options *options, size_t ranks, size_t rank, iv_model *out,
                             iv_checkpoint **checkpoint, iv_error *err);

#endif
