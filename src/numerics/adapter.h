/* adapter.h: the term of an adapter of low rank, from the law (NUMERICS.md 19). */
#ifndef IV_NUMERICS_ADAPTER_H
#define IV_NUMERICS_ADAPTER_H

#include "base/dtype.h"
#include "numerics/arithmetic.h"

#include <stddef.h>
#include <stdint.h>

typedef struct iv_ref_adapter {
    iv_arithmetic arithmetic;
    iv_dtype type;       /* of A, B, x and t */
    const void *a, *b;   /* A [rank][padded inputs], B [outputs][padded rank], zero at the end of each row */
    size_t inputs, rank; /* without padding */
    int leaves;          /* of A's sums */
    float scale;
} iv_ref_adapter;

/* t [padded rank] = R(A x), zero at the end; x: [padded inputs] elements. */
void iv_ref_adapter_inner(const iv_ref_adapter *a, const void *x, void *t);

/* Output i: fma(scale, B's row i times t, y). */
float iv_ref_adapt(const iv_ref_adapter *a, const void *t, size_t i, float y);

/* ---- training (19.1) ---- */

/* dz [padded outputs] = R(scale * dy) of the module's outputs, zero at the end. */
void iv_ref_adapter_scaled(const iv_ref_adapter *a, const void *dy, size_t outputs, void *dz);

/* dt [padded rank] = R(the sum over outputs of dz and B's columns), zero at the end. The outputs are in `leaves` leaves
 * of `leaf` outputs each, of which the last may have fewer. */
void iv_ref_adapter_inner_gradient(const iv_ref_adapter *a, const void *dz, size_t outputs, size_t leaves, size_t leaf,
                                   void *dt);

/* Input k: dx, and the adapter's part of it. */
float iv_ref_adapter_input_gradient(const iv_ref_adapter *a, const void *dt, size_t k, float dx);

/* The first values of an A, row by row: uniform in +-1 / sqrt(inputs). name: SHA-256 of the module's name. */
void iv_ref_adapter_begin(uint64_t seed, const uint8_t name[32], size_t inputs, size_t count, float *out);

#endif
