/* gguf.h: llama.cpp's file of a whole model, versions 2 and 3: metadata, tensor descriptions, data.
 *
 * Layout (little-endian): "GGUF", u32 version, u64 tensors, u64 keys; per key a string (u64 length, bytes), a u32 type
 * and a value; per tensor a name, u32 dimensions, u64 each (the fastest first), u32 type, u64 offset; padding; the data
 * at multiples of general.alignment. No number of the file is trusted: after a successful parse every string and array
 * lies in the header and every tensor in the file. */
#ifndef IV_FORMAT_GGUF_H
#define IV_FORMAT_GGUF_H

#include "format/safetensors.h"
#include "format/tokenizer_json.h"
#include "numerics/weight_format.h"

typedef enum iv_gguf_type {
    IV_GGUF_U8,
    IV_GGUF_I8,
    IV_GGUF_U16,
    IV_GGUF_I16,
    IV_GGUF_U32,
    IV_GGUF_I32,
    IV_GGUF_F32,
    IV_GGUF_BOOL,
    IV_GGUF_STRING,
    IV_GGUF_ARRAY,
    IV_GGUF_U64,
    IV_GGUF_I64,
    IV_GGUF_F64,
    IV_GGUF_TYPES
} iv_gguf_type;

#define IV_GGUF_KEYS_MAX ((size_t)1 << 16)
#define IV_GGUF_HEADER_BYTES_MAX ((size_t)1 << 30)
#define IV_GGUF_DIMS_MAX 4

typedef struct iv_gguf_value {
    iv_str key;
    iv_gguf_type type, item; /* item: of an array */
    int64_t integer;         /* of integers and bools; U64 above its range is refused */
    double real;             /* of floats */
    iv_str text;             /* of a string; of an array all its bytes */
    size_t count;            /* of an array */
} iv_gguf_value;

typedef struct iv_gguf_tensor {
    iv_tensor_info info; /* shape as in Hugging Face files: the fastest dimension last; U8 but for plain elements */
    iv_weight_format format;
} iv_gguf_tensor;

typedef struct iv_gguf {
    iv_gguf_value *values; /* [value_count], sorted by key */
    iv_gguf_tensor *tensors;
    size_t value_count, tensor_count;
} iv_gguf;

/* Parses the first n bytes of a file of file_size; out's arrays lie in arena, its strings in bytes. *more: n was too
 * few, and nothing else is known; else IV_FORMAT, IV_UNSUPPORTED (a version or a type of tensor, by name), IV_LIMIT. */
iv_status iv_gguf_parse(const char *name, const uint8_t *bytes, size_t n, size_t file_size, iv_arena *arena,
                        iv_gguf *out, bool *more, iv_error *err);

/* The same for an open file; the header's bytes lie in arena. */
iv_status iv_gguf_read(const char *path, int fd, size_t file_size, iv_arena *arena, iv_gguf *out, iv_error *err);

/* NULL if there is none. */
const iv_gguf_value *iv_gguf_find(const iv_gguf *g, const char *key);

/* The next string of an array of strings; *at is 0 at first. False: no more. */
bool iv_gguf_next_string(const iv_gguf_value *v, size_t *at, iv_str *out);

/* Item i < count of an array of integers (or bools), or of floats. */
int64_t iv_gguf_integer_at(const iv_gguf_value *v, size_t i);
double iv_gguf_real_at(const iv_gguf_value *v, size_t i);

#endif
