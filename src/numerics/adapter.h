/* adapter.h: the term of an adapter of low rank, from the law (NUMERICS.md 19). */
#ifndef IV_NUMERICS_ADAPTER_H
#define IV_NUMERICS_ADAPTER_H

#include "base/dtype.h"
#include "numerics/arithmetic.h"

#include <stddef.h>

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

#endif
