/* stored.h: a checkpoint's own tensors, and what they hold of the model's (tensors.h). Files have other names than the
 * decoder, several matrices in one tensor, or another order of rows (format/tensor_places.h). Everything that leaves or
 * enters a process has this form: loading, digests, export, gradients by name.
 *
 * A stored tensor is rows of `columns` elements: of its last dimension, all others are in the rows; of one element
 * where it holds vectors. */
#ifndef IV_MODEL_STORED_H
#define IV_MODEL_STORED_H

#include "format/tensor_places.h"
#include "model/tensors.h"

typedef struct iv_stored_piece {
    iv_tensor *tensor; /* whole */
    iv_tensor_place at;
} iv_stored_piece;

struct iv_stored {
    iv_tensor_info info; /* as in the checkpoint; offset and shard are not used */
    size_t rows, columns;
    iv_stored_piece *pieces; /* none: its bytes are hashed at load and not held */
    size_t count;
    size_t group; /* rows that are read and written together */
    uint8_t digest[32];
};

/* Makes first->stored and first->tensors from a checkpoint, of which every tensor must be used, and the decoder's
 * tensors (names, shapes), in any order: these get the file's type and no slices. A head next to tied embeddings, old
 * buffers and what iv_tensor_is_ignored says are `unused` tensors. first->config is set before. */
iv_status iv_stored_make(iv_model *first, const iv_checkpoint *c, const iv_tensor_info *wanted, size_t count,
                         iv_error *err);

/* Of a checkpoint: the embedding, which every family has; NULL: there is none. */
const iv_tensor_info *iv_stored_embedding(const iv_checkpoint *c);

/* A head that is tied: the stored tensor is `head`. */
void iv_stored_add_head(iv_model *first, iv_tensor *head);

/* The decoder's tensors in the form that the family's files have: replaces *count tensors, of which it is never more.
 */
iv_status iv_stored_of_family(const iv_model_config *config, iv_arena *arena, iv_tensor_info *tensors, size_t *count,
                              iv_error *err);

/* By name; NULL: there is none. */
iv_stored *iv_model_stored(const iv_model *first, const char *name);

/* A tensor of another program's form: which of the model's it holds, by its name and shape. out->count 0: none, or not
 * all of its elements have a meaning. Its pieces are in the arena. */
iv_status iv_stored_recognize(const iv_model *first, const char *name, int ndim, const int64_t *shape, iv_arena *arena,
                              iv_stored *out, iv_error *err);

/* The stored rows that a piece lies in. */
void iv_stored_rows_of(const iv_stored *s, const iv_stored_piece *p, size_t *first, size_t *rows);

/* Between those rows, of elements of `width` bytes, and the rows of the piece's tensor, one behind another. */
void iv_stored_take(const iv_stored *s, const iv_stored_piece *p, size_t width, const void *stored, void *own);
void iv_stored_give(const iv_stored *s, const iv_stored_piece *p, size_t width, const void *own, void *stored);

/* As it is exported and hashed now: iv_parameters_layout changes types. */
iv_tensor_info iv_stored_info(const iv_stored *s);

/* Rows of which the pieces are neither read nor written in part, about as many as `bytes` have. */
size_t iv_stored_rows_within(const iv_stored *s, iv_dtype dtype, size_t bytes);

/* Rows [first, first + rows) as in the checkpoint; as iv_tensor_read_rows. */
iv_status iv_stored_read_rows(const iv_stored *s, size_t first, size_t rows, iv_dtype dtype, void *out, iv_error *err);

/* The same to the model; both are multiples of `group`. As iv_tensor_write_rows; not to a tied head. */
iv_status iv_stored_write_rows(const iv_stored *s, size_t first, size_t rows, iv_dtype from, const void *data,
                               iv_error *err);

/* Where some of its pieces are held packed: how many groups of columns share a scale; 0: none is. */
size_t iv_stored_code_groups(const iv_stored *s);

/* The same rows to those pieces; in: as iv_checkpoint_codes gives them. */
iv_status iv_stored_write_codes(const iv_stored *s, size_t first, size_t rows, const iv_packed_codes_out *in,
                                iv_error *err);

/* From any values of the model's tensors in the decoder's form (gradients): reads rows of one. */
typedef iv_status iv_stored_source(void *user, const iv_tensor *t, size_t first, size_t rows, iv_dtype dtype, void *out,
                                   iv_error *err);
iv_status iv_stored_read_from(const iv_stored *s, size_t first, size_t rows, iv_dtype dtype, iv_stored_source *source,
                              void *user, void *out, iv_error *err);

/* Makes the digest of one tensor again, from what the model holds. Different tensors may be hashed by several threads
 * at once. */
iv_status iv_stored_digest(iv_stored *s, iv_error *err);
bool iv_stored_is_held(const iv_stored *s); /* and is no tied head */

/* Makes weights_digest of all ranks again, as of a checkpoint with the present values in the types of iv_stored_info.
 * Reads the tensors that have changed; pool: by its threads, if not NULL. */
iv_status iv_model_digest(iv_model *first, iv_pool *pool, iv_error *err);

#endif
