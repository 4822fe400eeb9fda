/* state.h: a rollout's completions, shared by its files. */
#ifndef IV_TRAIN_ROLLOUT_STATE_H
#define IV_TRAIN_ROLLOUT_STATE_H

#include "base/buf.h"
#include "train/rollout/rollout.h"

typedef struct iv_rollout_collected {
    uint64_t request, seed;
    iv_ids ids;
    iv_buf logprobs, sampling_logprobs; /* floats */
    iv_buf text;                        /* and a NUL behind it */
    iv_finish finish;
    bool done;
} iv_rollout_collected;

struct iv_rollout {
    size_t prompts, group;
    iv_rollout_collected *at; /* [prompts][group] */
};

/* Without completions yet. prompts may be 0. */
iv_status iv_rollout_new(size_t prompts, size_t group, iv_rollout **out, iv_error *err);

#endif
