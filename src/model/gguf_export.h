/* gguf_export.h: a model as a GGUF file, with its matrices in one of GGUF's formats. */
#ifndef IV_MODEL_GGUF_EXPORT_H
#define IV_MODEL_GGUF_EXPORT_H

#include "format/gguf_put.h"
#include "model/model.h"

typedef struct iv_gguf_export_options {
    const char *path;                /* of the file, which is replaced once it is whole */
    iv_weight_format format;         /* of matrices: BF16, F16, F32, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1 */
    bool as_held;                    /* instead: each matrix in the type in which the model holds it */
    const iv_tokenizer_json *tokens; /* NULL: the file has no tokenizer */
    const char *tokens_name;         /* of its file, for errors */
    iv_gguf_specials specials;
    void (*progress)(void *user, size_t done, size_t total); /* of bytes; may be NULL */
    void *user;
} iv_gguf_export_options;

typedef struct iv_gguf_exported {
    size_t tensors, quantized; /* quantized: in `format` */
    uint64_t bytes;            /* of data */
} iv_gguf_exported;

/* first: whole, not packed, on one rank, in float32 (what a checkpoint has in 16 bits stays so). Vectors and routers
 * become float32; the head, or tied embeddings, and matrices whose rows the format's blocks do not divide are Q8_0, or,
 * where that is not possible either, float16. Before anything is written metadata and tokenizer are read back:
 * IV_UNSUPPORTED, by name, for what a GGUF would not give back. */
iv_status iv_gguf_export(const iv_model *first, const iv_gguf_export_options *o, iv_gguf_exported *out, iv_error *err);

#endif
