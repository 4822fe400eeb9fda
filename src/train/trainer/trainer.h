/* trainer.h: weights, gradients and optimizer state of a run, and its step. Law: NUMERICS.md 15.
 *
 * A process has some data-parallel ranks of `tp` tensor-parallel ranks each, all of them threads; or, where the ranks
 * are as many as the processes of mpirun, one tensor-parallel rank: tp consecutive processes are a data-parallel rank.
 * The data-parallel ranks of all processes are the world. Master weights, moments and the reduced gradient are one flat
 * buffer each (model/parameters.h). A process has the packed weights that it computes with and the sums of its ranks
 * whole; of the moments (ZeRO-1) and, if they are sharded, of the master weights it has the slice that its ranks own,
 * and its GPUs an equal part of that each; these GPUs have whole sums only in steps of several passes. */
#ifndef IV_TRAIN_TRAINER_TRAINER_H
#define IV_TRAIN_TRAINER_TRAINER_H

#include "comm/comm.h"
#include "device/gpu.h"
#include "model/learned_adapter.h"
#include "model/learner.h"
#include "model/parameters.h"
#include "numerics/optimizer.h"

typedef struct iv_train_options {
    const char *model_dir; /* for messages, and to open the model */
    iv_model *model;       /* NULL: opened here; else an open one of one rank, widened, which outlives the trainer: an
                            * engine's. dtype and dummy are not used then */
    iv_gpu *gpu;           /* that has it, if it is a GPU's */
    void *borrowed;        /* NULL, or memory of that GPU which others use between two steps (iv_gpu_learner_options) */
    size_t borrowed_bytes;
    bool packed;      /* with an adapter: weights stay as the files have them, where their form allows */
    bool has_adapter; /* an adapter learns, and the model's weights do not; without shard_parameters */
    iv_adapter_wish adapter;
    bool dummy; /* random weights instead of the directory's */
    uint64_t dummy_seed;
    bool has_dtype;
    iv_dtype dtype;
    const iv_kernels *kernels; /* NULL: the best of this machine */
    iv_arithmetic arithmetic;
    bool cuda;                       /* on GPUs, one for each of world * tp ranks */
    size_t ordinal;                  /* of the first that is opened; `gpu` stands for it */
    size_t threads;                  /* of the process; 0: one for each CPU */
    size_t world, tp, virtual_ranks; /* world: data-parallel ranks of all processes */
    iv_comm *processes;              /* NULL: one process; at most world * tp */
    size_t pass_tokens;              /* most tokens of a pass */
    size_t pass_tokens_least;        /* 0: as pass_tokens. A GPU without memory for more may have as few as this */
    size_t longest;                  /* sequence of the run: iv_model_options.longest; 0: not known */
    size_t micro_batch;              /* most sequences of a pass; 0: as many as fit */
    iv_recompute recompute;
    bool separate, deferred_loss; /* iv_gpu_learner_options */
    iv_adamw_options adamw;
    bool decay_all;         /* weight decay for norms and biases too */
    bool shard_parameters;  /* of the master weights too a process, or a GPU, has its slice alone; on a CPU one
                             * tensor-parallel rank */
    bool offload_optimizer; /* GPUs: the moments are in this process's memory */
    /* Processes with one GPU each exchange sums and weights by "nccl", or through their memory: "host". "auto" or NULL:
     * nccl, if every process has it. */
    const char *rank_transport;
    bool no_optimizer; /* gradients and log-probabilities alone */
    bool no_gradients; /* log-probabilities alone */
} iv_train_options;

/* A step's sequence. Coefficients are read where the mask is not 0: -dLoss/dlogprob before division by the denominator;
 * NULL: the mask. */
typedef struct iv_train_sequence {
    const int32_t *ids;
    const float *mask;
    size_t count;
    float *logprobs;           /* [count], written, those of other processes too */
    const float *coefficients; /* [count] or NULL */
    const int32_t *targets;    /* [count]: predicted instead of ids; NULL: ids */
} iv_train_sequence;

typedef struct iv_train_batch {
    const iv_train_sequence *sequences;
    size_t count;
    float temperature;
    /* Fills the coefficients of one sequence from its log-probabilities, which no other sequence's call changes. Called
     * from several threads, for sequences of this process. NULL: they are filled already. */
    iv_status (*weigh)(void *context, size_t sequence, iv_error *err);
    void *context;
    const uint64_t *allowed; /* as in iv_learner_step: the ids that a policy draws. Other ids are not predicted */
} iv_train_batch;

/* What sequences add up to, in index order: call after call continues the sums. */
typedef struct iv_train_sums {
    double weight, loss; /* of the masks; of -mask * logprob */
    size_t tokens, masked;
} iv_train_sums;
void iv_train_add_masks(iv_train_sums *sums, const iv_train_sequence *sequences, size_t count);
void iv_train_add_losses(iv_train_sums *sums, const iv_train_sequence *sequences, size_t count);

typedef struct iv_train_update {
    double denominator; /* of the loss: a global count */
    double learning_rate;
    double max_norm; /* 0: gradients are not clipped */
} iv_train_update;

typedef struct iv_train_result {
    double norm;       /* of the mean gradient, before clipping */
    double seconds[5]; /* log-probabilities and gradients; reduction; optimizer; writing weights; their hash */
    size_t passes;     /* of the rank with the most */
    uint8_t weights_hash[32];
} iv_train_result;

typedef struct iv_trainer iv_trainer;

/* Opens the model and makes the weights float32. IV_UNSUPPORTED names a layout that does not divide. */
iv_status iv_train_open(const iv_train_options *options, iv_trainer **out, iv_error *err);
void iv_train_close(iv_trainer *t); /* NULL is fine */

/* The model that the trainer writes to: for rollouts, exports and names. It belongs to the trainer. */
iv_model *iv_train_model(iv_trainer *t);
iv_pool *iv_train_pool(iv_trainer *t);
iv_gpu *iv_train_gpu(iv_trainer *t);                              /* that has it; NULL: the CPU */
const iv_train_options *iv_train_options_of(const iv_trainer *t); /* as it was opened */
size_t iv_train_bytes(const iv_trainer *t);
size_t iv_train_borrowed_bytes(const iv_trainer *t); /* of options.borrowed, in use */
size_t iv_train_pass_tokens(const iv_trainer *t);

/* The flat buffers, for checkpoints and inspection. A process has elements [first, first + count) of moments and
 * gradient, and of master weights [master_first, master_first + master_count): all, or with shard_parameters the same.
 */
typedef enum iv_flat_kind {
    IV_FLAT_MASTER,
    IV_FLAT_FIRST_MOMENT,
    IV_FLAT_SECOND_MOMENT,
    IV_FLAT_GRADIENT /* reduced, unscaled, of the last step */
} iv_flat_kind;
enum { IV_TRAIN_CHUNK = 1 << 20 }; /* elements that callers read and write at once */
typedef struct iv_train_slice {
    size_t elements, first, count, master_first, master_count;
    uint64_t steps; /* of the optimizer */
} iv_train_slice;
iv_train_slice iv_train_slice_of(const iv_trainer *t);
iv_status iv_train_read(iv_trainer *t, iv_flat_kind kind, size_t first, size_t count, float *out, iv_error *err);
iv_status iv_train_write(iv_trainer *t, iv_flat_kind kind, size_t first, size_t count, const float *in, iv_error *err);
/* Rounds the master weights into another model of this shape, in any memory; NULL: into the trainer's own. Collective
 * with shard_parameters. */
iv_status iv_train_write_model(iv_trainer *t, iv_model *first, iv_error *err);
/* After master weights and moments were replaced: the step count, and the weights that the model runs on. */
iv_status iv_train_restore(iv_trainer *t, uint64_t steps, iv_error *err);
/* The hash of the present master weights. Collective over processes. */
iv_status iv_train_weights_hash(iv_trainer *t, uint8_t out[32], iv_error *err);

/* Log-probabilities alone. Collective over processes, as the others. */
iv_status iv_train_score(iv_trainer *t, const iv_train_batch *batch, iv_error *err);

/* Log-probabilities, and the sums of the gradients of all ranks. IV_NOT_FINITE names the tensor whose gradient is not
 * finite; nothing has changed then. *norm: of the mean gradient. */
iv_status iv_train_gradients(iv_trainer *t, const iv_train_batch *batch, double denominator, iv_train_result *result,
                             iv_error *err);

/* Applies the gradients of the last call. */
iv_status iv_train_apply(iv_trainer *t, const iv_train_update *update, iv_train_result *result, iv_error *err);

/* Moments of zero and step 0, as after opening. The weights stay. */
iv_status iv_train_forget(iv_trainer *t, iv_error *err);

#endif
