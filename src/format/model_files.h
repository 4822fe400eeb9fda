/* model_files.h: the texts that describe a model, wherever they are: files of a Hugging Face directory, or made from
 * the metadata of a GGUF, which stands for config.json, tokenizer.json and tokenizer_config.json. A file that a
 * directory has counts before one that is made. */
#ifndef IV_FORMAT_MODEL_FILES_H
#define IV_FORMAT_MODEL_FILES_H

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

/* model: a directory, or the path of a GGUF. */
bool iv_model_file_exists(const char *model, const char *name);

/* Reads the text of at most max_bytes into out. where is set to a path for messages. IV_NOT_FOUND: there is none. */
iv_status iv_model_file_read(const char *model, const char *name, size_t max_bytes, iv_buf *where, iv_buf *out,
                             iv_error *err);

/* The same as JSON (iv_json_parse_python). The caller owns *json. */
iv_status iv_model_file_json(const char *model, const char *name, size_t max_bytes, json_t **json, iv_error *err);

/* Whether the model is a GGUF, or a directory whose weights are. */
bool iv_model_is_gguf(const char *model);

#endif
