/* learner.h: forward and backward over whole sequences on the CPU: log-probabilities out, gradients added to the sums
 * of a step. One tensor-parallel rank of one data-parallel rank. Law: NUMERICS.md 15.
 *
 * The sequences of a step come in passes of consecutive ones; the passes cannot change a bit. */
#ifndef IV_MODEL_CPU_LEARNER_H
#define IV_MODEL_CPU_LEARNER_H

#include "kernels/attention_backward.h"
#include "kernels/token_axis.h"
#include "model/cpu/cpu_model.h"

typedef struct iv_learner iv_learner;

/* mask[t] weighs the prediction of ids[t] from those before it; mask[0] is 0. Positions with mask 0 have no gradient
 * and no log-probability. */
typedef struct iv_learner_sequence {
    const int32_t *ids;
    const float *mask;
    size_t count;              /* 2 at least */
    size_t rank;               /* virtual, of this data-parallel rank; sequences are in order of ranks */
    float *logprobs;           /* [count]: those of predicted tokens are written; the others become 0 */
    const float *coefficients; /* [count]: see iv_learner_step; read where mask is not 0 */
} iv_learner_sequence;

typedef struct iv_learner_step {
    iv_learner_sequence *sequences;
    size_t count;
    size_t ranks;      /* virtual ranks of this data-parallel rank: a power of two */
    float temperature; /* of the policy: logits are divided by it; 1: they are not */
    iv_axis_sums sums; /* the parameters' row (model/parameters.h), then a tied embedding's look-ups */
    /* Fills the coefficients -dLoss/dlogprob of sequences [from, to), whose log-probabilities are known. On rank 0;
     * NULL: they were filled before. */
    iv_status (*weigh)(void *context, size_t from, size_t to, iv_error *err);
    void *context;
} iv_learner_step;

typedef struct iv_learner_options {
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_pool *pool;
    iv_comm *comm;   /* of the tensor-parallel ranks; NULL for one */
    size_t rows_max; /* tokens of a pass, each sequence padded to a multiple of 16; a longer one is refused */
    iv_recompute recompute;
    const iv_model *names; /* the process's first model, which has the tensors by name */
    const float *weights;  /* the parameters' row: master weights, of which the model holds the rounded ones */
    size_t elements;       /* of the row */
} iv_learner_options;

/* IV_UNSUPPORTED names what in the model or in its division over ranks cannot be trained. */
iv_status iv_learner_open(const iv_model *m, const iv_learner_options *options, iv_learner **out, iv_error *err);
void iv_learner_close(iv_learner *l); /* NULL is fine */
size_t iv_learner_bytes(const iv_learner *l);

/* The number of sequences from `from` on that one pass of rows_max tokens holds, at most `limit`. */
size_t iv_learner_fit(const iv_learner *l, const iv_learner_step *step, size_t from, size_t limit);

/* Log-probabilities of sequences [from, to) alone. */
iv_status iv_learner_score(iv_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err);

/* A pass: log-probabilities, coefficients, gradients. After the last sequence of the step its sums are complete.
 * Collective over the tensor-parallel ranks. */
iv_status iv_learner_pass(iv_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err);

#endif
