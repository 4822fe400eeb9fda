/* int8.h: dot products of int8 codes, whose int32 sums are exact in every order. Law: NUMERICS.md section 20. */
#ifndef IV_NUMERICS_INT8_H
#define IV_NUMERICS_INT8_H

#include "base/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum {
    IV_INT8_TERMS_MAX = 2,
    IV_INT8_K_MAX = 131072 /* inputs of a layer: 127 * 128 * K stays below 2^31 */
};

/* The steps of the second term in one of the first. */
#define IV_INT8_LOW 254.0f

/* The bits of the largest |x[i]|, which are in the order of the numbers: a NaN is above an infinity. 0 for n = 0. The
 * maximum of parts of a row is the row's. */
uint32_t iv_ref_int8_magnitude(iv_dtype type, const void *x, size_t n);

/* What a row's numbers are multiplied by to become codes, and its scale, from its magnitude. 0 and 0: a row below
 * 2^-100, whose codes are zeros; 0 and the canonical NaN: a row with a number that is not finite, likewise. */
typedef struct iv_int8_scale {
    float inverse, scale;
} iv_int8_scale;
iv_int8_scale iv_ref_int8_scale(uint32_t magnitude, int terms);

/* The codes of n numbers, -127 to 127: one term (low is not written), or two. */
void iv_ref_int8_codes(iv_dtype type, const void *x, size_t n, float inverse, int terms, int8_t *high, int8_t *low);

/* The sum of a[k] b[k] over k, modulo 2^32. */
int32_t iv_ref_int8_sum(const int8_t *a, const int8_t *b, size_t k);

/* sums[terms] over all of K, times the scales of a row and of an output: before a bias. */
float iv_ref_int8_result(const int32_t *sums, int terms, float row_scale, float output_scale);

#endif
