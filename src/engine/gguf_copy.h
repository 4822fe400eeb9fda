/* gguf_copy.h: a copy of a model as one GGUF file, for iv_export and iv_quantize. */
#ifndef IV_ENGINE_GGUF_COPY_H
#define IV_ENGINE_GGUF_COPY_H

#include "model/gguf_export.h"

typedef struct iv_gguf_copy_options {
    const char *model, *path;
    iv_weight_format format;
    bool as_held; /* as iv_gguf_export_options */
    bool overwrite;
    size_t threads;
    void (*progress)(void *user, size_t done, size_t total);
    void *user;
} iv_gguf_copy_options;

/* Whether a path asks for such a file by its name. */
bool iv_gguf_is_asked(const char *path);

/* The formats of matrices by their names (q8_0, ..., bf16, f16, f32); false: there is none. */
bool iv_gguf_format_of(const char *name, iv_weight_format *out);

/* IV_INVALID: the file is there already, or is the model. Else as iv_gguf_export. */
iv_status iv_gguf_copy(const iv_gguf_copy_options *o, iv_gguf_exported *out, iv_error *err);

#endif
