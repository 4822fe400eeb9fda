/* scan_backward.h: gradients of selective scans over whole sequences. Law: NUMERICS.md 17.3.
 *
 * The ops run in this order, each over threads: iv_scan_norm_backward of all rows; iv_delta_heads_backward of all
 * sequences and groups; iv_scan_mix_backward of all rows; iv_scan_inputs_backward of all rows. */
#ifndef IV_KERNELS_SCAN_BACKWARD_H
#define IV_KERNELS_SCAN_BACKWARD_H

#include "kernels/delta_backward.h"
#include "kernels/scan.h"

/* Factors of the rows of a projection: C, B, x, z, dt. */
enum { IV_SCAN_ROWS = 5 };

/* Through a row's norm and gate; whole groups are the rank's. */
void iv_scan_norm_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row);

/* Adds a row's terms of the norm's weights [first, first + count). */
void iv_scan_norm_terms(const iv_compute *c, const iv_delta_backward_args *a, size_t row, size_t first, size_t count,
                        float *sum);

/* Row i of the sequence, up to the sums of its convolution; d_log: terms of a_log, skip: those of D,
 * [rows][value_heads]. */
void iv_scan_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                          float *skip);

/* Row i: through the convolution and the factors of the projection's rows, and R of all into dy. */
void iv_scan_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                             const float scale[IV_SCAN_ROWS]);

#endif
