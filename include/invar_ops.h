/* invar_ops.h: the ops of the law (docs/NUMERICS.md), forward and backward, for other programs: invar.torch calls them.
 *
 * Arrays are the caller's, row-major and without gaps unless a stride is given. `typed` arrays hold the GEMM type of
 * the context; all others are float32. Rows are tokens: whole sequences one after another. A call may have 0 rows.
 * Calls on one context run one after another, from any thread; results do not depend on threads, instruction sets, or
 * on other rows of a call. Sizes are checked; an error names the op and the argument. Structs may change with the
 * version of the library: build against the header of the library that you load.
 *
 * A context of a GPU has the same bits. Its arrays are memory of that GPU at multiples of 16 bytes, in the primary
 * context of the CUDA driver, as the CUDA runtime and PyTorch use it; but everything inside the structs other than
 * weights, norms, tables and sums, and all token ids, targets and virtual ranks, are on the CPU, and free again when
 * the call returns. A call enqueues its work on the context's stream and may return before it is done. It leaves the
 * thread's current device as it was. Streams that capture a graph are not supported. */
#ifndef INVAR_OPS_H
#define INVAR_OPS_H

#include "invar_status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iv_ops iv_ops;

/* Scratch of a GPU's calls: `allocate` returns memory of its device for use on `stream`, at a multiple of 256 bytes, or
 * NULL; `release` gives it back before that work is done, so that only later work of the same stream may have it. Both
 * are called during calls on the context. */
typedef struct iv_ops_memory {
    void *(*allocate)(void *context, size_t bytes, void *stream);
    void (*release)(void *context, void *memory, void *stream);
    void *context;
} iv_ops_memory;

typedef struct iv_ops_options {
    const char *dtype;      /* the GEMM type: "bfloat16", "float16", "float32" */
    const char *arithmetic; /* "fma32", "tc16", or "auto": as the engine's on that device, fma32 on a CPU; on a GPU
                               tc16, but fma32 for float32. NULL: auto */
    const char *isa;        /* "auto", "scalar", "avx2", "avx512": never changes a bit. NULL: auto */
    size_t threads;         /* 0: one per CPU; never changes a bit */
    const char *device; /* "cpu", or "cuda:0", "cuda:1", ... as the CUDA runtime counts. NULL: cpu. IV_UNSUPPORTED: no
                           CUDA in this build, no GPU, or a GPU that does not have the arithmetic */
    const iv_ops_memory *memory; /* of a GPU; copied. NULL: the context allocates, and keeps what it has */
} iv_ops_options;

IV_API iv_status iv_ops_open(const iv_ops_options *options, iv_ops **out, iv_error *err);
IV_API void iv_ops_close(iv_ops *ops); /* NULL is fine */
/* "fma32" or "tc16". Static string. */
IV_API const char *iv_ops_arithmetic(const iv_ops *ops);

/* The stream of a GPU (a cudaStream_t) of later calls; at first the default stream. If there was another one, the new
 * one waits for it, so it must exist still. IV_INVALID on a CPU. */
IV_API iv_status iv_ops_set_stream(iv_ops *ops, void *stream, iv_error *err);
/* Waits for the stream, and tells what its work has found: IV_NOT_FINITE of iv_ops_attention_forward. On a CPU IV_OK.
 */
IV_API iv_status iv_ops_synchronize(iv_ops *ops, iv_error *err);

/* out[i] = x[i] rounded to the GEMM type (typed). */
IV_API iv_status iv_ops_round(iv_ops *ops, const float *x, size_t n, void *out, iv_error *err);
/* out[i] = the sum of from[k][i] of `count` arrays, a power of two, in the binary tree. `out` may be from[0]. */
IV_API iv_status iv_ops_tree_sum(iv_ops *ops, const float *const *from, size_t count, size_t n, float *out,
                                 iv_error *err);

/* ---- configuration ----------------------------------------------------------------------------------------- */

/* What the engine makes of a config.json, as a JSON object: every field under its name in config.json, "ropes", and
 * "layers" as runs of equal layers, {"count": 28, "sliding_window": 0, "mlp": "dense", ...}. IV_UNSUPPORTED names what
 * the engine lacks (an activation, a rule of positions, ...). The caller frees *out. */
IV_API iv_status iv_ops_config_json(const char *json, size_t bytes, iv_text *out, iv_error *err);
/* The rotary tables of a config.json: cosine, sine [positions][head_dim / 2]. */
IV_API iv_status iv_ops_rope_tables(iv_ops *ops, const char *json, size_t bytes, size_t positions, float *cosine,
                                    float *sine, iv_error *err);

/* ---- sums over tokens (NUMERICS.md 15.3) ----------------------------------------------------------------------- */

/* Assigns the sequences of a step to virtual ranks, a power of two up to 64 (15.2): rank r has the sequences
 * index[begin[r]] .. index[begin[r + 1] - 1]. index[n], begin[virtual_ranks + 1]. */
IV_API iv_status iv_ops_virtual_ranks(const size_t *lengths, size_t n, size_t virtual_ranks, uint32_t *index,
                                      size_t *begin, iv_error *err);

/* The tokens of a pass: sequences [from, to) of the `count` that the caller adds up, in order of virtual ranks. The
 * call's rows are the tokens of these, in order. */
typedef struct iv_ops_axis {
    const uint32_t *ranks; /* [count]: virtual, below virtual_ranks, ascending */
    size_t count, from, to;
    const size_t *tokens; /* [to - from]: rows of each sequence in this pass; 0 is fine */
    size_t virtual_ranks; /* of the caller: a power of two up to 64 */
} iv_ops_axis;

/* Sums in progress. After the pass that holds the last sequence `sum` is the result; before that it and the levels
 * belong to the ops. Their content before the first pass is free. */
typedef struct iv_ops_sums {
    float *sum;
    float *const *level; /* [log2(virtual_ranks)], or NULL if one pass holds all sequences */
} iv_ops_sums;

/* Sums of columns [first, first + n) of dy[rows][stride]: gradients of a bias. */
IV_API iv_status iv_ops_column_sums(iv_ops *ops, const iv_ops_axis *axis, const float *dy, size_t stride, size_t first,
                                    size_t n, const iv_ops_sums *sums, iv_error *err);

/* ---- linear layers ------------------------------------------------------------------------------------------- */

typedef struct iv_ops_weight {
    const void *data;  /* [n][k] */
    const float *bias; /* [n] or NULL */
    size_t n;
} iv_ops_weight;

/* Layers that share an input: one; gate and up; or q, k and v. Outputs are concatenated. */
typedef struct iv_ops_linear {
    iv_ops_weight weight[3];
    size_t weights, k;
    bool weight_float; /* weights are float32 and are rounded to the GEMM type; else they are typed */
    bool row_parallel; /* o, down: tensor-parallel ranks divide the inputs, not the outputs */
    bool router;       /* ranks divide neither */
    bool one_chain;    /* layers of an expert */
    bool head;         /* a sum over outputs may be -0 */
    size_t kv_heads;   /* of q, k and v; 0 for others */
} iv_ops_linear;

/* out[rows][outputs] = x W^T + bias, of typed x[rows][k]; accumulate: out = out + that. */
IV_API iv_status iv_ops_linear_forward(iv_ops *ops, const iv_ops_linear *l, const void *x, size_t rows, bool accumulate,
                                       float *out, iv_error *err);
/* dx[rows][k] = dy W, of typed dy[rows][outputs]. */
IV_API iv_status iv_ops_linear_input_gradient(iv_ops *ops, const iv_ops_linear *l, const void *dy, size_t rows,
                                              float *dx, iv_error *err);
/* sums[w] [n][k] of each layer: dy^T x, both typed. The weights' data is not read. */
IV_API iv_status iv_ops_linear_weight_gradient(iv_ops *ops, const iv_ops_linear *l, const iv_ops_axis *axis,
                                               const void *dy, const void *x, const iv_ops_sums *sums, iv_error *err);

/* ---- rows ------------------------------------------------------------------------------------------------------ */

/* out[rows][n]: float32 or typed. */
IV_API iv_status iv_ops_rms_norm(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                                 bool typed, void *out, iv_error *err);
/* dx = the gradient of x from dy, plus add[rows][n]; dx may be add. sums: of the weight's [n], or NULL. */
IV_API iv_status iv_ops_rms_norm_backward(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows,
                                          size_t n, const float *dy, const float *add, const iv_ops_axis *axis,
                                          float *dx, const iv_ops_sums *sums, iv_error *err);

/* gate_up[rows][2 * n] -> out[rows][n], and rounded gate, up[rows][n] for the backward pass (or NULL); all typed. */
IV_API iv_status iv_ops_swiglu(iv_ops *ops, const float *gate_up, size_t rows, size_t n, void *gate, void *up,
                               void *out, iv_error *err);
/* dgate_up[rows][2 * n], typed or float32. */
IV_API iv_status iv_ops_swiglu_backward(iv_ops *ops, const void *gate, const void *up, const float *da, size_t rows,
                                        size_t n, bool typed, void *dgate_up, iv_error *err);

/* out[count][n] = rows of weight[vocab][n], widened. weight_float as in iv_ops_linear. */
IV_API iv_status iv_ops_embedding(iv_ops *ops, const void *weight, bool weight_float, size_t vocab, size_t n,
                                  const int32_t *ids, size_t count, float *out, iv_error *err);
/* out[vocab][n] from the gradients dx[count][n] of all tokens of the step, in order of virtual ranks. */
IV_API iv_status iv_ops_embedding_backward(iv_ops *ops, size_t vocab, size_t n, const int32_t *ids,
                                           const uint32_t *ranks, size_t virtual_ranks, const float *dx, size_t count,
                                           float *out, iv_error *err);

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct iv_ops_attention {
    size_t heads, kv_heads, head_dim;
    int64_t window;        /* 0: none */
    const size_t *lengths; /* of sequences, each from its position 0 on; their sum is the number of rows */
    size_t sequences;
    /* Head norms and rotation. */
    const float *q_norm, *k_norm; /* [head_dim], or NULL: no norms */
    float eps;
    const float *cosine, *sine; /* [positions][head_dim / 2] */
    size_t positions;
} iv_ops_attention;

/* qkv[rows][(heads + 2 * kv_heads) * head_dim] is changed in place; q, k, v: typed. q_raw, k_raw: typed, before the
 * norms, for the backward pass, or NULL. */
IV_API iv_status iv_ops_rope(iv_ops *ops, const iv_ops_attention *a, float *qkv, void *q, void *k, void *v, void *q_raw,
                             void *k_raw, iv_error *err);
/* dqkv in place. q_sums, k_sums: of the norms' weights; NULL without norms. */
IV_API iv_status iv_ops_rope_backward(iv_ops *ops, const iv_ops_attention *a, const void *q_raw, const void *k_raw,
                                      const iv_ops_axis *axis, float *dqkv, const iv_ops_sums *q_sums,
                                      const iv_ops_sums *k_sums, iv_error *err);
/* Causal attention. out: typed, as q; lse2[rows][heads]. IV_NOT_FINITE names a row whose key or value is not finite. A
 * GPU finds it after the call has returned: then the next call on the context, whichever it is, returns the error
 * instead of running. */
IV_API iv_status iv_ops_attention_forward(iv_ops *ops, const iv_ops_attention *a, const void *q, const void *k,
                                          const void *v, void *out, float *lse2, iv_error *err);
/* dout: typed. dqkv as qkv above. */
IV_API iv_status iv_ops_attention_backward(iv_ops *ops, const iv_ops_attention *a, const void *q, const void *k,
                                           const void *v, const void *out, const void *dout, const float *lse2,
                                           float *dqkv, iv_error *err);

/* ---- experts (NUMERICS.md 9, 15.9) ---------------------------------------------------------------------------------
 */

/* Router logits[rows][experts] -> the k experts of each row, ids ascending, and their weights. A GPU takes up to 512
 * experts, and does not check the ids that it is given: they must be those of iv_ops_route. */
IV_API iv_status iv_ops_route(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k, bool normalize,
                              int32_t *ids, float *weights, iv_error *err);
/* dlogits[rows][experts] from the gradients dweights[rows][k]. */
IV_API iv_status iv_ops_route_backward(iv_ops *ops, const float *logits, size_t rows, size_t experts, size_t k,
                                       bool normalize, const int32_t *ids, const float *weights, const float *dweights,
                                       float *dlogits, iv_error *err);
/* out[rows][n] += the terms[rows][k][n] of each row, in the tree over expert ids. */
IV_API iv_status iv_ops_expert_sum(iv_ops *ops, const int32_t *ids, const float *terms, size_t rows, size_t k, size_t n,
                                   float *out, iv_error *err);
/* out[rows] = the gradients of routing weights: da[rows][n] times act[rows][n] (typed). */
IV_API iv_status iv_ops_expert_weight_gradient(iv_ops *ops, const float *da, const void *act, size_t rows, size_t n,
                                               float *out, iv_error *err);
/* x[row][i] = x[row][i] * by[row]. */
IV_API iv_status iv_ops_scale_rows(iv_ops *ops, float *x, const float *by, size_t rows, size_t n, iv_error *err);

/* ---- log-probabilities ---------------------------------------------------------------------------------------------
 */

/* logprobs[i] = that of targets[i] in logits[i] / temperature; max and sum [rows] for the backward pass, or NULL. */
IV_API iv_status iv_ops_logprobs(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                                 float temperature, float *logprobs, float *max, float *sum, iv_error *err);
/* dlogits[rows][vocab], typed or float32, from the gradients of the log-probabilities. */
IV_API iv_status iv_ops_logprobs_backward(iv_ops *ops, const float *logits, size_t rows, size_t vocab,
                                          const int32_t *targets, float temperature, const float *max, const float *sum,
                                          const float *dlogprobs, bool typed, void *dlogits, iv_error *err);

/* ---- optimizer (NUMERICS.md 15.10)
 * ----------------------------------------------------------------------------------- */

/* sums[b]: of squares of each block of 4096 elements of a gradient; (n + 4095) / 4096 of them. */
IV_API iv_status iv_ops_block_sums(iv_ops *ops, const float *gradient, size_t n, double *sums, iv_error *err);

/* From the block sums of all tensors in byte order of their names. max_norm 0: no clipping. IV_NOT_FINITE: the step
 * must be refused. */
IV_API iv_status iv_ops_gradient_scale(const double *sums, size_t blocks, double denominator, double max_norm,
                                       double *norm, float *scale, iv_error *err);

typedef struct iv_ops_adamw {
    double learning_rate, beta1, beta2, eps, weight_decay;
    uint64_t step; /* 1 and on */
    float scale;   /* of iv_ops_gradient_scale */
    bool decay;    /* whether this tensor decays */
} iv_ops_adamw;
/* One step over any n elements of one tensor. */
IV_API iv_status iv_ops_adamw_step(iv_ops *ops, const iv_ops_adamw *o, const float *gradient, size_t n, float *w,
                                   float *m, float *v, iv_error *err);

#ifdef __cplusplus
}
#endif

#endif
