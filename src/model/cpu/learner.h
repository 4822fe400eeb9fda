/* learner.h: the learner of learner.h in src/model, on the CPU. */
#ifndef IV_MODEL_CPU_LEARNER_H
#define IV_MODEL_CPU_LEARNER_H

#include "kernels/attention_backward.h"
#include "model/cpu/cpu_model.h"
#include "model/learned_adapter.h"
#include "model/learner.h"

typedef struct iv_cpu_learner_options {
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_pool *pool;
    iv_comm *comm;   /* of the tensor-parallel ranks; NULL for one */
    size_t rows_max; /* tokens of a pass, each sequence padded to a multiple of 16; a longer one is refused */
    iv_recompute recompute;
    const iv_model *tensor_owner; /* the process's first model, which has the tensors by name */
    const float *weights;         /* the flat buffer: master weights, of which the model holds the rounded ones; NULL:
                                   * those serve, for one tensor-parallel rank */
    size_t elements;              /* of the row */
    /* An adapter learns, and the model's weights do not: `weights` are its, and the model may be read by others. */
    const iv_learned_adapter *learned; /* NULL: all weights learn */
    const iv_adapters *adapters;       /* slot 1 has its A and B, rounded; may change between steps */
    size_t place;                      /* of this rank among those of the process */
} iv_cpu_learner_options;

/* IV_UNSUPPORTED names what in the model or in its division over ranks cannot be trained. out->ops->close frees it. */
iv_status iv_cpu_learner_open(const iv_model *m, const iv_cpu_learner_options *options, iv_learner **out,
                              iv_error *err);

#endif
