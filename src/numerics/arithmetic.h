/* arithmetic.h: how dot products are summed (NUMERICS.md, 3), and the types of GEMM inputs that they are defined for:
 * names as options, fingerprints and reports spell them. */
#ifndef IV_NUMERICS_ARITHMETIC_H
#define IV_NUMERICS_ARITHMETIC_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>

typedef enum iv_arithmetic { IV_FMA32, IV_TC16 } iv_arithmetic;
enum { IV_ARITHMETICS = IV_TC16 + 1, IV_GEMM_TYPES = IV_F32 + 1 };

/* "fma32", "tc16". */
const char *iv_arithmetic_name(iv_arithmetic a);

/* What "auto" stands for: tc16 on a GPU where the GEMM type has 16 bits, else fma32. */
static inline iv_arithmetic iv_arithmetic_auto(bool gpu, iv_dtype gemm) {
    return gpu && gemm != IV_F32 ? IV_TC16 : IV_FMA32;
}

/* "auto", or NULL: *given is false and *out is left alone. IV_INVALID for a name that is none. */
iv_status iv_arithmetic_parse(const char *text, bool *given, iv_arithmetic *out, iv_error *err);

/* IV_UNSUPPORTED: it is not defined for GEMM inputs of this type. */
iv_status iv_arithmetic_check(iv_arithmetic a, iv_dtype gemm, iv_error *err);

/* An option `dtype`: "bfloat16", "float16" or "float32"; "auto" or NULL: *given is false and *out is left alone. */
iv_status iv_gemm_type_parse(const char *text, bool *given, iv_dtype *out, iv_error *err);

#endif
