/* part_scales.h: factors of parts of the projection before a mixer, forward and backward. Law: NUMERICS.md 17.2. */
#ifndef IV_MODEL_CPU_PART_SCALES_H
#define IV_MODEL_CPU_PART_SCALES_H

#include "kernels/compute.h"
#include "model/model.h"

/* Those of a scan: C, B, x, z, dt. */
void iv_cpu_scan_scales(const iv_model *m, float scale[IV_SCAN_PARTS]);

/* rows: `count` of them, `stride` floats apart, as the layer's qkv gives them on this rank. Does nothing where all
 * factors are 1. */
void iv_cpu_scale_parts(const iv_compute *c, const iv_model *m, const iv_layer *l, float *rows, size_t stride,
                        size_t count);

#endif
