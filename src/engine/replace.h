/* replace.h: new weights written into an open engine tensor by tensor, for a learner in the same process. Memory and
 * packed forms stay; no file is read. iv_engine_update_weights is the call for a directory.
 *
 *     iv_replace_begin(engine, &model, err);
 *     for each tensor: iv_replace_write(iv_model_tensor(model, name), 0, rows, values, err);
 *     iv_replace_end(engine, NULL, err);
 *
 * Between begin and a successful end the weights may be a mixture: the engine refuses requests. */
#ifndef IV_ENGINE_REPLACE_H
#define IV_ENGINE_REPLACE_H

#include "engine/state.h"
#include "model/tensors.h"

/* *first: the model to write, of the first rank. Empties the prefix cache. IV_BUSY while requests wait or run.
 * IV_UNSUPPORTED: other processes hold a part of the weights. Calling it again before the end is fine. */
iv_status iv_replace_begin(iv_engine *e, iv_model **first, iv_error *err);

/* Writes rows [first, first + rows) of a tensor from floats, [rows][columns] without gaps. Each value is rounded once
 * to the type of the checkpoint (t->info.dtype), norms too, so that an exported copy has the same bits; then to the
 * type it is held in. Different tensors may be written by several threads at once. IV_FORMAT: a value is not finite, or
 * is too large for the type: nothing was written. IV_INVALID: an unused tensor, a head that is tied to the embedding.
 */
iv_status iv_replace_write(iv_model *first, iv_tensor *t, size_t row, size_t rows, const float *values, iv_error *err);

typedef struct iv_replace_options {
    const uint8_t *weights_digest; /* [32], as iv_model_digest makes, if the caller has it; NULL: the tensors that were
                                    * written are hashed */
    const char *name;              /* of the weights, in receipts; NULL: as before */
} iv_replace_options;

/* Digest, fingerprint, copies of a baseline and of GPUs follow the new weights; the version counts up. Requests are
 * accepted again. o may be NULL. After an error they are not; the call may be repeated. */
iv_status iv_replace_end(iv_engine *e, const iv_replace_options *o, iv_error *err);

/* The keys and values of the first GPU's pages, NULL without a GPU: the caller may write there between the last event
 * of all requests and iv_replace_end, which makes the pages zero again. *bytes: of them. */
void *iv_replace_lend(iv_engine *e, size_t *bytes);

/* The same end where the weights stay: the pages are zero again, and no prefix is cached. Nothing if none were lent.
 * IV_BUSY while requests wait or run. */
iv_status iv_replace_take_back(iv_engine *e, iv_error *err);

/* IV_BUSY while trainers read the weights. */
iv_status iv_replace_check_borrowers(const iv_engine *e, iv_error *err);

/* IV_BUSY between begin and end. */
iv_status iv_replace_check_whole(const iv_engine *e, iv_error *err);

#endif
