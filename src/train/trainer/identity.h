/* identity.h: what decides a run's weights, as a fingerprint: the initial weights, the examples, the hyperparameters,
 * and the versions of the law. A checkpoint of another identity is refused. */
#ifndef IV_TRAIN_TRAINER_IDENTITY_H
#define IV_TRAIN_TRAINER_IDENTITY_H

#include "train/checkpoint/checkpoint.h"
#include "train/trainer/trainer.h"

#include <jansson.h>

typedef struct iv_train_identity {
    char *hyperparameters; /* JSON */
    char fingerprint[128], initial[80];
} iv_train_identity;

/* Those that every trainer has, of a run of this kind: callers add their own. NULL: no memory. */
json_t *iv_train_hyperparameters(const iv_trainer *t, const char *kind);

/* Takes `hyperparameters`. data: a digest of the examples; NULL: they are none of the trainer's. *out may hold an
 * earlier identity. */
iv_status iv_train_identify(iv_trainer *t, json_t *hyperparameters, const char *data, iv_train_identity *out,
                            iv_error *err);
void iv_train_identity_free(iv_train_identity *id);

/* For checkpoints in dir. Its strings are the identity's. */
iv_training_run iv_train_run_of(const iv_trainer *t, const iv_train_identity *id, const char *dir);

#endif
