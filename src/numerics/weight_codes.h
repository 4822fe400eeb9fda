/* weight_codes.h: what most stored formats have in common: a code of 4 to 8 bits for each weight, and a scale and
 * perhaps a second number for each group of weights along k. Where these are of 8 bits, they are inner numbers, and
 * longer groups have the outer ones by which they are multiplied. Models hold them in memory so
 * (kernels/packed_panel.h). The values are those of dequantize.h, operation by operation. */
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
    IV_CODES_INT5,  /* code - 16; the first kind of 5 bits */
    IV_CODES_UINT5, /* code */
    IV_CODES_INT6,  /* code - 32 */
    IV_CODE_KINDS
} iv_code_kind;

typedef enum iv_code_second {
    IV_SECOND_NONE, /* t * scale */
    IV_SECOND_ZERO, /* (t - second) * scale */
    IV_SECOND_MIN   /* scale * t + second */
} iv_code_second;

/* A byte per group, and what becomes of it. */
typedef enum iv_code_inner {
    IV_INNER_NONE,        /* groups have their own scales and seconds in scale_type */
    IV_INNER_UINT8,       /* outer scale * byte, and -(outer second * byte) */
    IV_INNER_INT8,        /* the same for signed scales */
    IV_INNER_E4M3,        /* e4m3 * outer scale */
    IV_INNER_E4M3_DIVIDED /* e4m3 / outer scale */
} iv_code_inner;

typedef struct iv_code_form {
    iv_weight_format format; /* of the file */
    iv_code_kind kind;
    iv_code_second second;
    iv_code_inner inner;
    iv_dtype scale_type; /* BF16, F16 or F32: holds scales and seconds exactly, the outer ones where there are inner */
    size_t group;        /* columns that share a scale: a multiple of 16, or all */
    size_t outer;        /* columns that share an outer one: a multiple of group, or all; without inner ones: group */
} iv_code_form;

static inline int iv_code_bits(iv_code_kind kind) {
    return kind < IV_CODES_INT8 ? 4 : kind < IV_CODES_INT5 ? 8 : kind < IV_CODES_INT6 ? 5 : 6;
}
static inline bool iv_code_forms_equal(const iv_code_form *a, const iv_code_form *b) {
    return a->format == b->format && a->second == b->second && a->inner == b->inner && a->scale_type == b->scale_type &&
           a->group == b->group && a->outer == b->outer;
}

/* The 16 numbers of a kind of 4 bits. */
const float *iv_code_table(iv_code_kind kind);

/* The weight, before R. second is not used where the form has none. */
float iv_code_value(const iv_code_form *form, uint8_t code, float scale, float second);

/* A group's scale and second; inner: its bytes as numbers (a signed one from -128 on, an e4m3 as its code). */
float iv_code_scale(const iv_code_form *form, float outer, float inner);
float iv_code_second_of(const iv_code_form *form, float outer, float inner);

/* The form of a format of GGUF; group and outer are its own. */
iv_code_form iv_gguf_form(iv_weight_format format);

/* Where codes and numbers of rows go: codes[columns] a byte each, scales and seconds[groups], which are the inner
 * numbers of forms that have them, outer_scales and outer_seconds[columns / outer]. What the form does not have is not
 * written, and may be NULL. */
typedef struct iv_row_codes {
    uint8_t *codes;
    float *scales, *seconds, *outer_scales, *outer_seconds;
} iv_row_codes;

/* Zeros for rows of `columns`; false: no memory. out is freed in any case. */
bool iv_row_codes_alloc(const iv_code_form *form, size_t rows, size_t columns, iv_row_codes *out);
void iv_row_codes_free(iv_row_codes *c);

/* Groups, and outer groups, of a row. */
static inline size_t iv_code_groups(const iv_code_form *f, size_t columns) { return (columns - 1) / f->group + 1; }
static inline size_t iv_code_outers(const iv_code_form *f, size_t columns) { return (columns - 1) / f->outer + 1; }

/* Those of n elements of GGUF's blocks; n is a multiple of the format's block. */
void iv_gguf_codes(iv_weight_format format, const uint8_t *blocks, size_t n, iv_row_codes out);

#endif
