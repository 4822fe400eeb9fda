/* trainer_state.h: the trainer's memory, shared by its files. */
#ifndef IV_TRAIN_TRAINER_STATE_H
#define IV_TRAIN_TRAINER_STATE_H

#include "train/rows.h"
#include "train/trainer.h"

#include <pthread.h>

/* A memory of this process and the rows in it: of the CPU for all ranks, or of a GPU for one tensor-parallel rank. The
 * devices divide the process's slice: each has its part of moments and reduced gradient; of the master weights all, or,
 * if they are sharded, its part. */
typedef struct train_device {
    iv_gpu *gpu; /* NULL: the CPU */
    iv_rows *rows;
    iv_model *model;            /* that its data-parallel rank computes with: the first of `tp` ranks */
    float *master, *moments[2]; /* [master_count], of the row from master_first on; [count] each */
    float *reduced; /* [reduced_count] gradients from element reduced_first on: one device: rank 0's sums, if
                     * these are whole; else `slice` */
    float *slice;   /* [count], or NULL */
    size_t first, count, reduced_first, reduced_count, master_first, master_count;
    float *piece, *vectors; /* of sharded GPUs: room for a piece of the row; norms and biases (iv_parameters_vectors) */
    float *room;            /* of linked GPUs, for sums in parts: [processes - 1] rounds */
} train_device;

/* One data-parallel rank of this process. */
typedef struct train_rank {
    iv_trainer *t;
    train_device *device;              /* of its sums: the first of `tp` */
    size_t index;                      /* in the world */
    iv_axis_sums sums;                 /* whole; NULL if none were wanted yet */
    float *part;                       /* [part_most], for sums in parts */
    iv_learner *learner[IV_RANKS_MAX]; /* [local_tp], and these */
    iv_comm *comm[IV_RANKS_MAX];
    iv_pool *pool[IV_RANKS_MAX];
    /* The step. */
    iv_learner_sequence *sequences;
    uint32_t *of; /* [count]: their indices in the batch */
    size_t count, capacity, passes;
} train_rank;

/* Where the threads of a process meet in a pass. */
typedef struct train_meeting {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    size_t arrived, turn;
    iv_error error; /* of the first that failed */
} train_meeting;

struct iv_trainer {
    iv_train_options o;
    iv_pool *pool;
    train_device *devices; /* [device_count]: 1 on a CPU, else local * tp GPUs, those of a data-parallel rank together;
                            * the first has o.gpu and o.model, if these are given */
    size_t device_count;
    iv_model *model; /* the first device's */
    size_t process_count, process;
    size_t local, local_tp; /* data-parallel ranks of this process, tensor-parallel ranks there of each: all, or one */
    size_t spread;          /* processes of a data-parallel rank: 1, or the tensor-parallel ranks */
    size_t elements, all;   /* of the row; with a tied embedding's look-ups behind it */
    size_t first, count;    /* the process's slice */
    train_rank *ranks;      /* [local] */
    size_t piece_most;      /* elements of a piece; */
    size_t room_most;       /* those of `piece`, which holds several */
    size_t *vector_at;      /* of sharded GPUs: of each tensor, in `vectors` */
    bool parts_may;         /* sums in parts: if a step is one pass; */
    bool parts;             /* in this one */
    bool parts_agreed;      /* all processes have begun their first part */
    size_t part_most;
    train_meeting meeting;
    uint64_t steps;
    bool *decays; /* [blocks of the process's slice] */
    double total; /* squares of the last gradients */
    bool ready;   /* gradients wait to be applied */
    /* The step. */
    const iv_train_batch *batch;
    bool gradients;
    uint32_t *order;
    size_t *begin, *lengths;
    size_t order_max;
    struct iv_train_public *public; /* of one that iv_trainer_open made; else NULL */
};

/* trainer_exchange.c: what process p sums: its slice of the row, or of a tied embedding's look-ups behind it, at *at of
 * the sums. */
size_t iv_train_part_of(const iv_trainer *t, size_t p, bool tied, size_t *at);
/* Of linked GPUs: the sums of all processes in the tree, in this one's part; all weights in every process. */
iv_status iv_train_exchange_sums(iv_trainer *t, bool tied, iv_error *err);
iv_status iv_train_exchange_weights(iv_trainer *t, iv_error *err);

/* trainer_reduce.c: adds the ranks' sums in the tree, into the process's slice of `reduced`. */
iv_status iv_train_reduce(iv_trainer *t, iv_error *err);
/* Before a step of tensor-parallel ranks that are processes: +0 where the last reduction wrote. */
iv_status iv_train_clear_spread(iv_trainer *t, iv_error *err);
/* The sum of squares of the reduced gradient, the same in all processes. */
iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err);
/* The lowest element of the reduced gradient that is not finite, the same in all processes; SIZE_MAX: none. */
iv_status iv_train_find_bad(iv_trainer *t, size_t *at, float *value, iv_error *err);
/* After a collective call whose blocks were read: before the caller's own memory changes. */
iv_status iv_train_have_read(iv_trainer *t, iv_error *err);
/* Every process's log-probabilities of the step, in every process. */
iv_status iv_train_share_logprobs(iv_trainer *t, iv_error *err);
/* Makes all processes' master weights whole, where they are not sharded. */
iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err);

/* trainer_devices.c: elements of a round from each process, a multiple of IV_PARAMETER_BLOCK. Tests replace it. */
size_t iv_train_round_elements(void);
/* Opens the devices, without their models and rows. */
iv_status iv_train_open_devices(iv_trainer *t, iv_error *err);
void iv_train_close_devices(iv_trainer *t);
/* Runs `run` for every device at once, a thread each; the first one's error. */
typedef iv_status (*iv_train_device_run)(iv_trainer *t, train_device *d, void *context, iv_error *err);
iv_status iv_train_on_devices(iv_trainer *t, iv_train_device_run run, void *context, iv_error *err);
/* Adds the sums of this process's ranks, each device its part. Several devices. */
iv_status iv_train_reduce_devices(iv_trainer *t, iv_error *err);
/* Elements [at, at + n) of the sums of this process's ranks, added, into its memory. */
iv_status iv_train_read_sums(iv_trainer *t, size_t at, size_t n, float *out, iv_error *err);
/* Every device receives the others' parts of the master weights. */
iv_status iv_train_share_master(iv_trainer *t, iv_error *err);
/* The first master weights and packed matrices of every device: copies of the first one's. */
iv_status iv_train_copy_master(iv_trainer *t, iv_error *err);
/* Rounds the master weights into a model: NULL: that of every data-parallel rank. */
iv_status iv_train_write_devices(iv_trainer *t, iv_model *first, iv_error *err);

/* The part of a device's master weights, and of its reduced gradient, that it updates. */
static inline float *iv_train_own_master(const train_device *d) { return d->master + (d->first - d->master_first); }
static inline float *iv_train_own_gradient(const train_device *d) { return d->reduced + (d->first - d->reduced_first); }

/* trainer_shard.c: a model's weights into this process's slice of the master weights, and all processes' slices,
 * rounded, into a model (collective). Tensor by tensor, in pieces. */
iv_status iv_train_shard_read(iv_trainer *t, iv_error *err);
iv_status iv_train_shard_write(iv_trainer *t, iv_model *first, iv_error *err);
/* Elements [first, first + n) of the row, of all processes, into this process's memory; collective. piece: [n], of
 * GPUs [2 n]: what this process has of them is staged behind them. */
iv_status iv_train_shard_gather(iv_trainer *t, size_t first, size_t n, float *piece, iv_error *err);
/* The elements of process p among [first, first + n) of the row: how many, and the first of them. */
size_t iv_train_shard_overlap(const iv_trainer *t, size_t p, size_t first, size_t n, size_t *begin);

/* trainer_parts.c: whether this trainer's GPUs can have sums in parts: sharded ones that reach each other. */
bool iv_train_parts_may(const iv_trainer *t);
iv_status iv_train_parts_open(iv_trainer *t, iv_error *err);
/* Before a step, collective: whether it makes its sums in parts; one_pass: that is so of all ranks of this process. */
iv_status iv_train_parts_choose(iv_trainer *t, bool one_pass, iv_error *err);
/* Where the devices have their reduced gradient in this step. */
void iv_train_parts_view(iv_trainer *t);
/* iv_learner_step.part: of a rank's tensor-parallel rank. */
iv_status iv_train_part_ends(train_rank *r, size_t tp, size_t begin, size_t end, iv_error *err);
/* A thread has failed: no other waits for it. */
void iv_train_parts_fail(iv_trainer *t, iv_status status, const iv_error *err);
/* Once a step, before the first part or after a failure: all processes' least status. */
iv_status iv_train_parts_agree(iv_trainer *t, iv_status status, iv_error *err);

/* trainer_pieces.c: the same of GPUs: every one has its part of the master weights, and room for a piece of the row.
 * Opens the room of all devices. */
iv_status iv_train_pieces_open(iv_trainer *t, iv_error *err);
void iv_train_pieces_close(iv_trainer *t);
/* At the start: every part of the master weights, vectors, and the packed weights of the GPUs that did not read them,
 * from the first GPU's model. */
iv_status iv_train_pieces_read(iv_trainer *t, iv_error *err);
/* The master weights of all GPUs, rounded, into a model; NULL: that of every data-parallel rank. Collective. */
iv_status iv_train_pieces_write(iv_trainer *t, iv_model *first, iv_error *err);

#endif
