/* model_dir.h: the files of a Hugging Face model directory next to the weights, copied from one model to a new
 * directory: config.json, generation_config.json, tokenizer, chat template. */
#ifndef IV_FORMAT_MODEL_DIR_H
#define IV_FORMAT_MODEL_DIR_H

#include "base/buf.h"
#include "base/dtype.h"
#include "base/status.h"

/* A directory being written. config.json is written last, so an incomplete directory is not a model. */
typedef struct iv_model_dir {
    const char *path, *source; /* the caller's */
    iv_buf config;             /* of the new directory */
    bool made, was_empty;
} iv_model_dir;

/* Checks and makes the directory; reads config.json of `source`. has_dtype: with torch_dtype or dtype changed to that
 * type; else it is copied byte for byte. IV_INVALID: the directory is the source itself, is not empty without
 * `overwrite`, or is a file. Nothing in it has changed yet. After an error there is nothing to close. */
iv_status iv_model_dir_open(const char *path, const char *source, bool overwrite, bool has_dtype, iv_dtype dtype,
                            iv_model_dir *d, iv_error *err);

/* Removes config.json and the weights of a directory that is written over. */
iv_status iv_model_dir_clear(iv_model_dir *d, iv_error *err);

/* status: what writing the weights came to. IV_OK: copies the other files, config.json last. Else, or where that fails,
 * a directory that was new or empty is left as it was. Returns status, or the error of copying. */
iv_status iv_model_dir_close(iv_model_dir *d, iv_status status, iv_error *err);

/* The text of a config.json with another type: torch_dtype and dtype of the outermost object are changed where they
 * are; torch_dtype is added where neither is. out is replaced. */
iv_status iv_config_with_dtype(const char *name, const char *text, size_t n, iv_dtype dtype, iv_buf *out,
                               iv_error *err);

/* The text of a config.json without the members that describe packed weights: the weights written next to it are
 * expanded. text must be JSON. out is replaced. */
iv_status iv_config_unpacked(const char *name, const char *text, size_t n, iv_buf *out, iv_error *err);

#endif
