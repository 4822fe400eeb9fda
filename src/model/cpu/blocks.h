/* blocks.h: blocks of the CPU's layers that the backward pass runs again. */
#ifndef IV_MODEL_CPU_BLOCKS_H
#define IV_MODEL_CPU_BLOCKS_H

#include "model/cpu/cpu_model.h"

/* s->normed = RMSNorm(x) for the rows of the batch. */
void iv_cpu_norm(iv_cpu_model *s, const float *x, const float *weight);

/* act, n values in the model's dtype, from row `row` of `wide`: gate and up of n values each, or up alone. A tape keeps
 * both from byte `kept` on. */
void iv_cpu_activate(iv_cpu_model *s, const iv_activation *a, const float *wide, size_t row, size_t n, size_t kept,
                     void *act);

#endif
