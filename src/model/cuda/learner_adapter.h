/* learner_adapter.h: an adapter that learns, in a learner on a GPU (NUMERICS.md 19.1): its rounded factors, which each
 * pass makes from the master weights; where its gradients go; and the backward pass through its products. The forward
 * pass is that of an engine's adapters (adapters.h), of which this is the only one: all rows are of slot 1. */
#ifndef IV_MODEL_CUDA_LEARNER_ADAPTER_H
#define IV_MODEL_CUDA_LEARNER_ADAPTER_H

#include "kernels/cuda/adapters_learn.h"
#include "model/cuda/adapters.h"
#include "model/cuda/learner_state.h"

enum { LEARNED_CHAINS_MAX = 8, LEARNED_TILES_MAX = 64 /* of sums whose chains run next to one another */ };

/* A module at a product of this rank. */
typedef struct learned_module {
    struct learned_module *next;
    size_t rank, padded, first; /* padded: to 16; first: of its t in a row */
    float scale;
    size_t at_a, inputs;             /* of A's first input that the rank has, in the flat buffer; inputs of all ranks */
    size_t outputs;                  /* of all ranks */
    size_t b_chains, b_extent;       /* as a_chains, a_extent */
    size_t at_b;                     /* of B */
    size_t n;                        /* columns of dz: its outputs, concatenated as the layer's (learn.h) */
    iv_gpu_column_runs columns;      /* where these are among the layer's */
    bool whole;                      /* these are all of the layer's, in their order */
    const void *transposed;          /* B's, [padded][n] */
    const void *back_factor;         /* A's, transposed; */
    const iv_gpu_adapted_part *back; /* on the GPU, [2]: for slot 1. Those of experts are consecutive */
    size_t b_offsets;                /* in the offsets: of B's rows by column of dz, from at_b on */
} learned_module;

/* A product with modules. */
typedef struct learned_site {
    learned_module *first;     /* in byte order of names; NULL: none */
    size_t t_width;            /* of a row of t */
    size_t base;               /* of the A's, from which on are */
    size_t a_offsets;          /* in the offsets: of A's rows by column of t */
    size_t a_chains, a_extent; /* in the offsets: where each chain's sums begin; floats of one. 0: not so */
    size_t k;                  /* inputs of this rank */
    int leaves;                /* of t */
} learned_site;

/* A leaf of the vocabulary, of this rank or another. */
typedef struct learned_head {
    learned_module *module;             /* NULL: the head has none. n, columns: of a leaf; at_b: of all */
    const iv_gpu_adapted_part *forward; /* on the GPU, [2][leaves of all ranks] */
    iv_gpu_adapter_piece piece[IV_GPU_PIECES_MAX];
    size_t pieces, leaf; /* leaf: outputs of each but the last */
    size_t a_offsets, a_chains, a_extent;
} learned_head;

typedef struct gpu_learned {
    const iv_learned_adapter *of;
    const float *masters; /* the flat buffer, on this GPU */
    learned_site *site;   /* [sites] */
    size_t sites;
    learned_module *modules;
    learned_head head;
    gpu_adapters forward; /* l->f.adapters */
    gpu_adapter loaded;
    unsigned char *data, *tables; /* on the GPU: the factors; what kernels read besides */
    size_t data_bytes, tables_bytes, factor_count;
    const iv_gpu_learned_factor *factors;
    const int64_t *offsets;
    size_t *expert_bases; /* [layers][2][1 + modules of an expert]: in the offsets, [experts]: bases of the A's, at_b */
    size_t outputs_max, t_width_max, head_width; /* of dz in layers and experts; of t; of the head's dz */
    /* Buffers of a pass. */
    unsigned char *dz, *dt, *head_dz;
    float *head_nodes[4]; /* [predictions][padded rank] */
    float *partial;       /* [chains][extent_max] */
    size_t extent_max;
    uint32_t *bounds, host_bounds[2][2 * LEARNED_CHAINS_MAX]; /* bounds: on the GPU; of both axes' virtual ranks */
} gpu_learned;

/* At opening, after the concatenations. shape: any values; the learner's rank is `place` of the process's. */
iv_status iv_gpu_learned_open(gpu_learner *l, const iv_learned_adapter *of, const iv_adapter *shape, size_t place,
                              const float *masters, iv_error *err);
void iv_gpu_learned_close(gpu_learner *l);
size_t iv_gpu_learned_bytes(const gpu_learner *l);
/* Before a pass: the factors of the present master weights. */
iv_status iv_gpu_learned_pack(gpu_learner *l, iv_error *err);
/* The product's, or NULL. */
const learned_site *iv_gpu_learned_site(const gpu_learner *l, size_t layer, iv_site_kind kind, size_t expert);
/* Have two experts of a layer alike modules? */
bool iv_gpu_learned_alike(const gpu_learner *l, size_t layer, size_t a, size_t b);
enum { LEARNED_BASES = 1 + IV_PLACES_MAX + 2 };
/* In the offsets: bases of the A's of a layer's experts (module 0), of the B's of their modules (from 1 on). */
static inline size_t iv_gpu_learned_bases(const gpu_learned *a, size_t layer, bool down, size_t module) {
    return a->expert_bases[(layer * 2 + down) * LEARNED_BASES + module];
}

/* ---- learner_adapter_sums.c */
/* The gradients of A of all modules of a product, or of B of one. */
typedef struct learned_sum {
    const void *dy, *x;
    size_t dy_stride, n, x_stride, k, base, offsets;
    const iv_gpu_gradient_groups *groups; /* of experts, with bases; else NULL */
    size_t chains, extent;
    const learned_module *of; /* the first */
    bool is_b;
} learned_sum;
iv_status iv_gpu_learned_sum(gpu_learner *l, const iv_token_axis *axis, const learned_sum *s, iv_error *err);
/* After the axes of a pass are known. */
iv_status iv_gpu_learned_axes(gpu_learner *l, iv_error *err);

/* ---- learner_adapter_backward.c */
/* A layer's backward pass through its modules. */
typedef struct learned_backward {
    const learned_site *site; /* NULL: nothing is done */
    const output_concat *concat;
    const iv_token_axis *axis;
    const int32_t *row; /* [rows]: negative: padding */
    size_t rows;
    const void *dy; /* [rows][concat->n] */
    const void *x;  /* [rows][x_stride]; NULL: no gradients of A and B */
    size_t x_stride;
    const gpu_row_parallel *cut_inputs; /* of a layer whose inputs ranks divide; else NULL */
    bool cut_outputs;                   /* ranks divide the outputs */
    float *dx;                          /* [rows][concat->k], to which is added; NULL: not wanted */
    void *rounded;                      /* NULL, or [rows][concat->k]: R(dx); dx may keep what it was then */
    /* Of experts: consecutive ones of a layer, whose rows lie one after another. */
    const iv_gpu_groups *groups; /* NULL: all rows are of one layer */
    const iv_gpu_gradient_groups *sums;
    size_t layer, expert; /* the first */
    bool down;
} learned_backward;
iv_status iv_gpu_learned_backward(gpu_learner *l, const learned_backward *b, iv_error *err);

/* ---- learner_adapter_head.c */
/* Adds B t to logits of predictions [first, first + rows), outputs from `column` on: a leaf, or all. */
iv_status iv_gpu_learned_logits(gpu_learner *l, size_t first, size_t rows, size_t column, size_t n, float *logits,
                                iv_error *err);
/* t of all predictions. */
iv_status iv_gpu_learned_head_t(gpu_learner *l, iv_error *err);
/* Leaf `leaf` of this rank, of whose logits dl are the gradients; afterwards its siblings. */
iv_status iv_gpu_learned_leaf(gpu_learner *l, size_t leaf, const output_concat *concat, const void *dl, iv_error *err);
/* After all leaves: A's gradient, and what dh [predictions][hidden] gains. */
iv_status iv_gpu_learned_end_head(gpu_learner *l, float *dh, iv_error *err);

#endif
