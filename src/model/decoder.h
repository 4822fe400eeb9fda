/* decoder.h: one step of the decoder, on any backend. */
#ifndef IV_MODEL_DECODER_H
#define IV_MODEL_DECODER_H

#include "model/backend.h"
#include "model/learner.h"
#include "model/model.h"

/* Runs all layers and the head over the backend's batch. Law: NUMERICS.md section 8.2. */
iv_status iv_decoder_forward(const iv_model *m, iv_backend *b, iv_error *err);

/* The gradients of the batch that iv_decoder_forward ran last with a tape. */
iv_status iv_decoder_backward(const iv_model *m, iv_backend *b, iv_error *err);

/* For a backend's `restore`: runs the forward ops of a layer once more, from its input in x on, as far as `what` says.
 * The tape takes their values; the op of the MLP, which is the last, ends where nothing is left for the tape. Without a
 * tape x becomes the layer's output. */
iv_status iv_decoder_recompute(const iv_model *m, iv_backend *b, size_t layer, iv_recompute what, iv_error *err);

#endif
