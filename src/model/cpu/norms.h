/* norms.h: norms of the residual stream on the CPU, which the backward pass runs again. */
#ifndef IV_MODEL_CPU_NORMS_H
#define IV_MODEL_CPU_NORMS_H

#include "model/cpu/cpu_model.h"

/* s->normed = RMSNorm(x) for the rows of the batch. */
void iv_cpu_norm(iv_cpu_model *s, const float *x, const float *weight);

#endif
