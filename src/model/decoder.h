/* decoder.h: one step of the decoder, on any backend. */
#ifndef IV_MODEL_DECODER_H
#define IV_MODEL_DECODER_H

#include "model/backend.h"
#include "model/model.h"

/* Runs all layers and the head over the backend's batch. Law: NUMERICS.md section 8.2. */
iv_status iv_decoder_forward(const iv_model *m, iv_backend *b, iv_error *err);

/* The gradients of the batch that iv_decoder_forward ran last with a tape. */
iv_status iv_decoder_backward(const iv_model *m, iv_backend *b, iv_error *err);

#endif
