/* dtype.h: element types of tensors. The compute types come first: BF16, F16, F32. The last three occur in files alone.
 */
#ifndef IV_BASE_DTYPE_H
#define IV_BASE_DTYPE_H

#include <stddef.h>

typedef enum iv_dtype {
    IV_BF16,
    IV_F16,
    IV_F32,
    IV_F64,
    IV_I8,
    IV_U8,
    IV_BOOL,
    IV_I16,
    IV_I32,
    IV_I64,
    IV_F8_E4M3,
    IV_F8_E8M0,
    IV_F8_E5M2,
    IV_DTYPE_COUNT
} iv_dtype;

static inline size_t iv_dtype_bytes(iv_dtype t) {
    static const size_t bytes[IV_DTYPE_COUNT] = {2, 2, 4, 8, 1, 1, 1, 2, 4, 8, 1, 1, 1};
    return bytes[t];
}

/* As config.json and --dtype spell the compute types: "bfloat16", "float16", "float32", ... */
static inline const char *iv_dtype_name(iv_dtype t) {
    static const char *const names[IV_DTYPE_COUNT] = {
        "bfloat16", "float16", "float32", "float64",       "int8",           "uint8",      "bool",
        "int16",    "int32",   "int64",   "float8_e4m3fn", "float8_e8m0fnu", "float8_e5m2"};
    return names[t];
}

#endif
