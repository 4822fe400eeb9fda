/* learner.h: forward and backward over whole sequences on one device: log-probabilities out, gradients added to the
 * sums of a step. One tensor-parallel rank of one data-parallel rank. Law: NUMERICS.md 15.
 *
 * The sequences of a step come in passes of consecutive ones; the passes cannot change a bit. */
#ifndef IV_MODEL_LEARNER_H
#define IV_MODEL_LEARNER_H

#include "base/size.h"
#include "kernels/token_axis.h"
#include "numerics/tree.h"

/* mask[t] weighs the prediction of ids[t] from those before it; mask[0] is 0. Positions with mask 0 have no gradient
 * and no log-probability. */
typedef struct iv_learner_sequence {
    const int32_t *ids;
    const float *mask;
    size_t count;              /* 2 at least */
    size_t rank;               /* virtual, of this data-parallel rank; sequences are in order of ranks */
    float *logprobs;           /* [count]: those of predicted tokens are written; the others become 0 */
    const float *coefficients; /* [count]: see iv_learner_step; read where mask is not 0 */
    const int32_t *targets;    /* [count]: predicted instead of ids; NULL: ids */
} iv_learner_sequence;

static inline int32_t iv_learner_target(const iv_learner_sequence *s, size_t t) {
    return s->targets ? s->targets[t] : s->ids[t];
}

typedef struct iv_learner_step {
    iv_learner_sequence *sequences;
    size_t count;
    size_t ranks;            /* virtual ranks of this data-parallel rank: a power of two */
    float temperature;       /* of the policy: logits are divided by it; 1: they are not */
    const uint64_t *allowed; /* a bit per id, [(vocab + 63) / 64]: a 0 makes its logits -infinity. NULL: all are 1. The
                                same in all passes of the step */
    iv_axis_sums sums;       /* in the device's memory: the flat buffer (model/parameters.h), then a tied embedding's
                                look-ups */
    /* Fills the coefficients -dLoss/dlogprob of sequences [from, to), whose log-probabilities are known. On rank 0;
     * NULL: they were filled before. */
    iv_status (*weigh)(void *context, size_t from, size_t to, iv_error *err);
    /* NULL, or on a GPU, for a step of one pass: the sums are made in buckets, each from sums.sum on, which holds the
     * longest (iv_parameters_longest_bucket) and is +0. Every rank calls it when elements [begin, end) are complete;
     * when it returns the memory is +0 again. The buckets: the head, the final norm, the layers from the last on,
     * look-ups. */
    iv_status (*bucket)(void *context, size_t begin, size_t end, iv_error *err);
    void *context;
} iv_learner_step;

/* What is computed again in the backward pass instead of being kept. No choice changes a bit. */
typedef enum iv_recompute {
    IV_RECOMPUTE_NONE,
    IV_RECOMPUTE_ATTENTION, /* q, k, v and attention */
    IV_RECOMPUTE_LAYER,     /* all but the layer's input */
} iv_recompute;

typedef struct iv_learner iv_learner;

typedef struct iv_learner_ops {
    /* Log-probabilities of sequences [from, to) alone. */
    iv_status (*score)(iv_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err);
    /* A pass: log-probabilities, coefficients, gradients. After the last sequence of the step its sums are complete.
     * Collective over the tensor-parallel ranks. */
    iv_status (*pass)(iv_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err);
    /* Memory that the passes of a step take, each of at most `limit` sequences. NULL: they allocate none. GPUs that
     * wait for one another may hang while one allocates, so their learners reserve before any of them runs. */
    iv_status (*reserve)(iv_learner *l, const iv_learner_step *step, size_t limit, iv_error *err);
    size_t (*bytes)(const iv_learner *l);
    void (*close)(iv_learner *l);
} iv_learner_ops;

/* The head of a device's own struct. */
struct iv_learner {
    const iv_learner_ops *ops;
    size_t rows_max;       /* tokens of a pass, a multiple of 16 */
    size_t borrowed_bytes; /* of memory that others use between steps, not counted by `bytes` */
};

static inline void iv_learner_close(iv_learner *l) { /* NULL is fine */
    if (l) l->ops->close(l);
}

/* The number of sequences from `from` on that one pass of rows_max tokens holds, at most `limit`. */
static inline size_t iv_learner_fit(const iv_learner *l, const iv_learner_step *step, size_t from, size_t limit) {
    size_t rows = 0, n = 0;
    while (n < limit && from + n < step->count) {
        rows += iv_padded_k(step->sequences[from + n].count);
        if (rows > l->rows_max) break;
        n++;
    }
    return n;
}

#endif
