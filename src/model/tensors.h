/* tensors.h: which tensor of a checkpoint goes where. The five families name their tensors alike; what a
 * family lacks or adds is in its configuration (biases, head norms, experts). */
#ifndef IV_MODEL_TENSORS_H
#define IV_MODEL_TENSORS_H

#include "model/model.h"

/* Where rows of a tensor go: as rows of a rank's matrix (of each row `matrix->k` elements from `column` on), or, for
 * a tensor of one dimension, as elements of a vector of floats. */
typedef struct iv_tensor_slice {
    struct iv_tensor_slice *next;
    iv_matrix *matrix;
    iv_memspace *memspace; /* where the matrix is; NULL: here */
    float *vector;
    size_t begin, end, column; /* of the tensor */
    size_t first;              /* row or element that `begin` becomes */
} iv_tensor_slice;

typedef struct iv_weight_part {
    const iv_tensor_info *tensor;
    iv_tensor_slice *targets; /* none: another process has them, or nobody */
    size_t columns;            /* elements of a row; 1 for a vector */
    bool checked;              /* else it is read for the digest only */
    iv_dtype type;             /* that it is rounded to */
} iv_weight_part;

typedef struct iv_weight_plan {
    iv_weight_part *parts; /* largest first; in the model's arena */
    size_t count;
} iv_weight_plan;

/* Allocates the layers and vectors of m and of the models behind it in their arenas, shapes their matrices, counts
 * data_bytes (packed matrices, each aligned to 64), and matches every tensor of the checkpoint. config, dtype, split
 * and rank are set before. Matrix data is not allocated. */
iv_status iv_tensors_make(iv_model *m, const iv_checkpoint *c, iv_weight_plan *plan, iv_error *err);

/* Seeded random weights of every tensor that a model of this configuration has, all of one type. */
iv_status iv_tensors_dummy(const iv_model_config *config, iv_dtype type, uint64_t seed, iv_checkpoint **out,
                               iv_error *err);

/* Points the matrices of m into m->data, or, what it shares, into the first model's. */
void iv_tensors_bind(iv_model *m, const iv_model *first);

#endif
