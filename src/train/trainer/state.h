/* state.h: the trainer's memory, shared by its files. */
#ifndef IV_TRAIN_TRAINER_STATE_H
#define IV_TRAIN_TRAINER_STATE_H

#include "base/size.h"
#include "train/flat/flat_ops.h"
#include "train/trainer/trainer.h"

#include <pthread.h>

/* Who exchanges gradients and weights, and how. An owner has a slice of each flat buffer. */
typedef enum train_transport {
    IV_TRAIN_BY_MEMORY, /* one process: the CPU owns all, or its GPUs a slice each, which they read over NVLink; */
    IV_TRAIN_BY_COMM,   /* processes, through their memory (iv_comm); */
    IV_TRAIN_BY_NCCL,   /* processes with one GPU each, from GPU to GPU */
    IV_TRAIN_TRANSPORTS
} train_transport;

/* A memory of this process and the flat buffers in it: of the CPU for all ranks, or of a GPU for one tensor-parallel
 * rank. The devices divide the process's slice: each has its slice of moments and reduced gradient; of the master
 * weights all, or, if they are sharded, its slice. */
typedef struct train_device {
    iv_gpu *gpu; /* NULL: the CPU */
    iv_flat *flat;
    iv_model *model;            /* that its data-parallel rank computes with: the first of `tp` ranks */
    float *master, *moments[2]; /* [master_count], of the elements from master_first on; [count] each */
    float *reduced;  /* [reduced_count] gradients from element reduced_first on: one device: rank 0's sums, if these are
                      * whole; else `gradient` */
    float *gradient; /* [count], or NULL */
    size_t first, count, reduced_first, reduced_count, master_first, master_count;
    float *chunks;   /* of sharded master weights: [chunks_capacity] */
    float *vectors;  /* of sharded GPUs, and with an adapter: norms and biases (iv_parameters_vectors) */
    float *received; /* by NCCL, for buckets: [processes - 1] rounds */
} train_device;

/* One data-parallel rank of this process. */
typedef struct train_rank {
    iv_trainer *t;
    train_device *device;              /* of its sums: the first of `tp` */
    size_t index;                      /* in the world */
    iv_axis_sums sums;                 /* whole; NULL if none were wanted yet */
    float *bucket;                     /* [bucket_capacity], if they can be in buckets */
    iv_learner *learner[IV_RANKS_MAX]; /* [local_tp], and these */
    iv_comm *comm[IV_RANKS_MAX];
    iv_pool *pool[IV_RANKS_MAX];
    /* The step. */
    iv_learner_sequence *sequences;
    uint32_t *of; /* [count]: their indices in the batch */
    size_t count, capacity, passes;
} train_rank;

/* Of the threads of this process's ranks in a pass. */
typedef struct train_barrier {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    size_t arrived, turn;
    iv_error error; /* of the first that failed */
} train_barrier;

struct iv_trainer {
    iv_train_options o;
    iv_pool *pool;
    train_device *devices; /* [device_count]: 1 on a CPU, else local * tp GPUs, those of a data-parallel rank together;
                            * the first has o.gpu and o.model, if these are given */
    size_t device_count;
    iv_model *model;       /* the first device's */
    const iv_model *named; /* whose tensors the flat buffers hold: the same, or the table of an adapter that learns */
    iv_learned_adapter *learned; /* NULL: all weights learn */
    const iv_adapter *live;      /* its present A and B, rounded: */
    iv_adapters adapters;        /* the one in this table */
    size_t process_count, process;
    train_transport transport;
    size_t local, local_tp; /* data-parallel ranks of this process, tensor-parallel ranks there of each: all, or one */
    size_t spread;          /* processes of a data-parallel rank: 1, or the tensor-parallel ranks */
    size_t elements, all;   /* of a flat buffer; with a tied embedding's look-ups behind it */
    size_t first, count;    /* the process's slice */
    train_rank *ranks;      /* [local] */
    size_t chunk_capacity,
        chunks_capacity; /* elements of a chunk of master weights; of a device's memory for several */
    size_t *vector_at;   /* of sharded GPUs: of each tensor, in `vectors` */
    bool may_bucket;     /* gradients are added in buckets (a layer, the head) if a step is one pass; */
    bool bucketed;       /* in this one */
    bool buckets_agreed; /* all processes have begun their first bucket */
    size_t bucket_capacity;
    train_barrier barrier;
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

/* The owner's slice of a flat buffer. */
static inline void iv_train_slice_owned(const iv_trainer *t, size_t process, size_t *first, size_t *count) {
    iv_flat_slice(t->elements, process, t->process_count, first, count);
}
/* The elements that two ranges share: how many, and the first of them. */
static inline size_t iv_train_overlap(size_t a, size_t a_count, size_t b, size_t b_count, size_t *begin) {
    size_t end = iv_size_min(a + a_count, b + b_count);
    *begin = iv_size_max(a, b);
    return *begin < end ? end - *begin : 0;
}

/* ---- devices.c */
/* Elements of a round from each process, a multiple of IV_PARAMETER_BLOCK. Tests replace it. */
size_t iv_train_round_elements(void);
/* Opens the devices, without their models and buffers, and the transport. */
iv_status iv_train_open_devices(iv_trainer *t, iv_error *err);
void iv_train_close_devices(iv_trainer *t);
/* Runs `run` for every device at once, a thread each; the first one's error. */
typedef iv_status (*iv_train_device_run)(iv_trainer *t, train_device *d, void *context, iv_error *err);
iv_status iv_train_on_devices(iv_trainer *t, iv_train_device_run run, void *context, iv_error *err);
/* The slice of a device's master weights, and of its reduced gradient, that it updates. */
static inline float *iv_train_own_master(const train_device *d) { return d->master + (d->first - d->master_first); }
static inline float *iv_train_own_gradient(const train_device *d) { return d->reduced + (d->first - d->reduced_first); }

/* ---- reduce_scatter.c */
/* Adds the ranks' sums in the tree, every owner its slice, into `reduced`. */
iv_status iv_train_reduce(iv_trainer *t, iv_error *err);
/* Before a step of tensor-parallel ranks that are processes: +0 where the last reduction wrote. */
iv_status iv_train_clear_spread(iv_trainer *t, iv_error *err);
/* Whether this trainer can add gradients in buckets: sharded GPUs that reach each other. */
bool iv_train_may_bucket(const iv_trainer *t);
iv_status iv_train_buckets_open(iv_trainer *t, iv_error *err);
/* Before a step, collective: whether it adds them in buckets; one_pass: that is so of all ranks of this process. */
iv_status iv_train_buckets_choose(iv_trainer *t, bool one_pass, iv_error *err);
/* Where the devices have their reduced gradient in this step. */
void iv_train_buckets_view(iv_trainer *t);
/* iv_learner_step.bucket: of a rank's tensor-parallel rank. */
iv_status iv_train_bucket_ends(train_rank *r, size_t tp, size_t begin, size_t end, iv_error *err);
/* A thread has failed: no other waits for it. */
void iv_train_buckets_fail(iv_trainer *t, iv_status status, const iv_error *err);
/* Once a step, before the first bucket or after a failure: all processes' least status. */
iv_status iv_train_buckets_agree(iv_trainer *t, iv_status status, iv_error *err);

/* ---- all_gather.c */
/* A range of a flat buffer that cuts no tensor's row. */
typedef struct train_chunk {
    size_t begin, end;
    size_t slot; /* of the device's memory for chunks */
} train_chunk;
/* Chunks that are gathered and written together. */
typedef struct train_chunks {
    train_chunk of[IV_VIRTUAL_RANKS_MAX];
    size_t count;
    bool owned;      /* of[k] is in owner k's slice alone, or empty */
    float *host;     /* [2 * chunk_capacity], of GPUs whose processes exchange by iv_comm */
    iv_model *first; /* to write: NULL: each device's own */
} train_chunks;
/* The owners, and the slice of each. */
size_t iv_train_owners(const iv_trainer *t);
void iv_train_owner_slice(const iv_trainer *t, size_t owner, size_t *first, size_t *count);
/* Where a device has a chunk: an address is as aligned as in the flat buffer. */
enum { IV_TRAIN_CHUNK_ALIGN = 64 };
static inline float *iv_train_chunk_at(const iv_trainer *t, const train_device *d, const train_chunk *x) {
    return d->chunks + x->slot * (t->chunk_capacity + IV_TRAIN_CHUNK_ALIGN) + x->begin % IV_TRAIN_CHUNK_ALIGN;
}
/* Makes every replica of the master weights whole, where they are not sharded. */
iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err);
/* Sharded master weights: the chunks of all owners, to every device. */
iv_status iv_train_gather_chunks(iv_trainer *t, train_chunks *x, iv_error *err);

/* ---- weights.c: master weights from and to models. */
iv_status iv_train_weights_open(iv_trainer *t, iv_error *err);
void iv_train_weights_close(iv_trainer *t);

/* ---- adapter.c: an adapter that learns. */
iv_status iv_train_adapter_open(iv_trainer *t, iv_error *err);
void iv_train_adapter_close(iv_trainer *t);
iv_status iv_train_adapter_begin(iv_trainer *t, iv_error *err);  /* the first values of the master weights */
iv_status iv_train_adapter_follow(iv_trainer *t, iv_error *err); /* rounds them for the next pass, if the CPU learns */
void iv_train_adapter_opened(iv_trainer *t);                     /* all learners are open */
size_t iv_train_adapter_bytes(const iv_trainer *t);

/* ---- totals.c */
/* The sum of squares of the reduced gradient, the same in all processes. */
iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err);
/* The lowest element of the reduced gradient that is not finite, the same in all processes; SIZE_MAX: none. */
iv_status iv_train_find_bad(iv_trainer *t, size_t *at, float *value, iv_error *err);
/* Every process's log-probabilities of the step, in every process. */
iv_status iv_train_share_logprobs(iv_trainer *t, iv_error *err);

#endif
