/* pass.h: a forward pass on one GPU, of an engine's step or of a learner: its buffers, what it reads, what a backward
 * pass takes from it, and how ranks combine. blocks.c and experts.c have its ops; transport.c those between ranks. */
#ifndef IV_MODEL_CUDA_PASS_H
#define IV_MODEL_CUDA_PASS_H

#include "device/gpu.h"
#include "kernels/cuda/adapters.h"
#include "kernels/cuda/delta.h"
#include "kernels/cuda/expert_bias.h"
#include "kernels/cuda/ops.h"
#include "kernels/packed_units.h"
#include "model/backend.h"
#include "model/learner.h"
#include "model/model.h"

#include <cuda_runtime_api.h>

typedef struct gpu_forward gpu_forward;
typedef struct gpu_pass gpu_pass;

/* Device copies of a layer's vectors; NULL where the family has none. attention_norm, mlp_norm: iv_gpu_rounding where
 * the block's input is rounded and not normed. */
typedef struct layer_vectors {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm, *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
    const float *cosine, *sine, *query; /* of the layer's rotation: iv_rope_table */
    const float *attention_post_norm, *mlp_post_norm, *router_bias, *router_correction;
    const float *expert_up_bias, *expert_down_bias; /* of the rank's experts, one after another */
    size_t expert_up_apart, expert_down_apart;
    const float *sinks; /* of the rank's heads */
    iv_delta_weights delta;
    const float *latent_q_norm, *latent_kv_norm; /* of latent attention; latent_q_norm NULL: q has no low rank */
} layer_vectors;

/* What a learner keeps of a layer with a state: as iv_gpu_delta_args. */
typedef struct gpu_delta_values {
    iv_gpu_delta_kept kept; /* inputs NULL: nothing is kept */
    unsigned char *qk;
    float *gates;
} gpu_delta_values;

/* A layer's values, by row. Without a tape all layers use one of these. */
typedef struct gpu_values {
    unsigned char *q, *attended;
    unsigned char *act; /* with padding to a multiple of 16; of experts: by entry, in the order of iv_gpu_route */
    float *router_logits, *expert_weights;
    int32_t *expert_ids;
    /* For the backward pass alone: */
    float *x, *x_mlp;              /* [rows][hidden]: the layer's input; the residual stream after attention */
    float *block_y[2];             /* [rows][hidden]: the outputs of attention and MLP before their norms, or NULL */
    unsigned char *normed[2];      /* by iv_norm_kind, [rows][stride]: their norms; NULL: computed again */
    unsigned char *q_raw, *k_raw;  /* before the head norms; NULL where there are none */
    float *lse2;                   /* of attention */
    unsigned char *raw, *raw_gate; /* attended before its output gate, and R of the gate's logits; or NULL */
    gpu_delta_values delta;
    unsigned char *gate, *up;                            /* as act, without padding */
    unsigned char *shared_gate, *shared_up, *shared_act; /* the same of the shared expert */
} gpu_values;

/* Of linear layers in int8 (int8.c). */
typedef struct gpu_int8 {
    int terms;
    bool one_scale;    /* a baseline's: all rows of a layer have the largest one's scale */
    int8_t *codes;     /* of a layer's rows */
    float *scales;     /* of these rows */
    uint32_t *largest; /* their magnitudes, of this rank's part */
    int32_t *sums;     /* [rows_max][terms][hidden], of this rank's part of K; NULL with one rank */
    const void *held;  /* the normed rows whose codes are in `codes` already; NULL: none are */
} gpu_int8;

/* What the backward pass needs from the forward pass. The residual stream moves from slot to slot, so that each keeps
 * the layer's input. */
typedef struct gpu_tape {
    iv_recompute recompute;
    bool recomputing;   /* the forward ops run for the tape alone: no down projection */
    bool fuse;          /* epilogues may write what the backward pass needs */
    gpu_values *layers; /* [layers]; values that are computed again are shared by all */
    float *x_end;       /* the last layer's output */
    int32_t *host_ids;  /* pinned, [layers][rows_max * experts per token]: copies of expert_ids; NULL without experts */
} gpu_tape;

/* A row-parallel layer that is added to x, and the norm that follows. */
typedef struct gpu_row_parallel {
    const iv_row_cuts *cuts;
    const iv_matrix *nodes;
    const float *bias;
    unsigned char *x; /* of all rows */
    size_t x_stride, x_first;
    size_t site;            /* of adapters */
    float *to;              /* where the residual stream goes on: f->x, or the tape's next slot */
    const float *norm;      /* NULL: no norm follows */
    const float *post_norm; /* of the layer's result before it is added, which goes to y; NULL: added as it is */
    float *y;
    float after; /* of x, with a post_norm; 0 or 1: none */
    bool whole;  /* x is read in all rows */
    bool second; /* down's nodes, not attention's: a buffer is reused only after the other one's all-reduce */
} gpu_row_parallel;

/* Where node i of a rank is, rows of n floats of all of the pass' rows. */
typedef float *(*gpu_node_at)(const gpu_forward *f, bool second, size_t i, size_t n);

/* A buffer that ranks share out. */
typedef void *(*gpu_shared_at)(const gpu_forward *f);

/* How the ranks' partial results become one. Each op enqueues on the rank's streams. transport.c has those of one GPU
 * and of the GPUs of one process; processes.c those of several processes, by NCCL or through the host; learner_ranks.c
 * those of a learner. Under vanilla-blas NCCL's sum replaces row_parallel (baseline.c). */
typedef struct gpu_transport {
    /* x += the layer, summed over the ranks; normed = l->norm of x. */
    iv_status (*row_parallel)(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);
    /* a->x += the sum over the ranks' nodes of the layer, of a->hidden columns, and what else `a` asks for; learners
     * have none. */
    iv_status (*reduce)(const gpu_pass *p, const gpu_row_parallel *l, gpu_node_at at, iv_gpu_allreduce_args *a,
                        iv_gpu_stream stream, iv_error *err);
    /* x += the experts' terms of all ranks; ids: the layer's experts of the rows. */
    iv_status (*combine)(const gpu_pass *p, const int32_t *ids, float *x, iv_error *err);
    /* Puts the ranks' columns of n rows of logits on rank 0. */
    iv_status (*logits)(const gpu_pass *p, size_t n, iv_error *err);
    /* part[r] = what rank r has `from` bytes behind at(its gpu_forward), readable on this GPU; NULL where has[r] is
     * false. `bytes` of it, the same on all ranks: those of at most shared_rows rows. */
    iv_status (*share)(const gpu_pass *p, gpu_shared_at at, size_t from, size_t bytes, const bool *has,
                       const void **part, iv_error *err);
    /* Rows of row_bytes that one call of share takes; NULL: any number. */
    size_t (*shared_rows)(size_t row_bytes);
    /* All ranks have finished what they enqueued before. */
    iv_status (*barrier)(const gpu_pass *p, iv_error *err);
    /* After piece `piece` (a layer, then slices of logits) was launched; NULL: nothing waits. */
    iv_status (*pace)(const gpu_pass *p, size_t piece, iv_error *err);
} gpu_transport;

/* One GPU's part in forward passes: the first member of gpu_rank (state.h), a member of gpu_learner. */
struct gpu_forward {
    iv_gpu *gpu;
    cudaStream_t stream;
    iv_arithmetic arithmetic;
    int sms;
    int code;                                                                   /* of the launch that failed */
    int (*linear)(const gpu_forward *f, const iv_gpu_linear_args *a);           /* the law's, or a baseline's */
    int (*linear_of_floats)(const gpu_forward *f, const iv_gpu_linear_args *a); /* where `linear` is that of int8.c */
    gpu_transport transport;
    /* The ranks of this process, which reach each other's memory. */
    size_t ranks, rank;
    gpu_forward *peer[IV_RANKS_MAX]; /* peer[rank] is this one */
    uint32_t *flags;
    iv_gpu_timeouts *timeouts; /* of all ranks, on the host */
    uint64_t timeout_ns;       /* of a wait for another rank */
    /* What is read besides the model's matrices. */
    layer_vectors *layers;       /* host array of device pointers */
    const float *embedding_norm; /* NULL: none */
    const float *last_norm; /* the final norm if the last layer norms all rows, NULL if the head norms those it needs */
    iv_matrix embedding, *routers; /* [layers]: on this GPU; data NULL if a layer has none */
    /* Keys and values. */
    unsigned char *kv;
    size_t kv_layer_bytes; /* from a layer's pages to the next one's; 0: all layers use the same */
    bool kv_planes;        /* kv is that of an engine: [plane][page]; else [layer][page] */
    size_t pages;
    void *widened; /* for a matrix of codes, one at a time; NULL where there is none */
    size_t widened_bytes;
    /* States of layers that have one: [layer][slot], then the buffers of tails (kv/states.h). */
    unsigned char *states;
    size_t states_layer_bytes, tails_at;
    /* Buffers of rows_max rows. */
    size_t rows_max;
    float *x;                  /* the residual stream, where it is now */
    unsigned char *normed;     /* the norm that linear layers read now: */
    unsigned char *own_normed; /* here, or on the tape */
    float *centered;           /* [rows][hidden]: rows of norms that center them; or NULL */
    float *factors;            /* [rows][2]: of norms over all heads; or NULL */
    float *block;              /* [rows][hidden]: y of blocks that are normed or scaled, if no tape keeps it; or NULL */
    float *wide, *terms;       /* outputs of qkv, of gate and up; of experts */
    unsigned char *delta_qk;   /* as iv_gpu_delta_args, where layers have a delta rule */
    float *delta_values, *delta_gates;
    struct {
        unsigned char *low, *still, *rows; /* [rows]: inputs of q_b; [heads] of queries, before they are taken to the
                                            * latent; [heads][rank] of attention, before its values are made */
    } latent;
    float *ones;           /* as expert_weights, where experts have biases (iv_gpu_expert_bias) or scaled inputs */
    unsigned char *scaled; /* [rows * experts per token][stride]: inputs that routing weights scale; or NULL */
    unsigned char *packed; /* inputs of a row-parallel layer that cannot be read in place; NULL: all can */
    float *nodes;          /* [2][nodes_max][rows_max][hidden]: of row-parallel layers */
    size_t nodes_max;      /* of a layer on this rank, 1 at least */
    int32_t *expert_offsets, *expert_slots;
    gpu_int8 *int8; /* NULL: there are no layers in int8 */
    unsigned char *attention_scratch;
    uint64_t *bad;
    gpu_values *now;  /* of the layer at work */
    size_t ids_apart; /* from a layer's expert_ids in *now to the next one's; 0: each layer overwrites them */
    gpu_tape *tape;   /* of a pass that will run backward; else NULL */
    struct gpu_adapters *adapters; /* adapters.h; NULL: no rows with adapters come */
};

/* What a pass reads, on the GPU. */
typedef struct gpu_pass_inputs {
    const int32_t *ids, *positions; /* [rows] */
    const int64_t *slots;           /* [rows], slots_apart for each KV group */
    const iv_gpu_span *spans;
    const iv_gpu_state_span *states; /* [state_count], with padding; where layers have a state */
    const int32_t *row_spans;        /* [rows] */
    size_t state_count;
    const uint32_t *tables;                  /* tables_apart for each KV group */
    size_t slots_apart, tables_apart;        /* 0: all layers use the same */
    const unsigned char *plan, *window_plan; /* of attention */
    const int32_t *true_rows;                /* those that experts take; NULL: all */
    const int32_t *padding;                  /* rows that no sequence owns, cleared where a learner reads them */
    size_t padding_count;
    bool decode;                  /* each span has one row */
    iv_gpu_adapter_rows adapters; /* tiles NULL: all rows are of the base alone */
} gpu_pass_inputs;

/* The rows [first, first + rows) of a pass: all of them, or one microstep of a long step (transport.c). */
struct gpu_pass {
    iv_backend backend; /* first */
    gpu_forward *f;
    const iv_model *m;
    gpu_pass_inputs in;
    size_t first, rows, hidden, stride; /* stride: of normed */
    size_t microstep, microsteps;
};

/* Do the forward ops write a layer's values of attention, and of its MLP, for the backward pass? */
static inline bool iv_gpu_keeps_attention(const gpu_forward *f) {
    return f->tape && (f->tape->recomputing || f->tape->recompute == IV_RECOMPUTE_NONE);
}
static inline bool iv_gpu_keeps_mlp(const gpu_forward *f) {
    return f->tape && (f->tape->recomputing || f->tape->recompute != IV_RECOMPUTE_LAYER);
}

/* Is a block's output added to x as it is? */
static inline bool iv_gpu_adds_plainly(const gpu_pass *p, const float *post_norm) {
    return !post_norm && p->m->scales.residual == 1.0f;
}

/* Does an MLP's forward pass run for the tape alone, up to act? Its output is computed too where a norm follows it. */
static inline bool iv_gpu_ends_at_act(const gpu_forward *f, size_t layer) {
    return f->tape && f->tape->recomputing && !f->layers[layer].mlp_post_norm;
}

/* ---- blocks.c */
extern const iv_backend_ops iv_gpu_forward_ops; /* without `head` */

/* ---- latent.c: latent attention */
iv_status iv_gpu_latent_inputs(const gpu_pass *p, size_t layer, iv_error *err);
/* a: as of other attention, except its output. */
iv_status iv_gpu_latent_attend(const gpu_pass *p, size_t layer, iv_gpu_attention_args *a, iv_error *err);

/* ---- recurrent.c */
iv_status iv_gpu_recurrent(iv_backend *b, size_t layer, iv_error *err);

/* ---- experts.c */
iv_status iv_gpu_expert_block(const gpu_pass *p, size_t layer, iv_error *err);
/* x += the expert that serves all tokens, of all ranks. */
iv_status iv_gpu_shared_expert(const gpu_pass *p, size_t layer, iv_error *err);
size_t iv_gpu_shared_act_stride(const iv_model *m);
/* gate and up with their activation, for rows_out rows of act. site: of adapters. bias: NULL, or that of each expert,
 * added before it. */
iv_status iv_gpu_gate_up(const gpu_pass *p, size_t site, const iv_activation *activation, iv_gpu_linear_args *a,
                         const iv_matrix *w, size_t rows_out, void *act, size_t stride, iv_gpu_row_scales scales,
                         const iv_gpu_expert_bias_args *bias, iv_error *err);

/* ---- pass.c */
/* code: of the launch of `what`; not 0 becomes the error and f->code. */
iv_status iv_gpu_launched(gpu_forward *f, int code, const char *what, iv_error *err);
/* f->linear of the law. */
int iv_gpu_law_linear(const gpu_forward *f, const iv_gpu_linear_args *a);
/* IV_NO_MEMORY: the GPU, the bytes wanted and free. */
iv_status iv_gpu_no_memory(const gpu_forward *f, const char *what, size_t bytes, iv_error *err);
/* Rows of a buffer from which kernels may read past the last row: whole tiles. */
static inline size_t iv_gpu_whole_tiles(size_t rows) { return (rows + 255) / 256 * 256; }
/* Strides in elements. */
size_t iv_gpu_hidden_stride(const iv_model *m);
size_t iv_gpu_act_stride(const iv_model *m);
size_t iv_gpu_expert_act_stride(const iv_model *m);
/* *window: of the layers that have one, 0 if none has. IV_UNSUPPORTED: they differ. */
iv_status iv_gpu_find_window(const iv_model *m, int64_t *window, iv_error *err);
iv_gpu_attention_shape iv_gpu_shape_of(const iv_model *m, iv_arithmetic arithmetic, int64_t window);
/* iv_gpu_attention_plan and its bytes, of the model's kind of attention. */
size_t iv_gpu_plan_bytes_of(const iv_model *m, const iv_gpu_attention_shape *s, size_t rows, size_t spans);
size_t iv_gpu_plan_of(const iv_model *m, const iv_gpu_attention_shape *s, const iv_gpu_span *spans, size_t count,
                      int sms, void *plan, size_t bytes);
/* As a kernel's argument. */
static inline iv_gpu_matrix iv_gpu_matrix_of(const iv_matrix *w) {
    iv_gpu_matrix m = {
        .format = w->format, .type = w->type, .n = w->n, .k_padded = w->k_padded, .leaves = w->leaves, .data = w->data};
    m.terms = w->terms;
    if (!iv_weight_is_plain(w->format) && !w->terms) m.units = iv_packed_units_form(w);
    return m;
}
iv_gpu_kv iv_gpu_kv_of(const gpu_pass *p, size_t layer);
/* Arguments of a layer over the pass's rows. x: the pass's first row of a buffer that has room for any step. */
iv_gpu_linear_args iv_gpu_layer_args(const gpu_pass *p, const iv_matrix *w, const void *x, size_t x_stride);
/* Columns [column, column + k) of *x [rows][*stride] as a matrix of k inputs takes them: in place if they are aligned,
 * else copied. */
iv_status iv_gpu_inputs_at(const gpu_pass *p, size_t column, size_t k, const void **x, size_t *stride, iv_error *err);
/* The arguments of node i of this rank's shard of a row-parallel layer, except its output. */
iv_status iv_gpu_node_args(const gpu_pass *p, const gpu_row_parallel *l, size_t i, iv_gpu_linear_args *a,
                           iv_error *err);
/* Computes all nodes of this rank into its node buffers. */
iv_status iv_gpu_compute_nodes(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);
float *iv_gpu_node_at(const gpu_forward *f, bool second, size_t node, size_t hidden);
/* The pass's first row of a buffer with `stride` elements of the model's type per row. */
unsigned char *iv_gpu_rows_at(const gpu_pass *p, unsigned char *rows, size_t stride);
/* Stands for the weights of a norm where x is only rounded. */
extern const float iv_gpu_rounding[1];
/* x goes on at `to` as x + the scaled norm of y, times `after` (0: 1); weight NULL: y is not normed. */
iv_status iv_gpu_add_block(const gpu_pass *p, const float *y, const float *weight, float after, float *to,
                           iv_error *err);
/* normed = the norm of x; weight NULL: none follows. */
iv_status iv_gpu_norm_rows(const gpu_pass *p, const float *weight, iv_error *err);
/* May this layer's epilogue do the row op that follows it? With a tape. */
bool iv_gpu_fuses(const gpu_forward *f, const iv_gpu_linear_args *a);
/* The residual stream goes on at `to`, by a copy if it is elsewhere. */
iv_status iv_gpu_move_stream(const gpu_pass *p, float *to, iv_error *err);
/* Clears the padding rows of [rows][stride] elements of `width` bytes. */
iv_status iv_gpu_clear_padding(const gpu_pass *p, void *rows, size_t stride, size_t width, iv_error *err);

/* ---- products.c */
/* f->transport.row_parallel, with a norm of the layer's result and what a transport does not fuse. */
iv_status iv_gpu_row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);

/* ---- transport.c */
extern const gpu_transport iv_gpu_single, iv_gpu_peer_transport;
iv_gpu_peers iv_gpu_peers_of(const gpu_forward *f);
/* The arguments of the all-reduce of a row-parallel layer, except the nodes. */
iv_gpu_allreduce_args iv_gpu_allreduce_of(const gpu_pass *p, const gpu_row_parallel *l);
/* The first expert of each rank, and their number. */
void iv_gpu_first_experts(const gpu_pass *p, int32_t firsts[IV_RANKS_MAX + 1]);
/* How many microsteps the rows of an engine's step are cut into, and microstep i. */
size_t iv_gpu_microsteps(const gpu_pass *p);
gpu_pass iv_gpu_microstep(const gpu_pass *p, size_t microstep);
/* The next launches on the stream read what the microstep's last all-reduce wrote. */
iv_status iv_gpu_after_allreduce(const gpu_pass *p, iv_error *err);

#endif
