/* tensors.h: which tensor of a checkpoint goes where. The five families name their tensors alike; what a
 * family lacks or adds is in its configuration (biases, head norms, experts). */
#ifndef IV_MODEL_TENSORS_H
#define IV_MODEL_TENSORS_H

#include "model/model.h"

/* One tensor's destination: rows [first, first + shape[0]) of a matrix, or elements of a vector of floats, or
 * nowhere: then it is read for the digest only. */
typedef struct iv_weight_part {
    const iv_tensor_info *tensor;
    iv_matrix *matrix;
    float *vector;
    size_t first; /* row or element */
} iv_weight_part;

typedef struct iv_weight_plan {
    iv_weight_part *parts; /* largest first; in the model's arena */
    size_t count;
    size_t matrix_bytes; /* all packed matrices, each aligned to 64 */
} iv_weight_plan;

/* Allocates the model's layers and vectors in its arena, shapes its matrices, and matches every tensor of the
 * checkpoint. m->config and m->dtype are set before. Matrix data is not allocated. */
iv_status iv_weight_plan_make(iv_model *m, const iv_checkpoint *c, iv_weight_plan *plan, iv_error *err);

/* Points every matrix into data (plan->matrix_bytes of it). */
void iv_weight_plan_place(iv_model *m, unsigned char *data);

#endif
