/* weight_codes.h: what most stored formats have in common: a code of 4 or 8 bits for each weight, and a scale and
 * perhaps a second number for each group of weights along k. Models hold them in memory so (kernels/packed_panel.h).
 * The values are those of dequantize.h, operation by operation. */
#ifndef IV_NUMERICS_WEIGHT_CODES_H
#define IV_NUMERICS_WEIGHT_CODES_H

#include "base/dtype.h"
#include "numerics/weight_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number t that a code stands for. */
typedef enum iv_code_kind {
    IV_CODES_INT4,         /* code - 8 */
    IV_CODES_UINT4,        /* code */
    IV_CODES_E2M1,         /* iv_e2m1_to_f32 */
    IV_CODES_E2M1_DOUBLED, /* twice that, without a negative zero (GGUF) */
    IV_CODES_NONLINEAR,    /* the table of GGUF's IQ4 formats */
    IV_CODES_INT8,         /* signed; the first kind of 8 bits */
    IV_CODES_E4M3,
    IV_CODE_KINDS
} iv_code_kind;

typedef enum iv_code_second {
    IV_SECOND_NONE, /* t * scale */
    IV_SECOND_ZERO, /* (t - second) * scale */
    IV_SECOND_MIN   /* scale * t + second */
} iv_code_second;

typedef struct iv_code_form {
    iv_weight_format format; /* of the file */
    iv_code_kind kind;
    iv_code_second second;
    iv_dtype scale_type; /* BF16, F16 or F32: holds scales and seconds exactly */
    size_t group;        /* columns that share a scale: a multiple of 16, or all */
} iv_code_form;

static inline int iv_code_bits(iv_code_kind kind) { return kind < IV_CODES_INT8 ? 4 : 8; }

/* The 16 numbers of a kind of 4 bits. */
const float *iv_code_table(iv_code_kind kind);

/* The weight, before R. second is not used where the form has none. */
float iv_code_value(const iv_code_form *form, uint8_t code, float scale, float second);

/* The form of a format of GGUF; group is its own. */
iv_code_form iv_gguf_form(iv_weight_format format);

/* The codes of n elements of GGUF's blocks, a byte each, and for each group its scale and second (written only where
 * the form has it). n is a multiple of the format's block. */
void iv_gguf_codes(iv_weight_format format, const uint8_t *blocks, size_t n, uint8_t *codes, float *scales,
                   float *seconds);

#endif
