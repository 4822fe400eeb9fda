/* state.h: state-RRRRR-of-WWWWW.safetensors, the arrays of one rank: "range" I64 [2] (first element of the
 * flat layout, count), then "master", "first_moment" and "second_moment", F32 [count] each. */
#ifndef IV_TRAIN_CHECKPOINT_STATE_H
#define IV_TRAIN_CHECKPOINT_STATE_H

#include "train/checkpoint/checkpoint.h"

enum { IV_TRAINING_STATE_NAME_BYTES = 64 };

/* rank counts from 0, the name from 1. */
void iv_training_state_name(size_t rank, size_t ranks, char out[IV_TRAINING_STATE_NAME_BYTES]);
/* Is this the name of a state file? */
bool iv_training_state_is_name(const char *name);

/* Writes one and flushes it. count is 1 at least. */
iv_status iv_training_state_write(const char *path, const iv_training_shard *shard, iv_error *err);

/* An open file of state. */
typedef struct iv_training_state {
    char *path;
    int fd;
    size_t first, count;
    size_t offset[IV_TRAINING_BUFFERS]; /* of each array in the file */
} iv_training_state;

/* elements: of the layout, in which the range must lie. After an error there is nothing to close. */
iv_status iv_training_state_open(const char *path, size_t elements, iv_training_state *s, iv_error *err);
void iv_training_state_close(iv_training_state *s);

/* Elements [first, first + count) of the layout, which lie in the file's range. */
iv_status iv_training_state_read(const iv_training_state *s, iv_training_buffer buffer, size_t first, size_t count,
                                 float *out, iv_error *err);

#endif
