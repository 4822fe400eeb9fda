/* rollout.h: completions sampled for reinforcement learning, in process, on the engine whose weights are trained.
 *
 * Results are a function of weights, prompts, sampling parameters and seed: not of the order in which requests are
 * batched, of max_num_seqs, chunks, prefix cache, speculation, threads or ranks. Every token comes with the model's own
 * log-probability, which the learner's forward reproduces in every bit, and with the one of the distribution it was
 * drawn from (NUMERICS.md, 10.7). */
#ifndef IV_TRAIN_ROLLOUT_ROLLOUT_H
#define IV_TRAIN_ROLLOUT_ROLLOUT_H

#include "comm/comm.h"
#include "invar.h"

enum { IV_ROLLOUT_GROUP_MAX = 65536 };

typedef struct iv_rollout_prompt {
    const int32_t *ids; /* the caller's, until iv_rollout_run returns */
    size_t count;
    uint64_t index; /* the caller's number of the prompt in this step, part of its seeds */
} iv_rollout_prompt;

/* After each step of the engine, and at the end. */
typedef struct iv_rollout_progress {
    size_t done, total; /* completions */
    uint64_t tokens;    /* generated so far */
} iv_rollout_progress;

/* Values as in iv_request. The model's generation_config.json is not used, and there are no penalties. */
typedef struct iv_rollout_options {
    size_t group;      /* completions of each prompt, 1 to 65,536 */
    size_t max_tokens; /* of a completion; prompt and completion fit max_model_len */
    size_t min_tokens;
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed, step; /* of the run; steps taken */
    const char *adapter; /* of the engine, or NULL */
    const char *const *stop;
    size_t stop_count;
    const int32_t *stop_ids;
    size_t stop_id_count;
    bool ignore_eos, keep_special;                              /* keep_special: special tokens appear in the text */
    void (*progress)(void *user, const iv_rollout_progress *p); /* NULL: none */
    void *user;
} iv_rollout_options;

/* group 1, max_tokens 0 (to be set), temperature 1, top_p 1, everything else off. */
void iv_rollout_options_init(iv_rollout_options *o);

/* The seed of a completion: bits 0 to 63 of Philox4x32-10 with counter (o[0], o[1], group_index, 0) and key (o[2],
 * o[3]), where o is Philox4x32-10 with counter (step, prompt_index) and key seed, low words first. */
uint64_t iv_rollout_seed(uint64_t seed, uint64_t step, uint64_t prompt_index, uint32_t group_index);

/* Pointers live until iv_rollout_close. */
typedef struct iv_completion {
    uint64_t seed;
    const int32_t *ids;             /* [count], with the token that ended it */
    const float *logprobs;          /* [count]: of the model's own distribution */
    const float *sampling_logprobs; /* [count]: of the distribution drawn from; all 0 at temperature 0 */
    size_t count;
    iv_finish finish; /* IV_FINISH_STOP or IV_FINISH_LENGTH */
    const char *text; /* UTF-8, NUL-terminated, without stop strings; "" if the model has no tokenizer */
    size_t text_bytes;
} iv_completion;

typedef struct iv_rollout iv_rollout;

/* Samples group completions of each of count prompts and returns when all are done. The engine has no other requests
 * meanwhile; if its ranks are processes, it is rank 0's. IV_BUSY: requests wait or run, or the weights are being
 * replaced; IV_INVALID, IV_CONTEXT_LENGTH: an option or a prompt; an error of a single request names its prompt and
 * completion, and the others are cancelled. The engine is then idle again, unless a step failed. */
iv_status iv_rollout_run(iv_engine *e, const iv_rollout_prompt *prompts, size_t count, const iv_rollout_options *o,
                         iv_rollout **out, iv_error *err);
void iv_rollout_close(iv_rollout *r); /* NULL is fine */

/* Collective: what each process sampled, of consecutive prompts in the order of processes, in every process. mine NULL:
 * this one had no prompts. All return the same status. */
iv_status iv_rollout_gather(iv_comm *comm, const iv_rollout *mine, size_t group, iv_rollout **out, iv_error *err);

/* In the order of the prompts; index < group. */
iv_completion iv_rollout_at(const iv_rollout *r, size_t prompt, size_t index);

#endif
