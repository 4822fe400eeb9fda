/* scan.h: the gated norms of selective scans on the CPU, over groups of heads that ranks may share. Law: NUMERICS.md
 * 17.2. */
#ifndef IV_MODEL_CPU_SCAN_H
#define IV_MODEL_CPU_SCAN_H

#include "kernels/scan.h"
#include "model/cpu/cpu_model.h"

/* What the ops of a scan take of a layer. */
iv_scan_args iv_cpu_scan_args(const iv_model *m, const iv_layer *l);

/* The gate and the norm of all rows of the batch. Every rank calls it, also one without heads. */
iv_status iv_cpu_scan_norm(iv_cpu_model *s, const iv_delta_args *a, iv_error *err);

#endif
