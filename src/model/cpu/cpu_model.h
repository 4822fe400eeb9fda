/* forward.h: one step of a model over a batch of tokens: ids in, KV written, logits out.
 *
 * Rows are independent: a row's bits depend on its own sequence only (law, section 8). */
#ifndef IV_MODEL_CPU_CPU_MODEL_H
#define IV_MODEL_CPU_CPU_MODEL_H

#include "comm/comm.h"
#include "kernels/attention.h"
#include "kernels/compute.h"
#include "kernels/cuda/ops.h"
#include "model/model.h"

/* What one step needs in memory for up to tokens_max tokens, allocated once. */
typedef struct iv_cpu_model {
    const iv_model *model;
    iv_compute compute; /* kernels, arithmetic and pool of the caller; scratch of this state */
    iv_comm *comm;      /* the caller sets it where the model is split; NULL for one rank */
    size_t tokens_max;
    unsigned char *data;
    size_t data_bytes;
    float *x;              /* [tokens][hidden]: the residual stream */
    void *normed;          /* [tokens][hidden] in the model's dtype */
    float *wide;           /* [tokens][widest linear output] */
    void *q, *attended;    /* [tokens][the rank's heads * head_dim] in dtype */
    void *act;             /* [tokens][intermediate] in dtype; an expert's rows start at its first */
    float *router_logits;  /* [tokens][experts] */
    int32_t *expert_ids;   /* [tokens][experts_per_token], ascending */
    float *expert_weights; /* beside expert_ids */
    float *terms;          /* [tokens][experts_per_token][hidden] */
    void *gathered;        /* [tokens][hidden] in dtype */
    uint32_t *expert_rows; /* [tokens][2]: token and slot of each row gathered for an expert */
    uint32_t *node_counts; /* [tokens + 1][ranks]: a rank's expert nodes of the tokens before one */
    /* What goes to the other ranks, a header before it; two, taken in turn (comm.h). */
    unsigned char *parts[2];
    size_t part_bytes;
    int part;
} iv_cpu_model;

typedef struct iv_batch {
    const int32_t *ids; /* [tokens] */
    size_t tokens;
    const iv_attention_span *spans; /* cover rows 0 .. tokens - 1 in order; pages cover their positions */
    size_t span_count;
    unsigned char *kv; /* [layer][page], as iv_kv_pool keeps it */
    size_t kv_layer_bytes;
    const uint32_t *logit_rows; /* rows whose logits are wanted */
    size_t logit_count;
    /* [logits_max][vocab_size], or of logit_count rows where logits_max is 0; filled on rank 0. Are more rows wanted,
     * the head runs over slices of so many, the first one last: in the end the first rows are there. On a CPU rank 0
     * calls `take`, if it is given, when the rows from `first` on are there, and before the next slice takes their
     * place. */
    float *logits;
    size_t logits_max;
    void (*take)(void *context, size_t first, size_t count);
    void *context;
    /* GPUs sample and score rows of logits where they lie: those of sample_here get sampled[i], and logits only if they
     * are of logits_too. Those are in the first slice. A CPU gives all logits and samples none. */
    const bool *sample_here, *logits_too; /* [logit_count], or NULL: none */
    const iv_row_sampling *sampling;      /* [logit_count] */
    iv_row_result *sampled;              /* [logit_count] */
    iv_logprob *top_logprobs; /* [logit_count][IV_TOP_LOGPROBS_MAX]: as many of the likeliest as `sampling` wants */
} iv_batch;

/* IV_UNSUPPORTED when the arithmetic is not defined for the model's dtype. */
iv_status iv_cpu_model_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                          size_t tokens_max, iv_cpu_model **out, iv_error *err);
void iv_cpu_model_close(iv_cpu_model *s); /* NULL is fine */

/* Runs the step; where the model is split, all ranks call it with the same batch, each with its own kv. IV_FORMAT, on
 * all ranks alike, names the span in which a key or value was not finite; any other error means that a rank is lost and
 * no further step can run. Ids and positions are the caller's to check: an id outside the vocabulary is a programmer
 * error. */
iv_status iv_cpu_model_forward(iv_cpu_model *s, const iv_batch *batch, iv_error *err);

#endif
