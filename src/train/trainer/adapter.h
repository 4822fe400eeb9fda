/* adapter.h: a trainer of which an adapter of low rank learns (NUMERICS.md 19.1): its adapter in memory, in engines and
 * in files. */
#ifndef IV_TRAIN_TRAINER_ADAPTER_H
#define IV_TRAIN_TRAINER_ADAPTER_H

#include "format/adapter.h"
#include "train/trainer/trainer.h"

#include <jansson.h>

/* Whether one learns. */
bool iv_train_has_adapter(const iv_trainer *t);

/* Its present values, rounded to a type; the caller closes *out by iv_adapter_image_close. */
iv_status iv_train_adapter_image(iv_trainer *t, iv_dtype type, iv_adapter_files *out, iv_error *err);

/* What decides the first values, for the identity of a run. NULL: no memory. */
json_t *iv_train_adapter_parameters(const iv_trainer *t);

/* PEFT's files in a directory that is there. digest: of the adapter; or NULL. */
iv_status iv_train_adapter_write(iv_trainer *t, const char *dir, iv_dtype type, uint8_t digest[32], iv_error *err);

#endif
