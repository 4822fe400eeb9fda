/* export.h: an open model's weights as the files of a Hugging Face model directory. */
#ifndef IV_MODEL_EXPORT_H
#define IV_MODEL_EXPORT_H

#include "format/checkpoint_write.h"
#include "model/model.h"

typedef struct iv_model_export_options {
    const char *dir;    /* is there, without weights */
    const char *source; /* where the model came from: tensors that it does not hold (towers) are copied */
    bool has_dtype;
    iv_dtype dtype;         /* of all tensors; without has_dtype each keeps the checkpoint's */
    size_t shard_bytes_max; /* of a file's data */
    iv_checkpoint_progress *progress;
    void *user;
} iv_model_export_options;

/* What was written. */
typedef struct iv_model_exported {
    size_t tensors, files;
    uint64_t bytes; /* of data */
    uint8_t weights_digest[32];
} iv_model_exported;

/* Reads every tensor back from where ranks hold it, rows by rows, and writes it. A model that is held in float32 has
 * rounded nothing (tensors.h), so the checkpoint's own types give its own bits. Towers keep their types. Buffers of old
 * exports are not held and not written. IV_UNSUPPORTED: other processes hold a part. IV_LIMIT names an element that is
 * too large for dtype. */
iv_status iv_model_export(const iv_model *first, const iv_model_export_options *o, iv_model_exported *out,
                          iv_error *err);

#endif
