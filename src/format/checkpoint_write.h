/* checkpoint_write.h: writing the weights of a Hugging Face model directory: model.safetensors, or shards and
 * model.safetensors.index.json where the tensors exceed a size. */
#ifndef IV_FORMAT_CHECKPOINT_WRITE_H
#define IV_FORMAT_CHECKPOINT_WRITE_H

#include "format/checkpoint.h"

/* Gives rows [first, first + rows) of tensor `index`: rows of its first dimension, without gaps. */
typedef iv_status iv_tensor_source(void *user, size_t index, size_t first, size_t rows, void *out, iv_error *err);

typedef struct iv_checkpoint_write_options {
    const char *dir;               /* is there, without weights */
    const iv_tensor_info *tensors; /* name, dtype, ndim, shape; in byte order of the names */
    size_t count;
    size_t shard_bytes_max; /* of data; a tensor that is larger has a shard to itself */
    iv_tensor_source *source;
    iv_checkpoint_progress *progress; /* may be NULL */
    void *source_user, *progress_user;
} iv_checkpoint_write_options;

/* Writes file after file, tensor by tensor; the index comes last. Within a file tensors are in order of falling element
 * size, then of the names, as the reference implementation sorts them. *files: of tensors. digest: as
 * iv_checkpoint_digest of the result. After an error the files written here are removed. */
iv_status iv_checkpoint_write(const iv_checkpoint_write_options *o, size_t *files, uint8_t digest[32], iv_error *err);

/* Removes the weights of a directory: model.safetensors, the index, model-N-of-N.safetensors. */
iv_status iv_checkpoint_remove(const char *dir, iv_error *err);

#endif
