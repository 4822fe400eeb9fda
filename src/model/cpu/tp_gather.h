/* tp_gather.h: the collective steps of CPU ranks: after attention's output and down (nodes of the leaf tree), after the
 * experts (nodes of the tree over expert ids), and at the head (columns of the logits). Every rank gathers all nodes
 * and makes all additions: the traffic is small compared with the layers. With one rank a row-parallel layer is a plain
 * linear layer. A block is a header of 64 bytes and floats. */
#ifndef IV_MODEL_CPU_TP_GATHER_H
#define IV_MODEL_CPU_TP_GATHER_H

#include "model/cpu/cpu_model.h"

enum { IV_TP_HEADER_BYTES = 64 }; /* of a block */

/* Bytes of one block of this rank; s->model and s->tokens_max are set. False if the size overflows. */
bool iv_tp_gather_bytes(const iv_cpu_model *s, size_t *bytes);

/* Where this rank writes the floats of its next block. */
float *iv_tp_gather_buffer(const iv_cpu_model *s);

/* All-gathers the buffers: floats[r] floats of rank r at parts[r], until the next call. *least, if not NULL, becomes
 * the minimum over the ranks. */
iv_status iv_tp_gather_all(iv_cpu_model *s, const size_t *floats, size_t *least, const float **parts, iv_error *err);

typedef struct iv_row_parallel_args {
    const iv_row_cuts *cuts;
    const iv_matrix *nodes; /* this rank's, as its cut has them */
    const float *bias;      /* [hidden] or NULL: of the whole layer */
    const void *x;          /* [rows][x_stride] in the model's dtype; column 0 is input x_first of the layer */
    size_t x_stride, x_first, rows;
    size_t *least; /* as iv_tp_gather_all */
    float *out;    /* [rows][hidden]; NULL: s->x */
} iv_row_parallel_args;

/* out += the whole layer, on every rank. */
iv_status iv_row_parallel(iv_cpu_model *s, const iv_row_parallel_args *args, iv_error *err);

/* Rows of logits of one gather: the same on all ranks. */
size_t iv_tp_logit_rows(const iv_cpu_model *s);

/* Bytes of the ranks' blocks of so many floats. */
void iv_tp_block_sizes(const iv_cpu_model *s, const size_t *floats, size_t *bytes);

#endif
