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

/* What an engine's `arithmetic` says: how floats are summed, and whether linear layers are products of int8 codes
 * (NUMERICS.md, 20) of 1 or 2 terms; 0: they are not. "i8" leaves the floats to the device, as "auto" does. */
typedef struct iv_engine_arithmetic {
    bool given; /* floats are */
    iv_arithmetic floats;
    int terms;
} iv_engine_arithmetic;

/* "fma32", "i8+fma32", "i8x2+tc16". Static strings. */
const char *iv_engine_arithmetic_name(iv_arithmetic floats, int terms);

/* NULL is "auto". IV_INVALID for a name that is none. floats is left alone where it is not given. */
iv_status iv_engine_arithmetic_parse(const char *text, iv_engine_arithmetic *out, iv_error *err);

/* "auto", or NULL: *given is false and *out is left alone. IV_INVALID for a name that is none,
 * IV_UNSUPPORTED for one of int8, which engines alone have. */
iv_status iv_arithmetic_parse(const char *text, bool *given, iv_arithmetic *out, iv_error *err);

/* IV_UNSUPPORTED: it is not defined for GEMM inputs of this type. */
iv_status iv_arithmetic_check(iv_arithmetic a, iv_dtype gemm, iv_error *err);

/* An option `dtype`: "bfloat16", "float16" or "float32"; "auto" or NULL: *given is false and *out is left alone. */
iv_status iv_gemm_type_parse(const char *text, bool *given, iv_dtype *out, iv_error *err);

#endif
