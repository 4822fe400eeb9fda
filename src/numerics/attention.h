/* attention.h: the scalar reference of causal attention for one query row. Law: NUMERICS.md section 7.
 *
 * Blocks of 64 keys and KV splits of 256 keys begin at absolute positions, so a row's result depends on its own
 * position only: not on the batch, the prefill chunk or the pages. */
#ifndef IV_NUMERICS_ATTENTION_H
#define IV_NUMERICS_ATTENTION_H

#include "base/dtype.h"
#include "numerics/arithmetic.h"

#include <stdbool.h>
#include <stdint.h>

enum { IV_ATTENTION_BLOCK = 64, IV_KV_SPLIT = 256, IV_ATTENTION_LANES = 8 };

/* A row's maximum is kept unless a block's exceeds it by more than this, so weights are at most 2^8. */
#define IV_ATTENTION_SLACK 8.0f

/* A row's next maximum, given its last one and that of a block's scaled scores. */
static inline float iv_attention_next_max(float last, float block) {
    return block > last + IV_ATTENTION_SLACK ? block : last;
}

/* 2^x as the softmax of an arithmetic takes it: exp2 or ex2 (section 5). */
float iv_attention_exp2(iv_arithmetic arithmetic, float x);

/* A split's sum of weights from the eight lanes that took them; in tc16 one chain took them all, in the first lane. */
static inline float iv_attention_sum(iv_arithmetic arithmetic, const float l[IV_ATTENTION_LANES]) {
    if (arithmetic == IV_TC16) return l[0];
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/* head_dim^-0.5 in double, and that times log2(e), each rounded once; the square root is correctly rounded by IEEE 754.
 */
static inline float iv_attention_scale(size_t head_dim) { return (float)(1.0 / __builtin_sqrt((double)head_dim)); }
static inline float iv_attention_scale_log2e(size_t head_dim) {
    return (float)(1.4426950408889634 / __builtin_sqrt((double)head_dim));
}

/* A sink as the softmax takes it: times log2(e), rounded once. */
static inline float iv_sink_log2e(float sink) { return sink * 0x1.715476p+0f; }

/* Which keys a row at `position` sees: [iv_first_visible, position]. window 0 means all, and one below 0 the keys of
 * the row's chunk: positions are divided into chunks of -window. */
static inline int64_t iv_first_visible(int64_t position, int64_t window) {
    if (window < 0) return position / -window * -window;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* One dot product over k elements (padded_k of each are readable) continuing from acc. */
float iv_ref_chain(iv_arithmetic arithmetic, iv_dtype type, float acc, const void *a, const void *b, size_t padded_k);

/* tc16's sum of k rounded weights (a multiple of 16): the chain whose other operand is one everywhere. */
float iv_ref_sum_weights(iv_dtype type, float acc, const void *weights, size_t k);

typedef struct iv_ref_attention_args {
    iv_arithmetic arithmetic;
    iv_dtype type;      /* of q, k, v and of the rounded weights: BF16, F16 or F32 */
    size_t head_dim;    /* elements; q and each key hold iv_padded_k(head_dim), zero at the end */
    int64_t position;   /* of the query */
    int64_t window;     /* 0, or how many keys including its own a row sees; below 0: chunks */
    float scale_log2e;  /* of scores, times log2(e), rounded once to float; above 0 */
    float score_inner;  /* 0, or scores become tanh(score * score_inner) first */
    const float *sink;  /* NULL, or the head's: one more term of the softmax's sum, without a value */
    const void *q;      /* [padded head_dim] */
    const void *keys;   /* [position + 1][padded head_dim] */
    const void *values; /* [position + 1][head_dim] */
} iv_ref_attention_args;

/* out: head_dim floats, canonical NaN. False when scratch memory is out. */
bool iv_ref_attention(const iv_ref_attention_args *args, float *out);

#endif
