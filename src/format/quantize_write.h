/* quantize_write.h: a checkpoint's linear layers rounded to a packed format and written as compressed-tensors has them
 * (docs/formats/quantization.md). */
#ifndef IV_FORMAT_QUANTIZE_WRITE_H
#define IV_FORMAT_QUANTIZE_WRITE_H

#include "base/buf.h"
#include "format/checkpoint_write.h"

typedef struct iv_quantize_scheme {
    const char *name; /* as --format has it */
    iv_weight_format format;
    size_t group;          /* columns that share a scale; 0: all */
    bool any_group;        /* another group may be asked for */
    const char *published; /* compressed-tensors' format, type of numbers and strategy */
    const char *type, *strategy;
    int bits;
} iv_quantize_scheme;

/* NULL: there is none of that name. */
const iv_quantize_scheme *iv_quantize_scheme_of(const char *name);

typedef struct iv_quantize_job {
    const iv_checkpoint *from; /* none of its tensors is packed */
    const iv_quantize_scheme *scheme;
    size_t group; /* 0: the scheme's */
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
