/* gguf_write.h: a GGUF file, version 3: metadata key by key, then tensors in the order in which they are listed. */
#ifndef IV_FORMAT_GGUF_WRITE_H
#define IV_FORMAT_GGUF_WRITE_H

#include "base/buf.h"
#include "base/file.h"
#include "format/gguf.h"

/* A tensor that is written: name, ndim and shape as in Hugging Face files. */
typedef struct iv_gguf_out {
    const char *name;
    int ndim;
    int64_t shape[IV_GGUF_DIMS_MAX];
    iv_weight_format format; /* a plain one, or GGUF's blocks, which divide the last dimension */
    size_t elements, bytes;  /* iv_gguf_out_size sets them */
} iv_gguf_out;

/* False: a size overflows. */
bool iv_gguf_out_size(iv_gguf_out *t);

/* Keys, unique. Memory that runs out is noticed by iv_gguf_header. */
typedef struct iv_gguf_keys {
    iv_buf bytes;
    size_t count;
    bool failed;
} iv_gguf_keys;

void iv_gguf_put_text(iv_gguf_keys *k, const char *key, const char *text, size_t n);
void iv_gguf_put_u32(iv_gguf_keys *k, const char *key, uint32_t value);
void iv_gguf_put_f32(iv_gguf_keys *k, const char *key, float value);
void iv_gguf_put_bool(iv_gguf_keys *k, const char *key, bool value);

/* Arrays: begin, then `count` items of that type. */
void iv_gguf_begin_array(iv_gguf_keys *k, const char *key, iv_gguf_type item, size_t count);
void iv_gguf_add_text(iv_gguf_keys *k, const char *text, size_t n);
void iv_gguf_add_i32(iv_gguf_keys *k, int32_t value);
void iv_gguf_add_f32(iv_gguf_keys *k, float value);

void iv_gguf_keys_free(iv_gguf_keys *k);

/* All bytes before the tensors' data. */
iv_status iv_gguf_header(const iv_gguf_keys *k, const iv_gguf_out *tensors, size_t count, iv_buf *out, iv_error *err);

/* Gives rows [first, first + rows) of tensor `index` as float32; a row is its last dimension. */
typedef iv_status iv_gguf_source(void *user, size_t index, size_t first, size_t rows, float *out, iv_error *err);

/* Writes the file, of which readers see all or nothing. progress: of bytes; may be NULL. IV_INVALID, by name: a number
 * that the tensor's format cannot hold. */
iv_status iv_gguf_write(const char *path, const iv_buf *header, const iv_gguf_out *tensors, size_t count,
                        iv_gguf_source *source, void *source_user, void (*progress)(void *, size_t, size_t), void *user,
                        iv_error *err);

#endif
