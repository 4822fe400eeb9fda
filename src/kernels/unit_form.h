/* unit_form.h: what a GPU's kernels know of a matrix of codes (packed_units.h). */
#ifndef IV_KERNELS_UNIT_FORM_H
#define IV_KERNELS_UNIT_FORM_H

#include "numerics/weight_codes.h"

enum { IV_UNIT_ROWS = 8, IV_UNIT_K = 64, IV_UNIT_STEPS = 4 /* of 16 k */ };

typedef struct iv_unit_form {
    iv_code_kind kind;
    iv_code_second second;
    iv_dtype scale_type;
    int groups;     /* scales of a row: 1, 2 or 4, of 64, 32 or 16 columns */
    int code_bytes; /* of a unit's codes: 512 or 256 */
    int bytes;      /* of a unit: a multiple of 16 */
} iv_unit_form;

/* The group of step s. */
#define IV_UNIT_GROUP(form, s) ((s) * (form).groups / IV_UNIT_STEPS)

#endif
