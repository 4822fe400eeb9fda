/* gpu_learner.h: the learner of learner.h on one NVIDIA GPU, with the bits of the CPU's (tc16, fma32). Law: NUMERICS.md
 * 15. Tensor-parallel ranks are learners on GPUs of one process, which run each pass together, a thread each.
 *
 * `sums` of a step are device memory: with several ranks rank 0's, which the others reach. A pass returns after its
 * log-probabilities are here; its gradients may still be in the making until the step's last pass, or `score`, returns.
 */
#ifndef IV_MODEL_GPU_LEARNER_H
#define IV_MODEL_GPU_LEARNER_H

#include "baseline/baseline.h"
#include "comm/comm.h"
#include "device/gpu.h"
#include "model/learned_adapter.h"
#include "model/learner.h"
#include "model/model.h"

typedef struct iv_gpu_learner_options {
    iv_gpu *gpu; /* the model's matrices are in its memory space */
    iv_arithmetic arithmetic;
    iv_numerics numerics; /* IV_INVAR */
    size_t rows_max;      /* tokens of a pass, each sequence padded to a multiple of 16; a longer one is refused */
    iv_recompute recompute;
    bool separate;      /* row ops apart from linear layers, never in their epilogues: for comparisons of bits, times */
    bool deferred_loss; /* coefficients come from the step's callback: no memory for the gradients of all logits */
    size_t logits_max;  /* logits that exist at once, at least a row; 0: 2^28 */
    size_t chunk_max;   /* bytes of the rows of experts that are computed at once, and of their weights; 0: 2^30 */
    const iv_model *tensor_owner; /* the process's first model, which has the tensors by name */
    /* On the GPU, norms and biases, which every pass reads: the flat buffer (master weights, of which the model
     * holds the rounded ones), or the vectors alone, as iv_parameters_vectors places them. Matrices are the model's. */
    const float *weights, *vectors; /* one of them is NULL */
    size_t elements;                /* of the flat buffer */
    /* An adapter learns, and the model's weights do not: `vectors` are given, `weights` are not. */
    const iv_learned_adapter *learned; /* NULL: all weights learn */
    const iv_adapter *shape;           /* made of it, with any values; read at opening */
    const float *masters;              /* its flat buffer, on the GPU: each pass rounds what is there */
    size_t place;                      /* of this rank among those of the process */
    void *borrowed; /* NULL, or memory of this GPU, aligned to 1 KiB, for passes that fit: others may write there
                   between two steps */
    size_t borrowed_bytes;
} iv_gpu_learner_options;

/* IV_UNSUPPORTED names what cannot be trained; IV_NO_MEMORY the bytes wanted and free. out->ops->close frees it. */
iv_status iv_gpu_learner_open(const iv_model *m, const iv_gpu_learner_options *options, iv_learner **out,
                              iv_error *err);

/* Before their first pass: learners[r] is rank r's, comm[r] its communicator of threads, which outlives it. Their GPUs
 * reach each other's memory (iv_gpu_peer). */
iv_status iv_gpu_learner_join(iv_learner *const *learners, size_t ranks, iv_comm *const *comm, iv_error *err);

#endif
