/* expansion.h: the tensors of a packed checkpoint as those of one without quantization. */
#ifndef IV_FORMAT_EXPANSION_H
#define IV_FORMAT_EXPANSION_H

#include "format/packed.h"

typedef struct iv_expansion {
    iv_tensor_info *tensors; /* [count], by name */
    iv_packed *packed;       /* [count]; data is NULL for those that are as in the file. NULL: nothing is packed */
    size_t count;
    bool activations; /* iv_checkpoint_activations_unquantized */
} iv_expansion;

/* From the tensors of a directory's files, sorted by name, which must outlive the expansion. type: what packed weights
 * become; IV_DTYPE_COUNT: the dtype of config.json, else bfloat16. */
iv_status iv_expansion_make(const char *dir, const iv_tensor_info *stored, size_t count, iv_dtype type, iv_arena *arena,
                            iv_expansion *out, iv_error *err);

/* Sorts by name and refuses names that occur twice. */
iv_status iv_expansion_sort(const char *name, iv_expansion *x, iv_error *err);

/* Bytes [offset, offset + n) of the expansion of p, which t describes. Thread-safe where source is. */
iv_status iv_expansion_read(const iv_packed *p, const iv_tensor_info *t, iv_packed_source *source, void *user,
                            void *dst, size_t offset, size_t n, iv_error *err);

#endif
