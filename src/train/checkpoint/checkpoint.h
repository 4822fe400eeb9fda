/* checkpoint.h: the state of a training run on disk, one directory for each checkpoint (docs/formats/
 * training_checkpoint.md). A checkpoint is whole or absent: everything is written to a temporary directory and flushed,
 * the manifest last, then renamed. A failure or a kill at any moment costs the step and keeps earlier checkpoints. */
#ifndef IV_TRAIN_CHECKPOINT_CHECKPOINT_H
#define IV_TRAIN_CHECKPOINT_CHECKPOINT_H

#include "base/buf.h"
#include "comm/comm.h"

enum { IV_TRAINING_CHECKPOINT_VERSION = 1, IV_TRAINING_IDENTITY_BYTES_MAX = 200 };

/* What does not change during a run. All strings are the caller's. */
typedef struct iv_training_run {
    const char *dir;             /* of the run; the first save makes it */
    const char *identity;        /* fingerprint of the run: 1 to 200 visible ASCII characters */
    const char *initial_weights; /* digest of the weights that it began with, written likewise */
    const char *hyperparameters; /* a JSON object. Integers above 2^63 - 1, such as seeds, as strings */
    int law_version;             /* of training's arithmetic */
    size_t elements;             /* of the flat layout */
} iv_training_run;

/* Where a run is: after `step` steps. Numbers are below 2^63. */
typedef struct iv_training_progress {
    uint64_t step, epoch;
    uint64_t cursor;         /* sequences of the epoch's order that have been used */
    const char *weight_hash; /* of the master weights; 1 to 200 visible ASCII characters */
    const char *state;       /* a JSON object with what else the caller needs to continue; NULL is read back as {} */
} iv_training_progress;

/* Elements [first, first + count) of the flat layout, owned by this rank. count 0: it owns none. Over all ranks the
 * ranges cover the layout without holes or overlaps. */
typedef enum iv_training_buffer {
    IV_TRAINING_MASTER,
    IV_TRAINING_FIRST_MOMENT,
    IV_TRAINING_SECOND_MOMENT
} iv_training_buffer;
enum { IV_TRAINING_BUFFERS = 3 };
typedef struct iv_training_shard {
    size_t first, count;
    const float *data[IV_TRAINING_BUFFERS]; /* [count] each, by iv_training_buffer; NULL: read gives it, in chunks */
    iv_status (*read)(void *user, iv_training_buffer buffer, size_t first, size_t count, float *out, iv_error *err);
    void *user;
} iv_training_shard;

/* ---- writing ---- */

/* Writes the model to `dir`, which is not there yet; with `model_in_dir` files next to the state, into the checkpoint's
 * own directory. Called on rank 0. */
typedef iv_status iv_training_export(void *user, const char *dir, iv_error *err);

typedef struct iv_training_save_options {
    iv_training_export *export; /* NULL: the checkpoint has no model */
    void *export_user;
    bool model_in_dir;
    size_t keep; /* complete checkpoints of this run that stay, newest first; 0: all */
} iv_training_save_options;

/* Collective: every rank calls it with the same run and progress and its own shard; comm NULL: there is one rank. The
 * ranks share the file system. Replaces a checkpoint of the same step. All ranks return the same status; an error names
 * the rank, and the temporary directory is removed. IV_INVALID: ranges that do not cover the layout, text that is no
 * JSON object; IV_BUSY: another process saves to this run; IV_IO: the disk. If only removing old checkpoints failed,
 * the error says that the new one is complete. */
iv_status iv_training_save(const iv_training_run *run, const iv_training_progress *progress,
                           const iv_training_shard *mine, const iv_training_save_options *o, iv_comm *comm,
                           iv_error *err);

/* RUN/checkpoint-000200, into out (replacing its content). */
iv_status iv_training_path(const char *dir, uint64_t step, iv_buf *out, iv_error *err);

/* ---- reading ---- */

typedef struct iv_training_checkpoint iv_training_checkpoint;

/* What a checkpoint says. Strings live as long as it is open. */
typedef struct iv_training_saved {
    const char *path;          /* its directory */
    const char *model;         /* the Hugging Face directory in it, NULL: none */
    bool adapter;              /* the checkpoint's directory is one of PEFT's */
    const char *invar_version; /* of the program that wrote it */
    iv_training_run run;       /* dir is NULL */
    iv_training_progress progress;
    size_t shards; /* files of state */
} iv_training_saved;

/* Opens one checkpoint. verify: reads every file and compares its SHA-256; sizes are always compared. IV_NOT_FOUND: no
 * such directory; IV_FORMAT: incomplete or damaged, and how; IV_UNSUPPORTED: another version of the format. */
iv_status iv_training_open(const char *path, bool verify, iv_training_checkpoint **out, iv_error *err);
void iv_training_close(iv_training_checkpoint *c); /* NULL is fine */

const iv_training_saved *iv_training_get(const iv_training_checkpoint *c);

/* IV_INVALID unless the checkpoint belongs to the run; the message lists what differs: initial weights, elements, law,
 * each hyperparameter, or the identity alone (data). */
iv_status iv_training_match(const iv_training_checkpoint *c, const iv_training_run *run, iv_error *err);

/* Elements [first, first + count) of one array, from whichever shards hold them. Any rank may read any range, from
 * several threads. */
iv_status iv_training_read(const iv_training_checkpoint *c, iv_training_buffer buffer, size_t first, size_t count,
                           float *out, iv_error *err);

/* Collective: opens the newest whole checkpoint of run->dir, verified once, by rank 0. *out is NULL if the run has none
 * yet. notes: on rank 0 a line for each newer checkpoint that is damaged, with what is wrong, and then one that names
 * the checkpoint in use. Errors: those of iv_training_match and of other
 * versions; if there are checkpoints and none is whole, that of the oldest. */
iv_status iv_training_resume(const iv_training_run *run, iv_comm *comm, iv_training_checkpoint **out, iv_buf *notes,
                             iv_error *err);

/* The newest whole checkpoint of a directory, of whichever run; as above for one rank. */
iv_status iv_training_latest(const char *dir, iv_training_checkpoint **out, iv_buf *notes, iv_error *err);

#endif
