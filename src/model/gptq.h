/* gptq.h: a model's linear layers rounded by GPTQ (numerics/gptq.h): layer after layer, with the inputs that the layers
 * before give after they were rounded. Of one layer of the decoder all matrices are rounded for the inputs that it has
 * before any of them is. */
#ifndef IV_MODEL_GPTQ_H
#define IV_MODEL_GPTQ_H

#include "format/quantize_write.h"
#include "model/cpu/calibration.h"

typedef struct iv_gptq_options {
    const iv_checkpoint *from; /* of the model, none of its tensors is packed */
    const iv_quantize_scheme *scheme;
    size_t group;   /* 0: the scheme's */
    double damping; /* of the mean of a matrix' diagonal, added to it; above 0 */
    bool act_order; /* columns by falling size of their inputs; scales are those of rounding to nearest */
    size_t memory;  /* of matrices of inputs at once, at least one; 0: 4 GiB. Never changes a bit */
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_pool *pool;
    const iv_calibration_text *texts;
    size_t count;
    void (*progress)(void *user, size_t done, size_t total); /* may be NULL; of elements of weights */
    void *user;
} iv_gptq_options;

typedef struct iv_gptq_result {
    iv_quantized_layer *layers; /* [tensors of the checkpoint]; those that stay are NULL */
    size_t count;
    uint64_t tokens;
    size_t unseen; /* layers that no token of the texts reached (experts): rounded to nearest */
} iv_gptq_result;

/* Rounds the layers of m, which is whole, not packed, on one rank, of the checkpoint, and has positions for the longest
 * text; afterwards m holds the rounded weights. The caller frees out in any case. IV_UNSUPPORTED, by name: a layer
 * whose inputs no product of the model has (kv_b_proj). IV_INVALID: rows do not divide into groups; the damping is too
 * small. */
iv_status iv_gptq_run(iv_model *m, const iv_gptq_options *o, iv_gptq_result *out, iv_error *err);
void iv_gptq_result_free(iv_gptq_result *r);

#endif
