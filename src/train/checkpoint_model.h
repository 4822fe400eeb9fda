/* checkpoint_model.h: the model of a checkpoint, as a Hugging Face directory. */
#ifndef IV_TRAIN_CHECKPOINT_MODEL_H
#define IV_TRAIN_CHECKPOINT_MODEL_H

#include "model/model.h"

typedef struct iv_training_model {
    const iv_model *model;  /* the first rank's; all its ranks are in this process */
    const char *source;     /* the directory it came from: configuration, tokenizer and chat template are copied */
    size_t shard_bytes_max; /* of a file of weights; 0: 5,000,000,000 */
} iv_training_model;

/* An iv_training_export with an iv_training_model as user: every tensor in the type that it has in the
 * table, and the configuration with the type that the model runs in, so that it answers as the learner does. */
iv_status iv_training_export_model(void *user, const char *dir, iv_error *err);

#endif
