/* invar_train.h: the trainer, and the coefficients of policy gradients (docs/TRAINING.md). Statuses, errors, texts, and
 * structs that begin with their size are as in invar.h. */
#ifndef INVAR_TRAIN_H
#define INVAR_TRAIN_H

#include "invar.h"
#include "invar_model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- trainer ------------------------------------------------------------------------------------------- */

/* A trainer holds a model's weights in float32, gradients, and AdamW's state, and changes the weights in steps
 * (NUMERICS.md, 15; docs/TRAINING.md). On a CPU or a GPU, in one process. A step is
 *
 *     iv_trainer_step(trainer, &batch, rate, max_norm, &err);                    the batch's masked tokens, supervised
 *
 * or in parts, with coefficients of the caller's own or of iv_policy_coefficients:
 *
 *     iv_trainer_score(trainer, &batch, &err);                                   log-probabilities
 *     iv_trainer_gradients(trainer, &batch, denominator, &err);                  sums of gradients
 *     iv_trainer_apply(trainer, rate, max_norm, &err);                           new weights
 *     iv_trainer_sync_engine(trainer, engine, false, &err);                      rollouts use them
 *
 * A trainer is used by one thread at a time; it runs its own worker threads. It keeps no pointer into a batch after a
 * call returns. After an error the weights are as before the call, unless a function says otherwise. */
typedef struct iv_trainer iv_trainer;

typedef struct iv_trainer_options {
    size_t size;             /* sizeof(iv_trainer_options), set by iv_trainer_options_init */
    const char *model;       /* a Hugging Face model directory */
    const char *load_format; /* as in iv_engine_options: "auto", or "dummy": a random start */
    uint64_t dummy_seed;     /* of "dummy" alone: else other than 0 is IV_INVALID */
    const char *dtype;       /* of the matrices that forward and backward multiply by: "auto" (the checkpoint's),
                              * "bfloat16", "float16", "float32". The weights that learn are always float32 */
    const char *arithmetic;  /* "auto" (tc16 on a GPU where dtype has 16 bits, else fma32), "fma32", "tc16" */
    size_t virtual_ranks;    /* a power of two, at most 64: the chains of sums over tokens; part of the fingerprint */
    double beta1, beta2, eps, weight_decay; /* of AdamW; beta1 and beta2 in [0, 1), the others 0 or more */
    bool decay_all;                         /* weight decay for norms and biases too; IV_INVALID without a decay */
    const char *run;   /* a JSON object with all else that decides the weights (data, seed, schedule, loss): part of
                        * the fingerprint, so that a checkpoint of another run is refused. NULL: {} */
    bool no_optimizer; /* log-probabilities and gradients alone, without the optimizer's memory: a reference model */
    /* These never change a bit. */
    const char *isa;        /* "auto", "scalar", "avx2", "avx512" */
    size_t threads;         /* 0: one for each CPU */
    size_t data_parallel;   /* ranks that share a batch: a divisor of virtual_ranks */
    size_t tensor_parallel; /* ranks that share each matrix: 1, 2, 4 or 8 */
    size_t pass_tokens;     /* memory: most tokens of one forward and backward, each sequence padded to a multiple of
                             * 16; the longest sequence that a batch may have. 0: 4096; on a GPU 32768, or what its
                             * memory allows, at least 4096 */
    size_t micro_batch;     /* most sequences of one; 0: as many as fit pass_tokens */
    const char *recompute;  /* memory: "none", or "attention", "layer": what the backward computes again */
    const char *device;     /* "cpu"; "cuda": a GPU for each rank; "auto": GPUs of compute capability 9.0 if there are
                             * as many as ranks */
    bool offload_optimizer; /* GPUs: the optimizer's moments in this process's memory, pinned; slower updates. On a CPU:
                             * IV_INVALID */
    /* An adapter of low rank learns, and the model's weights do not (docs/LORA.md): with lora_rank or lora. The first
     * five are part of the fingerprint; each without lora_rank is IV_INVALID, and so is lora_rank with lora. */
    size_t lora_rank;         /* of each A and B, 1 to 4096. 0: all weights learn, or `lora` */
    double lora_alpha;        /* the term's factor is alpha / rank. 0: the rank, a factor of 1 */
    const char *lora_targets; /* as PEFT's target_modules: names between commas, which match the last parts of a
                               * module's name ("q_proj,v_proj"); "all-linear": every linear layer but the head; or an
                               * expression, which matches all of a name. NULL: "all-linear". IV_NOT_FOUND: no module */
    bool lora_rslora;         /* the factor is alpha / sqrt(rank) */
    uint64_t lora_seed;       /* of the first A (NUMERICS.md 19.1); the first B is zero */
    const char *lora;         /* instead: a PEFT directory, the adapter to begin with; or NULL */
    iv_engine *base;          /* never changes a bit: an open engine of this model, of one rank, the same dtype and
                               * numerics, on a GPU with weights "expanded". The trainer computes where it is, and reads
                               * its weights instead of a copy of its own. It outlives the trainer; its weights cannot
                               * be replaced meanwhile (IV_BUSY). Trainers of several adapters may have one base, and
                               * may run while it does, each on its own thread. NULL: the trainer reads the model.
                               * Without an adapter: IV_INVALID */
} iv_trainer_options;

/* "auto" (type, weights, arithmetic), "cpu", 8 virtual ranks, AdamW with 0.9, 0.999, 1e-8 and no decay, one rank,
 * "none". */
IV_API void iv_trainer_options_init_sized(iv_trainer_options *options, size_t size);
static inline void iv_trainer_options_init(iv_trainer_options *options) {
    iv_trainer_options_init_sized(options, sizeof *options);
}

/* IV_UNSUPPORTED names what cannot be trained, or a number of ranks that does not divide the model. */
IV_API iv_status iv_trainer_open(const iv_trainer_options *options, iv_trainer **out, iv_error *err);
IV_API void iv_trainer_close(iv_trainer *trainer); /* NULL is fine */

/* Facts of an open trainer. Strings live as long as it. */
typedef struct iv_trainer_info {
    const char *fingerprint;     /* of the run: initial weights, everything of the options that may change a bit, law */
    const char *initial_weights; /* "sha256:...": of the model that was opened */
    const char *hyperparameters; /* a JSON object: the options that may change a bit; the caller's under "run" */
    const char *model_type, *dtype, *device, *arithmetic, *isa;
    int numerics_version, training_version; /* of the forward's law, and of training's */
    size_t elements;     /* of the flat buffer of all weights, each tensor padded to a multiple of 4096 */
    size_t memory_bytes; /* that the trainer holds now: weights, gradients, moments, passes */
    size_t threads, data_parallel, tensor_parallel, virtual_ranks, pass_tokens, vocab_size, max_positions;
} iv_trainer_info;
IV_API void iv_trainer_get_info(const iv_trainer *trainer, iv_trainer_info *info);

/* A token sequence of a batch; all arrays are the caller's and have `count` elements, 2 or more. Element t of the
 * floats belongs to the prediction of ids[t] from those before it; element 0 to nothing. Later versions do not change
 * this struct. */
typedef struct iv_trainer_sequence {
    const int32_t *ids;
    const float *mask; /* 0 or more, mask[0] 0. Where it is 0 there is no log-probability and no gradient */
    size_t count;
    float *logprobs;           /* written: natural logarithms; 0 where the mask is 0. NULL: not wanted */
    const float *coefficients; /* minus the derivative of denominator * loss by logprobs[t]; read by
                                * iv_trainer_gradients where the mask is not 0. NULL: the mask, as for supervised
                                * learning */
} iv_trainer_sequence;

/* The order of sequences is part of the result. */
typedef struct iv_trainer_batch {
    size_t size; /* sizeof(iv_trainer_batch), set by iv_trainer_batch_init */
    const iv_trainer_sequence *sequences;
    size_t count;
    float temperature; /* the logits are divided by it; above 0 */
    /* NULL, or fills the coefficients of sequence i of the batch from its log-probabilities, between the forward and
     * the backward of iv_trainer_gradients: saves the forward of iv_trainer_score. Called once for each sequence, from
     * several threads, in any order: it depends on no other sequence. Not IV_OK: it has filled err, and the call ends
     * with that. Each sequence has `logprobs` and `coefficients` then. */
    iv_status (*weigh)(void *user, size_t i, iv_error *err);
    void *user;
    /* The log-probabilities are those of the policy that an engine samples: ids without a token, which it never draws,
     * have probability 0 (NUMERICS.md, 15.5), and a token with a mask has a token. Else they are over all ids, as for
     * supervised learning or with iv_engine_options.sample_all_ids. */
    bool policy;
    /* NULL, or for each sequence NULL or [count] ids: position t predicts targets[i][t] instead of ids[t], from the
     * same ids before it. Read where the mask is not 0. */
    const int32_t *const *targets;
} iv_trainer_batch;

/* Temperature 1, over all ids; nothing else. */
IV_API void iv_trainer_batch_init_sized(iv_trainer_batch *batch, size_t size);
static inline void iv_trainer_batch_init(iv_trainer_batch *batch) { iv_trainer_batch_init_sized(batch, sizeof *batch); }

/* Log-probabilities under the present weights, in every bit those of an engine with these weights, of the same dtype
 * and arithmetic: with `policy` its iv_event.sampling_logprob without filters; else, at temperature 1, its
 * iv_event.logprob, and at others sampling_logprob of an engine that draws all ids. IV_INVALID
 * names the sequence and token. */
IV_API iv_status iv_trainer_score(iv_trainer *trainer, const iv_trainer_batch *batch, iv_error *err);

/* Log-probabilities, and the gradient of the loss: sums over all tokens, which are divided by `denominator` (above 0)
 * only after they are complete. They wait for iv_trainer_apply; another call of this function replaces them.
 * IV_NOT_FINITE names the tensor whose gradient is not finite. */
IV_API iv_status iv_trainer_gradients(iv_trainer *trainer, const iv_trainer_batch *batch, double denominator,
                                      iv_error *err);

/* Copies the gradient of the mean loss, before clipping, of a tensor by its name in the checkpoint; of an adapter by
 * its name in the PEFT file ("base_model.model.MODULE.lora_A.weight"). out[elements], in the shape there. IV_NOT_FOUND:
 * there is no such trained tensor. IV_INVALID: another number of elements, or no gradients wait. */
IV_API iv_status iv_trainer_get_gradient(const iv_trainer *trainer, const char *tensor, float *out, size_t elements,
                                         iv_error *err);

/* One step of AdamW by the gradients that wait. max_norm: a gradient of a larger norm is scaled down to it; 0: none is.
 * IV_INVALID: no gradients wait. If it fails after the weights began to change (IV_NO_MEMORY, or IV_FORMAT: a weight is
 * too large for dtype), the trainer does nothing but iv_trainer_restore (IV_BUSY). */
IV_API iv_status iv_trainer_apply(iv_trainer *trainer, double learning_rate, double max_norm, iv_error *err);

/* AdamW's numbers from the next step on, with the bounds of iv_trainer_options. They are no part of the fingerprint, as
 * the learning rate is none: a caller that changes them writes them down. */
IV_API iv_status iv_trainer_set_adamw(iv_trainer *trainer, double beta1, double beta2, double eps, double weight_decay,
                                      iv_error *err);

/* Forgets the optimizer's moments and steps, and gradients that wait; the weights stay. For a run that begins from
 * another's checkpoint. */
IV_API iv_status iv_trainer_forget(iv_trainer *trainer, iv_error *err);

/* Supervised: minimizes the mean of -logprob, weighted by the mask. The batch has no coefficients and no weigh. */
IV_API iv_status iv_trainer_step(iv_trainer *trainer, const iv_trainer_batch *batch, double learning_rate,
                                 double max_norm, iv_error *err);

/* Of the last iv_trainer_gradients and iv_trainer_apply, or iv_trainer_step. Seconds are wall time. */
typedef struct iv_trainer_metrics {
    uint64_t steps;        /* of the optimizer, in all */
    char weights_hash[65]; /* SHA-256 of the present float32 weights, in hexadecimal */
    double loss;           /* mean of -logprob over the tokens with a mask, weighted by it */
    double gradient_norm;  /* of the mean gradient, before clipping */
    double learning_rate;
    uint64_t sequences, tokens, tokens_learned; /* learned: with a mask */
    uint64_t passes;                            /* of the rank with the most */
    double gradient_seconds;                    /* log-probabilities and gradients */
    double reduce_seconds;                      /* sums over ranks, norm */
    double optimizer_seconds, write_seconds;    /* write: weights in the form that the forward reads, their hash */
} iv_trainer_metrics;
IV_API void iv_trainer_get_metrics(const iv_trainer *trainer, iv_trainer_metrics *metrics);

/* Copies the present weights, rounded as the trainer's own forward rounds them, into an open engine of the same
 * process. Its prefix cache is emptied. It has the same model, the same dtype and iv_engine_options.trainable; else
 * IV_INVALID names what differs, and the engine is as before. IV_BUSY while requests wait or run. digest: also hashes
 * the weights, for a new fingerprint in iv_engine_get_info and in receipts; without it these name no weights (zeros).
 */
IV_API iv_status iv_trainer_sync_engine(iv_trainer *trainer, iv_engine *engine, bool digest, iv_error *err);

/* The present A and B, rounded as the trainer's own forward rounds them, become the engine's adapter `name` (invar.h:
 * adapters), without a file: answers have the digest and the bits of one that is loaded from an exported copy. An
 * adapter of that name is replaced: requests that use it keep it until they end, later ones get the new one. Between
 * two steps of the engine; requests may run. info: NULL, or the adapter's facts; its strings live until the adapter is
 * replaced or unloaded. IV_INVALID: the trainer has no adapter, or the engine another model, dtype or arithmetic, or no
 * room for adapters (max_loras 0). IV_LIMIT: a rank above max_lora_rank. IV_BUSY: max_loras are loaded. */
IV_API iv_status iv_trainer_sync_adapter(iv_trainer *trainer, iv_engine *engine, const char *name,
                                         iv_adapter_info *info, iv_error *err);

/* Writes the present weights as a Hugging Face directory, as iv_export does; "auto": matrices in the trainer's dtype,
 * vectors in float32. Of an adapter: a PEFT directory; "auto": in the trainer's dtype, "float32": the weights that
 * learn. options and info may be NULL. */
IV_API iv_status iv_trainer_export(iv_trainer *trainer, const char *dir, const iv_export_options *options,
                                   iv_export_info *info, iv_error *err);

/* Saves a checkpoint: DIR/checkpoint-NNNNNN with NNNNNN the optimizer's steps (docs/formats/training_checkpoint.md),
 * with weights, moments and a Hugging Face model, or the files of a PEFT directory. It is whole or absent whenever the
 * process is killed. keep: complete checkpoints of this run that stay, newest first; 0: all. state: a JSON object to
 * continue from, NULL: {}. */
IV_API iv_status iv_trainer_save(iv_trainer *trainer, const char *dir, size_t keep, const char *state, iv_error *err);

/* Continues from the newest whole checkpoint in dir, which may have been saved with other ranks, threads and passes.
 * *found: whether there is one; false leaves the trainer as it is. state: the caller's JSON; notes: empty, or a line
 * for each damaged checkpoint that was passed over and one for that in use. Both may be NULL; iv_text_free frees them.
 * IV_INVALID: it belongs to another run, and the message lists what differs. If reading fails after the weights began
 * to change, the trainer does nothing but another restore (IV_BUSY). */
IV_API iv_status iv_trainer_restore(iv_trainer *trainer, const char *dir, bool *found, iv_text *state, iv_text *notes,
                                    iv_error *err);

/* ---- policy gradients ---------------------------------------------------------------------------------- */

/* The loss of an algorithm as coefficients for iv_trainer_gradients: pure functions, in f64 and in index order
 * (NUMERICS.md 15.14; src/train/loss/algorithm.h names the sources). */
typedef struct iv_policy_options {
    size_t size;              /* sizeof(iv_policy_options), set by iv_policy_options_init */
    const char *algorithm;    /* "reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo" */
    double max_completion;    /* tokens; dr-grpo divides by it. The others do not read it */
    double eps_low, eps_high; /* of the clipped ratio; below 0: the algorithm's own. reinforce has none: IV_INVALID */
    double kl_beta;           /* times the KL to a reference: in the loss; rloo: in the reward. 0: no reference */
    const char *kl;           /* its estimate: "k1", "k2", "k3", "k1+", "k3+"; NULL: the algorithm's own, k3, of rloo
                               * k1 (others are IV_INVALID there). Read with kl_beta alone */
    const char *correction;   /* for a sampler with other probabilities than `old`: "none", "truncate", "mask" */
    double correction_cap;    /* below 0: the algorithm's own. Without a correction: IV_INVALID */
} iv_policy_options;

/* "grpo", its own values, no reference, no correction. */
IV_API void iv_policy_options_init_sized(iv_policy_options *options, size_t size);
static inline void iv_policy_options_init(iv_policy_options *options) {
    iv_policy_options_init_sized(options, sizeof *options);
}

/* advantages[i] of n completions from rewards[i]; those of one prompt have the same group[i], which is below n. Where
 * all rewards of a group are equal, advantages are 0. IV_NOT_FINITE: a reward. IV_INVALID: a group of one, which has
 * nothing to compare with; or rloo with kl_beta, which wants iv_policy_sequence_advantages. */
IV_API iv_status iv_policy_advantages(const iv_policy_options *options, const uint32_t *group, const double *rewards,
                                      size_t n, double *advantages, iv_error *err);

/* A sequence: arrays of `count` elements as in iv_trainer_sequence, mask 1 at sampled tokens. Later versions do not
 * change this struct. */
typedef struct iv_policy_sequence {
    size_t count;
    const float *mask;
    const float *logprobs;  /* of the learner now */
    const float *old;       /* of the learner when the step began; NULL: behavior */
    const float *behavior;  /* of the sampler */
    const float *reference; /* of the reference; NULL without kl_beta */
    double advantage;
    float *coefficients; /* written */
} iv_policy_sequence;

/* The same with what the algorithm takes from the rewards: rloo with kl_beta subtracts kl_beta times the sum of
 * mask * (old - reference) of each sequence, and reads mask, old (NULL: behavior) and reference. The others read the
 * masks alone. */
IV_API iv_status iv_policy_sequence_advantages(const iv_policy_options *options, const iv_policy_sequence *sequences,
                                               const uint32_t *group, const double *rewards, size_t n,
                                               double *advantages, iv_error *err);

/* Means over tokens with a mask (ratios of a sequence: over sequences). */
typedef struct iv_policy_report {
    double loss, kl;                             /* kl: to the reference */
    double clipped_low, clipped_high;            /* shares */
    double ratio_mean, ratio_max;                /* of probabilities, now to `old` */
    double sampler_k1, sampler_k3;               /* KL from sampler to learner: 0 for an engine with the same bits */
    double largest_logprob, largest_probability; /* differences of learner and sampler */
    uint64_t sequences, tokens, equal;           /* equal: tokens whose log-probability is the sampler's in every bit */
} iv_policy_report;

/* The global denominator of the loss over n sequences, from counts and masks alone. IV_INVALID: no token has a mask. */
IV_API iv_status iv_policy_denominator(const iv_policy_options *options, const iv_policy_sequence *sequences, size_t n,
                                       double *denominator, iv_error *err);

/* Fills the coefficients of all n sequences. report may be NULL. IV_NOT_FINITE names the sequence and token. From
 * iv_trainer_batch.weigh call it with n 1 for one sequence: coefficients depend on no other. */
IV_API iv_status iv_policy_coefficients(const iv_policy_options *options, const iv_policy_sequence *sequences, size_t n,
                                        iv_policy_report *report, iv_error *err);

#ifdef __cplusplus
}
#endif
#endif
