/* tensor_data.h: the values of a model's tensors: rows of `columns` elements in BF16, F16 or
 * F32. Packed forms are made and read here, for loading and for everything else. */
#ifndef IV_MODEL_TENSOR_DATA_H
#define IV_MODEL_TENSOR_DATA_H

#include "model/tensors.h"

/* Whether this process holds all of it. */
bool iv_tensor_is_whole(const iv_tensor *t);

/* Unpacks rows [first, first + rows), `dtype` elements without gaps. IV_UNSUPPORTED: this process does not hold all of
 * the tensor. IV_LIMIT names an element that is too large for dtype; with the type it is held in, or a wider one,
 * nothing is rounded. Not while the tensor is written. */
iv_status iv_tensor_read_rows(const iv_tensor *t, size_t first, size_t rows, iv_dtype dtype, void *out, iv_error *err);
/* All rows. bytes: the size of out, which must be the tensor's in dtype, else IV_INVALID. */
iv_status iv_tensor_read(const iv_tensor *t, iv_dtype dtype, void *out, size_t bytes, iv_error *err);

/* Packs rows [first, first + rows) from elements of `from`, rounding to the type that the tensor is held in, into every
 * rank of this process that holds some. IV_FORMAT: an element is no finite number, or is too large for that type; the
 * element's name counts from the tensor's start, and nothing was written. */
iv_status iv_tensor_write_rows(const iv_tensor *t, size_t first, size_t rows, iv_dtype from, const void *data,
                               iv_error *err);

/* The same rows to the slices that are packed, which iv_tensor_write_rows leaves out. in is as of t->codes. */
iv_status iv_tensor_write_codes(const iv_tensor *t, size_t first, size_t rows, const iv_row_codes *in, iv_error *err);

/* Replaces all rows, between two steps. bytes: the size of data, as above. The model keeps its digests until
 * iv_model_digest; on GPUs iv_gpu_model_refresh follows the last of several writes. IV_INVALID: the tensor is unused,
 * or is the same as another, which is to be written instead. */
iv_status iv_tensor_write(iv_model *first, iv_tensor *t, iv_dtype from, const void *data, size_t bytes, iv_error *err);

#endif
