/* weight_format.h: how weights are stored in files. The arithmetic never depends on it: a weight is widened to the GEMM
 * type first (dequantize.h). */
#ifndef IV_NUMERICS_WEIGHT_FORMAT_H
#define IV_NUMERICS_WEIGHT_FORMAT_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* The first three are plain elements, in the order of iv_dtype. The next have scales in tensors of their own, those
 * from Q8_0 on are GGUF's blocks, which contain their scales. */
typedef enum iv_weight_format {
    IV_WEIGHT_BF16,
    IV_WEIGHT_F16,
    IV_WEIGHT_F32,
    IV_WEIGHT_FP8,   /* e4m3 (fn): a scale per tensor, row or block of rows and columns */
    IV_WEIGHT_INT8,  /* signed */
    IV_WEIGHT_PACK8, /* unsigned with offset 128, four in 32 bits */
    IV_WEIGHT_PACK4, /* unsigned with offset 8, eight in 32 bits, lowest first */
    IV_WEIGHT_NVFP4, /* e2m1, an e4m3 scale per 16 and a float32 scale per tensor */
    IV_WEIGHT_MXFP4, /* e2m1, an e8m0 scale per 32 */
    IV_WEIGHT_MXFP8, /* e4m3, an e8m0 scale per 32 */
    IV_WEIGHT_AWQ,   /* 4 bits, packed along the outputs in the order 0 2 4 6 1 3 5 7 */
    IV_WEIGHT_GPTQ4, /* packed along the inputs */
    IV_WEIGHT_GPTQ8,
    IV_WEIGHT_Q8_0,
    IV_WEIGHT_Q4_0,
    IV_WEIGHT_Q4_1,
    IV_WEIGHT_Q5_0,
    IV_WEIGHT_Q5_1,
    IV_WEIGHT_Q2_K,
    IV_WEIGHT_Q3_K,
    IV_WEIGHT_Q4_K,
    IV_WEIGHT_Q5_K,
    IV_WEIGHT_Q6_K,
    IV_WEIGHT_IQ4_NL,
    IV_WEIGHT_IQ4_XS,
    IV_WEIGHT_MXFP4_GGUF, /* GGUF's blocks of MXFP4: scale first, low nibbles are the first half */
    IV_WEIGHT_FORMAT_COUNT
} iv_weight_format;

typedef enum iv_scale_kind {
    IV_SCALE_NONE,
    IV_SCALE_FLOAT,       /* bfloat16, float16 or float32 */
    IV_SCALE_E8M0,        /* 2^(e - 127), 255 is NaN */
    IV_SCALE_E4M3_TENSOR, /* e4m3, and a float32 of the whole tensor */
    IV_SCALE_INSIDE       /* of GGUF, inside each block */
} iv_scale_kind;

typedef struct iv_weight_facts {
    const char *name;
    int bits;           /* of a value, without scales */
    size_t block;       /* elements that share a scale; 0: the file says how many */
    size_t block_bytes; /* of `block` elements, with the scales that are inside; 0: no blocks */
    iv_scale_kind scale;
    bool zero_points; /* may have them, or minima */
} iv_weight_facts;

const iv_weight_facts *iv_weight_facts_of(iv_weight_format format);

/* The plain format of BF16, F16 or F32. */
static inline iv_weight_format iv_weight_plain(iv_dtype type) { return (iv_weight_format)type; }
static inline bool iv_weight_is_plain(iv_weight_format f) { return f <= IV_WEIGHT_F32; }
static inline bool iv_weight_is_gguf_block(iv_weight_format f) { return f >= IV_WEIGHT_Q8_0; }

#endif
