/* sync.h: a trainer's weights in an engine of the same process, for rollouts. */
#ifndef IV_TRAIN_SYNC_H
#define IV_TRAIN_SYNC_H

#include "train/trainer.h"

/* Writes the master weights into the engine, rounded as the trainer's own model rounds them. digest: the engine's
 * fingerprint follows them, which costs more than writing them; else its digest of weights is 0. IV_INVALID: the engine
 * has another model, or holds a tensor in another type; IV_BUSY: requests wait or run; IV_UNSUPPORTED: other processes
 * hold a part: the engine is as before. */
iv_status iv_train_sync(iv_trainer *t, iv_engine *e, bool digest, iv_error *err);

#endif
