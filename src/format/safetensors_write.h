/* safetensors_write.h: writing one tensor file, whole or tensor by tensor. The format is in safetensors.h.
 *
 * Tensors are written in the order given. The header is padded with spaces to a multiple of 8, so data of falling
 * element size (8, 4, 2, 1) is aligned. A temporary file is flushed to the disk and renamed into place: readers see all
 * or nothing. */
#ifndef IV_FORMAT_SAFETENSORS_WRITE_H
#define IV_FORMAT_SAFETENSORS_WRITE_H

#include "base/file.h"
#include "format/safetensors.h"

/* Appends the whole file up to the data: length, JSON, spaces. Of the tensors name, dtype, ndim and shape are used;
 * their data follows in the order given, data_bytes in all. format: transformers requires "pt" to see in __metadata__;
 * NULL: no
 * __metadata__. IV_INVALID: a bad name, type or shape, or a name given twice. */
iv_status iv_safetensors_header(const char *path, const iv_tensor_info *tensors, size_t count, const char *format,
                                iv_buf *out, size_t *data_bytes, iv_error *err);

typedef struct iv_safetensors_writer {
    iv_file_writer file;
    size_t left; /* bytes of data */
} iv_safetensors_writer;

/* Writes the header. path is borrowed until close. After an error there is nothing to close. */
iv_status iv_safetensors_writer_open(const char *path, const iv_tensor_info *tensors, size_t count, const char *format,
                                     iv_safetensors_writer *w, iv_error *err);

/* The next n bytes of data: all tensors', row-major, one after another. */
iv_status iv_safetensors_writer_put(iv_safetensors_writer *w, const void *bytes, size_t n, iv_error *err);

/* status: the outcome so far; anything but IV_OK throws the file away. IV_INVALID: data is missing. */
iv_status iv_safetensors_writer_close(iv_safetensors_writer *w, iv_status status, iv_error *err);

typedef struct iv_tensor_data {
    const char *name;
    iv_dtype dtype;
    int ndim;
    int64_t shape[IV_TENSOR_DIMS_MAX];
    const void *data; /* borrowed; row-major, product of shape elements */
} iv_tensor_data;

/* The whole file at once, without __metadata__. */
iv_status iv_safetensors_write(const char *path, const iv_tensor_data *tensors, size_t count, iv_error *err);

#endif
