/* files.h: names of checkpoint directories, and files and folders that are flushed, hashed and removed. */
#ifndef IV_TRAIN_CHECKPOINT_FILES_H
#define IV_TRAIN_CHECKPOINT_FILES_H

#include "base/buf.h"

#include <stdint.h>

enum { IV_TRAINING_NAME_BYTES = 96 };

/* "checkpoint-000200". */
void iv_training_name(uint64_t step, char out[IV_TRAINING_NAME_BYTES]);
/* The step of such a name; false for any other name. */
bool iv_training_parse_name(const char *name, uint64_t *step);

/* Names that no reader takes for a checkpoint: being written, being removed. They end with a tag of the run, by which
 * the next save of that run recognizes leftovers. */
typedef enum iv_training_aside { IV_TRAINING_WRITING, IV_TRAINING_REMOVING } iv_training_aside;
void iv_training_aside_name(const char *identity, uint64_t step, iv_training_aside kind,
                            char out[IV_TRAINING_NAME_BYTES]);

/* Removes what a killed writer of this run has left. */
iv_status iv_training_remove_leftovers(const char *dir, const char *identity, iv_error *err);

/* Steps of all directories that are named as checkpoints, newest first; the caller frees *steps. IV_NOT_FOUND: the
 * directory is missing. */
iv_status iv_training_list(const char *dir, uint64_t **steps, size_t *count, iv_error *err);

/* Removes a directory with everything in it. Not being there is fine. */
iv_status iv_training_remove_tree(const char *path, iv_error *err);

/* Flushes a directory's entries. */
iv_status iv_training_flush_dir(const char *path, iv_error *err);

/* Size and SHA-256 of a file. flush: also writes it through to the disk. */
iv_status iv_training_hash_file(const char *path, bool flush, uint64_t *bytes, uint8_t digest[32], iv_error *err);

#endif
