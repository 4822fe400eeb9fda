/* parameters.h: the trained tensors of a model in one flat buffer of float32: master weights, gradients and optimizer
 * state.
 *
 * Tensors are in byte order of their names; each starts at a multiple of IV_PARAMETER_BLOCK elements and is padded with
 * zeros to one. A tied head, constants and buffers that no one reads are not among them. The flat buffer is the same
 * for every number of ranks. */
#ifndef IV_MODEL_PARAMETERS_H
#define IV_MODEL_PARAMETERS_H

#include "model/tensors.h"

enum { IV_PARAMETER_BLOCK = 4096 };

/* Sets the offset of every trained tensor of the process and returns the elements of the flat buffer; 0 if the size
 * overflows. Tensors are exported and hashed in the types they are held in from now on, so that nothing that was
 * learned is lost: matrices in the model's dtype, vectors in float32. */
size_t iv_parameters_layout(iv_model *first);
/* The offsets alone: of weights that do not learn, whose types stay. */
size_t iv_parameters_places(iv_model *first);

static inline bool iv_parameter_is_trained(const iv_tensor *t) { return !t->unused && !t->same_as && !t->constant; }

/* Where the gradient of a tied embedding's look-ups is summed: behind the flat buffer, as long as the embedding. The
 * head's gradient is at the embedding's offset. 0 if the head is not tied. */
size_t iv_parameters_tied_elements(const iv_model *first);

/* Ranges of the flat gradient, with padding: a tensor's, a layer's; and the elements of the longest of those that a
 * learner makes (iv_learner_step), look-ups behind it too. */
typedef struct iv_gradient_bucket {
    size_t begin, end;
} iv_gradient_bucket;
iv_gradient_bucket iv_parameters_tensor_bucket(const iv_tensor *t);
iv_gradient_bucket iv_parameters_layer_bucket(const iv_model *first, size_t layer);
size_t iv_parameters_longest_bucket(const iv_model *first);

/* Where the trained vectors are, if they alone are kept: at[i] for tensor i, a multiple of 64 elements. at [tensors] or
 * NULL. Returns the elements of all. */
size_t iv_parameters_vectors(const iv_model *first, size_t *at);
static inline bool iv_parameter_is_vector(const iv_tensor *t) { return iv_parameter_is_trained(t) && t->info.ndim < 2; }

/* Elements [begin, end) of the flat buffer, which cut no tensor's row, are at `values`; an end behind it stands for its
 * end. Padding is neither read nor written. read: the model's weights, exactly as they are held. write: rounds them to
 * the types in which the model holds its tensors, and packs them, in every rank of the process; between two steps. */
iv_status iv_parameters_read(const iv_model *first, iv_pool *pool, float *values, size_t begin, size_t end,
                             iv_error *err);
iv_status iv_parameters_write(iv_model *first, iv_pool *pool, const float *values, size_t begin, size_t end,
                              iv_error *err);

/* The trained tensor that holds element i of the flat buffer, or the one before it, for messages. */
const iv_tensor *iv_parameter_at(const iv_model *first, size_t i);

#endif
