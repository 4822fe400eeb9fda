/* store.h: a trainer to and from checkpoints, in chunks, wherever its flat buffers are; and its model as a Hugging Face
 * directory. */
#ifndef IV_TRAIN_TRAINER_STORE_H
#define IV_TRAIN_TRAINER_STORE_H

#include "model/export.h"
#include "train/checkpoint/checkpoint.h"
#include "train/trainer/trainer.h"

/* This process's shard, for iv_training_save. It reads the trainer while it is saved. */
iv_training_shard iv_training_shard_of(iv_trainer *t);

/* Continues from a checkpoint: its weights and moments, and a step count of `updates`. hash: of the weights, which must
 * be the checkpoint's (IV_FORMAT). Collective. After an error the weights are a mixture. */
iv_status iv_training_load(const iv_training_checkpoint *c, iv_trainer *t, uint64_t updates, uint8_t hash[32],
                           iv_error *err);

typedef struct iv_training_model {
    const iv_model *model;  /* the first rank's; all its ranks are in this process */
    const char *source;     /* the directory it came from: configuration, tokenizer and chat template are copied */
    size_t shard_bytes_max; /* of a file of weights; 0: 5,000,000,000 */
    iv_trainer *trainer;    /* whose model it is, for iv_training_save_of */
} iv_training_model;

/* How its checkpoints are saved: with a Hugging Face model, or, if an adapter learns, with PEFT's files in the
 * checkpoint's own directory. *m outlives the options. */
iv_training_save_options iv_training_save_of(iv_training_model *m, size_t keep);

/* Writes the adapter that learns as a directory of PEFT's: dir is made, or empty, unless `overwrite`. digest: of the
 * adapter in that type. */
iv_status iv_training_export_adapter(iv_trainer *t, const char *dir, bool overwrite, iv_dtype type, uint8_t digest[32],
                                     iv_error *err);

/* Writes a model to o->dir: configuration and tensors in o's type, or in the model's. */
iv_status iv_training_export_to(const iv_training_model *m, bool overwrite, const iv_model_export_options *o,
                                iv_model_exported *written, iv_error *err);

/* An iv_training_export with an iv_training_model as user: every tensor in the type that it has in the
 * table, and the configuration with the type that the model runs in, so that it answers as the learner does. */
iv_status iv_training_export_model(void *user, const char *dir, iv_error *err);

#endif
