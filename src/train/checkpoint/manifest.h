/* manifest.h: manifest.json, the list of a checkpoint's files. It is written last: without it a directory is
 * half written. */
#ifndef IV_TRAIN_CHECKPOINT_MANIFEST_H
#define IV_TRAIN_CHECKPOINT_MANIFEST_H

#include "train/checkpoint/checkpoint.h"

#define IV_TRAINING_MANIFEST_NAME "manifest.json"
enum { IV_TRAINING_FILES_MAX = 4096 };

typedef struct iv_training_file {
    char *name; /* below the checkpoint's directory, '/' between folders */
    uint64_t bytes;
    char sha256[65];
} iv_training_file;

/* Zero-initialised: empty. */
typedef struct iv_training_manifest {
    uint64_t step;
    char identity[IV_TRAINING_IDENTITY_BYTES_MAX + 1];
    iv_training_file *files;
    size_t count, capacity;
} iv_training_manifest;

iv_status iv_training_manifest_add(iv_training_manifest *m, const char *name, uint64_t bytes, const uint8_t digest[32],
                                   iv_error *err);
/* NULL if it is not listed. */
const iv_training_file *iv_training_manifest_find(const iv_training_manifest *m, const char *name);

/* Writes it into the directory and flushes it. */
iv_status iv_training_manifest_write(const iv_training_manifest *m, const char *dir, iv_error *err);

/* Reads it and compares the sizes of all files; verify: their SHA-256 too. step: of the directory's name. Errors as
 * iv_training_open. After an error there is nothing to free. */
iv_status iv_training_manifest_read(const char *dir, uint64_t step, bool verify, iv_training_manifest *m,
                                    iv_error *err);
void iv_training_manifest_free(iv_training_manifest *m);

#endif
