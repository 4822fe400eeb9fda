/* cpu_model.h: a decoder on the CPU: ids in, keys and values written, logits out. One rank of a model.
 *
 * Rows are independent: a row's bits depend on its own sequence only (law, section 8). */
#ifndef IV_MODEL_CPU_CPU_MODEL_H
#define IV_MODEL_CPU_CPU_MODEL_H

#include "comm/comm.h"
#include "kernels/compute.h"
#include "model/backend.h"
#include "model/batch.h"
#include "model/cpu/tape.h"
#include "model/model.h"

#include <stdatomic.h>

/* Of latent attention, in dtype; NULL without it. */
typedef struct iv_cpu_latent {
    void *low;   /* [tokens][q_rank], normed */
    void *still; /* [tokens][the rank's heads][what does not turn of a query] */
    void *rows;  /* [tokens][the rank's heads][kv_rank]: of attention */
} iv_cpu_latent;

/* Inputs of products, for a calibration: `rows` rows of w->k elements of the model's type. */
typedef struct iv_cpu_watch {
    void (*see)(struct iv_cpu_watch *w, const iv_matrix *matrix, const void *x, size_t stride, size_t rows);
} iv_cpu_watch;

/* Memory for steps of up to tokens_max tokens, allocated once, and the step that is running. */
typedef struct iv_cpu_model {
    iv_backend backend; /* first */
    const iv_model *model;
    iv_compute compute; /* kernels, arithmetic and pool of the caller; scratch of this struct */
    iv_comm *comm;      /* set by the caller if the model has several ranks; else NULL */
    size_t tokens_max;
    unsigned char *data;
    size_t data_bytes;
    float *x;           /* [tokens][hidden]: the residual stream */
    void *normed;       /* [tokens][hidden] in the model's dtype */
    float *block;       /* [tokens][hidden]: of a block whose output is normed or scaled; NULL if none is */
    float *centered;    /* [tokens][hidden]: rows of norms that center them; NULL if none does */
    float *sums[2];     /* [tokens][hidden]: of the shared expert, of the others, before norms of their own; or NULL */
    float *wide;        /* [tokens][widest linear output] */
    void *q, *attended; /* [tokens][the rank's heads * head_dim] in dtype; with latent attention q has kv_rank and
                         * rope_dim a head, attended value_dim */
    iv_cpu_latent latent;
    void *delta_inputs;   /* [tokens][channels] in dtype: of convolutions; NULL without linear attention */
    void *delta_qk;       /* [tokens][2 * keys] in dtype */
    float *scan_sums;     /* [tokens][the rank's heads]: of norms of scans, and then their factors; NULL without them */
    void *act;            /* [tokens][intermediate] in dtype; the rows of an expert start at the first */
    void *act_memory;     /* where act is unless a tape holds it */
    uint32_t *magnitudes; /* [tokens]: of the rows of a row-parallel int8 layer; NULL with one rank */
    float *head_sums;     /* [tokens][the rank's heads and KV heads]: of norms over all heads; NULL without them */
    float *head_means;    /* [tokens][2] */
    float *router_logits; /* [tokens][experts, and one for the shared expert's gate] */
    int32_t *expert_ids;  /* [tokens][experts_per_token], ascending */
    float *expert_weights; /* as expert_ids */
    float *terms;          /* [tokens][experts_per_token][hidden] */
    void *gathered;        /* [tokens][hidden] in dtype */
    uint32_t *expert_rows; /* [tokens][2]: token and slot of each row gathered for an expert */
    uint32_t *node_counts; /* [tokens + 1][ranks]: a rank's expert nodes of the tokens before one */
    /* Blocks for the other ranks, each behind a header; two, used alternately (comm.h). */
    unsigned char *parts[2];
    size_t part_bytes;
    int part;
    struct iv_cpu_adapted *adapted; /* memory for rows with adapters (product.h); NULL: none may come */
    iv_cpu_watch *watch;            /* sees the inputs of a layer's products, on one rank; NULL: none does */
    /* The step. */
    const iv_batch *batch;
    iv_tape *tape;                  /* of a pass that will run backward; else NULL */
    struct iv_cpu_learner *learner; /* whose passes they are; else NULL */
    atomic_size_t bad_span;         /* the first span with a key or value that is not finite; SIZE_MAX: none */
} iv_cpu_model;

/* IV_UNSUPPORTED if the arithmetic is not defined for the model's dtype. */
iv_status iv_cpu_model_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                            size_t tokens_max, iv_cpu_model **out, iv_error *err);
void iv_cpu_model_close(iv_cpu_model *s); /* NULL is fine */

/* Runs the step. If the model has several ranks, all of them call it with the same batch, each with its own kv.
 * IV_NOT_FINITE, on all ranks alike, names the span in which a key or value was not finite; after any other error a
 * rank is lost and no further step can run. The caller checks ids and positions: an id outside the vocabulary is a
 * programmer error. */
iv_status iv_cpu_model_forward(iv_cpu_model *s, const iv_batch *batch, iv_error *err);

/* Does the forward pass of an MLP run for the tape alone, up to act? Its output is computed too where the tape wants
 * that for the norm behind it. */
static inline bool iv_cpu_ends_at_act(const iv_cpu_model *s, const iv_layer *l) {
    return s->tape && s->tape->recomputing && !l->mlp_post_norm;
}

/* A span's step is not finite: the first one is reported, whichever thread finds it. */
static inline void iv_cpu_note_bad_span(iv_cpu_model *s, size_t span) {
    size_t seen = atomic_load(&s->bad_span);
    while (span < seen && !atomic_compare_exchange_weak(&s->bad_span, &seen, span)) continue;
}

/* Floats of a row of `wide` before a layer's mixer: of its projection, and behind k those for values that are keys. */
static inline size_t iv_cpu_mixer_row(const iv_model *m, const iv_layer *l) {
    bool wide = l->config->wide;
    if (!l->config->values_are_keys) return l->qkv.n;
    return l->qkv.n + iv_tp_shard_of(&m->tp, m->rank, wide)->kv_heads *
                          (size_t)(wide ? m->config.wide_head_dim : m->config.head_dim);
}

/* The op of layers with a state (recurrent.c). Without slots in the batch its spans are a learner's: whole sequences.
 */
iv_status iv_cpu_recurrent(iv_backend *b, size_t layer, iv_error *err);

void iv_cpu_adapted_free(struct iv_cpu_adapted *m); /* NULL is fine */

/* From n products of the head to logits (8.2), in place. */
void iv_cpu_shape_logits(const iv_cpu_model *s, float *x, size_t n);

extern const iv_backend_ops iv_cpu_ops; /* blocks.c */

/* x: the embedding's rows, before the norm of them that some models have. */
void iv_cpu_embed(iv_cpu_model *s);

#endif
