/* trainer_state.h: the trainer's memory, shared by its files. */
#ifndef IV_TRAIN_TRAINER_STATE_H
#define IV_TRAIN_TRAINER_STATE_H

#include "train/rows.h"
#include "train/trainer.h"

/* One data-parallel rank of this process. */
typedef struct train_rank {
    iv_trainer *t;
    size_t index; /* in the world */
    iv_axis_sums sums;
    iv_learner *learner[IV_RANKS_MAX]; /* [tp] */
    iv_comm *comm[IV_RANKS_MAX];
    iv_pool *pool[IV_RANKS_MAX];
    /* The step. */
    iv_learner_sequence *sequences;
    uint32_t *of; /* [count]: their indices in the batch */
    size_t count, capacity, passes;
} train_rank;

struct iv_trainer {
    iv_train_options o;
    iv_model *model;
    iv_gpu *gpu; /* NULL: the CPU. Its own unless o.gpu has it */
    iv_pool *pool;
    iv_rows *rows;                        /* all rows below are its memory */
    size_t local, process_count, process; /* data-parallel ranks of this process */
    size_t elements, all;                 /* of the row; with a tied embedding's look-ups behind it */
    size_t first, count;                  /* the process's slice */
    size_t master_first, master_count;    /* of the row: all, or the slice */
    float *master, *moments[2];           /* [master_count]; [count] each */
    float *reduced;                       /* [all]: rank 0's sums */
    train_rank *ranks;                    /* [local] */
    uint64_t steps;
    bool *decays; /* [blocks of the slice] */
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

/* trainer_reduce.c: adds the ranks' sums in the tree, into the process's slice of `reduced`. */
iv_status iv_train_reduce(iv_trainer *t, iv_error *err);
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
static inline float *iv_train_own_master(iv_trainer *t) { return t->master + (t->first - t->master_first); }

/* trainer_shard.c: a model's weights into this process's slice of the master weights, and all processes' slices,
 * rounded, into a model (collective). Tensor by tensor, in pieces. */
iv_status iv_train_shard_read(iv_trainer *t, iv_error *err);
iv_status iv_train_shard_write(iv_trainer *t, iv_model *first, iv_error *err);

#endif
