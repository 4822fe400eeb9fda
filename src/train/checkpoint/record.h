/* record.h: training.json: which run a checkpoint belongs to, and how far the run was. */
#ifndef IV_TRAIN_CHECKPOINT_RECORD_H
#define IV_TRAIN_CHECKPOINT_RECORD_H

#include "base/arena.h"
#include "train/checkpoint/checkpoint.h"

#define IV_TRAINING_RECORD_NAME "training.json"

/* IV_INVALID names what is wrong in the caller's text or numbers. */
iv_status iv_training_record_check(const iv_training_run *run, const iv_training_progress *p, iv_error *err);

iv_status iv_training_record_write(const char *dir, const iv_training_run *run, const iv_training_progress *p,
                                   iv_error *err);

/* Fills run, progress and invar_version of *out; strings are in the arena. */
iv_status iv_training_record_read(const char *dir, iv_arena *arena, iv_training_saved *out, iv_error *err);

/* As iv_training_match. path heads the error. */
iv_status iv_training_record_match(const char *path, const iv_training_run *saved, const iv_training_run *want,
                                   iv_error *err);

#endif
