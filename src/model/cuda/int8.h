/* int8.h: linear layers of a pass in int8 (NUMERICS.md 20): their rows become codes in a buffer of the pass, then they
 * are multiplied. */
#ifndef IV_MODEL_CUDA_INT8_H
#define IV_MODEL_CUDA_INT8_H

#include "model/cuda/pass.h"

/* f->linear of a model that has them. */
int iv_gpu_int8_layer(const gpu_forward *f, const iv_gpu_linear_args *a);

/* f->transport.row_parallel of several ranks: these exchange the magnitudes of their parts of the rows, then their
 * int32 sums. */
iv_status iv_gpu_int8_row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);

/* Bytes of the codes of a pass of `rows` rows, the rows of codes, and whether sums are exchanged. */
typedef struct gpu_int8_sizes {
    size_t codes, rows;
} gpu_int8_sizes;
gpu_int8_sizes iv_gpu_int8_sizes(const iv_model *m, size_t rows);

#endif
