/* sync.h: a trainer's weights in an engine of the same process, for rollouts. */
#ifndef IV_TRAIN_ROLLOUT_SYNC_H
#define IV_TRAIN_ROLLOUT_SYNC_H

#include "invar.h"
#include "train/trainer/trainer.h"

/* Writes the master weights into the engine, rounded as the trainer's own model rounds them. digest: the engine's
 * fingerprint follows them, which costs more than writing them; else its digest of weights is 0. IV_INVALID: the engine
 * has another model, or holds a tensor in another type; IV_BUSY: requests wait or run; IV_UNSUPPORTED: other processes
 * hold a part: the engine is as before. */
iv_status iv_train_sync(iv_trainer *t, iv_engine *e, bool digest, iv_error *err);

/* A control: as above, but matrices are first rounded to that many bits after the leading one, to nearest, ties to
 * even, with float32's exponents. IV_F32_MANTISSA_BITS changes nothing, nor does any number from the type's own on. */
enum { IV_F32_MANTISSA_BITS = 23 };
iv_status iv_train_sync_rounded(iv_trainer *t, iv_engine *e, bool digest, unsigned mantissa_bits, iv_error *err);

/* The trainer's adapter, as iv_trainer_sync_adapter. info may be NULL. */
iv_status iv_train_sync_adapter(iv_trainer *t, iv_engine *e, const char *name, iv_adapter_info *info, iv_error *err);

#endif
