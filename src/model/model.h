/* model.h: a checkpoint's weights, packed and ready to run; read-only once open, shared by every thread. */
#ifndef IV_MODEL_MODEL_H
#define IV_MODEL_MODEL_H

#include "base/arena.h"
#include "base/threads.h"
#include "format/checkpoint.h"
#include "format/model_config.h"
#include "kernels/matrix.h"
#include "kernels/paged_kv.h"

/* Matrices that share an input are one matrix: q, k, v stacked, and gate over up. Biases are NULL where the
 * family has none. */
typedef struct iv_mlp {
    iv_matrix gate_up, down;
    float *gate_up_bias, *down_bias;
} iv_mlp;

typedef struct iv_layer {
    float *attention_norm, *mlp_norm; /* [hidden] */
    float *q_norm, *k_norm;           /* [head_dim] or NULL */
    iv_matrix qkv, out;
    float *qkv_bias, *out_bias;
    iv_matrix router; /* n = experts; unused in dense layers */
    iv_mlp *experts;  /* one for a dense layer */
    bool moe;
    int64_t window; /* 0: full attention */
} iv_layer;

typedef struct iv_model {
    iv_model_config config;
    iv_dtype dtype; /* of GEMM inputs and of the KV cache */
    iv_layer *layers;
    iv_matrix embedding; /* rows are gathered from its panels */
    iv_matrix head;      /* shares the embedding's data when tied */
    float *final_norm;
    float scale_log2e;              /* head_dim^-0.5 * log2(e) */
    size_t rope_positions;          /* rows of the tables */
    float *rope_cosine, *rope_sine; /* [rope_positions][head_dim / 2] */
    iv_kv_layout kv_layout;
    size_t weight_bytes;        /* packed, in memory */
    uint8_t weights_digest[32]; /* as iv_checkpoint_digest */
    iv_arena arena;             /* small parts */
    unsigned char *data;        /* all matrices */
    unsigned char *widened;     /* widen.h; NULL unless asked for */
    size_t widened_bytes;
} iv_model;

typedef struct iv_model_options {
    bool has_dtype;
    iv_dtype dtype;   /* BF16, F16 or F32; without has_dtype the checkpoint's own */
    size_t positions; /* longest sequence that will be run; 0: the model's own maximum */
    void (*progress)(void *user, size_t done_bytes, size_t total_bytes); /* may be NULL; one thread at a time */
    void *user;
} iv_model_options;

/* Reads, checks and packs a model directory. Refuses tensors that are missing, surplus, of the wrong shape or
 * type, or hold a NaN or an infinity. On failure nothing is left behind. */
iv_status iv_model_open(const char *dir, const iv_model_options *options, iv_pool *pool, iv_model **out, iv_error *err);
void iv_model_close(iv_model *m); /* NULL is fine */

/* What would be loaded, from headers alone: fills config, dtype, kv_layout, weight_bytes; no data, no tables.
 * The caller closes the checkpoint and frees out->arena. */
iv_status iv_model_plan(const char *dir, const iv_model_options *options, iv_model *out, iv_checkpoint **checkpoint,
                        iv_error *err);

#endif
