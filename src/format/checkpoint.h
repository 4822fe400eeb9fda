/* checkpoint.h: the weights of a model directory: model.safetensors, or the shards listed in
 * model.safetensors.index.json. If both exist the single file is read, as in transformers. Or dummy weights without
 * files: seeded random values (dummy.h). */
#ifndef IV_FORMAT_CHECKPOINT_H
#define IV_FORMAT_CHECKPOINT_H

#include "base/digest.h"
#include "format/packed.h"
#include "format/safetensors.h"

#define IV_WEIGHTS_NAME "model.safetensors"
#define IV_WEIGHTS_INDEX_NAME "model.safetensors.index.json"

typedef struct iv_checkpoint iv_checkpoint;

/* Opens every file and reads the headers, no data. The files stay open until iv_checkpoint_close. On failure
 * *out is untouched. An index must agree with its shards tensor by tensor, in both directions. */
iv_status iv_checkpoint_open(const char *dir, iv_checkpoint **out, iv_error *err);

/* The same, with packed weights (quantization.h, gguf.h) expanded to `type`: BF16, F16 or F32. They are listed and read
 * under the names, in the shapes and as the bytes of a checkpoint without quantization; their scales are not listed.
 * iv_checkpoint_open expands them to the dtype of config.json. */
iv_status iv_checkpoint_open_as(const char *dir, iv_dtype type, iv_checkpoint **out, iv_error *err);

/* Whether there are weights: a directory may have a configuration only. A GGUF counts, too. */
bool iv_checkpoint_exists(const char *dir);
bool iv_checkpoint_has_safetensors(const char *dir);

/* Random weights without files: `tensors` give name, type (BF16, F16, F32) and shape, in any order, with unique names;
 * they are copied. The result behaves like an opened checkpoint. */
iv_status iv_checkpoint_dummy(const iv_tensor_info *tensors, size_t count, uint64_t seed, iv_checkpoint **out,
                              iv_error *err);

/* The same as the quantization_config of `dir` stores them (dummy_packed.h), with packed weights expanded to `type`, as
 * iv_checkpoint_open_as lists them. Without a quantization_config the tensors are plain. */
iv_status iv_checkpoint_dummy_of(const char *dir, iv_dtype type, const iv_tensor_info *tensors, size_t count,
                                 uint64_t seed, iv_checkpoint **out, iv_error *err);

void iv_checkpoint_close(iv_checkpoint *c); /* NULL is fine */

/* Whether an index exists too and was ignored: other programs might read its shards instead. */
bool iv_checkpoint_index_unread(const iv_checkpoint *c);

size_t iv_checkpoint_count(const iv_checkpoint *c);
size_t iv_checkpoint_bytes(const iv_checkpoint *c);        /* of all tensors, expanded */
size_t iv_checkpoint_stored_bytes(const iv_checkpoint *c); /* of all tensors as the files have them */

/* The format in which the i-th tensor is stored ("fp8", "Q4_K"), NULL if it is one of plain elements; and its bytes
 * there, with its scales. */
const char *iv_checkpoint_format(const iv_checkpoint *c, size_t i, size_t *bytes);

/* Whether the files ask for quantized activations, which are not quantized here. */
bool iv_checkpoint_activations_unquantized(const iv_checkpoint *c);

/* The i-th tensor in byte order of the names; i < count. Borrowed until close. */
const iv_tensor_info *iv_checkpoint_at(const iv_checkpoint *c, size_t i);

/* NULL if there is none. A binary search. */
const iv_tensor_info *iv_checkpoint_find(const iv_checkpoint *c, const char *name);

/* The path of the file that holds t, for messages. */
const char *iv_checkpoint_path(const iv_checkpoint *c, const iv_tensor_info *t);

/* Reads n bytes of t's data, from byte `offset` of it, into dst; the range must lie in t->bytes. Uses pread, not a
 * mapping: a file truncated meanwhile gives IV_IO and not a signal. Thread-safe. */
iv_status iv_checkpoint_read(const iv_checkpoint *c, const iv_tensor_info *t, void *dst, size_t offset, size_t n,
                             iv_error *err);

/* Called periodically with the bytes hashed so far and in total; the last call has done == total. */
typedef void iv_checkpoint_progress(void *user, size_t done, size_t total);

/* The identity of the weights, independent of file names and of the division into shards:
 *     SHA-256( "invar weights 1\n", u64 tensors, then per tensor in byte order of the names:
 *              u64 length, name, u64 length, type name ("BF16"), u64 ndim, u64 shape[ndim],
 *              SHA-256(data) )
 * with every u64 little-endian. Reads all data; progress may be NULL. Errors: IV_IO, IV_NO_MEMORY. */
iv_status iv_checkpoint_digest(const iv_checkpoint *c, iv_checkpoint_progress *progress, void *user, uint8_t out[32],
                               iv_error *err);

/* The same from digests of the tensors' data that the caller made: add all `count` tensors in byte order of their
 * names, then iv_digest_finish. NULL: no memory. */
iv_digest *iv_weights_digest_new(size_t count);
void iv_weights_digest_add(iv_digest *d, const iv_tensor_info *t, const uint8_t data[32]);

/* The form in which a model may hold tensor i (packed.h); false: it is plain, or can only be widened. */
bool iv_checkpoint_form(const iv_checkpoint *c, size_t i, iv_code_form *out);
/* Rows [first, first + rows) of such a tensor. */
iv_status iv_checkpoint_codes(const iv_checkpoint *c, const iv_tensor_info *t, const iv_code_form *form, size_t first,
                              size_t rows, const iv_row_codes *out, iv_error *err);

#endif
