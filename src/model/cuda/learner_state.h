/* learner_state.h: the memory of a learner on a GPU, and the pass that is running.
 *
 * learner.c opens, closes and runs passes; learner_ranks.c has what tensor-parallel ranks exchange; learner_memory.c
 * places the buffers; learner_inputs.c writes what a pass reads; the forward ops are those of pass.h, and
 * learner_backward.c launches the backward ops; learner_head.c, learner_expert*.c and learner_lookups.c have the parts
 * with an axis of their own; learner_linear.c has the gradients of linear layers, learner_adapter*.c an adapter that
 * learns.
 *
 * Rows of a pass are the padded axis (kernels/cuda/learn.h). GEMM inputs of weight gradients are +0 in padding rows: dx
 * is, because it starts as +0 and the inputs of its sums are; others are cleared. */
#ifndef IV_MODEL_CUDA_LEARNER_STATE_H
#define IV_MODEL_CUDA_LEARNER_STATE_H

#include "kernels/cuda/delta_backward.h"
#include "model/cuda/pass.h"
#include "model/gpu_learner.h"
#include "model/learner_ranks.h"
#include "model/parameters.h"

#include <cuda_runtime_api.h>

/* The outputs of a linear layer, concatenated (learn.h). Layers of one shape have one table of offsets, relative to the
 * layer's first tensor, and one of the packed rows, relative to the layer's first row. */
enum { CONCAT_SLICES_MAX = IV_GPU_DELTA_PARTS };

typedef struct output_concat {
    struct {
        size_t n, leaf; /* outputs of this rank; those of a leaf, of which the last may have fewer */
    } slice[CONCAT_SLICES_MAX];
    size_t slices;
    size_t base;                  /* of the layer in the flat buffer */
    size_t n, k;                  /* columns; inputs, of this rank */
    size_t stride;                /* of rows of its gradients, in columns: n, or more for one leaf */
    size_t leaves;                /* of the sum over outputs */
    size_t offsets;               /* its first in the learner's offsets: of gradients, in the flat buffer */
    size_t weight_offsets;        /* the same of weights, in elements from `weights` on */
    const unsigned char *weights; /* packed, on this GPU; of a router, on rank 0's */
} output_concat;

typedef struct layer_concats {
    output_concat qkv, out, router;
    output_concat shared_up, shared_down; /* of the expert that serves all tokens */
    output_concat *up, *down;             /* [config.experts], or of a dense layer */
    size_t up_bases, down_bases; /* of experts: each one's `base`, from here on in the learner's offsets; behind all of
                                  * these each one's `weights`, in elements from the model's data on */
} layer_concats;

/* Arrays that the host writes for a pass: in pinned memory, and at the same offsets on the GPU. */
typedef struct gpu_learner_inputs {
    int32_t *ids, *positions; /* [rows]; padding: 0 */
    int32_t *axis_positions;  /* [rows]; padding: -1 */
    int32_t *axis_rows;       /* [rows]: the row itself; padding: -1 */
    int64_t *slots;           /* [rows]; padding: -1 */
    iv_gpu_span *spans;       /* [sequences] */
    uint32_t *tables;         /* [pages] */
    int32_t *padding;         /* [padding rows] */
    /* Predictions, padded in each sequence; padding: -1. */
    int32_t *pick, *targets, *pick_rows; /* the row of each, the token; the prediction itself */
    int32_t *forward_pick;               /* the row; padding: 0 */
    int32_t *pick_padding;               /* [padding predictions] */
    unsigned char *plan, *window_plan;   /* of attention */
    iv_gpu_state_span *states;           /* [sequences], where layers have a state; `now`: iv_gpu_delta_kept.borders */
    int32_t *row_spans;                  /* [rows]; padding: -1 */
} gpu_learner_inputs;

typedef struct gpu_input_sizes {
    size_t rows, sequences, pages, padding, picks, pick_padding;
} gpu_input_sizes;

/* An expert's rows of a layer in this pass: where they begin in the lists. */
typedef struct gpu_expert_rows {
    size_t first, padded;
} gpu_expert_rows;

/* Consecutive experts of this rank that the backward pass of a layer computes at once. */
typedef struct gpu_expert_chunk {
    size_t expert, count;   /* the first one */
    size_t first, rows;     /* of the lists, with padding */
    size_t offsets, bounds; /* in the lists: [count + 1], the experts' first rows; of iv_gpu_gradient_groups */
} gpu_expert_chunk;

/* What a rank contributes when its forward pass is through. */
typedef struct gpu_agreement {
    iv_status status;
    uint64_t bad;
    iv_error error;
} gpu_agreement;

struct gpu_learned;

typedef struct gpu_learner {
    iv_learner base;             /* first */
    struct gpu_learned *learned; /* learner_adapter.h; NULL: all weights learn */
    gpu_forward f;
    gpu_tape tape;
    gpu_pass pass; /* the one that is running */
    iv_backend_ops ops;
    const iv_model *m, *tensor_owner;
    bool deferred_loss;                /* as the options say */
    const float *vectors;              /* norms and biases of the model, on the GPU */
    size_t *vector_at;                 /* of each tensor among them */
    iv_gradient_bucket *layer_buckets; /* [layers] */
    size_t tied_offset;                /* of a tied embedding's look-ups in the sums; 0: they are at the embedding */
    /* Tensor-parallel ranks. One rank: peer[0] is this learner, the others and what follows are not used. */
    const iv_tp_shard *shard;
    iv_learner_leaves leaves;
    struct gpu_learner *peer[IV_RANKS_MAX];
    iv_comm *comm;
    gpu_agreement agreement[2];
    int agreeing;               /* which of the two is written next */
    bool turn;                  /* which of the two buffers of nodes serves next */
    unsigned char *whole_head;  /* a copy: R(head), [vocab][h_stride] */
    unsigned char *router_data; /* copies of rank 0's routers, one after another */
    bool has_copies;            /* of both */
    int64_t window;             /* of some layers, which have a plan of their own; 0: none has one */
    /* Sizes. Strides and widths in elements. */
    size_t width, h, h_stride, heads, kv_heads, q, q_stride, kv, up, act_stride, k, experts, expert_n, expert_stride;
    size_t up_first; /* of the layer's intermediate values, those of this rank begin here; `up` is their number */
    size_t qkv_biases, gate_up_biases;          /* of a layer: whole lines of memory; 0: the family has none */
    size_t expert_up_apart, expert_down_apart;  /* of the biases of an expert: whole lines of memory, or 0 */
    size_t shared, shared_first, shared_stride; /* as up, up_first and act_stride, of the shared expert */
    size_t router_outputs;                      /* with the gate of the shared expert */
    size_t sequences_max;
    size_t outs, qkv_row; /* widest: of what a mixer gives, and of its projection; with the gate of attention */
    size_t gate;          /* of attention's output: q, or 0 */
    size_t delta_values;  /* value heads times their elements */
    /* Linear layers. */
    layer_concats *concats;        /* [layers] */
    output_concat *expert_concats; /* memory of all `up` and `down` */
    output_concat head;
    int64_t *offsets; /* device */
    size_t offset_count;
    size_t concat_max, expert_concat_max; /* columns: of all but the head's and experts', of experts' */
    size_t k_max, transposed_max;         /* of all: inputs, elements at once */
    unsigned char *tables;
    float *cosine[IV_ROPES_MAX], *sine[IV_ROPES_MAX], *query[IV_ROPES_MAX]; /* in `tables`; query: or NULL */
    size_t table_bytes;
    /* Device memory of passes. */
    unsigned char *data;
    size_t data_bytes;
    float *dx;                 /* [rows][hidden] */
    unsigned char *dx_rounded; /* R(dblock), [rows][h_stride] */
    float *dblock, *post_dx;   /* of the output of the block at work: dx, or post_dx before a norm */
    float *norms;              /* 1 + the norms' weights, where norms multiply by that; else NULL */
    size_t *norm_at;           /* [tensors]: where */
    float *sink_terms;         /* [rows][heads]: of the gradients of attention's sinks, or NULL */
    float *biases; /* of qkv, and of gate and up or of the rank's experts, of all layers, in the order of the outputs */
    const float *corrections; /* [layers][experts]: of routers; in `tables`, or NULL */
    unsigned char *dy;        /* [rows][widest concatenation] */
    float *dnormed, *dattended, *dqkv, *dact, *dwide, *head_terms, *factors;
    unsigned char *transposed; /* weights of an input gradient */
    unsigned char *backward_scratch, *gradient_scratch, *column_scratch, *tiles;
    size_t tiles_bytes;
    float *zeros; /* [most inputs of a concatenation] */
    struct {
        float *dkeys, *d_log; /* as iv_gpu_delta_backward_args */
        unsigned char *dout, *scratch;
        size_t scratch_bytes;
    } delta;
    float *taps; /* [layers][taps_apart]: of convolutions, if ranks divide them; else NULL */
    size_t taps_apart;
    /* The head. */
    float *logits; /* [slice][vocab], [slice][a leaf of it] */
    size_t logits_floats;
    unsigned char *picked, *dl; /* [predictions][h_stride]; [leaves of dl][predictions][a leaf] */
    size_t dl_leaves;           /* whose gradients exist at once: 1 or all */
    bool direct;                /* they come from the forward pass's logits */
    float *nodes[4];
    float *max, *sum, *logprobs, *coefficients;
    iv_gpu_logit_row *logit_rows;
    int32_t *forbidden;      /* [vocab]: ids that the step does not allow, ascending; in `tables` */
    int32_t *host_forbidden; /* [2][vocab]: the same, and those of the next step */
    size_t forbidden_count;
    /* Experts. */
    float *dw, *shared_dw;
    float *router_dl;      /* [rows][experts]: of the router's logits, for its bias; or NULL */
    float *dz, *shared_dx; /* [rows], of the shared expert's gate; [rows][hidden], of its input; or NULL */
    float *dz_part;        /* as dz, of this rank; unused with one */
    unsigned char *expert_x, *expert_act, *expert_gate, *expert_up;
    float *expert_dx;
    gpu_expert_rows *expert_rows;               /* [layers][experts] */
    size_t chunk_bytes;                         /* of the rows of a chunk, and of its transposed weights */
    size_t expert_rows_max, transposed_experts; /* of a chunk */
    gpu_expert_chunk *expert_chunks;            /* [layers][experts] */
    size_t *chunk_counts;                       /* [layers] */
    int32_t *lists, *host_lists;   /* slots, tokens, entries, places of all layers' experts; tables of the chunks */
    size_t lists_max, list_length; /* numbers; those of slots */
    iv_rank_range expert_ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis expert_axis; /* of an expert without rows */
    size_t kv_bytes;           /* of keys and values */
    /* Look-ups of the step so far. */
    float *lookup_dx; /* dx of all passes; unused if one holds the step */
    size_t lookup_dx_max;
    unsigned char *lookup_data, *lookup_host;
    size_t lookup_bytes, lookup_max, lookup_count;
    int32_t *lookup_ids;
    uint8_t *lookup_ranks;
    /* Inputs. */
    unsigned char *host, *inputs; /* pinned; device */
    size_t inputs_max, plan_max;
    gpu_learner_inputs at, on; /* at: in `host`; on: the GPU's */
    float *host_logprobs, *host_coefficients;
    uint64_t *host_bad;
    /* Axes. */
    iv_axis_sequence *axis_sequences; /* [sequences of the step] */
    size_t axis_sequences_max;
    int32_t *axis_scratch; /* [rows]: unused rows of axes */
    iv_rank_range rank_ranges[IV_VIRTUAL_RANKS_MAX], head_ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis, head_axis;
    /* The pass. */
    const iv_learner_step *step;
    iv_axis_sums sums; /* the step's, or of the bucket that is made */
    size_t from, to;
    gpu_input_sizes n;
} gpu_learner;

static inline gpu_learner *iv_gpu_learner_of_pass(const gpu_pass *p) {
    return (gpu_learner *)(void *)((char *)p->f - offsetof(gpu_learner, f));
}
static inline gpu_learner *iv_gpu_learner_of(iv_backend *b) { return iv_gpu_learner_of_pass((gpu_pass *)(void *)b); }

/* Are coefficients known before the forward pass, and is there memory for the gradients of all logits? Then they are
 * computed where the logits are, instead of from the same logits a second time. */
static inline bool iv_gpu_learner_is_direct(const gpu_learner *l) {
    return !l->step->weigh && l->f.ranks == 1 && l->dl_leaves == l->head.leaves && !iv_shapes_logits(&l->m->scales);
}

static inline const iv_layer_tensors *iv_gpu_learner_tensors(const gpu_learner *l, size_t layer) {
    return &l->tensor_owner->layer_tensors[layer];
}

static inline const iv_tensor *iv_gpu_learner_head_tensor(const gpu_learner *l) {
    return l->tensor_owner->head_tensor ? l->tensor_owner->head_tensor : l->tensor_owner->embedding_tensor;
}

/* A vector of the model on the GPU; NULL if the family has none. */
static inline const float *iv_gpu_learner_vector(const gpu_learner *l, const iv_tensor *t) {
    return t ? l->vectors + l->vector_at[t - l->tensor_owner->tensors] : NULL;
}

/* What a norm multiplies by. */
static inline const float *iv_gpu_learner_norm(const gpu_learner *l, const iv_tensor *t) {
    if (!t || !l->norms) return iv_gpu_learner_vector(l, t);
    return l->norms + l->norm_at[t - l->tensor_owner->tensors];
}

/* ---- learner_memory.c */
/* Bytes that an all-reduce of all rows on every rank would move, from which on each rank reduces its share of them. */
size_t iv_gpu_learner_shared_bytes(void);
void iv_gpu_learner_sizes(gpu_learner *l);
/* Sets all pointers into `base`, and returns their bytes; with NULL only measures. SIZE_MAX on overflow. */
size_t iv_gpu_learner_carve(gpu_learner *l, unsigned char *base);
/* Room for the pages of a pass. */
iv_status iv_gpu_learner_reserve_pages(gpu_learner *l, size_t pages, iv_error *err);

/* ---- learner_linear.c */
/* Makes the concatenations of all linear layers, and their offsets on the host: *offsets [l->offset_count], freed by
 * the caller.
 */
iv_status iv_gpu_learner_concats(gpu_learner *l, int64_t **offsets, iv_error *err);
/* Nothing that sums over tokens does anything if an adapter learns.
 * Gradients of a linear layer over `axis` from dy [rows][concat->n]: of its weights, with x [rows][x_stride]. */
iv_status iv_gpu_learner_weight_gradient(gpu_learner *l, const output_concat *concat, const iv_token_axis *axis,
                                         const void *dy, const void *x, size_t x_stride, iv_error *err);
/* The sums from element `base` on. */
iv_axis_sums iv_gpu_learner_sums_from(const iv_axis_sums *s, size_t base);
/* Sums of columns of a vector's gradient. */
iv_status iv_gpu_learner_column_sums(gpu_learner *l, const iv_gpu_column_sums_args *a, iv_error *err);
/* And of its inputs: dx [rows][concat->k]. */
iv_status iv_gpu_learner_input_gradient(gpu_learner *l, const output_concat *concat, size_t rows, const void *dy,
                                        float *dx, iv_error *err);
/* The same of a concatenation whose leaves are divided over the ranks, for all rows: dx is whole on every rank. */
iv_status iv_gpu_learner_cut_gradient(gpu_learner *l, const output_concat *concat, const void *dy, float *dx,
                                      iv_error *err);
/* The same for all rows of the pass, rounded: dx [rows][concat->k], not padded. wide: [rows][concat->k] of memory. */
iv_status iv_gpu_learner_rounded_input_gradient(gpu_learner *l, const output_concat *concat, const void *dy,
                                                float *wide, void *dx, iv_error *err);
/* The concatenation's weights, transposed, in l->transposed: launches of iv_gpu_learner_linear wait for them. bases
 * [count]: the weights of as many experts, one after another; NULL: of the concatenation. */
iv_status iv_gpu_learner_transpose(gpu_learner *l, const output_concat *concat, const int64_t *bases, size_t count,
                                   iv_matrix *transposed, iv_error *err);
iv_gpu_linear_args iv_gpu_learner_linear(const gpu_learner *l, const iv_matrix *w, const void *x, size_t x_stride,
                                         size_t rows);
/* Sums of n columns of dy [rows][stride] over the axis of all tokens. */
iv_status iv_gpu_learner_bias_gradient(gpu_learner *l, const float *dy, size_t stride, size_t n, size_t offset,
                                       iv_error *err);
/* The same over an axis of its own; row: as iv_gpu_column_sums_args has it. */
iv_status iv_gpu_learner_axis_bias_gradient(gpu_learner *l, const iv_token_axis *axis, const int32_t *row,
                                            const float *dy, size_t stride, size_t n, size_t offset, iv_error *err);
/* normed = R(RMSNorm), from the tape or once more, for a weight gradient: +0 in padding rows. */
iv_status iv_gpu_learner_normed(gpu_learner *l, iv_norm n, iv_error *err);

/* ---- learner_ranks.c */
/* A barrier, at which all ranks learn how each fares: the lowest rank's error; *bad: the least of all. One rank: what
 * it was given. Whatever allocates comes before a barrier: another rank's GPU, which waits for this one, might not let
 * it. */
iv_status iv_gpu_learner_agree(gpu_learner *l, iv_status status, uint64_t *bad, iv_error *err);
/* Several ranks: x = canon(x + y), y the root over all ranks' nodes, + bias; every rank has as many nodes as
 * `nodes` says, in the buffer of l->turn. */
iv_status iv_gpu_learner_all_reduce(gpu_learner *l, const iv_tree_order *order, const size_t *nodes, const float *bias,
                                    float *x, iv_error *err);
/* Of n things, those of a rank: whole blocks of 16. */
void iv_gpu_learner_divide(const gpu_learner *l, size_t n, size_t rank, size_t *first, size_t *count);
/* Statistics and log-probabilities of all predictions, of which each rank has its share. */
iv_status iv_gpu_learner_share_predictions(gpu_learner *l, iv_error *err);
/* *node, the sum over this rank's leaves of the vocabulary, of n columns, becomes the root over all ranks'. at: where
 * ranks have a node that others read; nodes [4]: memory. */
iv_status iv_gpu_learner_add_ranks(gpu_learner *l, gpu_node_at at, size_t n, float *const *nodes, float **node,
                                   iv_error *err);
/* Rank 0's head_terms [rows][n] become the sums over all ranks. */
iv_status iv_gpu_learner_add_terms(gpu_learner *l, size_t n, iv_error *err);
/* dz = the sums of the ranks' dz_part, on every rank. */
iv_status iv_gpu_learner_add_gates(gpu_learner *l, iv_error *err);
/* Copies of what other ranks hold: the head that this rank computes logits with, and rank 0's routers. */
iv_status iv_gpu_learner_copy_shared(gpu_learner *l, iv_error *err);
void iv_gpu_learner_place_shared(gpu_learner *l); /* where the copies are now */
iv_matrix iv_gpu_learner_head_matrix(const gpu_learner *l);
/* The transport of its forward passes. */
gpu_transport iv_gpu_learner_transport(const gpu_learner *l);
/* IV_IO if a rank waited too long for another. */
iv_status iv_gpu_learner_check_peers(const gpu_learner *l, iv_error *err);
/* Before and after the gradients of a bucket, if the sums are made in buckets. */
void iv_gpu_learner_begin_bucket(gpu_learner *l, iv_gradient_bucket bucket);
iv_status iv_gpu_learner_end_bucket(gpu_learner *l, iv_gradient_bucket bucket, iv_error *err);

/* ---- learner_inputs.c */
size_t iv_gpu_learner_input_bytes(const gpu_learner *l);
/* Writes the inputs of sequences [from, to), and their copy to the GPU. */
iv_status iv_gpu_learner_write_inputs(gpu_learner *l, iv_error *err);
/* The model's vectors by layer: l->f.layers. Biases of several tensors are copies, which each pass
 * writes, and so are norms with an offset. */
void iv_gpu_learner_place_vectors(gpu_learner *l);
iv_status iv_gpu_learner_write_vectors(gpu_learner *l, iv_error *err);
/* The axes of the pass: all tokens, predictions. */
iv_status iv_gpu_learner_axes(gpu_learner *l, iv_error *err);

/* ---- learner_backward.c: enters its ops. */
void iv_gpu_learner_backward_ops(iv_backend_ops *ops);
/* ---- learner_recurrent.c: layers with a state; the output gate of attention. */
iv_status iv_gpu_learner_recurrent_backward(iv_backend *b, size_t layer, iv_error *err);
/* The outputs of a layer's mixer that this rank has: [first, first + n) of its columns. */
void iv_gpu_learner_mixer_columns(const gpu_learner *l, size_t layer, size_t *first, size_t *n);
/* Outputs of a leaf of each part of the projection before a layer with a state; 0 parts behind the last. */
void iv_gpu_learner_mixer_leaves(const gpu_learner *l, size_t out[IV_GPU_DELTA_PARTS]);
/* Sets v->delta; and the copies of a layer's taps that it needs. */
void iv_gpu_learner_place_delta(gpu_learner *l, size_t layer, layer_vectors *v);
int iv_gpu_learner_copy_taps(const gpu_learner *l, size_t layer);

/* ---- learner_mlp_backward.c */
/* An MLP that all tokens pass, or this rank's part of it. */
typedef struct gpu_mlp_part {
    const iv_mlp_tensors *t;
    const output_concat *up_concat, *down_concat;
    const void *gate, *up, *act; /* as gpu_values */
    size_t n, first, act_stride;
    bool shared; /* of the shared expert */
    bool gated;  /* its gate's gradient goes to l->dz */
} gpu_mlp_part;
/* dx [rows][hidden] = the gradient of its input, from dblock and dx_rounded. */
iv_status iv_gpu_learner_mlp_backward(gpu_learner *l, size_t layer, const gpu_mlp_part *p, float *dx, iv_error *err);

/* ---- learner_head.c */
/* A leaf of the head's concatenation. Its rows begin at lines of memory, which copies to shared memory fetch whole. */
static inline output_concat iv_gpu_learner_head_leaf(const gpu_learner *l) {
    output_concat concat = l->head;
    concat.n /= concat.leaves, concat.leaves = 1, concat.stride = (concat.n + 63) / 64 * 64;
    return concat;
}
iv_status iv_gpu_learner_head(iv_backend *b, iv_error *err);
/* Leaf `leaf` of this rank, n columns in nodes[0], joins its siblings, which wait in the others; [4]. After the last
 * one nodes[0] is the sum. */
iv_status iv_gpu_learner_join_leaf(gpu_learner *l, float **nodes, size_t leaf, size_t n, iv_error *err);
iv_status iv_gpu_learner_head_backward(gpu_learner *l, iv_error *err);

/* ---- learner_expert_rows.c: the rows of every expert, from the ids of the forward pass, which are on the host. */
iv_status iv_gpu_learner_list_experts(gpu_learner *l, iv_error *err);
/* ---- learner_experts_backward.c */
iv_status iv_gpu_learner_experts_backward(gpu_learner *l, size_t layer, iv_error *err);

/* ---- learner_lookups.c */
/* Room for all tokens of the step; whole: one pass has it. */
iv_status iv_gpu_learner_reserve_lookups(gpu_learner *l, const iv_learner_step *step, bool whole, iv_error *err);
/* Keeps dx for the end of the step, or finishes it. */
iv_status iv_gpu_learner_lookups(gpu_learner *l, iv_error *err);
void iv_gpu_learner_free_lookups(gpu_learner *l);

#endif
