/* quantize.h: rows of float32 to codes and scales, rounded to nearest: what tools write. dequantize.h is the way back.
 *
 * The scale of a group is made from its largest size m: FP8 m / 448; INT8 m / 127.5 and INT4 m / 7.5 (codes -128 to
 * 127, -8 to 7), as llm-compressor has them; each rounded to the type that is stored. MXFP4 2^(floor(log2 m) - 2).
 * NVFP4 e4m3(m / 6 * global), where global is 2688 / the largest size of the tensor. */
#ifndef IV_NUMERICS_QUANTIZE_H
#define IV_NUMERICS_QUANTIZE_H

#include "base/dtype.h"
#include "numerics/weight_format.h"

#include <stdint.h>

/* To nearest even; larger numbers become the largest one, 448 or 6. x is no NaN. */
uint8_t iv_e4m3_from_f32(float x);
uint8_t iv_e2m1_from_f32(float x);

/* The scale of n numbers. format: FP8, INT8, PACK4, MXFP4 or NVFP4. global: of NVFP4. *stored: a number of `type`, or
 * the code of e8m0 or e4m3, as a number. Returns what codes are multiplied by. */
float iv_quantize_scale(iv_weight_format format, const float *x, size_t n, float global, iv_dtype type, float *stored);

/* out[i]: the code of x[i], as the format stores it, a byte each; 4 bits in the lower half. */
void iv_quantize_codes(iv_weight_format format, const float *x, size_t n, float scale, uint8_t *out);

/* GGUF's blocks of n numbers, a multiple of 32: Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1, as ggml's reference makes them. A scale
 * above 65504 becomes an infinity, which readers refuse. */
void iv_quantize_gguf(iv_weight_format format, const float *x, size_t n, uint8_t *out);

#endif
