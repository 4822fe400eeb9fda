/* packed.h: a tensor that a file stores in another format, as rows of float32: which tensors of the file it consists
 * of, and where its rows lie in them. quantization.h (Hugging Face) and gguf_tensors.h (GGUF) make the descriptions.
 *
 * After iv_packed_check no read leaves its tensors, whatever the files say. */
#ifndef IV_FORMAT_PACKED_H
#define IV_FORMAT_PACKED_H

#include "format/safetensors.h"
#include "numerics/weight_codes.h"

typedef enum iv_packed_global {
    IV_GLOBAL_NONE,
    IV_GLOBAL_DIVIDES,   /* compressed-tensors: scale / global */
    IV_GLOBAL_MULTIPLIES /* ModelOpt: scale * global */
} iv_packed_global;

typedef struct iv_packed {
    iv_weight_format format;
    const iv_tensor_info *data;     /* codes, blocks or plain elements */
    const iv_tensor_info *scale;    /* NULL: inside */
    const iv_tensor_info *zero;     /* NULL: none */
    const iv_tensor_info *global;   /* one float32; NULL: none */
    const iv_tensor_info *group_of; /* GPTQ's g_idx: the group of each input; NULL: in order */
    iv_packed_global global_use;
    size_t rows, columns;     /* of the expansion, with all leading dimensions in rows */
    size_t base;              /* row of data that row 0 is: an expert's slice */
    size_t head_rows;         /* GGUF's llama: rows of a head, whose halves are interleaved; 0: not */
    size_t block_rows, group; /* rows and columns that share a scale */
    size_t scale_rows, scale_columns;
    bool minus_one;     /* GGUF's norms by 1 + weight */
    bool zero_from_one; /* GPTQ's first form: stored zero points are one too small */
} iv_packed;

/* Reads n bytes of a tensor of the file from `offset` of its data on. */
typedef iv_status iv_packed_source(void *user, const iv_tensor_info *t, void *dst, size_t offset, size_t n,
                                   iv_error *err);

/* Whether shapes and types of the parts agree with one another. */
iv_status iv_packed_check(const iv_packed *p, iv_error *err);

/* Bytes of data that `rows` rows have. */
size_t iv_packed_bytes(const iv_packed *p, size_t rows);

/* Rows [first, first + rows) by NUMERICS.md 16, before R. */
iv_status iv_packed_rows(const iv_packed *p, iv_packed_source *source, void *user, size_t first, size_t rows,
                         float *out, iv_error *err);

/* How a model may hold it in memory; false: only widened (inputs in no order of groups, groups that are no multiple of
 * 16). */
bool iv_packed_form(const iv_packed *p, iv_code_form *out);

/* Rows of such a tensor: codes are [rows][columns]; scales and seconds [rows][groups], groups of the form's columns,
 * the last of which may be smaller. seconds are written where the form has them, but must have room. */
typedef struct iv_packed_codes_out {
    uint8_t *codes;
    float *scales, *seconds;
} iv_packed_codes_out;
iv_status iv_packed_codes(const iv_packed *p, iv_packed_source *source, void *user, size_t first, size_t rows,
                          iv_packed_codes_out *out, iv_error *err);

#endif
