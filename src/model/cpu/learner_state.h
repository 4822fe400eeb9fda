/* learner_state.h: the memory of a learner, and the pass that is running. Shared by the files of the backward pass. */
#ifndef IV_MODEL_CPU_LEARNER_STATE_H
#define IV_MODEL_CPU_LEARNER_STATE_H

#include "kernels/input_gradient.h"
#include "model/cpu/learner.h"
#include "model/cpu/mlp.h"
#include "model/cpu/tp_gather.h"
#include "model/parameters.h"

enum { IV_VOCABULARY_BLOCK = 1024 }; /* logits of the backward pass that exist at once */

/* A prediction of the pass: the row whose logits it reads, and the token. */
typedef struct iv_prediction {
    uint32_t row;
    int32_t target;
} iv_prediction;

typedef struct iv_cpu_learner iv_cpu_learner;
struct iv_cpu_learner {
    iv_learner base; /* first */
    iv_cpu_model *forward;
    const iv_model *model; /* the rank's; tensors belong to `tensor_owner` */
    const iv_model *tensor_owner;
    const iv_kernels *kernels;
    iv_backend_ops ops;
    iv_compute compute;   /* with the learner's own scratch */
    const float *weights; /* NULL: the packed ones serve */
    /* Of an adapter that learns, in which case the model's weights have no gradients; else NULL. */
    const iv_learned_adapter *learned;
    const iv_adapters *adapters;
    size_t place;         /* of this rank among those of the process */
    const float *masters; /* the flat buffer of A and B */
    uint32_t *slots;      /* [rows]: ones */
    void *adapter_dz;     /* [rows][widest]: R(scale dy) of a module's outputs */
    void *adapter_t;      /* [rows][rank]: R(A x), and the gradient of it */
    void *adapter_dt;
    float *adapter_sums;   /* [rows][rank]: before they are rounded */
    float *adapter_dx;     /* [rows][inputs] */
    void *adapter_packed;  /* t over the token axis */
    float *rank_sums[4];   /* as leaf_sums, of the head's dt */
    unsigned char *head_b; /* a block of the head's B, packed; [rows][block] floats of B t */
    float *head_z;
    iv_tape tape;
    size_t padded_max;
    unsigned char *data;
    size_t data_bytes;
    /* Pages of one layer: layers use them in turn. */
    unsigned char *kv;
    uint32_t *pages;
    /* Gradients, [rows]: NUMERICS.md 15 has the names. */
    float *dx, *dnormed, *dattended, *dqkv, *dact;
    float *dblock; /* of the output of the block at work: dx, or post_dx behind a norm */
    float *post_dx;
    void *dy;                /* [rows][widest]: a GEMM input */
    void *dy_run;            /* [rows][widest]: the same with leaves in a run */
    float *kept_dnormed;     /* [rows][hidden]: of an MLP that shares its norm with attention; NULL if none does */
    float *centered;         /* [2][rows][hidden]: of norms that center rows: these, and their gradients; or NULL */
    float *activation_terms; /* [rows][2]: of the numbers of xIELU; NULL without it */
    float *factors;          /* [rows][heads]: of norms */
    float *sink_terms;       /* [rows][the rank's heads]: of the gradients of attention's sinks, or NULL */
    float *head_terms;       /* [rows][2][head_dim]: of q_norm and k_norm; [rows][value_dim]: of a gated norm */
    float *log_terms;        /* [rows][value heads]: of linear attention's A_log */
    float *skip_terms;       /* the same, of a scan's D */
    void *packed;            /* activations over the token axis */
    void *transposed;        /* weights, transposed */
    void *unpacked;          /* weights by row, where `weights` is NULL */
    const void **row_list;   /* [padded_max or the most outputs] */
    /* Of latent attention; NULL without it. */
    void *latent_out,
        *latent_dout;     /* [rows][heads][kv_rank + rope_dim]: attention's rows and their gradients, and zeros */
    float *latent_rows;   /* [rows][heads][kv_rank], or [rows][q_rank] */
    float *latent_inputs; /* [rows][outputs of qkv]: their gradients */
    /* Predictions, [rows]. */
    iv_prediction *predictions;
    uint32_t *logit_rows;
    float *max, *sum, *logprobs, *coefficients;
    float *logits; /* a slice: [slice][vocab]; in the backward pass [rows][block] */
    size_t logits_floats, slice;
    float *gathered;     /* [ranks][rows][widest that is added over ranks] */
    size_t h_panels;     /* panels of hidden columns */
    float *leaf_sums[4]; /* accumulators of the head's input gradient: a leaf and waiting subtrees */
    /* Experts. */
    float *expert_gradients; /* [rows][experts_per_token]: of routing weights */
    float *router_gradients; /* [rows][the router's outputs] */
    float *shared_dx;        /* [rows][hidden]: of the shared expert's input */
    float *sums_dx;     /* [2][rows][hidden]: of the sums of the shared expert and of the others; NULL without norms */
    float *scale_terms; /* [rows][experts]: of the factors of routing weights; or NULL */
    float *scale_gradients; /* [rows]: of its gate's logits */
    uint32_t *expert_slots; /* [rows]: token * experts_per_token + slot of each row of the expert at work */
    /* Look-ups of the whole step so far. */
    float *lookups; /* [lookup_count][hidden] */
    int32_t *lookup_ids;
    uint32_t *lookup_ranks;
    size_t tied_offset; /* of the look-ups of a tied embedding in the sums; 0: at the embedding */
    size_t lookup_count, lookup_max;
    size_t qkv_leaves[2], up_leaves, shared_leaves, head_leaves;   /* of sums over outputs, on this rank; [1]: of layers
                                                                    * that are wide */
    size_t mixer_leaves;                                           /* of projections before layers with a state */
    iv_row_cuts *qkv_cuts[2], *up_cuts, *shared_cuts, *mixer_cuts; /* how ranks share them; NULL for one rank */
    /* Axes. */
    iv_axis_sequence *axis_sequences; /* [sequences of the step] */
    size_t axis_sequences_max;
    int32_t *axis_rows, *head_rows, *expert_rows;
    iv_rank_range rank_ranges[IV_VIRTUAL_RANKS_MAX], head_ranges[IV_VIRTUAL_RANKS_MAX],
        expert_ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis, head_axis;
    /* The pass. */
    const iv_learner_step *step;
    size_t from, to;
    iv_batch batch;
    iv_attention_span *spans;
    iv_row_range *ranges;
    int32_t *ids;
    size_t prediction_count;
};

/* The learner of a backend whose ops are a learner's. */
static inline iv_cpu_learner *iv_cpu_learner_of(iv_backend *b) { return ((iv_cpu_model *)(void *)b)->learner; }

static inline const iv_tp_shard *iv_learner_shard(const iv_cpu_learner *l) {
    return &l->model->tp.shard[l->model->rank];
}

/* The same with the heads of a layer, and the size of these. */
static inline const iv_tp_shard *iv_learner_heads(const iv_cpu_learner *l, size_t layer, size_t *dim) {
    *dim = (size_t)iv_config_head_dim(&l->model->config, (int64_t)layer);
    return iv_tp_shard_of(&l->model->tp, l->model->rank, l->model->config.layer[layer].wide);
}

/* A tensor, or a rank's rows of one, whose outputs are `n` columns of dy. */
typedef struct iv_gradient_slice {
    size_t offset;  /* in the flat buffer, of the first output's first used input */
    size_t n, leaf; /* outputs; those of a leaf, of which the last may have fewer */
} iv_gradient_slice;

/* Input and weight gradients of a linear layer whose outputs are its slices', in order. */
typedef struct iv_linear_backward_args {
    const iv_token_axis *axis;
    size_t rows;
    const void *dy; /* [rows][dy_stride] typed */
    size_t dy_stride;
    iv_gradient_slice slice[IV_OUTPUT_SLICES_MAX];
    size_t slices;
    size_t stride, k;           /* elements from one output to the next in the flat buffer; inputs */
    size_t leaves;              /* of the sum over outputs on this rank: each is a leaf slice of every slice */
    const iv_row_cuts *cuts;    /* of the leaves over the ranks; NULL: the sum is this rank's alone */
    const void *x;              /* [rows][k] typed, or NULL: no weight gradient */
    float *dx;                  /* [rows][k], or NULL: no input gradient */
    const iv_adapted *adapted;  /* modules of the adapter that learns, or NULL: none */
    const iv_row_cuts *inputs;  /* of a layer whose inputs ranks divide; else NULL */
    size_t x_stride, dx_stride; /* elements from row to row; 0: k. With cuts dx has no other */
} iv_linear_backward_args;

iv_status iv_linear_backward(iv_cpu_learner *l, const iv_linear_backward_args *args, iv_error *err);

/* weight_rows.c: n rows of the weights at `offset` of the flat buffer, `stride` elements of this type apart. `at`:
 * rows of the same layer that were taken before and still serve. */
iv_dtype iv_learner_rows_type(const iv_cpu_learner *l);
const char *iv_learner_rows(iv_cpu_learner *l, size_t offset, size_t n, size_t stride, size_t at);

/* A typed copy of rows [rows][n] of floats, over threads. */
void iv_learner_round(iv_cpu_learner *l, const float *x, size_t rows, size_t n, void *out);

/* adapter_backward.c: modules at a site of the adapter that learns; NULL: none, or the weights learn. */
const iv_adapted *iv_learner_adapted(const iv_cpu_learner *l, size_t site);
/* Gradients of their A and B (a->x), and their part of the input's, which is added (a->dx). */
iv_status iv_adapter_backward(iv_cpu_learner *l, const iv_linear_backward_args *a, iv_error *err);

/* From adapter_dt, R of the gradient of t: A's gradient, and the input's, which is added. */
typedef struct iv_adapter_end_args {
    const iv_token_axis *axis;
    size_t rows, rank, k;
    size_t at_a;        /* of A's first used input in the flat buffer */
    const iv_matrix *x; /* the input over the axis; NULL: no gradient of A */
    float *dx;          /* [rows][dx_stride or k]; NULL: none of the input */
    size_t dx_stride;
} iv_adapter_end_args;
void iv_adapter_end(iv_cpu_learner *l, const iv_adapter_end_args *a);

/* Sums over tokens of a vector's gradient: none if an adapter learns. */
void iv_learner_sum_columns(iv_cpu_learner *l, const iv_axis_columns *a);

/* Columns of the axis' rows x[.][stride], as the sums of weight gradients want them: k of each, at data. */
void iv_learner_pack(iv_cpu_learner *l, const iv_token_axis *axis, const void *x, size_t stride, size_t k, void *data,
                     iv_matrix *out);

/* Sums of columns of [rows][stride] floats over the axis, from `column` on, into `offset`. */
void iv_bias_backward(iv_cpu_learner *l, const iv_token_axis *axis, const float *dy, size_t stride, size_t column,
                      size_t n, size_t offset);

/* norms.c: norm' of one row of the residual stream: dx += the gradient; returns the factor. centered: room for the row
 * as the gradient of the weights takes it, where norms center it, and for one more at `apart`. */
float iv_learner_norm_row(const iv_cpu_learner *l, const float *x, const float *weight, float eps, const float *dy,
                          float *dx, float *centered, size_t apart);

/* The same over all rows, and the gradient of the weights; dx: to which it is added. */
void iv_learner_norm(iv_cpu_learner *l, const float *x, const float *weight, const iv_tensor *tensor, const float *dy,
                     float *dx);
/* Of a norm behind a block. */
void iv_learner_post_norm(iv_cpu_learner *l, const float *x, const float *weight, const iv_tensor *tensor,
                          const float *dy, float *dx);

/* Leaves of a sum over the outputs of a row-parallel layer, which no rank cuts. */
iv_gradient_slice iv_whole_slice(size_t offset, size_t n, size_t *leaves);

/* mlp_backward.c: from dblock, the gradients of an MLP's weights and of its input, dx. */
typedef struct iv_mlp_backward_args {
    iv_mlp_part part; /* values of the tape */
    const iv_mlp_tensors *t;
    const float *x, *norm;      /* of the norm before it */
    size_t whole, leaves;       /* values and leaves: of all ranks, of this one */
    const iv_row_cuts *up_cuts; /* of the leaves of gate and up */
    float *dx;                  /* [rows][hidden] */
    float *scale_gradients;     /* [rows]: of the logits part.scales, on every rank */
} iv_mlp_backward_args;
iv_status iv_mlp_backward(iv_cpu_learner *l, const iv_mlp_backward_args *a, iv_error *err);

/* Adds the slices of gate and up, or of up alone: n outputs from element `first` on. */
void iv_up_slices(const iv_mlp_tensors *t, size_t first, size_t n, size_t leaf, iv_linear_backward_args *a);

/* latent_backward.c: attention_backward, rope_kv_backward and qkv_backward of latent attention. */
iv_status iv_latent_attention_backward(iv_cpu_learner *l, size_t layer, iv_error *err);
iv_status iv_latent_heads_backward(iv_cpu_learner *l, size_t layer, iv_error *err);
iv_status iv_latent_inputs_backward(iv_cpu_learner *l, size_t layer, iv_error *err);

iv_status iv_head_backward(iv_cpu_learner *l, iv_error *err);
iv_status iv_experts_backward(iv_cpu_learner *l, size_t layer, iv_error *err);
/* The same with norms of their own (iv_cpu_normed_experts): dx gains all but the gradient through the norm before the
 * shared expert, of which dnormed has the input's. */
iv_status iv_normed_experts_backward(iv_cpu_learner *l, size_t layer, iv_error *err);

/* lookups.c: dx of the tokens' embedding rows is kept until the step's last pass, which adds it up by token id. */
iv_status iv_lookups_add(iv_cpu_learner *l, iv_error *err);
void iv_lookups_close(iv_cpu_learner *l);

/* acc = earlier + acc, as nodes of a sum over outputs are added. */
void iv_learner_add_nodes(iv_cpu_learner *l, const float *earlier, float *acc, size_t n, bool flush);

/* x[n] of all ranks, added in the tree over ranks, on every rank; `flush` as in a sum over outputs in fma32. */
iv_status iv_ranks_add_rows(iv_cpu_learner *l, float *x, size_t n, bool flush, iv_error *err);

/* recurrent_backward.c: from dattended, dy = R of the gradients of a layer's projection, and those of its vectors. */
iv_status iv_recurrent_backward(iv_backend *b, size_t layer, iv_error *err);
/* The projection's outputs and their leaves. */
void iv_recurrent_slices(const iv_cpu_learner *l, size_t layer, iv_linear_backward_args *a);

/* Enters the ops of the backward pass. */
void iv_backward_ops(iv_backend_ops *ops);

#endif
