/* safetensors.h: one tensor file: 8 bytes of header length, a JSON header, then the tensors' bytes.
 *
 * The byte table and every rule are in docs/formats/safetensors.md. Files are little-endian, as is every
 * machine that invar runs on. */
#ifndef IV_FORMAT_SAFETENSORS_H
#define IV_FORMAT_SAFETENSORS_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"

#define IV_TENSOR_DIMS_MAX 8
#define IV_TENSOR_NAME_BYTES_MAX 1024
#define IV_SAFETENSORS_HEADER_BYTES_MAX ((size_t)100000000) /* the reference implementation's limit */
#define IV_SAFETENSORS_TENSORS_MAX ((size_t)1 << 20)

typedef struct iv_tensor_info {
    const char *name; /* UTF-8 without NUL; owned by the arena given to the parser */
    iv_dtype dtype;
    int ndim; /* 0: a scalar, one element */
    int64_t shape[IV_TENSOR_DIMS_MAX];
    size_t elements, bytes; /* product of shape; elements times the element size */
    size_t offset;          /* of the data, from the start of the file */
    int shard;              /* which file of a checkpoint; 0 when there is one */
} iv_tensor_info;

/* "BF16", "F32", ...: the format's own name of a type. Static string. */
const char *iv_safetensors_dtype_name(iv_dtype dtype);

/* Parses the n header bytes that follow the 8-byte length, for a file of file_size bytes in all; `name`
 * heads the errors. Pure. *tensors is sorted by offset and lies in arena with the names; on failure the arena
 * may hold some of them. The strings of __metadata__ are checked and dropped.
 * Errors: IV_FORMAT, IV_UNSUPPORTED (an element type, by name), IV_LIMIT, IV_NO_MEMORY. */
iv_status iv_safetensors_parse(const char *name, const char *header, size_t n, size_t file_size, iv_arena *arena,
                               iv_tensor_info **tensors, size_t *count, iv_error *err);

/* The same for an open file of file_size bytes: reads the length and the header, no tensor data. */
iv_status iv_safetensors_read(const char *path, int fd, size_t file_size, iv_arena *arena, iv_tensor_info **tensors,
                              size_t *count, iv_error *err);

/* Elements, and bytes of `size` each. False: an overflow. */
bool iv_safetensors_shape_bytes(const int64_t *shape, int ndim, size_t size, size_t *elements, size_t *bytes);

#endif
