/* linear.h: facts of linear layers that both devices need. */
#ifndef IV_OPS_LINEAR_H
#define IV_OPS_LINEAR_H

#include "kernels/input_gradient.h"
#include "ops/gpu.h"

/* IV_INVALID or IV_LIMIT name what is wrong; *outputs: of all weights. */
iv_status iv_ops_check_layer(const char *what, const iv_ops_linear *l, size_t rows, size_t *outputs, iv_error *err);

static inline size_t iv_ops_outputs(const iv_ops_linear *l) {
    size_t n = 0;
    for (size_t i = 0; i < l->weights; i++) n += l->weight[i].n;
    return n;
}

static inline iv_dtype iv_ops_weight_type(const iv_ops *ops, const iv_ops_linear *l) {
    return l->weight_float ? IV_F32 : ops->type;
}

/* The leaves of the sum over inputs. */
int iv_ops_input_leaves(const iv_ops_linear *l);
/* Those of the sum over outputs, and what each has of every slice: out->leaves and slice. */
void iv_ops_output_leaves(const iv_ops_linear *l, iv_input_gradient_args *out);

#endif
