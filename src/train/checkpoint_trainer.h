/* checkpoint_trainer.h: a trainer's rows to and from a checkpoint, in pieces, wherever the rows are. */
#ifndef IV_TRAIN_CHECKPOINT_TRAINER_H
#define IV_TRAIN_CHECKPOINT_TRAINER_H

#include "train/checkpoint.h"
#include "train/trainer.h"

/* This process's shard, for iv_training_save. It reads the trainer while it is saved. */
iv_training_shard iv_training_shard_of(iv_trainer *t);

/* Reads the checkpoint's rows into the trainer. iv_train_restore follows; after an error the weights are a mixture. */
iv_status iv_training_load(const iv_training_checkpoint *c, iv_trainer *t, iv_error *err);

#endif
