/* quantize_write.h: a checkpoint's linear layers rounded to a packed format and written as compressed-tensors has them
 * (docs/formats/quantization.md). */
#ifndef IV_FORMAT_QUANTIZE_WRITE_H
#define IV_FORMAT_QUANTIZE_WRITE_H

#include "base/buf.h"
#include "format/checkpoint_write.h"
#include "format/quantized_layers.h"

typedef struct iv_quantize_scheme {
    const char *name; /* as --format has it */
    iv_weight_format format;
    size_t group;          /* columns that share a scale; 0: all */
    bool any_group;        /* another group may be asked for */
    const char *published; /* compressed-tensors' format, type of numbers and strategy */
    const char *type, *strategy;
    int bits;
    bool activations; /* of 8 bits, token by token, by the program that reads it */
} iv_quantize_scheme;

/* NULL: there is none of that name. */
const iv_quantize_scheme *iv_quantize_scheme_of(const char *name);

/* Columns that share a scale, from what was asked for (0: the scheme's). IV_INVALID, by name: rows do not divide. */
iv_status iv_quantize_group(const iv_quantize_scheme *s, const iv_tensor_info *t, size_t asked, size_t *group,
                            iv_error *err);

/* Rows of such a tensor as floats. */
iv_status iv_quantize_read(const iv_checkpoint *from, const iv_tensor_info *t, size_t first, size_t rows, float *out,
                           iv_error *err);

/* compressed-tensors' global scale of a layer whose largest size this is, by which its scales are divided. */
float iv_quantize_global(iv_weight_format format, float largest);

/* A row's codes of a byte as the file has them; and the bytes of n of them. */
void iv_quantize_pack(iv_weight_format format, const uint8_t *codes, size_t n, unsigned char *out);
size_t iv_quantize_packed(iv_weight_format format, size_t n);

/* A layer that was rounded elsewhere: codes as the file has them, row by row, scales [rows][groups] as numbers. NULL:
 * this one is rounded to nearest. */
typedef struct iv_quantized_layer {
    unsigned char *codes;
    float *scales;
} iv_quantized_layer;

/* What a tensor is multiplied by before it is rounded, or written as it is: its columns by these numbers (NULL: by
 * none), or a norm's weights divided by them. offset: a norm multiplies by its weights plus 1. */
typedef struct iv_quantize_factors {
    const float *columns, *norm;
    bool offset;
} iv_quantize_factors;

typedef struct iv_quantize_job {
    const iv_checkpoint *from; /* none of its tensors is packed */
    const iv_quantize_scheme *scheme;
    size_t group;                       /* 0: the scheme's */
    const iv_quantized_layer *rounded;  /* [tensors of the checkpoint], or NULL: all are rounded to nearest */
    const iv_quantize_factors *factors; /* [tensors of the checkpoint], or NULL */
    const char *order;                  /* of columns, as compressed-tensors names it; NULL: that of the file */
    const char *dir;
    size_t shard_bytes_max;
    iv_checkpoint_progress *progress; /* may be NULL */
    void *user;
} iv_quantize_job;

typedef struct iv_quantize_result {
    size_t tensors, files, quantized; /* quantized: layers */
    uint64_t bytes;
    uint8_t digest[32]; /* of the tensors as they are in the files */
} iv_quantize_result;

/* Writes the weights: a few rows at a time are in memory. config: the text of config.json, to which quantization_config
 * is added. Layers whose names a decoder has are quantized; embeddings, heads, norms, routers, towers and experts in
 * one tensor stay. IV_INVALID, by name: rows that do not divide into groups; a number that is not finite. */
iv_status iv_quantize_write(const iv_quantize_job *job, iv_buf *config, iv_quantize_result *out, iv_error *err);

#endif
