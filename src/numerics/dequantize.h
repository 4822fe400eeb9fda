/* dequantize.h: stored weights as float32. Law: NUMERICS.md section 16: W = R(dequantize(q, scales)).
 *
 * Every operation is one of float32, rounded to nearest, in the order written here. Codes that are no number (NaN of
 * e4m3 and e8m0) give NaN; the readers of files refuse them. */
#ifndef IV_NUMERICS_DEQUANTIZE_H
#define IV_NUMERICS_DEQUANTIZE_H

#include "base/dtype.h"
#include "numerics/weight_format.h"

#include <stdint.h>

float iv_e4m3_to_f32(uint8_t code); /* 0x7f and 0xff are NaN; there is no infinity */
float iv_e8m0_to_f32(uint8_t code); /* 2^(code - 127), 0 is 2^-127, 255 is NaN */
float iv_e2m1_to_f32(uint8_t code); /* the low four bits */

/* The value of code `at` in a row of codes: FP8, INT8, MXFP8 a byte each; PACK8 a byte less 128; PACK4 a nibble less 8
 * and NVFP4, MXFP4 an e2m1 nibble, the lower nibble first. */
float iv_weight_code(iv_weight_format format, const uint8_t *row, size_t at);

/* out[i] = (code(first + i) - zero) * scale for i < n, with the scale and zero of column (first + i) / group. scales
 * and zeros begin with column 0; zeros may be NULL: then nothing is subtracted. */
void iv_dequantize_codes(iv_weight_format format, const uint8_t *row, size_t first, size_t n, const float *scales,
                         const float *zeros, size_t group, float *out);

/* n elements of GGUF's blocks, n a multiple of the format's block. */
void iv_dequantize_gguf(iv_weight_format format, const uint8_t *blocks, size_t n, float *out);

/* R: rounds n values to BF16, F16 or F32. */
void iv_weights_round(iv_dtype type, const float *values, size_t n, void *out);

#endif
